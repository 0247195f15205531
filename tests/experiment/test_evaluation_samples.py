"""Evaluations by samples of the policy instead of its mode."""

import dm_env
import numpy as np
import pytest

import agentkit
from agentkit import specs
from agentkit.agents import dqn, ppo
from agentkit.cli import main
from agentkit.experiment import Evaluator, read_config
from agentkit.experiment.publishing import card
from agentkit.learning import Linear
from agentkit.variables import VariableStore


class Counted(dm_env.Environment):
    """Rewards the number of the action, of 3; shows nothing; ends after 30 steps."""

    def __init__(self):
        self._left = 0

    def reset(self):
        self._left = 30
        return dm_env.restart(np.zeros(1, np.float32))

    def step(self, action):
        if not self._left:
            return self.reset()
        self._left -= 1
        end = dm_env.transition if self._left else dm_env.truncation
        return end(float(10 ** int(action)), np.zeros(1, np.float32))

    def observation_spec(self):
        return specs.Array((1,), np.float32)

    def action_spec(self):
        return specs.DiscreteArray(3, dtype=np.int32)


def returns_of(agent, steps, **settings):
    import jax

    experiment = agentkit.ExperimentConfig(agent, Counted, 10, **settings)
    spec = specs.make_environment_spec(experiment.make_environment(0))
    networks = agent.make_networks(spec)
    update, store = agent.make_update(networks), VariableStore()
    store.publish(0, update.variables(update.init(jax.random.PRNGKey(0))))
    with Evaluator(experiment, networks, store) as evaluator:
        return [record["episode_return"] for record in evaluator.episodes(4, steps)]


@pytest.mark.full
def test_samples_differ_and_the_mode_does_not():
    agent = ppo.make_agent(ppo.Config(hidden_sizes=(4,)))
    mode, samples = returns_of(agent, 7), returns_of(agent, 7, evaluation_samples=True)
    assert len(set(mode)) == 1 and mode[0] in (30, 300, 3000)
    assert len(set(samples)) > 1 and all(30 < value < 3000 for value in samples)
    assert samples == returns_of(agent, 7, evaluation_samples=True)
    assert samples != returns_of(agent, 7, evaluation_samples=True, seed=1)


@pytest.mark.full
def test_exploration_is_as_far_on_as_the_training():
    agent = dqn.make_agent(dqn.Config(hidden_sizes=(4,), epsilon=Linear(1.0, 0.0, 100)))
    greedy = returns_of(agent, 0)
    assert returns_of(agent, 0, evaluation_samples=True) != greedy
    assert returns_of(agent, 1_000, evaluation_samples=True) == greedy


def test_the_command_line_keeps_it_in_the_run(tmp_path):
    words = [
        "train",
        "dqn",
        "--env",
        "agentkit:catch",
        "--steps",
        "30",
        "--set",
        "hidden_sizes=4",
        "--out",
        str(tmp_path),
    ]
    words += ["--evaluate-samples", "--column", "t", "--column", "episode", "--best-score", "episode_return_min"]
    assert main(words) == 0
    made = read_config(tmp_path / "dqn-agentkit_catch-seed0")
    assert made.evaluation_samples and made.columns == ("t", "episode")
    assert main([*words[:-2], "--no-keep-best", "--best-score", "episode_return", "--seed", "1"]) == 2


def test_who_evaluates_with_samples_gets_them_of_the_folder_and_of_the_result_but_no_card_of_them(tmp_path):
    """A card is of the policy that is exported, which does not explore."""
    agent = dqn.make_agent(dqn.Config(hidden_sizes=(4,), min_replay_size=10, epsilon=Linear(1.0, 1.0, 10)))
    usual = {"num_steps": 30, "evaluation_samples": True, "evaluation_episodes": 2, "evaluation_period": 30}
    run = tmp_path / "run"
    result = agentkit.run(agentkit.ExperimentConfig(agent, "agentkit:catch", run_directory=run, **usual))
    bare = agentkit.run(agentkit.ExperimentConfig(agent, "agentkit:catch", **usual))
    samples, greedy = agentkit.evaluate(run, 10), agentkit.evaluate(run, 10, evaluation_samples=False)
    assert samples != greedy
    for found in (result, bare):
        assert agentkit.evaluate(found, 10) == samples
        assert agentkit.evaluate(found, 10, evaluation_samples=False) == greedy
    assert card.returns_of(run) is None
    assert card.returns_of(run, 10).mean == np.mean(greedy["episode_return"])
