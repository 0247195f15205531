"""Callbacks on the nodes of a launched program: each on the node of its event; stops, failures and resumes."""

import json
import pathlib
from types import SimpleNamespace
from typing import Any

import pytest

from agentkit import checkpoint, evaluate
from agentkit.agents import dqn
from agentkit.callbacks import curriculum, info_metrics, keep_best, stop_at, stop_when_flat
from agentkit.distributed import ProgramError
from agentkit.experiment import ExperimentConfig, launch, resume_launch
from agentkit.experiment.launching.sharing.callbacks import node_hooks
from agentkit.loggers import read_csv
from tests.experiment.own_callbacks import Where, grow, make_scaled

pytestmark = pytest.mark.full

SMALL = dqn.Config(
    hidden_sizes=(4,), batch_size=4, min_replay_size=10, replay_size=1000, n_step=1, updates_per_step=0.1
)


def make_experiment(directory: pathlib.Path, **settings: Any) -> ExperimentConfig:
    given = {"num_steps": 100_000, "evaluation_period": 50, "evaluation_episodes": 2, "log_seconds": 0.0}
    given |= {"environment": make_scaled, "run_directory": directory, "checkpoint_period": 0}
    return ExperimentConfig(dqn.make_agent(SMALL), **(given | settings))


def start(directory: pathlib.Path, *callbacks: Any, **settings: Any) -> Any:
    experiment = make_experiment(directory, **settings)
    return launch(experiment, num_actors=1, engine="threads", callbacks=callbacks)


def test_an_evaluation_stops_a_program_and_its_resume_knows_of_it(tmp_path: pathlib.Path) -> None:
    directory = tmp_path / "run"
    own = [keep_best(), info_metrics("is_success"), curriculum(grow), stop_when_flat(2, min_delta=100)]
    result = start(directory, *own, Where(str(tmp_path / "where")))
    assert result.stopped_by == "the last 2 evaluations were no better than return " + result.stopped_by.split()[-1]
    assert not result.interrupted and 150 <= result.steps < 100_000
    saved = checkpoint.read_latest(directory / "checkpoints")
    flat = saved.state["callbacks"]["evaluator-0"]["StopWhenFlat"]
    assert flat["best"] is not None and flat["without_progress"] == 0
    events = {(event, role) for event, role, _ in map(json.loads, (tmp_path / "where").read_text().splitlines())}
    assert events == {
        ("on_start", "actor"), ("on_start", "learner"), ("on_start", "evaluator"), ("on_step", "actor"),
        ("on_episode", "actor"), ("on_learner_log", "learner"), ("on_checkpoint", "learner"), ("on_end", "learner"),
        ("on_evaluation_episode", "evaluator"), ("on_evaluation", "evaluator"),
    }  # fmt: skip
    for log, column in (("evaluation", "is_success"), ("train", "is_success"), ("train", "curriculum_level")):
        rows = read_csv(directory / "logs" / f"{log}.csv")[1]
        assert rows and all(row[column] != "" for row in rows)
    best = max(float(row["episode_return"]) for row in read_csv(directory / "logs" / "evaluation.csv")[1])
    assert result.best_policy is not None and result.policy is not None
    kept = checkpoint.read_all(directory / "best")[0].state["best"]["evaluation"]
    assert kept["episode_return"] == best and evaluate(directory, 1, checkpoint="best")["steps"] == kept["steps"]

    (tmp_path / "where").unlink()
    again = resume_launch(directory)  # It has its best again, and as many evaluations.
    assert len(again.evaluations) == 2 and again.stopped_by == result.stopped_by
    starts = [json.loads(line) for line in (tmp_path / "where").read_text().splitlines() if "on_start" in line]
    assert {role: steps for _, role, steps in starts}["actor"] >= result.steps  # Where a curriculum goes on.


def test_the_states_are_kept_before_the_program_is_asked_for_its_end(tmp_path: pathlib.Path) -> None:
    told: list[tuple[str, Any]] = []
    store = SimpleNamespace(put=lambda name, value: told.append((name, value)), status=lambda: {"values": {}})
    context: Any = SimpleNamespace(
        name="evaluator-0", role="evaluator", store=store, totals=dict, sync=lambda: None,
        request_stop=lambda reason: told.append(("request_stop", reason)),
    )  # fmt: skip
    hooks = node_hooks(context, make_experiment(tmp_path, callbacks=[stop_when_flat(1)]))
    for _ in range(2):
        hooks.emit("on_evaluation", {"episode_return": 3.0})
    assert [name for name, _ in told] == ["callbacks/evaluator-0", "stopped_by", "request_stop"]
    assert told[0][1] == {"StopWhenFlat": {"best": 3.0, "without_progress": 0}}


@pytest.mark.parametrize("event", ["on_step", "on_evaluation"])
def test_a_failing_callback_ends_a_program_with_its_traceback_and_a_checkpoint(
    tmp_path: pathlib.Path, event: str
) -> None:
    failing = Where(str(tmp_path / "where"), fail_on=event)
    with pytest.raises(ProgramError, match=f"(?s)A callback on .* failed; the run is saved.*OwnError: {event}"):
        start(tmp_path / "run", failing, stop_at(1e9), evaluation_period=20)
    assert checkpoint.read_latest(tmp_path / "run" / "checkpoints") is not None
