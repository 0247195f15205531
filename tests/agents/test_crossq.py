from typing import Any, ClassVar

import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentkit import envs, specs
from agentkit import networks as nets
from agentkit.agents import crossq
from agentkit.testing.agent import AgentContract
from agentkit.testing.chain import Chain, learned, values
from agentkit.testing.learning import learns
from agentkit.types import ReplaySample, SampleInfo, Transition
from tests.agents import settings

KEY = jax.random.PRNGKey(0)
STATES, ACTIONS = np.eye(4, dtype=np.float32), np.zeros((4, 1), np.float32)
SOFT = {name: value for name, value in settings.SOFT_CONTINUOUS_CHANGES.items() if name != "tau"}
REFUSED = {name: value for name, value in settings.SOFT_REFUSED.items() if name != "tau"}


@pytest.mark.full
class TestCrossq(AgentContract):
    unsuitable_environment = "agentkit:catch"
    refused: ClassVar = {**REFUSED, "policy_delay": 0, "norm_momentum": 1.0, "norm_warmup": -1, "adam_b1": 1.0}
    changes: ClassVar = {
        **SOFT,
        "policy_delay": 3,
        "critic_hidden_sizes": (16,),
        "norm_momentum": 0.5,
        "norm_warmup": 0,
        "adam_b1": 0.9,
    }

    def make_agent(self, **changes: Any) -> Any:
        own = {"policy_delay": 2, "critic_hidden_sizes": (8,)}
        small = {**settings.SMALL, "num_random_steps": 20, **own}
        return crossq.make_agent(crossq.Config(**{**small, **changes}))

    def make_environment(self, seed: int) -> Any:
        return envs.make("agentkit:point_mass", seed=seed)

    def test_where_the_discount_is_zero_nothing_is_bootstrapped(self, update: Any) -> None:
        """Next observations are part of the normalised batch and nothing more: in another order they teach the same."""
        del update
        agent = self.make_agent(max_log_std=-20.0, min_log_std=-21.0)  # So nearly certain that order draws no others.
        batch = self._batch(agent, 0.0)
        networks = agent.make_networks(specs.make_environment_spec(self.make_environment(0)))
        state = jax.jit(agent.make_update(networks).init)(KEY)
        gradient = jax.jit(jax.grad(lambda *given: crossq.make_losses(networks, agent.config).critic(*given).loss))

        def learned(discount: float, shift: int) -> np.ndarray:
            next_observation = jax.tree.map(lambda x: np.roll(x, shift, axis=0), batch.data.next_observation)
            discounts = np.full_like(batch.data.discount, discount)
            data = batch.data._replace(discount=discounts, next_observation=next_observation)
            found = gradient(state.critics, state, batch._replace(data=data), KEY)
            return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(found)])

        np.testing.assert_allclose(learned(0.0, 0), learned(0.0, 1), rtol=1e-2, atol=1e-4)
        assert np.max(np.abs(learned(1.0, 0) - learned(1.0, 1))) > 1e-2


def _numpy_renorm(x: np.ndarray, state: dict[str, Any], momentum: float, warmup: int) -> np.ndarray:
    """Ioffe's algorithm 1; changes `state`."""
    mean, std = x.mean(axis=0), np.sqrt(x.var(axis=0) + 1e-3)
    running = np.sqrt(state["variance"] + 1e-3)
    r, d = np.clip(std / running, 1 / 3, 3), np.clip((mean - state["mean"]) / running, -5, 5)
    if state["num_batches"] < warmup:
        r, d = 1.0, 0.0
    state["mean"] = momentum * state["mean"] + (1 - momentum) * mean
    state["variance"] = momentum * state["variance"] + (1 - momentum) * x.var(axis=0)
    state["num_batches"] += 1
    return (x - mean) / std * r + d


def test_batches_are_renormalised_as_by_hand_and_later_by_what_was_seen() -> None:
    """Two batches by themselves, then two within the bounds and beyond them, in both directions."""
    layer = hk.without_apply_rng(
        hk.transform_with_state(lambda x, training: nets.batch_renorm(x, training, momentum=0.5, warmup=2))
    )
    batches = np.random.default_rng(0).normal(size=(5, 6, 3)).astype(np.float32)
    batches[3:] = batches[3:] * [0.01, 3.0, 90.0] + [0.0, -90.0, 90.0]
    params, state = layer.init(KEY, batches[0], False)
    params = {"~": {"scale": np.array([1.0, 2.0, 3.0]), "offset": np.array([0.0, 1.0, 2.0])}}
    expected: dict[str, Any] = {"mean": np.zeros(3), "variance": np.ones(3), "num_batches": 0}
    for x in batches:
        found, state = layer.apply(params, state, x, True)
        by_hand = _numpy_renorm(x, expected, 0.5, 2)
        np.testing.assert_allclose(found, by_hand * [1.0, 2.0, 3.0] + [0.0, 1.0, 2.0], rtol=1e-3, atol=1e-4)
    (kept,) = state.values()
    for name, value in expected.items():
        np.testing.assert_allclose(kept[name], value, rtol=1e-4)
    seen, after = layer.apply(params, state, batches[0], False)
    normal = (batches[0] - expected["mean"]) / np.sqrt(expected["variance"] + 1e-3)
    np.testing.assert_allclose(seen, normal * [1.0, 2.0, 3.0] + [0.0, 1.0, 2.0], rtol=1e-3, atol=1e-4)
    assert jax.tree.all(jax.tree.map(lambda a, b: np.all(a == b), state, after))


def _agent(**changes: Any) -> Any:
    small = {"hidden_sizes": (32,), "critic_hidden_sizes": (64,), "discount": 0.8, "learning_rate": 3e-4}
    no_entropy = {"initial_temperature": 1e-6, "learn_temperature": False, "norm_warmup": 200}
    return crossq.make_agent(crossq.Config(**{**small, **no_entropy, **changes}))


