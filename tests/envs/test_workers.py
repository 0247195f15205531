"""Environments in workers are those of one process, bit for bit; and whatever happens to a worker is said by name."""

import functools
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import tree

from agentkit import envs
from agentkit.envs import workers
from agentkit.envs.resumable import episode_seed
from agentkit.envs.workers import EnvironmentWorkerError
from agentkit.errors import ConfigError, SpecError, UnknownNameError
from agentkit.experiment.checks.step_watch import StepTimeoutError, StepWatch
from agentkit.wrappers.step_limit import StepLimit
from tests.envs.workers_own import Echo, Named, Tidy, sample
from tests.processes import is_alive

ROOT = pathlib.Path(__file__).resolve().parents[2]


def assert_same(one, other):
    for left, right in zip(tree.flatten(tuple(one)), tree.flatten(tuple(other)), strict=True):
        assert left.dtype == right.dtype
        np.testing.assert_array_equal(left, right)


def wait_until_gone(process_ids, seconds=10.0):
    end = time.monotonic() + seconds
    while any(map(is_alive, process_ids)):
        assert time.monotonic() < end, "a worker outlived its parent"
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("environment", "wrappers"), [(Echo, [functools.partial(StepLimit, max_steps=3)]), (Echo, []), ("mine:echo", [])]
)
def test_time_steps_and_states_are_those_of_one_process(environment, wrappers, monkeypatch):
    monkeypatch.setattr(envs.prefixes, "_registered", {"mine": lambda name, seed: Echo(seed)})
    make = functools.partial(envs.make, environment, seed=7, num_envs=5, wrappers=wrappers)
    here, there = make(), make(workers=2)
    try:
        assert (here.observation_spec(), here.action_spec()) == (there.observation_spec(), there.action_spec())
        rng = np.random.default_rng(0)
        assert_same(there.reset(), here.reset())
        for _ in range(17):
            actions = sample(rng, 5)
            assert_same(there.step(actions), here.step(actions))
        mine, theirs = here.save(), there.save()
        for _ in range(3):
            actions = sample(rng, 5)
            here.step(actions), there.step(actions)
        assert_same(there.restore(mine), here.restore(theirs))  # Each takes the other's.
        for _ in range(9):
            actions = sample(rng, 5)
            assert_same(there.step(actions), here.step(actions))
        kept = there.step(actions).observation["who"]
        copied = kept.copy()
        assert np.any(there.step(actions).observation["who"] != copied)
        np.testing.assert_array_equal(kept, copied)  # A later step changes none.
        assert there.environments[4].name == here.environments[4].name != there.environments[0].name
        assert not hasattr(there.environments[0], "nothing") and not hasattr(there.environments[0], "reset")
    finally:
        there.close()
    there.close()
    wait_until_gone(there.process_ids, 1.0)


@pytest.mark.full
@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("raise", r"Environment 2 \(worker 1, process \d+\) raised in step: ValueError: the door is stuck \(.*:\d+\)"),
        ("kill", r"worker process of environments 0 to 1 \(worker 0, process \d+\) was killed by SIGKILL"),
        ("exit", r"worker process of environments 0 to 1 \(worker 0, process \d+\) ended with exit code 3"),
    ],
)
def test_an_end_of_a_worker_is_an_error_that_names_environments_and_cause(fault, message):
    number = 2 if fault == "raise" else 1
    broken = envs.make(OneOfThem(number, seed=1, fault=fault), seed=1, num_envs=4, workers=2)
    try:
        broken.reset()
        actions = sample(np.random.default_rng(0), 4)
        start = time.monotonic()
        with pytest.raises(EnvironmentWorkerError, match=message) as raised:
            for _ in range(4):
                broken.step(actions)
        assert time.monotonic() - start < 20.0
        if fault == "raise":
            assert any("workers_own.py" in note for note in raised.value.__notes__)
            with pytest.raises(EnvironmentWorkerError, match="has not ended well"):
                broken.step(actions)  # Nothing half done is gone on from.
    finally:
        broken.close()
    wait_until_gone(broken.process_ids, 1.0)


