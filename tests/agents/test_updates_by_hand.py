"""The order of the steps in the updates of continuous agents, with scalars in place of networks.

Adam's arithmetic is optax's own; everything else is a recursion by hand.
"""

from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from agentkit.agents import (
    cql,
    crr,
    d4pg,
    ddpg,
    discrete_sac,
    droq,
    iql,
    mpo,
    recurrent_sac,
    redq,
    sac,
    td3,
    td3_bc,
    tqc,
)
from agentkit.networks import ActorCriticNetworks, Network
from agentkit.types import LossOutput, ReplaySample

KEY = jax.random.PRNGKey(0)
NETWORKS = ActorCriticNetworks(
    Network(lambda key: jnp.float32(1.0), None), Network(lambda key: jax.random.uniform(key), None), (1,)
)


def _batch(target: float) -> ReplaySample:
    return ReplaySample((), jnp.float32(target))


@jax.jit
def _adam(value: Any, gradient: Any, state: Any, learning_rate: float) -> tuple[Any, Any]:
    steps, state = optax.adam(learning_rate).update(gradient, state)
    return value + steps, state


class _Adam:
    """Steps a scalar as optax.adam does."""

    def __init__(self, value: Any, learning_rate: float):
        self.value = np.float32(value)
        self._learning_rate = learning_rate
        self._state = jax.jit(optax.adam(learning_rate).init)(self.value)

    def step(self, gradient: Any) -> None:
        """Moves the value along `gradient`."""
        value, self._state = _adam(self.value, np.float32(gradient), self._state, self._learning_rate)
        self.value = np.float32(value)


@pytest.mark.parametrize(("module", "period"), [(ddpg, 1), (d4pg, 2)])
def test_the_policy_climbs_the_new_critic_and_then_the_targets_move(module: ModuleType, period: int) -> None:
    settings: dict[str, Any] = {"tau": 0.1} if module is ddpg else {"target_update_period": period}
    config = module.Config(policy_learning_rate=0.5, critic_learning_rate=0.25, **settings)
    losses = module.Losses(
        critic=lambda critic, state, batch, key: LossOutput(
            0.5 * (critic - batch.data - state.target_policy) ** 2, {"seen": state.target_critic}, jnp.full(2, critic)
        ),
        policy=lambda policy, state, batch, key: LossOutput(0.5 * (policy - state.critic) ** 2, {}),
    )
    update = module.make_update(NETWORKS, losses, config)
    state, step = jax.jit(update.init)(KEY), jax.jit(update.update)
    policy, critic = _Adam(state.policy, 0.5), _Adam(state.critic, 0.25)
    target_policy, target_critic = policy.value, critic.value
    for number, target in enumerate((3.0, -1.0, 0.5), 1):
        error, seen, priority = critic.value - target - target_policy, target_critic, critic.value
        critic.step(error)
        policy_loss = 0.5 * (policy.value - critic.value) ** 2
        policy.step(policy.value - critic.value)
        if module is ddpg:
            target_policy += 0.1 * (policy.value - target_policy)
            target_critic += 0.1 * (critic.value - target_critic)
        elif number % period == 0:
            target_policy, target_critic = policy.value, critic.value
        state, output = step(state, _batch(target))
        found = [state.policy, state.critic, state.target_policy, state.target_critic]
        np.testing.assert_allclose(found, [policy.value, critic.value, target_policy, target_critic], rtol=1e-5)
        np.testing.assert_allclose(output.metrics["critic_loss"], 0.5 * error**2, rtol=1e-5)
        np.testing.assert_allclose(output.metrics["policy_loss"], policy_loss, rtol=1e-5)
        np.testing.assert_allclose(output.metrics["seen"], seen, rtol=1e-5)
        np.testing.assert_allclose(output.priorities, [priority, priority], rtol=1e-5)
    np.testing.assert_array_equal(update.variables(state)["policy"], state.policy)


