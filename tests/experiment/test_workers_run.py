"""Runs with environments in workers: equal bit for bit to runs without, also killed and resumed; or asynchronous."""

import threading
import types

import jax
import numpy as np
import pytest

from agentkit import checkpoint, specs
from agentkit.actors.policy import ALONE
from agentkit.agents import a2c, dqn, ppo, r2d2
from agentkit.callbacks import Callback
from agentkit.datasets import ReplayDataset
from agentkit.errors import CheckpointError, ConfigError
from agentkit.experiment import ExperimentConfig, gradient_node, run
from agentkit.experiment.checks.step_watch import StepWatch
from agentkit.experiment.launching.nodes import gradient_actor
from agentkit.experiment.launching.sharing.exploring import Start
from agentkit.experiment.policies.make_actor import make_adder, make_own_tables
from agentkit.experiment.training.hooks import Hooks
from agentkit.replay import InProcessReplay
from agentkit.variables import VariableStore


class Dies(Callback):
    """Raises at a step, as a kill would."""

    def __init__(self, step):
        self.step = step

    def on_step(self, run, step):
        if run.steps >= self.step:
            raise KeyboardInterrupt


AGENTS = {
    "dqn": lambda: dqn.make_agent(dqn.Config(hidden_sizes=(8,), min_replay_size=20, batch_size=8)),
    "ppo": lambda: ppo.make_agent(ppo.Config(hidden_sizes=(8,), segment_length=6, num_minibatches=1, num_epochs=1)),
    "r2d2": lambda: r2d2.make_agent(
        r2d2.Config(hidden_sizes=(8,), min_replay_size=4, batch_size=4, sequence_length=6, sequence_period=3, burn_in=2)
    ),
}


def train(directory, agent="dqn", *, resume=False, callbacks=(), num_steps=150, **settings):
    experiment = ExperimentConfig(
        agent=AGENTS[agent](),
        environment="agentkit:catch",
        num_steps=num_steps,
        run_directory=directory,
        num_envs=5,
        evaluation_period=0,
        checkpoint_period=40,
        **settings,
    )
    result = run(experiment, resume=resume, callbacks=callbacks)
    return result, checkpoint.read_latest(directory / "checkpoints")


def leaves(found):
    """Returns all that a checkpoint holds but the experiment, which says how many workers there are, by path."""
    flat = {}

    def walk(path, value):
        if isinstance(value, dict):
            for key, child in value.items():
                walk(f"{path}/{key}", child)
        else:
            flat[path] = value

    walk("", {key: value for key, value in found.state.items() if key != "experiment"})
    replay = found.path / "replay"
    files = {str(path.relative_to(replay)): path.read_bytes() for path in replay.rglob("*") if path.is_file()}
    assert any(name.endswith(".bin") for name in files)
    return flat | files


def assert_equal(one, other):
    mine, theirs = leaves(one), leaves(other)
    assert mine.keys() == theirs.keys() and len(mine) > 20
    for path, value in mine.items():
        if "seconds" not in path:
            np.testing.assert_array_equal(value, theirs[path], err_msg=path)


@pytest.mark.full
@pytest.mark.both_stacks
def test_with_workers_killed_and_resumed_it_ends_as_in_one_process_never_stopped(tmp_path):
    _, whole = train(tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "run", workers=2, callbacks=[Dies(113)])
    died = checkpoint.read_latest(tmp_path / "run" / "checkpoints")
    assert 0 < died.step < 150
    result, resumed = train(
        tmp_path / "run", workers=3, resume=True, callbacks=[Dies(1_000)]
    )  # Another number of workers.
    assert result.steps == 150 and result.updates > 0
    assert_equal(resumed, whole)


@pytest.mark.full
@pytest.mark.parametrize("agent", AGENTS)
def test_asynchronous_runs_learn_and_are_resumed_at_new_episodes(agent, tmp_path, capfd):
    result, found = train(tmp_path, agent, workers=2, ready=2)
    assert 150 <= result.steps < 150 + 2 and result.updates > 0
    assert not found.state["mid_episode"] and "loop" not in found.state
    if agent != "dqn":  # What follows is the same for all.
        return
    with pytest.raises(CheckpointError, match="ready=2, and this experiment has None"):
        train(tmp_path, agent, workers=2, resume=True, num_steps=160)
    again, _ = train(tmp_path, agent, workers=2, ready=2, resume=True, num_steps=200, progress=True)
    assert again.steps >= 200 and again.updates > result.updates
    assert "every environment begins a new episode" in "".join(capfd.readouterr())