class OneOfThem:
    """Makes environments of which the one of this number has these arguments."""

    def __init__(self, number, seed, of=Echo, **arguments):
        self.seed, self.of, self.arguments, self.others = episode_seed(seed, number), of, arguments, {}

    def __call__(self, seed):
        return self.of(seed, **(self.arguments if seed == self.seed else self.others))


def shared_memory(process_id):
    """Returns the paths of what a process writes to and shares. (Others have theirs in /dev/shm meanwhile.)"""
    lines = [line.split(maxsplit=5) for line in pathlib.Path(f"/proc/{process_id}/maps").read_text().splitlines()]
    return {words[5] for words in lines if words[1] == "rw-s" and len(words) > 5 and words[5].startswith("/")}


PARENT = """
import sys, time
from agentkit import envs
from tests.envs.workers_own import Echo
made = envs.make(Echo, num_envs=3, workers=3, fault="hang", at=2)
made.reset()
from tests.envs.workers_own import sample
import numpy as np
made.step(sample(np.random.default_rng(0), 3))
print(*made.process_ids, flush=True)
made.step(sample(np.random.default_rng(0), 3))
"""


@pytest.mark.parametrize("to_all", [False, True])
def test_workers_die_with_their_parent_also_in_a_step_and_leave_no_memory(to_all):
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}"}
    with subprocess.Popen(
        [sys.executable, "-c", PARENT], stdout=subprocess.PIPE, env=environment, start_new_session=True, text=True
    ) as parent:
        try:
            process_ids = [int(word) for word in parent.stdout.readline().split()]
            assert len(process_ids) == 3 and all(map(is_alive, process_ids))
            time.sleep(0.3)  # They are in the step that hangs, and read nothing.
            memory = [path for process_id in process_ids for path in shared_memory(process_id)]
            assert len(memory) >= 3
            if to_all:  # As a terminal's Ctrl-C: the parent decides what becomes of it.
                os.killpg(parent.pid, signal.SIGTERM)
            else:
                parent.kill()
            wait_until_gone(process_ids)
        finally:
            parent.kill()
    assert not [path for path in memory if os.path.exists(path)]


def test_signals_to_all_processes_leave_the_workers_to_their_parent():
    made = envs.make(Echo, num_envs=2, workers=2)
    try:
        made.reset()
        for process_id in made.process_ids:
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                os.kill(process_id, number)
        assert made.step(sample(np.random.default_rng(0), 2)).step_type.tolist() == [1, 1]
        assert len(made.save()) == 2
    finally:
        made.close()


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"num_envs": 4, "workers": 5}, ConfigError, "expected 1 to num_envs=4, found 5"),
        ({"workers": 2}, ConfigError, "--num-envs"),
        ({"num_envs": 4, "ready": 2}, ConfigError, "--workers"),
        ({"num_envs": 4, "workers": 4, "ready": 4}, ConfigError, "expected 1 to 3 of num_envs=4, found 4"),
        ({"environment": "envpool:Pong-v5", "num_envs": 4, "workers": 2}, ConfigError, "threads of its own"),
        (
            {"environment": functools.partial(Echo, fault=threading.Lock()), "num_envs": 2, "workers": 1},
            ConfigError,
            "cannot be sent to worker",
        ),
        ({"environment": Echo(), "num_envs": 2, "workers": 1, "slow": 3.0}, ConfigError, "slow cannot be given"),
    ],
)
def test_what_cannot_be_shared_out_is_refused_before_a_process_starts(arguments, error, message, monkeypatch):
    monkeypatch.setattr(subprocess, "Popen", None)
    with pytest.raises(error, match=message):
        envs.make(arguments.pop("environment", Echo), **arguments)


@pytest.mark.full
def test_errors_of_making_are_those_of_one_process():
    with pytest.raises(UnknownNameError, match="Did you mean 'fault'"):
        envs.make(Echo, num_envs=2, workers=2, falt="")
    made = envs.make(Echo, num_envs=2, workers=1)
    try:
        with pytest.raises(SpecError, match=r"expected shape \[2\], found \[3\]"):
            made.step(sample(np.random.default_rng(0), 3))
    finally:
        made.close()


