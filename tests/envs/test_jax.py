"""Environments in JAX: the contract behind dm_env's interface, equality with their twins, what is handed in."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentkit import envs, specs
from agentkit.envs.jax.base import JaxEnvironment
from agentkit.envs.jax.cartpole import CartPole, CartPoleState
from agentkit.envs.jax.catch import Catch, CatchState
from agentkit.envs.jax.memory_chain import MemoryChain, MemoryChainState
from agentkit.envs.jax.point_mass import PointMass, PointMassState
from agentkit.envs.jax.time_steps import first_step, next_step
from agentkit.errors import ConfigError, UnknownNameError
from agentkit.testing.environment import EnvironmentContract
from agentkit.types import FIRST, LAST

pytestmark = pytest.mark.both_stacks

NAMES = ["cartpole", pytest.param("catch", marks=pytest.mark.full), "memory_chain", "point_mass"]


@pytest.mark.parametrize("name", NAMES)
class TestJaxEnvironments(EnvironmentContract):
    num_steps = 60

    @pytest.fixture(autouse=True)
    def _name(self, name):
        self.name = name

    def make_environment(self):
        return envs.make(f"jax:{self.name}", seed=3)


def _follow(jax_environment, state, twin, actions):
    """Compares the steps of both from where they stand, until the episode ends or the actions do."""
    step = jax.jit(jax_environment.step)
    for action in actions:
        state, found = step(state, action, jax.random.PRNGKey(0))
        expected = twin.step(action)
        assert int(found.step_type) == expected.step_type
        np.testing.assert_allclose(found.observation, expected.observation, atol=2e-5)
        np.testing.assert_allclose(found.reward, expected.reward, atol=1e-6)
        assert found.discount == expected.discount
        assert found.reward.dtype == found.discount.dtype == np.float32
        if expected.last():
            return True
    return False


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.full)])
def test_catch_is_its_twin(seed):
    rng, twin = np.random.default_rng(seed), envs.make("agentkit:catch", seed=seed, rows=6, columns=7)
    ball = int(twin.reset().observation[0].argmax())
    state = CatchState(jnp.int32(0), jnp.int32(ball), jnp.int32(3))
    assert _follow(Catch(6, 7), state, twin, rng.integers(3, size=9, dtype=np.int32))


@pytest.mark.parametrize("seed", [0, 1])
def test_memory_chain_is_its_twin(seed):
    rng, twin = np.random.default_rng(seed), envs.make("agentkit:memory_chain", seed=seed, length=4)
    bit = int(twin.reset().observation[0] > 0)
    state = MemoryChainState(jnp.int32(0), jnp.int32(bit))
    assert _follow(MemoryChain(4), state, twin, rng.integers(2, size=9, dtype=np.int32))


def test_point_mass_is_its_twin():
    rng, twin = np.random.default_rng(0), envs.make("agentkit:point_mass", seed=0, max_steps=12)
    state = PointMassState(jnp.asarray(twin.reset().observation), jnp.int32(0))
    assert _follow(PointMass(max_steps=12), state, twin, rng.uniform(-1, 1, (12, 2)).astype(np.float32))


@pytest.mark.parametrize("policy", ["random", "balances"])
def test_cartpole_is_gymnasiums(policy):
    pytest.importorskip("gymnasium")
    rng, twin = np.random.default_rng(0), envs.make("gymnasium:CartPole-v1", seed=0)
    environment = CartPole()
    assert environment.observation_spec() == twin.observation_spec()
    assert environment.action_spec().num_values == twin.action_spec().num_values
    step, ends = jax.jit(environment.step), set()
    for _ in range(10 if policy == "random" else 1):
        # From each of gymnasium's states anew: over hundreds of steps single and double precision part.
        timestep, count = twin.reset(), 0
        while not timestep.last():
            o = timestep.observation
            action = rng.integers(2) if policy == "random" else int(o[2] + 0.5 * o[3] + 0.1 * o[1] + 0.05 * o[0] > 0)
            _, found = step(CartPoleState(jnp.asarray(o), jnp.int32(count)), action, jax.random.PRNGKey(0))
            timestep, count = twin.step(np.int32(action)), count + 1
            np.testing.assert_allclose(found.observation, timestep.observation, atol=1e-6)
            assert (int(found.step_type), float(found.reward)) == (timestep.step_type, timestep.reward)
            assert found.discount == timestep.discount
        ends.add(float(timestep.discount))
    assert ends == {0.0 if policy == "random" else 1.0}  # Terminated, or cut off after 500 steps.


@pytest.mark.parametrize(
    ("environment", "low", "high"), [(CartPole(), -0.05, 0.05), (PointMass(num_dimensions=3), -1.0, 1.0)]
)
def test_starts_are_uniform(environment, low, high):
    _, timestep = jax.jit(jax.vmap(environment.reset))(jax.random.split(jax.random.PRNGKey(0), 500))
    assert (timestep.step_type == FIRST).all() and (timestep.reward == 0).all() and (timestep.discount == 1).all()
    assert timestep.observation.min() == pytest.approx(low, abs=0.02 * (high - low))
    assert timestep.observation.max() == pytest.approx(high, abs=0.02 * (high - low))


def test_catch_and_memory_chain_start_anywhere():
    keys = jax.random.split(jax.random.PRNGKey(0), 200)
    state, _ = jax.vmap(Catch(columns=4).reset)(keys)
    assert set(np.asarray(state.ball).tolist()) == {0, 1, 2, 3}
    state, timestep = jax.vmap(MemoryChain().reset)(keys)
    np.testing.assert_array_equal(timestep.observation[:, 0], 2 * state.bit - 1)
    assert 60 < int(state.bit.sum()) < 140


@dataclasses.dataclass(frozen=True)
class Walk(JaxEnvironment):
    """Walks to the right, and ends at `goal`."""

    goal: int = 3

    def observation_spec(self):
        return specs.Array((1,), np.float32)

    def action_spec(self):
        return specs.DiscreteArray(2, dtype=np.int32)

    def reset(self, key):
        return jnp.int32(0), first_step(jnp.zeros(1))

    def step(self, state, action, key):
        place = state + action
        return place, next_step(jnp.full(1, place, jnp.float32), action, terminated=place == self.goal)


@pytest.mark.parametrize("handed_in", [Walk(2), Walk, lambda seed: Walk(2), lambda: Walk(2)], ids=range(4))
def test_an_environment_in_jax_is_handed_in(handed_in):
    settings = {"goal": 2} if handed_in is Walk else {}
    environment = envs.make(handed_in, seed=1, **settings)
    assert environment.resumable and environment.jax_environment == Walk(2)
    steps = [environment.reset(), *(environment.step(np.int32(action)) for action in (1, 0, 1, 1))]
    assert [step.step_type for step in steps] == [FIRST, 1, 1, LAST, FIRST]
    assert [step.reward for step in steps] == [None, 1.0, 0.0, 1.0, None] and steps[3].discount == 0.0


@dataclasses.dataclass
class Unfrozen(JaxEnvironment):
    """Has no hash, since it is no frozen dataclass."""

    observation_spec, action_spec, reset, step = Walk.observation_spec, Walk.action_spec, Walk.reset, Walk.step
    goal: int = 3


def test_an_environment_without_a_hash_is_refused_in_a_line():
    with pytest.raises(ConfigError, match=r"Unfrozen has no hash .* Write its class as @dataclasses") as error:
        envs.make(Unfrozen)
    assert "\n" not in str(error.value)


def test_unknown_names_and_settings_are_refused():
    with pytest.raises(UnknownNameError, match=r"'jax:catc'. Did you mean 'jax:catch'"):
        envs.make("jax:catc")
    with pytest.raises(UnknownNameError, match=r"'row'. Did you mean 'rows'"):
        envs.make("jax:catch", row=3)
    with pytest.raises(ValueError, match=r"Expected an action in 0\.\.1"):
        environment = envs.make("jax:cartpole")
        environment.reset()
        environment.step(2)


def test_catch_is_drawn_and_point_mass_says_that_it_is_not():
    environment = envs.make("jax:catch")
    environment.reset()
    assert environment.render().shape == (80, 40, 3)
    other = envs.make("jax:point_mass")
    other.reset()
    with pytest.raises(NotImplementedError, match="PointMass has no render"):
        other.render()
