"""Losses and targets of agents in plain numpy, with tables in place of networks."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentkit import networks as nets
from agentkit import specs
from agentkit.agents import dqn, gumbel_muzero, ppo, r2d2, recurrent_sac
from agentkit.agents.common.advantages import Minibatch, compute_advantages, estimate_advantages
from agentkit.networks import Network
from agentkit.types import ReplaySample, SampleInfo, Step, Transition
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


RNG = np.random.default_rng(0)
SEQUENCE = Step(
    observation=RNG.normal(size=(2, 5)).astype(np.float32),
    action=RNG.integers(2, size=(2, 5)).astype(np.int32),
    reward=RNG.normal(size=(2, 5)).astype(np.float32),
    discount=np.ones((2, 5), np.float32),
    start_of_episode=np.zeros((2, 5), bool),
    extras=(),
)
SETTINGS: dict[str, Any] = {"prioritized": True, "sequence_length": 4, "sequence_period": 2, "burn_in": 2}


def _r2d2() -> tuple[Any, Step, Step]:
    table = nets.as_recurrent(lambda key: None, lambda params, o: params[None] * o[:, None])
    loss = r2d2.make_loss(table, r2d2.Config(**SETTINGS))
    return lambda params, batch: loss(params, state_of_targets(params), batch, KEY), SEQUENCE, _without(1, SEQUENCE)


def _recurrent_sac() -> tuple[Any, Step, Step]:
    policy = nets.as_recurrent(lambda key: None, lambda params, o: nets.TanhNormal(o[:, None], o[:, None]))
    critic = nets.as_recurrent(
        lambda key: None, lambda params, x: tuple(w * x.observation + x.action[:, 0] for w in params)
    )
    config = recurrent_sac.Config(**SETTINGS)
    losses = recurrent_sac.make_losses(recurrent_sac.Networks(policy, critic, (1,)), config)
    data = SEQUENCE._replace(action=SEQUENCE.action[..., None].astype(np.float32))

    def loss(params: Any, batch: ReplaySample[Step]) -> Any:
        state = recurrent_sac.State((), params, params, jnp.float32(0.0), (), KEY)
        return losses.critic(params, state, batch, KEY)

    return loss, data, _without(1, data)


def _gumbel_muzero() -> tuple[Any, Step, Step]:
    """With an end of an episode, whose final row is the second."""
    config = gumbel_muzero.Config(num_atoms=2, vmin=-1.0, vmax=1.0, unroll_length=2, n_step=3, prioritized=True)
    networks = gumbel_muzero.Networks(
        init=lambda key: None,
        represent=lambda params, o: params[None] * o[:, None],
        predict=lambda params, x: (x, x),
        step=lambda params, x, action: (x, x * params[None]),
        atoms=jnp.linspace(-1.0, 1.0, 2),
        num_actions=2,
        to_value=lambda logits: logits[:, 0],
    )
    loss, start = gumbel_muzero.make_loss(networks, config), np.zeros((2, 5), bool)
    start[:, 2] = True
    data = SEQUENCE._replace(start_of_episode=start, extras=np.full((2, 5, 2), 0.5, np.float32))
    return lambda params, batch: loss(params, state_of_targets(params), batch, KEY), data, _without(1, data)


def _without(row: int, data: Step) -> Step:
    """Where a row's reward, and what was stored beside its action, are not known."""

    def forget(x: Any) -> np.ndarray:
        x = np.array(x)
        x[:, row] = np.nan
        return x

    return data._replace(reward=forget(data.reward), extras=jax.tree.map(forget, data.extras))


@pytest.mark.parametrize("case", [_r2d2, _recurrent_sac, _gumbel_muzero], ids=lambda case: case.__name__[1:])
def test_a_nan_in_a_row_that_does_not_count_reaches_nothing(case: Any) -> None:
    """In one that is burnt in, or an episode's final one: neither loss, gradient nor priorities change.

    No other test sees it, and each of these losses has its own way to leave such rows out.
    """
    loss, data, unknown = case()
    info = SampleInfo(np.full(2, 0.5), np.full(2, 2), (), ())

    def total(params: Any, data: Step) -> tuple[jax.Array, Any]:
        output = loss(params, ReplaySample(info, data))
        return output.loss, output

    found = jax.jit(jax.value_and_grad(total, has_aux=True))
    ((loss_of_all, expected), slope), ((loss_of_known, output), other_slope) = (
        found(np.float32([0.5, -1.0]), x) for x in (data, unknown)
    )
    assert np.all(slope != 0) and np.all(expected.priorities > 0)
    np.testing.assert_array_equal(loss_of_known, loss_of_all)
    np.testing.assert_array_equal(other_slope, slope)
    np.testing.assert_array_equal(output.priorities, expected.priorities)
