"""Losses and targets of agents in plain numpy, with tables in place of networks."""

import functools
from typing import Any

import jax
import numpy as np
import pytest

from agentkit import networks as nets
from agentkit import specs
from agentkit.agents import dqn, ppo
from agentkit.agents.common.advantages import Minibatch, compute_advantages, estimate_advantages
from agentkit.networks import Network
from agentkit.types import ReplaySample, SampleInfo, Transition
from tests.agents import on_policy_by_hand as by_hand
from tests.agents.spaces import NUM_ACTIONS, Rules
from tests.agents.target_state import state_of_targets

KEY = jax.random.PRNGKey(0)


@pytest.mark.parametrize("prioritized", [True, False])
@pytest.mark.parametrize("double", [True, False])
@pytest.mark.parametrize("delta", [None, 1.0])
def test_dqns_loss_and_priorities(prioritized: bool, double: bool, delta: float | None) -> None:
    """Importance weights are on the losses alone, and priorities are the absolute errors, whatever the loss."""
    table = Network(lambda key: None, lambda params, o: params[o])
    config = dqn.Config(prioritized=prioritized, importance_exponent=0.5, double=double, huber_delta=delta)
    q = np.array([[1.0, 2.0], [3.0, -1.0], [0.5, 0.25]], np.float32)
    target = np.array([[4.0, -2.0], [-0.5, 0.0], [1.0, 7.0]], np.float32)
    o_tm1, action, o_t = np.array([0, 1, 2, 0]), np.array([1, 0, 0, 0], np.int32), np.array([1, 2, 0, 2])
    reward, discount = np.array([0.5, -1.0, 0.0, 2.0], np.float32), np.array([0.9, 0.81, 0.0, 0.5], np.float32)
    info = SampleInfo(np.array([0.4, 0.1, 0.2, 0.3]), np.full(4, 10), (), ())
    batch = ReplaySample(info, Transition(o_tm1, action, reward, discount, o_t))
    output = jax.jit(dqn.make_loss(table, config))(q, state_of_targets(target), batch, KEY)

    best = np.argmax(q[o_t] if double else target[o_t], axis=1)
    errors = reward + discount * target[o_t, best] - q[o_tm1, action]
    per_item = 0.5 * errors**2
    if delta is not None:
        per_item = np.where(np.abs(errors) <= delta, per_item, delta * (np.abs(errors) - 0.5 * delta))
    weights = np.sqrt([0.25, 1.0, 0.5, 1 / 3]) if prioritized else np.ones(4)
    np.testing.assert_allclose(output.loss, np.mean(weights * per_item), rtol=1e-5)
    assert np.max(np.abs(errors)) > 1.4 and np.min(np.abs(errors)) < 0.9  # On both sides of delta, and of 1.
    if prioritized:
        np.testing.assert_allclose(output.priorities, np.abs(errors), rtol=1e-5)
    else:
        assert output.priorities is None


@pytest.mark.full
@pytest.mark.parametrize("double", [True, False])
def test_dqns_target_is_of_the_actions_that_may_be_taken_next(double: bool) -> None:
    """In the observation that follows, whichever may be taken now."""
    config = dqn.Config(hidden_sizes=(4,), double=double, huber_delta=None)
    network = dqn.make_networks(specs.make_environment_spec(Rules(0)), config)
    rng, size = np.random.default_rng(0), 64
    params, target = map(jax.jit(network.init), jax.random.split(KEY))
    hints = rng.normal(size=(2, size, NUM_ACTIONS)).astype(np.float32)
    masks = rng.integers(0, 2, (2, size, NUM_ACTIONS)).astype(np.int8)
    masks[..., 2] = 1
    action, reward = np.full(size, 2, np.int32), rng.normal(size=size).astype(np.float32)
    now, then = ({"action_mask": mask, "hint": hint} for mask, hint in zip(masks, hints, strict=True))
    data = Transition(now, action, reward, np.full(size, 0.9, np.float32), then)
    output = jax.jit(dqn.make_loss(network, config))(params, state_of_targets(target), ReplaySample((), data), KEY)

    apply = jax.jit(network.apply)

    def values(weights: Any, hint: np.ndarray) -> np.ndarray:  # Of any action: nothing is ruled out.
        return np.asarray(apply(weights, {"action_mask": np.ones_like(masks[0]), "hint": hint}))

    selector = values(params if double else target, hints[1])
    best = np.argmax(np.where(masks[1] > 0, selector, -np.inf), axis=1)
    assert np.mean(best != np.argmax(selector, axis=1)) > 0.2
    next_value = np.take_along_axis(values(target, hints[1]), best[:, None], axis=1)[:, 0]
    errors = reward + 0.9 * next_value - values(params, hints[0])[:, 2]
    np.testing.assert_allclose(output.loss, np.mean(0.5 * errors**2), rtol=1e-4)


LOGITS = np.array([[0.2, -0.3, 0.1], [1.0, 0.0, -1.0], [0.0, 0.0, 0.5], [2.0, 1.0, 0.0], [0.0, 3.0, 0.0]], np.float32)
VALUES = np.array([0.4, -1.0, 2.0, 0.3, 9.0], np.float32)
ROWS = Minibatch(
    observation=np.zeros((5, 1), np.float32),
    # Ratios on both sides of the clip, with advantages of both signs; the last row has no action.
    extras=nets.PolicyExtras(np.array([0, 1, 2, 0, 1], np.int32), np.array([-1.6, -1.1, -0.3, -0.7, -9.0], np.float32)),
    advantage=np.array([1.0, -2.0, 0.5, -1.5, 100.0], np.float32),
    target=np.array([0.0, 1.0, -1.0, 0.5, 50.0], np.float32),
    old_value=np.array([0.0, -0.5, 3.0, 0.4, 0.0], np.float32),
    mask=np.array([1.0, 1.0, 1.0, 1.0, 0.0], np.float32),
)