@pytest.mark.both_stacks
def test_a_callback_that_keeps_hold_of_environments_is_refused(tmp_path):
    class Wraps(Callback):
        def wrap(self, environment):
            return environment

    with pytest.raises(ConfigError, match="Wraps wraps the environments"):
        train(tmp_path / "run", workers=2, callbacks=[Wraps()])
    assert not (tmp_path / "run").exists()


@pytest.mark.both_stacks
def test_a_callback_of_steps_is_refused_where_environments_are_not_stepped_together(tmp_path):
    class Counts(Callback):
        def on_step(self, run, step):
            pass

    with pytest.raises(ConfigError, match=r"Counts has on_step.*\(--ready\)"):
        train(tmp_path / "run", workers=2, ready=2, callbacks=[Counts()])
    assert not (tmp_path / "run").exists()


@pytest.mark.full
def test_a_node_that_computes_gradients_has_room_for_all_that_it_writes_before_it_draws(monkeypatch):
    config = a2c.Config(hidden_sizes=(8,), segment_length=1, batch_size=5)
    experiment = ExperimentConfig(
        a2c.make_agent(config), "agentkit:catch", 1_000, num_envs=5, workers=1, ready=4, evaluation_period=0
    )
    agent = experiment.agent
    spec = specs.make_environment_spec(experiment.make_environment(0))
    update = agent.make_update(agent.make_networks(spec))
    store = VariableStore()
    store.publish(1, update.variables(update.init(jax.random.PRNGKey(0))))
    sent = []
    store_of_run = types.SimpleNamespace(run_id="")
    context = types.SimpleNamespace(store=store_of_run, ready=lambda: None, should_stop=False, gauge=lambda **_: None)

    def heartbeat(steps, gradients):
        context.should_stop = steps > 200

    def writer(history):
        return types.SimpleNamespace(append=lambda grads: 0, create_item=lambda *item: sent.append(item))

    context.heartbeat = heartbeat
    for name, stands_for in {
        "find_start": lambda *_: Start(0, 0),
        "watch_steps": lambda *_: StepWatch("catch", 20.0),
        "node_hooks": lambda *_: Hooks(experiment, "actor"),
        "connect": lambda *_: types.SimpleNamespace(writer=writer, close=None),
        "make_source": lambda *_: store,
        "find_actor_index": lambda *_: ALONE,
        "close_on_stop": lambda *_: None,
        "StepGoal": lambda *_: types.SimpleNamespace(reached=lambda: False),
        "make_halves": lambda *_: types.SimpleNamespace(gradient=lambda params, batch, key: params),
    }.items():
        monkeypatch.setattr(gradient_actor, name, stands_for)
    node = threading.Thread(target=gradient_node, args=(context, experiment, spec, {}, {}), daemon=True)
    node.start()
    node.join(300.0)
    assert not node.is_alive(), "it waits for room that only it could make"
    assert len(sent) >= 200 // config.batch_size - 2


@pytest.mark.both_stacks
@pytest.mark.parametrize("batch_size", [1, 3])
@pytest.mark.parametrize("segment_length", [1, 2])
def test_one_environment_has_room_for_the_two_segments_that_the_end_of_an_episode_fills(segment_length, batch_size):
    """Of several rows one alone ends there, and the queue stays as short as it was: a Reverb run goes on with it."""
    config = a2c.Config(hidden_sizes=(8,), segment_length=segment_length, batch_size=batch_size)
    experiment = ExperimentConfig(a2c.make_agent(config), "agentkit:catch", 100)
    agent, environment = experiment.agent, experiment.make_training_environment(0)
    spec = specs.make_environment_spec(environment)
    tables = make_own_tables(experiment, spec, environment)
    assert tables[0].max_size == batch_size + (segment_length == 1)
    extras = specs.zeros(agent.make_policy(agent.make_networks(spec)).extras_spec)
    with InProcessReplay(tables, in_turns=True, default_timeout=0.5) as replay:
        dataset, num_drawn = ReplayDataset(replay, agent.batch_plan), 0
        adder = make_adder(environment, spec, [(agent, replay)])
        for _ in range(3):
            adder.add_first(timestep := environment.reset())
            while not timestep.last():
                timestep = environment.step(np.int32(1))
                adder.add(np.int32(1), timestep, extras)
                while dataset.ready():
                    next(dataset)
                    num_drawn += batch_size
    num_rows = 3 * 10  # Nine steps an episode, and the row of its last observation.
    assert num_rows // segment_length - batch_size < num_drawn <= num_rows // segment_length