def test_crrs_policy_sees_the_new_critics_and_then_both_targets_follow() -> None:
    losses = crr.Losses(
        critic=lambda critics, state, batch, key: LossOutput(
            0.5 * (critics - batch.data - state.target_policy - state.target_critics) ** 2, {}, jnp.full(2, critics)
        ),
        policy=lambda policy, state, batch, key: LossOutput(0.5 * (policy - state.critics) ** 2, {}),
    )
    update = crr.make_update(NETWORKS, losses, crr.Config(learning_rate=0.25, tau=0.1))
    state, step = jax.jit(update.init)(KEY), jax.jit(update.update)
    policy, critics = _Adam(state.policy, 0.25), _Adam(state.critics, 0.25)
    target_policy, target_critics = policy.value, critics.value
    for target in (3.0, -1.0, 0.5):
        error, priority = critics.value - target - target_policy - target_critics, critics.value
        critics.step(error)
        policy_loss = 0.5 * (policy.value - critics.value) ** 2
        policy.step(policy.value - critics.value)
        target_policy += 0.1 * (policy.value - target_policy)
        target_critics += 0.1 * (critics.value - target_critics)
        state, output = step(state, _batch(target))
        found = [state.policy, state.critics, state.target_policy, state.target_critics]
        np.testing.assert_allclose(found, [policy.value, critics.value, target_policy, target_critics], rtol=1e-5)
        np.testing.assert_allclose(output.metrics["critic_loss"], 0.5 * error**2, rtol=1e-5)
        np.testing.assert_allclose(output.metrics["policy_loss"], policy_loss, rtol=1e-5)
        np.testing.assert_allclose(output.priorities, [priority, priority], rtol=1e-5)
    np.testing.assert_array_equal(update.variables(state)["policy"], state.policy)


def test_iqls_value_climbs_the_lagging_critics_and_these_follow_the_new_ones() -> None:
    losses = iql.Losses(
        value=lambda value, state, batch, key: LossOutput(0.5 * (value - state.target_critics) ** 2, {}),
        critic=lambda critics, state, batch, key: LossOutput(0.5 * (critics - batch.data - state.value) ** 2, {}),
        policy=lambda policy, state, batch, key: LossOutput(
            0.5 * (policy - state.critics + 2.0 * state.value) ** 2, {}
        ),
    )
    networks = iql.Networks(NETWORKS.policy, NETWORKS.critic, Network(lambda key: jnp.float32(-0.5), None))
    update = iql.make_update(networks, losses, iql.Config(learning_rate=0.25, tau=0.1))
    state, step = jax.jit(update.init)(KEY), jax.jit(update.update)
    policy, critics, value = (_Adam(x, 0.25) for x in (state.policy, state.critics, state.value))
    targets = critics.value
    for target in (3.0, -1.0, 0.5):
        value_error, critic_error = value.value - targets, critics.value - target - value.value
        value.step(value_error)
        critics.step(critic_error)
        policy.step(policy.value - critics.value + 2.0 * value.value)
        targets += 0.1 * (critics.value - targets)
        state, output = step(state, _batch(target))
        found = [state.policy, state.critics, state.value, state.target_critics]
        np.testing.assert_allclose(found, [policy.value, critics.value, value.value, targets], rtol=1e-5)
        np.testing.assert_allclose(output.metrics["value_loss"], 0.5 * value_error**2, rtol=1e-5)
        np.testing.assert_allclose(output.metrics["critic_loss"], 0.5 * critic_error**2, rtol=1e-5)
    np.testing.assert_array_equal(update.variables(state)["policy"], state.policy)


def test_mpos_parts_step_at_once_and_targets_are_the_new_ones_at_every_second_update() -> None:
    losses = mpo.Losses(
        critic=lambda critic, state, batch, key: LossOutput(
            0.5 * (critic - batch.data - state.target_policy) ** 2, {}, jnp.full(2, critic)
        ),
        policy=lambda params, state, batch, key: LossOutput(
            0.5 * (params[0] - state.target_critic) ** 2 + jnp.sum(params[1].log_temperature), {}
        ),
    )
    rates = {"policy_learning_rate": 0.5, "critic_learning_rate": 0.25, "dual_learning_rate": 100.0}
    update = mpo.make_update(NETWORKS, losses, mpo.Config(**rates, target_update_period=2, max_grad_norm=1e6))
    state, step = jax.jit(update.init)(KEY), jax.jit(update.update)
    policy, critic = _Adam(state.params.policy, 0.5), _Adam(state.params.critic, 0.25)
    target_policy, target_critic = policy.value, critic.value
    for number, target in enumerate((3.0, -1.0, 0.5, 2.0), 1):
        policy_error, critic_error = policy.value - target_critic, critic.value - target - target_policy
        policy.step(policy_error)
        critic.step(critic_error)
        if number % 2 == 0:
            target_policy, target_critic = policy.value, critic.value
        state, _ = step(state, _batch(target))
        found = [state.params.policy, state.params.critic, state.target_policy, state.target_critic]
        np.testing.assert_allclose(found, [policy.value, critic.value, target_policy, target_critic], rtol=1e-5)
        assert float(state.params.duals.log_temperature) == -mpo.MAX_LOG_DUAL  # One step would go to -100.


