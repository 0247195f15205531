"""Actors that share a number of steps: they take as many and few more, however fast they are."""

import contextlib
import threading
import time

import pytest

from agentkit.distributed import NodeContext, RunStore, RunStoreClient
from agentkit.distributed.context import NodeId
from agentkit.experiment.launching.sharing.step_goal import StepGoal

pytestmark = pytest.mark.both_stacks

SECRET = "0123456789abcdef0123456789abcdef"


@contextlib.contextmanager
def joined(store, index):
    with contextlib.closing(RunStoreClient(store.address, SECRET, node=f"actor-{index}")) as client:
        context = NodeContext(NodeId(f"actor-{index}", "actor", index), client)
        context.sync()
        try:
            yield context
        finally:
            context.close()


def act(store, index, num_actors, steps_per_call, taken):
    """Takes some thousand steps a second, as an actor of so many environments, until all are taken."""
    with joined(store, index) as context:
        goal = StepGoal(context, num_actors)
        while not goal.reached():
            time.sleep(1e-4)
            taken[index] += steps_per_call
            context.heartbeat(steps=taken[index])


@pytest.mark.parametrize(
    ("num_actors", "steps_per_call", "known"), [(1, 1, 1), (3, 1, 3), (3, 16, 3), (2, 1, 256)], ids=str
)
def test_fast_actors_take_the_steps_that_are_left_and_few_more(num_actors, steps_per_call, known):
    with RunStore(SECRET) as store:
        store.restore_counts({"steps": 10_000})
        store.put("num_steps", 20_000)
        taken = [0] * num_actors
        threads = [
            threading.Thread(target=act, args=(store, index, known, steps_per_call, taken), daemon=True)
            for index in range(num_actors)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60.0)
        assert not any(thread.is_alive() for thread in threads)
        assert store.totals() == {"steps": 10_000 + sum(taken)}
        print(taken)
        assert 10_000 <= sum(taken) <= 10_500


def test_an_actor_that_was_held_up_while_others_took_all_takes_few():
    """What it knows is as old as its last heartbeat: half its share of that would be 1,667 steps."""
    with RunStore(SECRET) as store, joined(store, 0) as held_up, joined(store, 1) as fast:
        store.put("num_steps", 10_000)
        goal = StepGoal(held_up, 3)
        fast.heartbeat(steps=10_000)
        fast.sync()
        taken = 0
        while not goal.reached():
            taken += 16
            held_up.heartbeat(steps=taken)
        assert taken <= 116


def test_far_from_the_goal_no_step_asks_the_run_store(monkeypatch):
    with RunStore(SECRET) as store, joined(store, 0) as context:
        store.put("num_steps", 1_000_000)
        goal = StepGoal(context, 2)
        with monkeypatch.context() as patch:
            patch.setattr(context, "sync", None)
            for steps in range(10_000):
                context.heartbeat(steps=steps)
                assert not goal.reached()


def test_actors_go_on_where_more_steps_are_wanted():
    with RunStore(SECRET) as store, joined(store, 0) as context:
        store.put("num_steps", 5)
        goal = StepGoal(context, 1)
        context.heartbeat(steps=5)
        assert goal.reached()
        store.put("num_steps", 6)
        assert not goal.reached()
