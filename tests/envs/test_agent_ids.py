"""Agent ids in what agents see: indicators by hand, in JAX and not, and a game that no shared policy plays without."""

import numpy as np
import pytest
import tree

import agentkit
from agentkit import envs
from agentkit.agents import dqn
from agentkit.cli import main
from agentkit.cli.values.environments import parse_environment_settings
from agentkit.envs.multi_agent.agent_ids import AgentIds, in_jax_with_agent_ids
from agentkit.envs.multi_agent.matrix_game import MatrixGame
from agentkit.errors import ConfigError, SpecError, UnknownNameError
from agentkit.experiment.config import presets
from agentkit.learning import Linear
from agentkit.testing.multi_agent import MultiAgentEnvironmentContract, assert_same_timesteps, rollout

NAMES = ["agentkit:tic_tac_toe", "agentkit:come_and_go", "jax:tic_tac_toe", "jax:two_step_game"]


class TestOfAgentsThatComeAndGo(MultiAgentEnvironmentContract):
    def make_environment(self):
        return envs.make_multi_agent("agent_ids:agentkit:come_and_go", seed=3)


class TestInJaxInTurns(MultiAgentEnvironmentContract):
    num_steps = 60

    def make_environment(self):
        return envs.make_multi_agent("agent_ids:jax:tic_tac_toe", seed=3)


@pytest.mark.parametrize("name", NAMES)
def test_each_sees_its_own_number_and_all_else_as_without(name):
    plain, shown = (envs.make_multi_agent(prefix + name, seed=1) for prefix in ("", "agent_ids:"))
    ids = list(plain.agent_specs())
    assert list(shown.agent_specs()) == ids
    seen = set()
    for without, with_ids in zip(rollout(plain, 80), rollout(shown, 80), strict=True):
        assert without.keys() == with_ids.keys()
        for agent_id, timestep in with_ids.items():
            if timestep.observation is None:
                assert without[agent_id].observation is None
                continue
            rest = dict(timestep.observation)
            np.testing.assert_array_equal(rest.pop("agent_id"), np.eye(len(ids))[ids.index(agent_id)])
            rest = rest if isinstance(without[agent_id].observation, dict) else rest["observation"]
            tree.map_structure(np.testing.assert_array_equal, rest, without[agent_id].observation)
            assert timestep[:3] == without[agent_id][:3]
            seen.add(agent_id)
    assert seen == set(ids)


DIFFER = dqn.make_agent(
    dqn.Config(batch_size=32, min_replay_size=64, hidden_sizes=(32,), n_step=1, epsilon=Linear(1.0, 0.05, 600))
)


@pytest.mark.full
@pytest.mark.parametrize(("name", "seeds", "expected"), [("agent_ids:", range(3), 8.0), ("", range(1), 0.0)])
def test_where_agents_must_differ_a_shared_policy_has_to_know_whose_it_is(name, seeds, expected, tmp_path):
    """Two see the same in each of 4 rounds, and both get 1 where they choose differently."""
    for seed in seeds:
        config = agentkit.MultiAgentConfig(
            DIFFER, f"{name}agentkit:matrix_game", 1_200, "shared", seed=seed, run_directory=tmp_path / str(seed),
            environment_settings={"game": ([[0, 1], [1, 0]],) * 2}, evaluation_period=0, progress=False,
        )  # fmt: skip
        agentkit.run(config)
        assert agentkit.evaluate_multi_agent(tmp_path / str(seed), 3)["episode_return"] == expected


@pytest.mark.full
def test_it_trains_on_the_device_by_command_and_its_policy_plays_alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name = "agent_ids:jax:tic_tac_toe"
    train = f"train ppo --env {name} --policies shared --on-device --num-envs 2 --eval-every 0 --run-directory run"
    small = "--set segment_length=8 --set num_minibatches=1 --set hidden_sizes=8"
    assert main(f"{train} {small} --steps 32".split()) == 0
    assert main(["train", "--resume", "run", "--steps", "64"]) == 0
    assert main(["evaluate", "run", "--episodes", "1"]) == 0
    policy = agentkit.load_multi_agent("run")
    assert policy.select_action(envs.make_multi_agent(name).reset()["first"].observation) < 9


def test_restored_it_shows_who_an_agent_is():
    environment = AgentIds(envs.make_multi_agent("agentkit:tic_tac_toe", seed=1))
    for newest in rollout(environment, 4):
        assert_same_timesteps(environment.restore(environment.save()), newest)


def test_settings_and_presets_are_those_of_the_environment_inside():
    for name in ("agent_ids:agentkit:matrix_game", "team:agentkit:matrix_game"):
        assert parse_environment_settings(["rounds=2k"], name) == {"rounds": 2_000}
    assert presets.find("ppo", "agent_ids:jaxmarl:MPE_simple_spread_v3").settings["segment_length"] == 128


def test_what_has_such_a_part_already_and_what_is_of_one_agent_are_refused():
    twice = r"what 'row' sees has an 'agent_id' already"
    with pytest.raises(SpecError, match=twice):
        envs.make_multi_agent("agent_ids:agent_ids:agentkit:matrix_game")
    in_jax = envs.make_multi_agent("agent_ids:jax:two_step_game").jax_environment
    with pytest.raises(SpecError, match="already, of"):
        in_jax_with_agent_ids(in_jax).observation_spec()
    with pytest.raises(SpecError, match=r"found TwoStepGame\..* one in JAX goes into"):
        AgentIds(in_jax.environment)
    with pytest.raises(UnknownNameError, match="environment of several agents"):
        envs.make_multi_agent("agent_ids:agentkit:catch")
    first = "team:agent_ids:agentkit:matrix_game"
    for make in (envs.make, envs.make_multi_agent):
        with pytest.raises(ConfigError, match=f"beside agent_ids: it comes first, {first}"):
            make("agent_ids:team:agentkit:matrix_game")
    assert "agent_id" in envs.make(first).observation_spec()["agents"]["row"]
    assert AgentIds(MatrixGame()).agent_specs()["row"].observations["agent_id"].shape == (2,)