@pytest.mark.full
def test_whoever_is_ready_is_served_in_its_own_order_and_nobody_is_passed_over():
    num_envs, ready = 5, 2
    made = envs.make(OneOfThem(4, seed=3, seconds=0.3), seed=3, num_envs=num_envs, workers=3, ready=ready)
    try:
        made.async_reset()
        rng = np.random.default_rng(0)
        sent, counts, served = {}, {}, np.zeros(num_envs, int)
        for turn in range(150):
            numbers, timestep = made.recv()
            assert len(numbers) == ready and np.all(np.diff(numbers) > 0)
            for row, i in enumerate(numbers.tolist()):
                who, action = timestep.observation["who"][row], timestep.observation["action"][row]
                if timestep.step_type[row] == 0:
                    assert who[2] == 0 and timestep.reward[row] == 0 and timestep.discount[row] == 1
                else:
                    assert who[2] == counts[i] + 1
                    np.testing.assert_array_equal(action, sent[i])  # The one that was meant for it.
                counts[i] = who[2]
            actions = sample(rng, ready)
            for row, i in enumerate(numbers.tolist()):
                sent[i] = np.append(actions["b"][row], np.float32(actions["a"][row]))
            served[numbers] += 1
            if turn % 20 == 0:
                assert made.environments[3].count >= 0  # A question in between loses no answer.
            made.send(actions, numbers)
        assert np.all(served > 0), served
        assert served[:3].min() > 2 * served[4], served  # The slow one did not hold up those of other workers.
        assert not made.resumable
    finally:
        made.close()


@pytest.mark.full
def test_one_that_hangs_while_others_are_ready_is_named(monkeypatch):
    monkeypatch.setattr(workers, "CLOSE_SECONDS", 1.0)
    made = envs.make(OneOfThem(2, seed=3, fault="hang"), seed=3, num_envs=3, workers=3, ready=1)
    with StepWatch("Echo", 1.0) as watch:
        watched = watch.watched(made)
        try:
            watched.async_reset()
            with pytest.raises(
                StepTimeoutError, match=r"step\(\) for 1 s.*from environment 2 \(worker 2, process \d+\)\."
            ):
                while True:
                    numbers, _ = watched.recv()
                    watched.send(sample(np.random.default_rng(0), 1), numbers)
        finally:
            watched.close()
    wait_until_gone(made.process_ids, 1.0)


@pytest.mark.full
def test_one_that_hangs_is_named_and_those_that_answered_are_not(monkeypatch):
    monkeypatch.setattr(workers, "CLOSE_SECONDS", 1.0)
    made = envs.make(OneOfThem(1, seed=3, fault="hang"), seed=3, num_envs=2, workers=2)
    with StepWatch("Echo", 1.0) as watch:
        watched = watch.watched(made)
        try:
            with pytest.raises(StepTimeoutError, match=r"Nothing came from environment 1 \(worker 1, process \d+\)\."):
                for _ in range(4):
                    watched.step(sample(np.random.default_rng(0), 2))
        finally:
            watched.close()


def test_a_value_that_is_asked_for_and_never_comes_is_an_error(monkeypatch):
    monkeypatch.setattr(workers, "CLOSE_SECONDS", 1.0)
    made = envs.make(Tidy, num_envs=2, workers=2)
    with StepWatch("Tidy", 1.0) as watch:
        watched = watch.watched(made)
        try:
            with pytest.raises(StepTimeoutError, match=r"get\(\) for 1 s.*from environment 1 \(worker 1, process"):
                watched.environments[1].slow_value  # noqa: B018
            with pytest.raises(EnvironmentWorkerError, match="has not ended well"):
                watched.step(sample(np.random.default_rng(0), 2))  # Would take the value for an answer.
        finally:
            watched.close()


