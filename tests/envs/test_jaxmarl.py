"""JaxMARL's environments: the contract, values beside its own functions, truncation, masks, and what is refused."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import agentkit
from agentkit import envs
from agentkit.agents import ppo
from agentkit.envs.jax.team import JaxTeam
from agentkit.errors import ConfigError, SpecError, UnknownNameError
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


@pytest.mark.parametrize(
    ("name", "settings", "most"),
    [
        ("HeuristicEnemySMAX", {"scenario": "3m", "enemy_shoots": False, "max_steps": 2}, 3),  # Looks before it counts.
        ("coin_game", {"num_inner_steps": 2, "num_outer_steps": 2}, 4),
    ],
)
def test_the_end_by_a_limit_that_has_another_name_or_place_is_a_truncation(name, settings, most):
    environment = envs.make_multi_agent(f"jaxmarl:{name}", seed=0, **settings)
    environment.reset()
    nothing = {agent_id: np.int32(4) for agent_id in environment.agent_specs()}
    steps = [environment.step(nothing) for _ in range(most)]
    assert [all(each.last() for each in step.values()) for step in steps] == [False] * (most - 1) + [True]
    assert {float(each.discount) for each in steps[-1].values()} == {1.0}


class Robots:
    """Is a stand-in for brax's robots in several parts, which need brax: these say themselves what is cut off."""

    agents = ("a",)

    def __init__(self, auto_reset=True):
        self.auto_reset = auto_reset

    def reset(self, key):
        return {"a": jnp.zeros(1)}, jnp.int32(0)

    def step_env(self, key, state, actions):
        assert not self.auto_reset
        is_over = state + 1 == actions["a"]
        info = {"truncation": jnp.float32(is_over & (actions["a"] == 1))}
        return {"a": jnp.ones(1)}, state + 1, {"a": jnp.float32(0)}, {"__all__": is_over}, info

    def observation_space(self, agent_id):
        return jaxmarl.environments.spaces.Box(0.0, 1.0, (1,))

    def action_space(self, agent_id):
        return jaxmarl.environments.spaces.Discrete(3)


def test_what_says_itself_that_it_was_cut_off_is_believed_and_not_reset_inside(monkeypatch):
    monkeypatch.setattr(jaxmarl, "make", lambda name, **settings: Robots(**settings))
    environment = envs.make_multi_agent("jaxmarl:ant_4x2", seed=0, raw=True)
    discounts = []
    for action in (1, 2):
        environment.reset()
        steps = [environment.step({"a": np.int32(action)})["a"] for _ in range(action)]
        assert steps[-1].last()
        discounts.append(float(steps[-1].discount))
    assert discounts == [1.0, 0.0]


def make_spread(**settings):
    return envs.make_multi_agent("jaxmarl:MPE_simple_spread_v3", raw=True, **settings).jax_environment


def test_scenarios_and_layouts_are_found_by_name_or_given_as_they_are():
    from jaxmarl.environments.smax import map_name_to_scenario

    def make(name, **settings):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # Overcooked's, of itself.
            return envs.make_multi_agent(f"jaxmarl:{name}", raw=True, **settings).jax_environment

    assert len(make("SMAX", scenario="3m").action_spec()) == 6
    one, other = (make("SMAX", scenario=map_name_to_scenario("3m")) for _ in range(2))
    assert one == other and one.action_spec() == make("SMAX", scenario="3m").action_spec()
    assert one != make("SMAX", scenario=map_name_to_scenario("2s3z"))
    ring = make("overcooked", layout=jaxmarl.environments.overcooked_layouts["coord_ring"])
    assert ring.observation_spec() == make("overcooked", layout="coord_ring").observation_spec()
    assert ring.observation_spec()["agent_0"].shape == (5, 5, 26)
    with pytest.raises(UnknownNameError, match=r"scenario of jaxmarl:SMAX '3n'. Did you mean '3m'"):
        make("SMAX", scenario="3n")


def test_resets_may_be_drawn_from_a_pool():
    assert make_spread(reset_pool=3).reset_pool == 3 and JaxTeam(make_spread(reset_pool=3)).reset_pool == 3
    assert make_spread().reset_pool is None
    with pytest.raises(ConfigError, match="reset_pool: expected a whole number"):
        make_spread(reset_pool=0)


def test_what_jaxmarl_does_not_have_is_refused():
    with pytest.raises(UnknownNameError, match="Did you mean 'jaxmarl:MPE_simple_spread_v3'"):
        envs.make_multi_agent("jaxmarl:MPE_simple_spraed_v3")
    with pytest.raises(ConfigError, match="jaxmarl:overcooked does not take these settings"):
        envs.make_multi_agent("jaxmarl:overcooked", max_stepz=5)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("MPE_simple_facmac_6a_v1", r"says \[16\] of adversary_0, and its observations are \[28\]"),
        ("storm_np", "expected bounds of its observation space in uint8, found 0 and 1000000000.0"),
    ],
)
def test_spaces_that_are_not_those_of_the_observations_are_refused(name, message):
    with pytest.raises(SpecError, match=f"jaxmarl:{name}: .*{message}"):
        envs.make_multi_agent(f"jaxmarl:{name}")


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
