"""Where exploration stands: an actor that is started again goes on, and draws seeds that no process had before."""

import contextlib
import os
import re
import signal

import jax
import numpy as np
import pytest

from agentkit import checkpoint, envs
from agentkit.actors import ActorIndex, PolicyActor
from agentkit.actors.policy import first_state
from agentkit.agents import registry
from agentkit.distributed import NodeContext, RunStore, RunStoreClient
from agentkit.distributed.context import NodeId
from agentkit.experiment.launching.sharing.exploring import explored, find_episodes, find_start, restored_values
from agentkit.specs import make_environment_spec
from tests.experiment.launched import Launched

pytestmark = pytest.mark.both_stacks

KEY = jax.random.PRNGKey(0)
SECRET = "0123456789abcdef0123456789abcdef"


class Client:
    def __init__(self, params):
        self.params = params

    def update(self, wait=False):
        pass


@pytest.mark.one_case
@pytest.mark.parametrize(
    ("name", "environment", "settings"),
    [
        ("dqn", "agentkit:catch", {}),
        ("dqn", "agentkit:catch", {"epsilon_ladder": True}),
        ("r2d2", "agentkit:catch", {}),
        ("sac", "agentkit:point_mass", {}),
        ("td3", "agentkit:point_mass", {}),
    ],
)
def test_a_policy_that_is_advanced_is_where_one_is_that_took_the_steps(name, environment, settings):
    agent, world = registry.make(name, settings), envs.make(environment, seed=0)
    networks = agent.make_networks(make_environment_spec(world))
    update = agent.make_update(networks)
    policy, params = agent.make_policy(networks), update.variables(update.init(KEY))["policy"]
    actor = PolicyActor(policy, KEY, Client(params), actor_index=ActorIndex(1, 4))
    observation = world.reset().observation
    for _ in range(5):
        actor.select_action(observation)
    taken = actor.save(mid_episode=False)["policy_state"].values()
    advanced = jax.tree.leaves(first_state(policy, KEY, ActorIndex(1, 4, num_steps=5)))
    batch = jax.tree.leaves(first_state(policy, KEY, ActorIndex(1, 4, num_steps=5), num_envs=2))
    for old, new, both in zip(taken, advanced, batch, strict=True):
        assert both.shape == (2, *old.shape)
        if old.dtype == np.int32:
            assert old.tolist() == new.tolist() == [5, 1] and both.tolist() == [[5, 2]] * 2  # Steps, and environments.
    assert any(leaf.dtype == np.int32 for leaf in advanced) != bool(settings)  # A ladder has no schedule.


@contextlib.contextmanager
def joined(store, name, incarnation=0):
    """A node that has joined, as an actor's function finds its context."""
    role, _, index = name.rpartition("-")
    with contextlib.closing(RunStoreClient(store.address, SECRET, node=name, incarnation=incarnation)) as client:
        context = NodeContext(NodeId(name, role, int(index), incarnation), client)
        context.sync()
        try:
            yield context
        finally:
            context.close()


def live(store, name, incarnation=0, steps=0, **counts):
    """What an actor begins with that takes some steps and is then killed."""
    with joined(store, name, incarnation) as context:
        start = find_start(context, 7, 2)
        context.heartbeat(steps=steps, **counts)
        context.sync()
    return start


def test_actors_go_on_where_the_run_stands_with_seeds_of_their_own():
    with RunStore(SECRET) as store:
        first = [live(store, "actor-0", steps=2000), live(store, "actor-1", 0, 0)]
        again = live(store, "actor-0", 1, steps=600)
        added = live(store, "actor-2", steps=10)
        by_hand = live(store, "actor-0", 0)  # A shell loop's, which counts no incarnations.
        assert [start.num_steps for start in (first[0], again, added, by_hand)] == [0, 2000, 2600, 2600]
        kept = {"explored": explored(store.status())}
    with RunStore(SECRET) as store:
        for key, value in restored_values(kept).items():
            store.put(key, value)
        resumed = [live(store, f"actor-{i}") for i in (0, 1, 2, 3)]
    assert {start.num_steps for start in resumed} == {2610}
    seeds = [start.seed for start in (*first, again, added, by_hand, *resumed)]
    assert len(set(seeds)) == len(seeds)
    with RunStore(SECRET) as store:
        assert [live(store, f"actor-{i}").seed for i in (0, 1)] == seeds[:2]  # Of a first start they are the run's.


def test_of_several_agents_each_goes_on_with_its_own_steps():
    """Two that take turns: at 2,000 steps of the environment each has taken 1,000."""
    with RunStore(SECRET) as store:
        live(store, "actor-0", steps=2000, agent_turns=1000)
        again, added = live(store, "actor-0", 1, steps=100, agent_turns=50), live(store, "actor-1")
        assert [again.num_steps, added.num_steps] == [1000, 1050]
        kept = explored(store.status())
    assert kept == {"actor-0": 1050, "actor-1": 1050}


def test_an_actor_begins_with_the_programs_episodes():
    """Of a resumed program of two that had ended 100; then one is killed, and two are added."""
    with RunStore(SECRET) as store:
        store.restore_counts({"episodes": 100})
        live(store, "actor-0", episodes=7)
        live(store, "actor-1", episodes=4)
        for name, incarnation, num_actors, expected in (("actor-0", 1, 2, 55), ("actor-2", 0, 4, 27)):
            with joined(store, name, incarnation) as context:
                assert find_episodes(context, num_actors) == expected


LINE = re.compile(r"goes on from step ([\d,]+) of its exploration, with seeds of entropy \[(.*)\]")


@pytest.mark.reverb
@pytest.mark.full  # Starts a program twice.
def test_killed_and_resumed_actors_explore_on(tmp_path):

    def beginnings(run):
        found = LINE.findall((run / "nodes" / "actor-0.log").read_text())
        return [int(steps.replace(",", "")) for steps, _ in found], [entropy for _, entropy in found]

    words = ("--actors", "1", "--eval-every", "0", "--checkpoint-every", "300")
    with Launched(tmp_path, 1_000_000, *words) as program:
        before = program.wait_for(lambda s: s["totals"].get("steps", 0) > 400)["totals"]["steps"]
        assert beginnings(program.directory) == ([], [])
        os.kill(program.pid("actor-0"), signal.SIGKILL)
        program.wait_for(lambda s: s["nodes"]["actor-0"]["incarnation"] and s["nodes"]["actor-0"]["state"] == "ready")
        program.wait_for(lambda s: s["totals"]["steps"] > before + 300)
        program.process.send_signal(signal.SIGINT)
        assert program.end(60.0) == 130, program.output()
        run = program.directory
    stopped = checkpoint.steps(run / "checkpoints")[-1]
    with Launched(tmp_path, stopped + 200, resume=run) as program:
        assert program.end() == 0, program.output()
    steps, entropies = beginnings(run)
    assert steps[0] >= before and steps[1] == stopped
    assert len(set(entropies)) == 2