@pytest.mark.full
@pytest.mark.parametrize("ready", [None, 1])
def test_environments_are_closed_also_in_a_step_and_only_those_that_hang_are_killed(ready, tmp_path, monkeypatch):
    monkeypatch.setattr(workers, "CLOSE_SECONDS", 3.0)
    factory = OneOfThem(2, 3, of=Tidy, folder=str(tmp_path), seconds=0.2, fault="hang", at=1)
    factory.others = {"folder": str(tmp_path), "seconds": 0.2}
    made = envs.make(factory, seed=3, num_envs=3, workers=3, ready=ready)
    if ready is None:
        made.reset()
        for worker in made._workers:  # As an interrupted step leaves them.
            worker.request(b"s", (0,))
    else:
        made.async_reset()
        asked = set()
        while asked != {0, 1, 2}:
            numbers, _ = made.recv()
            asked.update(numbers.tolist())
            made.send(sample(np.random.default_rng(0), 1), numbers)
    allowed, taken = [], []

    def wait(worker, seconds, wait=workers.WorkerHandle.wait):
        start = time.monotonic()
        wait(worker, seconds)
        allowed.append(seconds)
        taken.append(time.monotonic() - start)

    monkeypatch.setattr(workers.WorkerHandle, "wait", wait)
    silent = [worker.silent_seconds() for worker in made._workers]
    made.close()
    for number, seconds in enumerate(allowed):  # They have the time together, and not one after another.
        assert seconds <= max(0.0, 3.0 - silent[number] - sum(taken[:number]))
    assert {path.name for path in tmp_path.iterdir()} == {str(episode_seed(3, i)) for i in range(2)}
    wait_until_gone(made.process_ids, 1.0)


STOPPED = """
import numpy as np
from agentkit import envs
from agentkit.experiment.checks.step_watch import StepWatch
from tests.envs.workers_own import Echo, sample
made = envs.make(Echo, num_envs=3, workers=3, ready=1, seconds=0.4)
with StepWatch("Echo", 2.0) as watch:
    watched = watch.watched(made)
    watched.async_reset()
    for turn in range(20):
        numbers, _ = watched.recv()
        watched.send(sample(np.random.default_rng(turn), 1), numbers)
        if turn == 6:
            print("runs", flush=True)
    watched.close()
print("ended", flush=True)
"""


@pytest.mark.full
def test_a_run_that_was_stopped_for_a_while_goes_on():
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}"}
    with subprocess.Popen(
        [sys.executable, "-c", STOPPED], stdout=subprocess.PIPE, env=environment, start_new_session=True, text=True
    ) as process:
        try:
            assert process.stdout.readline() == "runs\n"
            os.killpg(process.pid, signal.SIGSTOP)  # As Ctrl-Z: the workers, too.
            time.sleep(3.0)
            os.killpg(process.pid, signal.SIGCONT)
            assert process.stdout.readline() == "ended\n"
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def test_workers_outlive_the_thread_that_made_them_and_hear_the_end_of_their_parent():
    made = []
    thread = threading.Thread(target=lambda: made.append(envs.make(Echo, num_envs=2, workers=2)))
    thread.start()
    thread.join()
    time.sleep(0.2)
    try:
        made[0].reset()
        assert made[0].step(sample(np.random.default_rng(0), 2)).step_type.tolist() == [1, 1]
        made[0]._workers[0]._connection.close()  # As the system does when the parent is killed.
        wait_until_gone(made[0].process_ids[:1])
    finally:
        made[0]._finalizer()


@pytest.mark.full
def test_arguments_and_evaluation_reach_environments_in_workers_as_in_one_process(monkeypatch):
    monkeypatch.setattr(envs.prefixes, "_registered", {"mine": named_by_purpose})
    for environment, arguments, expected in [
        (Named, {"name": "left"}, "left"),
        ("mine:echo", {"evaluation": True}, "evaluation"),
        ("mine:echo", {}, "training"),
    ]:
        for number in (0, 2):
            made = envs.make(environment, num_envs=2, workers=number, **arguments)
            try:
                assert [each.label for each in made.environments] == [expected] * 2
            finally:
                made.close()


def named_by_purpose(name, seed, evaluation=False):
    return Named("evaluation" if evaluation else "training", seed)


def test_what_was_trained_in_workers_is_evaluated_where_there_are_none(monkeypatch):
    monkeypatch.setattr(sys, "platform", "win32")
    assert workers.check_workers("agentkit:catch", 4, 2, None) == 4
    with pytest.raises(ConfigError, match="need Linux or macOS"):
        envs.make(Echo, num_envs=2, workers=2)
