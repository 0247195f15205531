"""Whole runs on a Reverb server in this process."""

import json
import pathlib
from typing import Any

import numpy as np
import pytest

pytest.importorskip("reverb")

from agentkit import checkpoint, envs
from agentkit.agents import dqn
from agentkit.experiment import ExperimentConfig, local, run
from agentkit.learning import Learner, Linear
from agentkit.loggers import read_csv
from agentkit.replay.reverb.single_process import SingleProcessReverbReplay

# TensorFlow Probability, which rlax imports, where TensorFlow is there already: it compares versions with distutils.
pytestmark = [
    pytest.mark.reverb,
    pytest.mark.filterwarnings("ignore:distutils Version classes are deprecated:DeprecationWarning"),
]

MIN_SIZE = 50


def make_agent(**settings: Any) -> Any:
    small = {
        "hidden_sizes": (16,),
        "batch_size": 8,
        "n_step": 1,
        "updates_per_step": 1.0,
        "updates_per_call": 1,
        "min_replay_size": MIN_SIZE,
        "replay_size": 5_000,
    }
    return dqn.make_agent(dqn.Config(**{**small, **settings}))


def make_experiment(agent: Any, **settings: Any) -> ExperimentConfig:
    quiet = {"environment": "agentkit:catch", "num_steps": 400, "evaluation_period": 0, "replay": "reverb"}
    return ExperimentConfig(agent, **{**quiet, **settings})


class Watch:
    """Notes, at every environment step, how many steps were taken and how many updates were done."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.pairs: list[tuple[int, int]] = []
        self.num_updates = 0
        step = Learner.step

        def counted(learner: Learner) -> None:
            step(learner)
            self.num_updates = learner.num_updates_done

        monkeypatch.setattr(Learner, "step", counted)

    def __call__(self, seed: int) -> Any:
        environment = envs.make("agentkit:catch", seed=seed)
        step = environment.step

        def noted(action: Any) -> Any:
            self.pairs.append((len(self.pairs), self.num_updates))
            return step(action)

        environment.step = noted
        return environment


@pytest.mark.full
def test_dqn_learns_catch() -> None:
    config = dqn.Config(
        learning_rate=2e-3,
        n_step=3,
        batch_size=64,
        min_replay_size=100,
        target_update_period=50,
        epsilon=Linear(1.0, 0.05, 1_000),
        updates_per_step=1.0,
    )
    result = run(
        make_experiment(dqn.make_agent(config), num_steps=5_000, evaluation_period=5_000, evaluation_episodes=20)
    )
    assert result.steps == 5_000
    assert result.evaluations[-1]["episode_return"] >= 0.9  # Random play has about -0.6; one miss of 20 costs 0.1.


@pytest.mark.parametrize("updates_per_step", [0.5, 1.0, 2.0])
def test_updates_keep_pace_with_steps(updates_per_step: float, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Watch(monkeypatch)
    result = run(make_experiment(make_agent(updates_per_step=updates_per_step), environment=watch))
    assert result.steps == len(watch.pairs) == 400
    assert result.updates == pytest.approx((400 - MIN_SIZE) * updates_per_step, rel=0.1)
    # All the way, and not only in the end: neither runs away from the other.
    ahead = [(steps - MIN_SIZE) * updates_per_step - updates for steps, updates in watch.pairs if steps > MIN_SIZE]
    print(f"{updates_per_step=}: the environment is {min(ahead)} to {max(ahead)} updates ahead of the learner")
    assert max(np.abs(ahead)) <= 20 * max(1.0, updates_per_step)


@pytest.mark.parametrize("num_envs", [None, 8])
@pytest.mark.parametrize("updates_per_call", [1, 8])
def test_it_never_waits_for_itself(num_envs: int | None, updates_per_call: int) -> None:
    """A deadlock shows as a ReplayTimeoutError after 60 s."""
    agent = make_agent(n_step=5, updates_per_call=updates_per_call, prioritized=True)
    result = run(make_experiment(agent, num_envs=num_envs, num_steps=300))
    assert 300 <= result.steps < 300 + (num_envs or 1)
    # Every episode of 9 steps gives 13 items of up to 5 steps.
    assert result.updates == pytest.approx(300 * 13 / 9 - MIN_SIZE, rel=0.2)


def exploration_steps(directory: pathlib.Path) -> int:
    found = checkpoint.read_latest(directory / "checkpoints")
    assert found is not None
    return int(found.state["actor"]["policy_state"]["0"][0])


def test_a_saved_run_goes_on_with_what_it_had(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = make_agent()
    settings = {"run_directory": tmp_path / "run", "checkpoint_period": 150}
    first = run(make_experiment(agent, num_steps=200, **settings))
    assert exploration_steps(tmp_path / "run") == 200

    infos = []

    class Looks(SingleProcessReverbReplay):  # type: ignore[misc]  # To see what is there after `restore`.
        def restore(self, directory: pathlib.Path) -> None:
            super().restore(directory)
            infos.append(self.info("transitions"))

    monkeypatch.setattr(local, "_make_replay", lambda e, spec, environment: Looks(e.agent.make_tables(spec)))
    second = run(make_experiment(agent, num_steps=300, **settings), resume=True)
    assert second.steps == 300
    assert exploration_steps(tmp_path / "run") == 300, "epsilon does not start anew"
    (info,) = infos
    # 22 episodes of 9 steps are 198 items; that of the 199th step may be on its way while the server saves.
    assert info.size == info.num_inserted and 198 <= info.size <= 199
    assert first.updates == info.num_sampled / 8, "what was drawn ahead is not lost"
    assert second.updates == pytest.approx(300 - MIN_SIZE, rel=0.1)
    _, rows = read_csv(tmp_path / "run" / "logs" / "train.csv")
    steps = [int(row["steps"]) for row in rows]
    assert steps == sorted(set(steps)) and steps[21] == 198
    assert steps[22] == 209, "the two steps of the episode that was dropped count as taken"
    assert json.loads((tmp_path / "run" / "config.json").read_text())["replay"] == "reverb"
