"""When the evaluators of a program evaluate, and what becomes known of it."""

import contextlib

import pytest

from agentkit.agents import dqn
from agentkit.distributed import Program, RunStore, RunStoreClient
from agentkit.experiment import ExperimentConfig
from agentkit.experiment.launching import run
from agentkit.experiment.launching.nodes.evaluator import Turns
from agentkit.experiment.launching.program import LaunchConfig
from agentkit.experiment.multi_agent.parts import NoPolicy

pytestmark = pytest.mark.both_stacks

PERIOD = 1_000


class Scripted:
    """The context of an evaluator that finds the run at one number of steps after the other, and is then stopped."""

    def __init__(self, store, index, steps):
        self.name, self.index, self.store = f"evaluator-{index}", index, store
        self.should_stop, self._steps, self._now = False, iter(steps), 0

    def wait(self, seconds):
        now = next(self._steps, None)
        self.should_stop, self._now = now is None, self._now if now is None else now
        return self.should_stop

    def totals(self):
        return {"steps": self._now}

    def heartbeat(self, **counts):
        pass

    def busy(self, what, seconds):
        return contextlib.nullcontext()


def evaluated(context, num_steps, num_evaluators=1, last_step=0, wanted=None, refresh=lambda: None):
    """The records of the evaluations that an evaluator played, each with whether the others had stopped by then.

    `num_steps` are those that it was made with, `wanted` those of a host that came back.
    """
    records = []
    context.store.put("num_steps", wanted or num_steps)
    Turns(context, PERIOD, num_steps, num_evaluators, last_step).take(
        lambda steps, should_stop: {"episode_return": float("nan"), "after_the_others": context.should_stop},
        records.append,
        refresh=refresh,
    )
    return records


def test_a_launched_run_knows_all_evaluations_however_quickly_they_followed(monkeypatch):
    def play(program, *, on_status, **settings):
        with RunStore("0123456789abcdef0123456789abcdef") as store:
            for index in range(2):
                evaluated(Scripted(store, index, range(PERIOD, 9_000, PERIOD)), 10_000, num_evaluators=2)
            for _ in range(2):
                on_status(store.status())
            return {**store.status(), "stop": "enough"}

    monkeypatch.setattr(run, "run_program", play)
    experiment = ExperimentConfig(dqn.make_agent(), "agentkit:catch", 10_000)
    result = run._supervise(experiment, LaunchConfig(), Program("test"), None, NoPolicy(), None)
    assert [record["steps"] for record in result.evaluations] == list(range(PERIOD, 9_000, PERIOD))


def test_an_evaluator_that_is_started_again_plays_what_is_due_and_nothing_twice():
    """What the run had evaluated before is older than its last evaluation: the run went on without a pause."""
    with RunStore("0123456789abcdef0123456789abcdef") as store:
        first = evaluated(Scripted(store, 0, [3_400, 4_000, 4_700]), 10_000, last_step=3_000)
        again = evaluated(Scripted(store, 0, [4_900, 5_000]), 10_000, last_step=3_000)
        late = evaluated(Scripted(store, 0, [6_100, 6_900]), 10_000, last_step=3_000)
    assert [record["steps"] for record in (*first, *again, *late)] == [4_000, 5_000, 6_100]


def test_a_finished_run_that_is_resumed_has_its_last_evaluation_once():
    with RunStore("0123456789abcdef0123456789abcdef") as store:
        assert not evaluated(Scripted(store, 0, [3_001]), 3_000, last_step=3_001)
        assert [record["steps"] for record in evaluated(Scripted(store, 0, [3_001]), 3_000, last_step=2_000)] == [3_001]


@pytest.mark.parametrize("num_evaluators", [1, 2])
def test_after_the_last_step_only_one_evaluation_follows_of_the_last_parameters(num_evaluators):
    """A supervised learner goes on for a while with what is left; the evaluators are told to stop after it."""
    with RunStore("0123456789abcdef0123456789abcdef") as store:
        contexts = [Scripted(store, i, [1_900, 2_000, 2_900, 3_000, 3_001, 3_001]) for i in range(num_evaluators)]
        found = [evaluated(context, 3_000, num_evaluators, last_step=1_000) for context in contexts]
    (at_the_end,) = (record for records in found for record in records if record["steps"] > 2_000)
    assert at_the_end is found[0][-1] and at_the_end["steps"] == 3_001 and at_the_end["after_the_others"]
    assert [record["steps"] for records in found for record in records if not record["after_the_others"]] == [2_000]


def test_a_host_that_came_back_and_wants_more_steps_is_evaluated_until_their_end():
    with RunStore("0123456789abcdef0123456789abcdef") as store:
        context = Scripted(store, 0, [2_000, 3_000, 3_500, 4_000, 5_000, 6_000, 6_001])
        records = evaluated(context, 3_000, last_step=1_000, wanted=6_000)
        stopped_early = evaluated(Scripted(store, 1, [3_500]), 3_000, last_step=3_000, wanted=6_000)
    found = [(record["steps"], record["after_the_others"]) for record in records]
    assert found == [(steps, False) for steps in (2_000, 3_000, 4_000, 5_000)] + [(6_001, True)]
    assert not stopped_early


def test_the_last_evaluation_waits_for_a_learner_that_joined_by_itself_and_is_told_when_all_are():
    with (
        RunStore("0123456789abcdef0123456789abcdef") as store,
        contextlib.closing(
            RunStoreClient(store.address, "0123456789abcdef0123456789abcdef", node="learner-0", life="its-own")
        ) as learner,
    ):
        learner.claim("learner-0", "its-own")
        left = []

        def refresh():  # The learner leaves in the middle of the second wait; the first refresh is before the stop.
            left.append(len(left) >= 2)
            learner.heartbeat({}, {}, 0.0, leaving=left[-1])

        evaluate = evaluated(Scripted(store, 0, [3_000]), 3_000, last_step=2_000, refresh=refresh)
        assert left == [False, False, True] and len(evaluate) == 1