@pytest.mark.parametrize("module", [td3, td3_bc])
def test_policy_and_targets_move_at_every_third_update_only(module: ModuleType) -> None:
    def policy_loss(policy: Any, state: Any, batch: ReplaySample, key: jax.Array) -> Any:
        loss = 0.5 * (policy - state.critics) ** 2
        return LossOutput(loss, {"cloning_loss": policy})

    losses = module.Losses(
        critic=lambda critics, state, batch, key: LossOutput((critics - batch.data) ** 2, {}), policy=policy_loss
    )
    plain = {"normalize_observations": False} if module is td3_bc else {}
    update = module.make_update(NETWORKS, losses, module.Config(policy_delay=3, learning_rate=0.1, **plain))
    state, step, moved, seen = jax.jit(update.init)(KEY), jax.jit(update.update), [], []
    for _ in range(7):
        before = state
        state, output = step(state, _batch(3.0))
        assert state.critics != before.critics
        names = ("policy", "target_policy", "target_critics")
        changes = {bool(getattr(state, name) != getattr(before, name)) for name in names}
        assert len(changes) == 1
        moved += changes
        seen.append(float(output.metrics["policy_loss"]))
        if moved[-1]:  # It climbed the critics as they had just become.
            np.testing.assert_allclose(seen[-1], 0.5 * (before.policy - state.critics) ** 2, rtol=1e-5)
    assert moved == [False, False, True, False, False, True, False]
    assert seen[0] == seen[1] == 0.0 != seen[2] == seen[3] == seen[4] != seen[5] == seen[6]


def _soft_losses(module: ModuleType, networks: Any, config: Any) -> Any:
    """The critics' loss has the policy and the targets in it, the policy's the critics; entropy is the policy.

    The temperature's is the agent's own.
    """

    def critics_of(tree: Any) -> jax.Array:
        return sum(jnp.sum(leaf) for leaf in jax.tree.leaves(tree))

    def critic_loss(critics: Any, state: Any, batch: ReplaySample, key: jax.Array) -> LossOutput:
        targets = state.target_ensemble if module is redq else state.target_critics
        loss = critics_of(critics) * (critics_of(targets) + state.policy * jnp.exp(state.log_alpha))
        return LossOutput(loss, {"q": critics_of(critics)})

    def policy_loss(policy: Any, state: Any, batch: ReplaySample, key: jax.Array) -> LossOutput:
        critics = state.ensemble if module is redq else state.critics
        return LossOutput(policy * critics_of(critics) * jnp.exp(state.log_alpha), {"entropy": policy})

    def no_penalty(critics: Any, *_: Any) -> LossOutput:
        return LossOutput(0.0 * critics_of(critics), {})

    changed = {"conservative": no_penalty} if module is cql else {}
    critic = Network(networks.critic.init, lambda *_: None)  # Of which REDQ and DroQ make an ensemble.
    own = module.make_losses(networks._replace(critic=critic), config)
    return own._replace(critic=critic_loss, policy=policy_loss, **changed)


def _soft_update(module: ModuleType, networks: Any = NETWORKS, **changes: Any) -> Any:
    own = {redq: {"num_critics": 2}, tqc: {"num_critics": 2}, discrete_sac: {"target_entropy_ratio": 0.0}}.get(
        module, {"target_entropy": 0.0}
    )
    delay = {"policy_delay": 1} if module in (redq, droq) else {}
    if module in (redq, tqc):
        own = {**own, "target_entropy": 0.0}
    if module is cql:
        own = {**own, "policy_learning_rate": 0.1}
    if module is recurrent_sac:
        own = {**own, "max_grad_norm": None}
    settings = {"learning_rate": 0.1, "tau": 0.5, "initial_temperature": 0.5, **own, **delay, **changes}
    if module is discrete_sac:
        networks = discrete_sac.Networks(NETWORKS.policy, NETWORKS.critic, 2)
    config = module.Config(**settings)
    return module.make_update(networks, _soft_losses(module, networks, config), config)


SOFT = [sac, recurrent_sac, discrete_sac, cql, redq, droq, tqc]


def _critics(state: Any, target: bool = False) -> np.ndarray:
    name = ("target_" if target else "") + ("ensemble" if hasattr(state, "ensemble") else "critics")
    return np.stack(jax.tree.leaves(getattr(state, name))).reshape(-1)


