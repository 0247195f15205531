"""Every plan runs as a user runs it, and shows what it says it shows."""

import contextlib
import csv
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import psutil
import pytest

from tests import form
from tests.processes import is_alive

pytestmark = pytest.mark.both_stacks

ROOT = pathlib.Path(__file__).resolve().parents[2]
PLANS = sorted((ROOT / "examples" / "plans").glob("*.py"))
TESTED = {"dqn_and_ppo", "synchronous", "two_learners", "gradients_by_actors", "sharded_replay", "watcher"}
SECONDS = 600.0  # Under a minute on a machine of its own.


def start(name, *arguments):
    environment = dict(os.environ, PYTHONPATH=str(ROOT))
    return subprocess.Popen(
        [sys.executable, str(ROOT / "examples" / "plans" / f"{name}.py"), *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def shared_memory(nodes):
    """The files of parameters that these processes have mapped."""
    maps = [found.path for node in nodes for found in node.memory_maps()]
    return {pathlib.Path(path) for path in maps if path.startswith("/dev/shm/agentkit-")}


def run(name, *arguments):
    """What the plan prints; fails with its errors if it does not end well."""
    process = start(name, *arguments)
    try:
        output, errors = process.communicate(timeout=SECONDS)
    finally:
        kill(process)
    assert process.returncode == 0, f"{output}\n{errors}"
    return f"{output}\n{errors}"  # A test that finds nothing shows both.


def kill(process):
    """Ends it and its nodes, whatever happened."""
    with contextlib.suppress(psutil.NoSuchProcess):
        own = psutil.Process(process.pid)
        for each in [*own.children(recursive=True), own]:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
    process.wait(timeout=10.0)
    process.stdout.close()
    process.stderr.close()


def has_inserts(path):
    if not path.exists():
        return False
    with open(path, newline="") as file:
        # A reader beside the writer may see half of a line, the header's too.
        return any(int(row.get("inserted") or 0) for row in csv.DictReader(file))


def find(pattern, output):
    found = re.search(pattern, output)
    assert found, output
    return [float(group) for group in found.groups()]


def test_every_plan_is_tested():
    assert {path.stem for path in PLANS} == TESTED


@pytest.mark.parametrize("path", PLANS, ids=lambda path: path.stem)
def test_fits_on_a_page_and_is_in_the_table(path):
    text = path.read_text()
    form.ask_for(len(text.splitlines()) < 80, f"{path.name} does not fit on a page of 80 lines.")
    assert text.startswith('"""')
    assert "._" not in text and "import _" not in text  # Public parts only.
    assert f"]({path.name})" in (path.parent / "README.md").read_text()


@pytest.mark.full
def test_synchronous_keeps_the_ratio_and_the_newest_parameters():
    output = run("synchronous", "--num_steps", "250")
    pattern = r"{} +\(.*\): ([\d.]+) samples per insert, target (\d+).*\n +lacked ([\d.]+) updates on average, (\d+) at"
    ratio, target, mean, worst = find(pattern.format("synchronous"), output)
    assert target == 64.0
    assert ratio == pytest.approx(target, rel=0.02)  # The last look may be between an insert and its samples.
    assert (mean, worst) == (0.0, 0.0)
    _, target, mean, worst = find(pattern.format("asynchronous"), output)
    assert target == 64.0
    assert 0.0 < mean <= worst <= 2 * 1_000 + 40


@pytest.mark.full
def test_both_learners_learn_from_one_actor_and_go_on_from_their_folder(tmp_path):
    output = run("two_learners", "--run-directory", str(tmp_path / "run"))
    (active, updates), (passive, others) = (
        find(rf"{name}: return (-?[\d.]+) after (\d+) updates", output) for name in ("active", "passive")
    )
    assert active > 0.5  # A random policy gets about -0.6.
    assert passive > 0.0
    assert updates > 500 and others > 500
    (steps,) = find(r"(\d+) steps of one actor", output)
    assert steps >= 4_000
    output = run(
        "two_learners", "--run-directory", str(tmp_path / "run"), "--resume", "--num_steps", str(int(steps) + 200)
    )
    for name, before in (("active", updates), ("passive", others)):
        assert find(rf"{name}: return -?[\d.]+ after (\d+) updates", output)[0] > before


@pytest.mark.full
def test_ppo_and_dqn_learn_from_one_actor():
    output = run("dqn_and_ppo")
    for name, least in (("ppo", 40), ("dqn", 500)):  # PPO's updates are few and long.
        result, updates = find(rf"{name}: return (-?[\d.]+) after (\d+) updates", output)
        assert result > 0.5  # A random policy gets about -0.6.
        assert updates > least


@pytest.mark.full
def test_gradients_by_actors_learn():
    output = run("gradients_by_actors")
    (sent,), (applied,) = find(r"'gradients': (\d+)", output), find(r"'updates': (\d+)", output)
    assert sent > 500
    assert sent - 40 <= applied <= sent + 1  # At the end some wait in the queue, or are drawn ahead.
    (result,) = find(r"return (-?[\d.]+) \(1 is perfect\)", output)
    assert result > 0.7


@pytest.mark.full
def test_every_shard_holds_and_gives_its_part():
    output = run("sharded_replay")
    pattern = r"(?m)^{}transitions: (\d+) items; (\d+) samples of (\d+) inserts: ([\d.]+) each, target ([\d.]+)"
    for name in ("", "replay-1/"):
        size, sampled, inserted, ratio, target = find(pattern.format(name), output)
        assert 1_000 < size <= inserted
        assert sampled > 10_000
        # Min_replay_size inserts have no samples, and on a busy machine the actors end a thousand ahead of the learner.
        assert 0.4 * target < ratio < 1.1 * target
    (result,) = find(r"return (-?[\d.]+) \(1 is perfect\)", output)
    assert result > 0.5


@pytest.mark.full
def test_the_watcher_raises_its_alarm_and_writes_who_waits(tmp_path):
    path = tmp_path / "waits.csv"
    output = run("watcher", "--path", str(path))
    assert "alarm: writers of transitions wait: the learner is too slow" in output
    with open(path, newline="") as file:
        rows = list(csv.DictReader(file))
    assert sum(row["waiting"] == "writers" for row in rows) > 7
    assert all(int(row["inserted"]) >= int(row["items"]) for row in rows)


@pytest.mark.full
def test_ctrl_c_ends_a_plan_and_leaves_nothing_behind(tmp_path):
    path = tmp_path / "waits.csv"
    process = start("watcher", "--updates_per_step", "1", "--num_steps", "100000000", "--path", str(path))
    try:
        deadline = time.monotonic() + SECONDS
        while not has_inserts(path):
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.2)
        nodes = psutil.Process(process.pid).children(recursive=True)
        assert len(nodes) >= 4  # replay, learner, actor, watcher
        parameters = shared_memory(nodes)
        assert parameters and all(file.exists() for file in parameters)
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=120.0)
        assert process.returncode == 0, errors
        assert "stopped by SIGINT" in output
        assert not [node for node in nodes if is_alive(node.pid)]
        assert "Traceback" not in errors
    finally:
        kill(process)
    assert not [file for file in parameters if file.exists()]