@pytest.mark.full
@pytest.mark.parametrize("terminates", [True, False])
def test_both_critics_find_the_values_of_a_chain(terminates: bool) -> None:
    """By the running statistics, which the policy climbs by; actions have no effect, and the policy's are any."""
    networks, state = learned(_agent(), Chain(terminates), num_updates=3_000)
    apply = jax.vmap(networks.critic.apply, in_axes=(0, None, None, None))
    q, _ = apply((state.critics, state.statistics), STATES, ACTIONS, False)
    np.testing.assert_allclose(q, np.tile(values(0.8, terminates), (2, 1)), atol=0.15)


def _setup(**changes: Any) -> tuple[Any, Any, Any]:
    agent = _agent(**changes)
    networks = agent.make_networks(specs.make_environment_spec(Chain(terminates=True)))
    update = agent.make_update(networks)
    return networks, update, jax.jit(update.init)(KEY)


def _batch(info: Any = ()) -> ReplaySample:
    reward, discount = np.array([0.0, 1.0, 0.5, -1.0], np.float32), np.array([0.8, 0.0, 0.8, 0.5], np.float32)
    return ReplaySample(info, Transition(STATES, ACTIONS, reward, discount, STATES[::-1] * 5))


def test_the_loss_by_hand_of_one_batch_of_both_times_and_no_gradient_through_its_targets() -> None:
    """The policy is nearly certain, so its actions are known. Targets have its entropy, and the learned parameters."""
    certain = {"max_log_std": -20.0, "min_log_std": -21.0}
    networks, _, state = _setup(prioritized=True, importance_exponent=0.5, **certain)
    info = SampleInfo(np.array([0.4, 0.1, 0.2, 0.3]), np.full(4, 10), (), ())
    batch, state = _batch(info), state._replace(log_alpha=jnp.log(0.1))
    loss = crossq.make_losses(networks, _agent(prioritized=True, importance_exponent=0.5, **certain).config).critic

    def by_hand(critics: Any) -> tuple[jax.Array, jax.Array]:
        distribution = networks.policy.apply(state.policy, batch.data.next_observation)
        a_t, (_, log_prob_t) = jnp.tanh(distribution.mean), nets.sample_and_log_prob(distribution, KEY)
        both = jnp.concatenate([STATES, batch.data.next_observation]), jnp.concatenate([ACTIONS, a_t])
        apply = jax.vmap(networks.critic.apply, in_axes=(0, None, None, None))
        q, _ = apply((critics, state.statistics), *both, True)
        v_t = jnp.min(q[:, 4:], axis=0) - 0.1 * log_prob_t
        target = jax.lax.stop_gradient(batch.data.reward + batch.data.discount * v_t)
        errors = q[:, :4] - target[None]
        weights = np.sqrt(np.array([0.25, 1.0, 0.5, 1 / 3], np.float32))
        return jnp.mean(weights * 0.5 * jnp.sum(errors**2, axis=0)), jnp.mean(jnp.abs(errors), axis=0)

    @jax.jit
    def compare(critics: Any) -> Any:
        output = loss(critics, state, batch, KEY)
        grads = jax.grad(lambda c: loss(c, state, batch, KEY).loss)(critics)
        return output.loss, output.priorities, grads, *by_hand(critics), jax.grad(lambda c: by_hand(c)[0])(critics)

    value, priorities, grads, expected, errors, expected_grads = compare(state.critics)
    np.testing.assert_allclose(value, expected, rtol=1e-4)
    np.testing.assert_allclose(priorities, errors, rtol=1e-3)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-2, atol=1e-4), grads, expected_grads)


@pytest.mark.full
def test_an_update_takes_in_the_statistics_and_computes_the_pass_once() -> None:
    networks, update, state = _setup(policy_delay=1)
    compiled = jax.jit(update.update).lower(state, _batch()).compile()
    after, _ = compiled(state, _batch())
    critic_key = jax.random.split(state.key, 3)[1]
    joint = crossq.joint_pass(networks, state.critics, state, _batch(), critic_key)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), after.statistics, joint.statistics
    )

    def without(state: Any, batch: Any) -> Any:
        moved, output = update.update(state, batch)
        return moved._replace(statistics=state.statistics), output

    def flops(function: Any) -> float:
        cost = jax.jit(function).lower(state, _batch()).compile().cost_analysis()
        return (cost[0] if isinstance(cost, list) else cost)["flops"]

    assert flops(update.update) < 1.02 * flops(without)


@pytest.mark.full
def test_policy_and_temperature_step_at_every_third_update_only() -> None:
    _, update, state = _setup(policy_delay=3, learn_temperature=True)
    step, moved = jax.jit(update.update), []
    for _ in range(6):
        before = state
        state, output = step(before, _batch())
        pairs = (before.policy, state.policy), (before.log_alpha, state.log_alpha), (before.critics, state.critics)
        moved.append([not jax.tree.all(jax.tree.map(lambda a, b: np.all(a == b), *pair)) for pair in pairs])
    assert moved == [[False, False, True], [False, False, True], [True, True, True]] * 2
    assert output.metrics["entropy"] != 0


@pytest.mark.full
def test_it_learns_the_point_mass() -> None:
    config = crossq.Config(
        hidden_sizes=(32, 32),
        critic_hidden_sizes=(64, 64),
        learning_rate=3e-3,
        batch_size=64,
        min_replay_size=100,
        num_random_steps=100,
    )
    learns(crossq.make_agent(config), "agentkit:point_mass", num_steps=1_600, threshold=-2.0)
