"""JaxMARL's environments: the contract, values beside its own functions, truncation, masks, and what is refused."""

import jax
import numpy as np
import pytest

import agentkit
from agentkit import envs
from agentkit.agents import ppo
from agentkit.errors import ConfigError, UnknownNameError
from agentkit.testing.multi_agent import MultiAgentEnvironmentContract
from agentkit.types import LAST

jaxmarl = pytest.importorskip("jaxmarl")


@pytest.fixture(autouse=True)
def _ranks_of_their_own():
    with jax.numpy_rank_promotion("allow"):  # Which the tests forbid to agentkit.
        yield


class TestSpread(MultiAgentEnvironmentContract):
    def make_environment(self):
        return envs.make_multi_agent("jaxmarl:MPE_simple_spread_v3", seed=3)


class TestSmax(MultiAgentEnvironmentContract):
    """Has masks of the actions that there are, and agents that fall."""

    num_steps = 60

    def make_environment(self):
        return envs.make_multi_agent("jaxmarl:HeuristicEnemySMAX", seed=3, max_steps=20)


@pytest.mark.parametrize("action_type", ["Discrete", "Continuous"])
def test_steps_are_jaxmarls_own_and_the_end_by_its_limit_is_a_truncation(action_type):
    environment = envs.make_multi_agent("jaxmarl:MPE_simple_spread_v3", action_type=action_type, max_steps=6)
    ours = environment.jax_environment
    own = jaxmarl.make("MPE_simple_spread_v3", action_type=action_type, max_steps=6)
    reset, step = jax.jit(ours.reset), jax.jit(ours.step)
    state, timestep = reset(jax.random.PRNGKey(0))
    observations, theirs = own.reset(jax.random.PRNGKey(0))
    for i in range(7):
        np.testing.assert_allclose(timestep.observation["agent_1"], observations["agent_1"], rtol=1e-6)
        assert timestep.step_type != LAST
        key, chosen = jax.random.PRNGKey(i), {}
        for agent_id, spec in ours.action_spec().items():
            own_key = jax.random.fold_in(key, int(agent_id[-1]))
            chosen[agent_id] = (
                jax.random.randint(own_key, (), 0, spec.num_values)
                if action_type == "Discrete"
                else jax.random.uniform(own_key, spec.shape, minval=-1.0)
            )
        state, timestep = step(state, chosen, key)
        scaled = chosen if action_type == "Discrete" else {name: (x + 1) / 2 for name, x in chosen.items()}
        observations, theirs, rewards, dones, _ = own.step_env(key, theirs, scaled)
        np.testing.assert_allclose(timestep.reward["agent_2"], rewards["agent_2"], rtol=1e-5)
    assert dones["__all__"] and timestep.step_type == LAST
    assert all(discount == 1.0 for discount in timestep.discount.values())
    np.testing.assert_allclose(timestep.observation["agent_0"], observations["agent_0"], rtol=1e-6)


def test_what_jaxmarl_does_not_have_is_refused():
    with pytest.raises(UnknownNameError, match="Did you mean 'jaxmarl:MPE_simple_spread_v3'"):
        envs.make_multi_agent("jaxmarl:MPE_simple_spraed_v3")
    with pytest.raises(ConfigError, match="jaxmarl:overcooked does not take these settings"):
        envs.make_multi_agent("jaxmarl:overcooked", max_stepz=5)


@pytest.mark.full
def test_a_team_with_masks_trains_on_the_device(tmp_path):
    agent = ppo.make_agent(ppo.Config(segment_length=8, num_minibatches=1, hidden_sizes=(8,)))
    result = agentkit.run(
        agentkit.MultiAgentConfig(
            agent, "jaxmarl:HeuristicEnemySMAX", 64, "shared", num_envs=2, on_device=True, run_directory=tmp_path,
            evaluation_period=64, evaluation_episodes=1, progress=False, environment_settings={"max_steps": 10},
        )
    )  # fmt: skip
    log = agentkit.open_run(str(tmp_path))
    assert result.steps >= 64 and log.rows("learner")[-1]["updates"] > 0
    assert np.isfinite(log.rows("evaluation")[-1]["episode_return"])