@pytest.mark.parametrize("module", SOFT)
def test_all_three_gradients_are_taken_at_the_parameters_from_before_the_update(module: ModuleType) -> None:
    update = _soft_update(module)
    state, step = jax.jit(update.init)(KEY), jax.jit(update.update)
    policy, log_alpha = _Adam(1.0, 0.1), _Adam(np.log(0.5), 0.1)
    critics, targets = [_Adam(x, 0.1) for x in _critics(state)], _critics(state, target=True)
    for _ in range(3):
        total, alpha = sum(critic.value for critic in critics), np.exp(log_alpha.value)
        slope = np.sum(targets) + policy.value * alpha
        expected = {
            "critic_loss": total * slope,
            "q": total,
            "policy_loss": policy.value * total * alpha,
            "entropy": policy.value,
            "temperature": alpha,
        }
        for critic in critics:
            critic.step(slope)
        log_alpha.step(policy.value)  # Entropy is above the target, 0: alpha falls.
        policy.step(total * alpha)
        targets = 0.5 * (targets + np.array([critic.value for critic in critics]))
        state, output = step(state, _batch(0.0))
        np.testing.assert_allclose(_critics(state), [critic.value for critic in critics], rtol=1e-4)
        np.testing.assert_allclose(_critics(state, target=True), targets, rtol=1e-4)
        np.testing.assert_allclose([state.policy, state.log_alpha], [policy.value, log_alpha.value], rtol=1e-4)
        assert set(output.metrics) == set(expected)
        for name, value in expected.items():
            np.testing.assert_allclose(output.metrics[name], value, rtol=1e-4, err_msg=name)


@pytest.mark.parametrize("module", SOFT)
def test_a_temperature_that_is_not_learned_stays(module: ModuleType) -> None:
    update = _soft_update(module, learn_temperature=False)
    state, step = jax.jit(update.init)(KEY), jax.jit(update.update)
    for _ in range(3):
        state, _ = step(state, _batch(0.0))
    assert state.log_alpha == np.log(np.float32(0.5)) and state.policy != 1.0


@pytest.mark.parametrize("module", [sac, recurrent_sac, cql, redq, droq, tqc])
def test_the_target_entropy_is_minus_the_number_of_action_dimensions(module: ModuleType) -> None:
    """Where nothing else is asked for; the temperature then follows Adam's steps along entropy + 3."""
    networks = NETWORKS._replace(action_shape=(3,))
    update = _soft_update(module, networks, target_entropy=None)
    state, step, log_alpha = jax.jit(update.init)(KEY), jax.jit(update.update), _Adam(np.log(0.5), 0.1)
    for _ in range(5):
        log_alpha.step(state.policy + 3.0)  # The losses' entropy is the policy.
        state, _ = step(state, _batch(0.0))
        np.testing.assert_allclose(state.log_alpha, log_alpha.value, rtol=1e-5)


def test_the_target_entropy_of_discrete_actions_is_its_share_of_the_largest() -> None:
    update = _soft_update(discrete_sac, target_entropy_ratio=0.25)
    state, step, log_alpha = jax.jit(update.init)(KEY), jax.jit(update.update), _Adam(np.log(0.5), 0.1)
    for _ in range(5):
        log_alpha.step(state.policy - 0.25 * np.log(2))
        state, _ = step(state, _batch(0.0))
        np.testing.assert_allclose(state.log_alpha, log_alpha.value, rtol=1e-5)


@pytest.mark.parametrize("module", [redq, droq])
def test_policy_and_temperature_step_at_every_third_update_only(module: ModuleType) -> None:
    update = _soft_update(module, policy_delay=3)
    states, metrics, step = [jax.jit(update.init)(KEY)], [], jax.jit(update.update)
    for _ in range(6):
        state, output = step(states[-1], _batch(0.0))
        states.append(state)
        metrics.append(output.metrics)
    for name in ("policy", "log_alpha"):
        moved = np.diff([float(getattr(state, name)) for state in states]) != 0
        assert list(moved) == [False, False, True] * 2, name
    assert np.all(np.diff([_critics(state) for state in states], axis=0) != 0)
    entropies = [float(x["entropy"]) for x in metrics]
    assert entropies[:3] == [0.0, 0.0, 1.0] and entropies[3:5] == [1.0, 1.0] and entropies[5] != 1.0
    expected = float(np.sum(_critics(states[2]))) * 0.5  # The critics from before the last step on them.
    np.testing.assert_allclose(metrics[2]["policy_loss"], expected, rtol=1e-5)