@pytest.mark.parametrize(
    "settings",
    [{}, {"value_clip": 0.3}, {"value_cost": 2.0}, {"kl_cost": 3.0}, {"normalize_advantages": "minibatch"}],
    ids=lambda settings: ",".join(settings) or "plain",
)
def test_ppos_loss(settings: dict[str, Any]) -> None:
    """Equations 7 to 9, and a value whose move is clipped, a row at a time."""
    clip = 0.1
    config = ppo.Config(**{"normalize_advantages": "none", "clip_epsilon": clip, "entropy_cost": 0.7, **settings})
    networks = ppo.make_networks(by_hand.SPECS["discrete"], config)
    table = nets.as_recurrent(lambda key: None, lambda params, o: (nets.Categorical(params[0]), params[1]))
    state = ppo.State((), (), (), config.kl_cost, KEY, 0)
    of_rows = jax.jit(ppo.make_loss(networks._replace(network=table), config))
    loss, metrics, _ = of_rows((LOGITS, VALUES), state, ReplaySample((), ROWS), KEY)

    advantages = ROWS.advantage[:4]
    if config.normalize_advantages == "minibatch":
        advantages = (advantages - advantages.mean()) / advantages.std()
    sums, sides = dict.fromkeys(("policy_loss", "value_loss", "entropy", "kl", "clipped"), 0.0), set()
    for i in range(4):
        log_probs = LOGITS[i] - np.log(np.sum(np.exp(LOGITS[i])))
        log_ratio = log_probs[ROWS.extras.sample[i]] - ROWS.extras.log_prob[i]
        ratio, clipped = np.exp(log_ratio), np.clip(np.exp(log_ratio), 1 - clip, 1 + clip)
        sides.add((np.sign(ratio - clipped), np.sign(advantages[i])))
        sums["policy_loss"] -= min(ratio * advantages[i], clipped * advantages[i])
        squares = [(VALUES[i] - ROWS.target[i]) ** 2]
        if config.value_clip is not None:
            move = np.clip(VALUES[i] - ROWS.old_value[i], -config.value_clip, config.value_clip)
            squares.append((ROWS.old_value[i] + move - ROWS.target[i]) ** 2)
        sums["value_loss"] += 0.5 * max(squares)
        sums["entropy"] -= np.sum(np.exp(log_probs) * log_probs)
        sums["kl"] += ratio - 1 - log_ratio
        sums["clipped"] += ratio != clipped
    means = {name: value / 4 for name, value in sums.items()}
    assert sides == {(1, 1), (-1, -1), (-1, 1), (1, -1)}
    unclipped = np.mean(0.5 * (VALUES - ROWS.target)[:4] ** 2)
    assert (means["value_loss"] > unclipped + 0.1) == (config.value_clip is not None)
    assert {name: float(value) for name, value in metrics.items()} == pytest.approx(means, rel=1e-4)
    expected = means["policy_loss"] + config.value_cost * means["value_loss"] - 0.7 * means["entropy"]
    assert float(loss) == pytest.approx(expected + config.kl_cost * means["kl"], rel=1e-4)


@pytest.mark.parametrize("normalize", [True, False])
def test_on_policy_targets_have_the_scale_of_all_returns_so_far(normalize: bool) -> None:
    """A network that predicts normalised returns, beside one that predicts the same returns as they are."""
    earlier = np.array([-3.0, 1.0, 4.0, 10.0], np.float32)
    mean, std = (earlier.mean(), earlier.std()) if normalize else (0.0, 1.0)
    weights, batch = by_hand.weights("discrete"), by_hand.segments("discrete")
    agent = ppo.make_agent(ppo.Config(hidden_sizes=(), normalize_observations=False))
    networks = agent.make_networks(by_hand.SPECS["discrete"])
    params = {**by_hand.policy_params(weights, "linear_1"), **by_hand.value_params(weights, "linear")}
    variables = by_hand.state_of(agent.make_update(networks), params).variables
    before = jax.jit(nets.update_statistics)(nets.init_statistics(()), earlier)
    config = ppo.Config(gae_lambda=0.7)
    settings: dict[str, Any] = {"discount": 0.9, "normalize_values": normalize}
    estimate = functools.partial(estimate_advantages, config=config)
    found = jax.jit(lambda *given: compute_advantages(networks, *given, estimate, **settings))(
        variables, before, batch.data
    )

    true = weights._replace(value_w=weights.value_w * std, value_b=weights.value_b * std + mean)
    elements = by_hand.elements(batch, true, 0.9, 0.7)
    advantage, value = np.array([(element.advantage, element.value) for element in elements]).T
    everything = np.concatenate([earlier, advantage + value])
    target = advantage + value
    scaled = (target - everything.mean()) / everything.std() if normalize else target
    mask = np.asarray(found.rows.mask) > 0
    for name, expected in (("advantage", advantage), ("target", scaled), ("old_value", (value - mean) / std)):
        rows = np.asarray(getattr(found.rows, name))[mask]
        np.testing.assert_allclose(rows, expected, rtol=1e-3, atol=1e-4, err_msg=name)
    np.testing.assert_allclose(found.returns.mean, everything.mean(), rtol=1e-4)
    np.testing.assert_allclose(found.explained_variance, 1 - np.var(advantage) / np.var(target), atol=1e-4)
