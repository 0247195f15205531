"""Gumbel MuZero: planning with a learned model (Danihelka et al. 2022, "Policy improvement by planning with Gumbel").

A network learns to predict rewards, values and policies some actions ahead (MuZero, Schrittwieser et al. 2020,
1911.08265), a tree search over these predictions chooses actions, and the policy learns the search's preferences. With
Gumbel noise at its root and completed action values the search improves the policy with few simulations. The search
itself is that of google-deepmind/mctx.

Differences from the papers:
  * A small fully connected model, no residual convolutions; images go through DQN's convolutions first.
  * The value target bootstraps from the target network's value and not from the value that the search found when
    the action was taken, so the target is as new as the network, and truncated episodes bootstrap.
  * Adam with optional clipping of the global gradient norm.
  * Every row of a stored sequence is a root, and the model is unrolled from all of them (MuZero samples one).
  * Uniform replay, unless it is `prioritized`; old searches are not repeated (MuZero Reanalyse), so it holds few.
  * Positions behind a termination, which random actions lead to, are worth nothing, as MuZero's absorbing states, and
    have no policy loss; behind a truncation, or a sequence's last row, nothing is known, and there is no loss.
  * The search discounts by gamma alone: an environment's own discounts within an episode are in the targets only.
  * Defaults fit small problems: 16 simulations for an action, batches of 16 sequences.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import NamedTuple

import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np

from agentkit import losses, specs
from agentkit import networks as nets
from agentkit.actors import Policy
from agentkit.agents.common.agent import Agent, Configured, MakePolicy, UpdateOfLoss, check_config, checks_parts, given
from agentkit.agents.common.experience import Sequences, SequencesConfig
from agentkit.agents.common.optimizers import Optimizer, optimizer_of
from agentkit.agents.common.prioritized import importance_weighted_loss
from agentkit.agents.common.ranges import Count, CountFromTwo, Finite, Positive, Sizes, check_order
from agentkit.agents.common.torso import with_torso
from agentkit.errors import ConfigError, missing_extra
from agentkit.learning import Loss, Schedule, SgdState, Update, adam, periodic, sgd
from agentkit.types import LossOutput, Nest, Params, ReplaySample, Step, has_action


@dataclasses.dataclass(frozen=True)
class Config(SequencesConfig):
    """Holds the hyperparameters of Gumbel MuZero, in addition to those of `SequencesConfig`.

    An "item" there is a sequence here, but `updates_per_step` counts updates for each row of an actor.

    Attributes:
        hidden_sizes: units of each hidden layer of the five networks (state, reward, next state, policy, value).
        model_size: H, numbers in the model's state.
        num_atoms: N, values that rewards and values are distributions over.
        vmin: the least of them; smaller rewards and returns count as this one.
        vmax: the greatest.
        rescale_values: space the atoms evenly in h(value), where h is `losses.signed_hyperbolic`: close together near 0
            and far apart at large returns, so that one support serves both (Schrittwieser et al. 2020, appendix F).
        num_simulations: steps of the model for each action chosen.
        max_num_considered_actions: actions tried at the root, at most (Danihelka et al. 2022, section 3.4).
        unroll_length: rewards, values and policies predicted from each row, K.
        value_cost: weight of the value loss (0.25 in MuZero Reanalyse).
        learning_rate: Adam's step size.
        max_grad_norm: clips the gradients' global norm; None for no clipping.
        adam_epsilon: added to the root of Adam's second moment.
        target_update_period: updates between copies to the target network.
    """

    n_step: Count = 5
    batch_size: Count = 16
    updates_per_step: Positive = 0.25
    replay_size: Count = 500
    min_replay_size: Count = 20
    sequence_length: Count = 20
    sequence_period: Count = 20
    hidden_sizes: Sizes = (64,)
    model_size: Count = 64
    num_atoms: CountFromTwo = 121
    vmin: Finite = -1_000.0
    vmax: Finite = 1_000.0
    rescale_values: bool = True
    num_simulations: Count = 16
    max_num_considered_actions: Count = 16
    unroll_length: Count = 5
    value_cost: Positive = 0.25
    learning_rate: Positive | Schedule = 1e-3
    max_grad_norm: Positive | None = 5.0
    adam_epsilon: Positive = 1e-8
    target_update_period: Count = 100

    def __post_init__(self) -> None:
        """Refuses a value outside of its field's range, and bounds in the wrong order."""
        super().__post_init__()
        check_order(self, "vmin", "vmax")
        if self.sequence_period > self.sequence_length:
            raise ConfigError(
                "Expected sequence_period <= sequence_length, or some rows are never learned from; found "
                f"sequence_period={self.sequence_period} and sequence_length={self.sequence_length}. Set "
                "sequence_period to at most the latter."
            )


class Networks(NamedTuple):
    """Holds the pure functions of an environment's networks.

    Attributes:
        init: ``key -> params``.
        represent: ``(params, observation [B, ...]) -> hidden [B, H]``, in [0, 1].
        predict: ``(params, hidden [B, H]) -> (policy logits [B, A], value logits [B, N])``.
        step: ``(params, hidden [B, H], action [B]) -> (reward logits [B, N], next hidden [B, H])``.
        atoms: what rewards and values are distributions over, rising, float32 ``[N]``: h(value) where values are
            rescaled.
        num_actions: A.
        to_value: ``logits [..., N] -> value [...]``.
        turn_sign: of what follows an action: -1.0 where players take turns, whose values are each other's negatives.
    """

    init: Callable[[jax.Array], Params]
    represent: Callable[[Params, Nest], jax.Array]
    predict: Callable[[Params, jax.Array], tuple[jax.Array, jax.Array]]
    step: Callable[[Params, jax.Array, jax.Array], tuple[jax.Array, jax.Array]]
    atoms: jax.Array
    num_actions: int
    to_value: Callable[[jax.Array], jax.Array]
    turn_sign: float = 1.0


def make_networks(environment_spec: specs.EnvironmentSpec, config: Config, torso: nets.Torso = nets.torso) -> Networks:
    """Builds representation, dynamics and prediction for an environment of one discrete action."""
    num_actions = specs.num_discrete_actions(environment_spec.actions, "Gumbel MuZero")
    sizes, num_atoms = config.hidden_sizes, config.num_atoms

    def represent(observation: Nest) -> jax.Array:
        observation = nets.encode_inputs(environment_spec.observations, observation)
        return _scale_to_unit(nets.mlp(torso(observation), sizes, config.model_size))

    def predict(hidden: jax.Array) -> tuple[jax.Array, jax.Array]:
        return nets.mlp(hidden, sizes, num_actions), nets.mlp(hidden, sizes, num_atoms)

    def step(hidden: jax.Array, action: jax.Array) -> tuple[jax.Array, jax.Array]:
        features = jnp.concatenate([hidden, jax.nn.one_hot(action, num_actions)], axis=-1)
        change = nets.mlp(features, sizes, config.model_size)
        return nets.mlp(features, sizes, num_atoms), _scale_to_unit(hidden + change)

    parts: list[hk.Transformed] = [hk.without_apply_rng(hk.transform(part)) for part in (represent, predict, step)]
    observation = specs.zeros(specs.add_leading(environment_spec.observations, 1))
    hidden, action = np.zeros((1, config.model_size), np.float32), np.zeros(1, np.int32)

    def init(key: jax.Array) -> tuple[Params, ...]:
        examples: tuple[tuple[Nest, ...], ...] = ((observation,), (hidden,), (hidden, action))
        keys = jax.random.split(key, len(parts))
        return tuple(part.init(k, *example) for part, k, example in zip(parts, keys, examples, strict=True))

    vmin, vmax = config.vmin, config.vmax
    if config.rescale_values:
        vmin, vmax = _rescale(vmin), _rescale(vmax)
    atoms = nets.evenly_spaced_atoms(vmin, vmax, num_atoms)

    def to_value(logits: jax.Array) -> jax.Array:
        mean = nets.categorical_mean(logits, atoms)
        return _unscale(mean) if config.rescale_values else mean

    return Networks(
        init=init,
        represent=lambda params, x: parts[0].apply(params[0], x),
        predict=lambda params, x: parts[1].apply(params[1], x),
        step=lambda params, x, a: parts[2].apply(params[2], x, a),
        atoms=atoms,
        num_actions=num_actions,
        to_value=to_value,
        turn_sign=-1.0 if specs.changes_sides(environment_spec.discounts) else 1.0,
    )


# `losses` has both, too, but loads rlax, which is slow: actors plan without it.
_EPSILON = 1e-3


def _rescale(value: float) -> float:
    """Returns h(value) (Pohlen et al. 2018, 1805.11593, prop. A.2)."""
    return math.copysign(math.sqrt(abs(value) + 1.0) - 1.0, value) + _EPSILON * value


def _unscale(x: jax.Array) -> jax.Array:
    """Inverts `_rescale`, as `losses.signed_parabolic` does."""
    y = 1.0 + _EPSILON + jnp.abs(x)
    root = 2.0 * y / (1.0 + jnp.sqrt(1.0 + 4.0 * _EPSILON * y))
    return jnp.sign(x) * (root - 1.0) * (root + 1.0)


def _scale_to_unit(hidden: jax.Array) -> jax.Array:
    """Scales each row to [0, 1], so that the model's states stay bounded (Schrittwieser et al. 2020, appendix G)."""
    low, high = jnp.min(hidden, axis=-1, keepdims=True), jnp.max(hidden, axis=-1, keepdims=True)
    return (hidden - low) / (high - low + 1e-5)


def make_policy(networks: Networks, config: Config, evaluation: bool = False) -> Policy:
    """Takes the action that the search finds (Danihelka et al. 2022, algorithm 2), in evaluation without Gumbel noise.

    Its extras are the improved policy, ``[A]`` (ibid., eq. 11); in evaluation there are none.

    Raises:
        MissingExtraError: mctx is not installed.
    """
    try:
        import mctx  # Not at import time: who lists or configures agents needs none.
    except ImportError as error:
        raise missing_extra("mctx", "planning") from error
    searched_policy = specs.Array((networks.num_actions,), np.float32, "searched policy")

    def model(
        params: Params, key: jax.Array, action: jax.Array, hidden: jax.Array
    ) -> tuple[mctx.RecurrentFnOutput, jax.Array]:
        del key
        reward, hidden = networks.step(params, hidden, action)
        logits, value = networks.predict(params, hidden)
        reward, value = networks.to_value(reward), networks.to_value(value)
        discount = jnp.full_like(reward, networks.turn_sign * config.discount)
        return mctx.RecurrentFnOutput(reward=reward, discount=discount, prior_logits=logits, value=value), hidden

    def act(params: Params, key: jax.Array, observation: Nest, state: Nest) -> tuple[Nest, Nest, Nest]:
        batch = jax.tree.map(lambda x: x[None], observation)
        hidden, allowed = networks.represent(params, batch), nets.action_mask(batch)
        logits, value = networks.predict(params, hidden)
        value = networks.to_value(value)
        found = mctx.gumbel_muzero_policy(
            params=params,
            rng_key=key,
            root=mctx.RootFnOutput(prior_logits=logits, value=value, embedding=hidden),
            recurrent_fn=model,
            num_simulations=config.num_simulations,
            invalid_actions=None if allowed is None else ~allowed,
            max_num_considered_actions=config.max_num_considered_actions,
            gumbel_scale=0.0 if evaluation else 1.0,
        )
        return found.action[0].astype(jnp.int32), state, () if evaluation else found.action_weights[0]

    return Policy(act, extras_spec=() if evaluation else searched_policy)


def make_loss(networks: Networks, config: Config) -> Loss:
    """Builds the losses of rewards, values and policies, K actions ahead of each row (MuZero, eq. 1).

    A batch has sequences of `Step`s ``[B, T + 1, ...]``, of which the last row only serves to bootstrap.
    """

    def loss(params: Params, state: SgdState, batch: ReplaySample[Step], key: jax.Array) -> LossOutput:
        steps: Step = jax.tree.map(jnp.asarray, batch.data)
        acted = has_action(steps.start_of_episode)  # [B, T]
        action, discount = steps.action[:, :-1], steps.discount[:, :-1]
        # Targets, and not the losses alone: a loss's gradient multiplies by them, and 0 * nan is nan.
        reward = losses.masked(steps.reward[:, :-1], acted)
        searched = losses.masked(steps.extras[:, :-1], acted[..., None])
        target_values = _by_row(lambda x: _value(networks, state.target_params, x), steps.observation)  # [B, T + 1]
        targets = losses.n_step_targets(reward, config.discount * discount, target_values, acted, config.n_step)
        if config.rescale_values:
            targets, reward = losses.signed_hyperbolic(targets), losses.signed_hyperbolic(reward)
        hidden = _by_row(lambda x: networks.represent(params, x), jax.tree.map(lambda x: x[:, :-1], steps.observation))
        hidden, mask = _flat(hidden), _flat(acted)  # [B T, H], [B T]
        over = terminates = jnp.zeros_like(mask)  # 1 behind a termination; 1 in a row that is worth its reward alone.
        parts: dict[str, list[jax.Array]] = {"policy_loss": [], "value_loss": [], "reward_loss": []}
        for k in range(config.unroll_length):
            goes_on, is_there = _ahead(acted, k), _ahead(jnp.ones_like(acted), k)
            over, mask = over + mask * terminates * (1.0 - goes_on) * is_there, mask * goes_on
            terminates = _ahead(discount, k) == 0
            policy, value = networks.predict(params, hidden)
            random = jax.random.randint(jax.random.fold_in(key, k), mask.shape, 0, networks.num_actions)
            chosen = jnp.where(over > 0, random.astype(action.dtype), _ahead(action, k))
            predicted, hidden = networks.step(params, hidden, chosen)
            found = {
                "policy_loss": losses.cross_entropy(policy, _ahead(searched, k)),
                "value_loss": losses.two_hot_cross_entropy(value, mask * _ahead(targets, k), networks.atoms),
                "reward_loss": losses.two_hot_cross_entropy(predicted, mask * _ahead(reward, k), networks.atoms),
            }
            for name, per_row in found.items():
                counts = mask if name == "policy_loss" else mask + over
                parts[name].append(
                    losses.masked_mean(losses.masked(per_row, counts).reshape(acted.shape), acted, axis=1)
                    / max(1, k and config.unroll_length - 1)
                )
            hidden = 0.5 * (hidden + jax.lax.stop_gradient(hidden))  # half the gradient: MuZero, appendix G
        per_item = {name: jnp.sum(jnp.stack(items), axis=0) for name, items in parts.items()}  # [B]
        total = per_item["policy_loss"] + config.value_cost * per_item["value_loss"] + per_item["reward_loss"]
        metrics = {name: jnp.mean(x) for name, x in per_item.items()}
        metrics["q"] = losses.masked_mean(target_values[:, :-1], acted)
        metrics["at_edge"] = nets.share_at_edge(target_values[:, :-1], config.vmin, config.vmax, acted > 0)
        return importance_weighted_loss(total, metrics, batch, config)

    return loss


def _flat(x: jax.Array) -> jax.Array:
    """Reshapes ``[B, T, ...]`` to ``[B T, ...]``."""
    return x.reshape(-1, *x.shape[2:])


def _by_row(function: Callable[[Nest], jax.Array], rows: Nest) -> jax.Array:
    """Applies `function`, which takes leaves ``[B T, ...]``, to leaves ``[B, T, ...]``."""
    leading = jax.tree.leaves(rows)[0].shape[:2]
    outputs = function(jax.tree.map(_flat, rows))
    return outputs.reshape(*leading, *outputs.shape[1:])


def _ahead(x: jax.Array, k: int) -> jax.Array:
    """Returns the rows ``[B T, ...]`` that are k later than those of ``[B, T, ...]``; zeros beyond the end."""
    return _flat(jnp.concatenate([x[:, k:], jnp.zeros_like(x[:, :k])], axis=1))


def _value(networks: Networks, params: Params, observation: Nest) -> jax.Array:
    """Returns the values ``[B]`` of observations ``[B, ...]``."""
    _, logits = networks.predict(params, networks.represent(params, observation))
    return networks.to_value(logits)


def make_update(networks: Networks, loss: Loss, config: Config, optimizer: Optimizer | None = None) -> Update:
    """Takes a step of Adam on the loss; copies the target network every `target_update_period` updates."""
    default = adam(config.learning_rate, config.max_grad_norm, epsilon=config.adam_epsilon)
    optimizer = optimizer_of(optimizer, config, default)
    return sgd(loss, networks.init, optimizer, periodic(config.target_update_period))


@checks_parts
def make_agent(
    config: Config = Config(),
    *,
    torso: nets.Torso | str | None = None,
    make_networks: Callable[[specs.EnvironmentSpec, Config], Networks] = make_networks,
    make_policy: MakePolicy[Networks, Config] = make_policy,
    make_loss: Callable[[Networks, Config], Loss] = make_loss,
    optimizer: Optimizer | None = None,
    make_update: Callable[[Networks, Loss, Config], Update] = make_update,
) -> Agent[Networks]:
    """Returns Gumbel MuZero as an agent, with any of its parts replaced."""
    check_config(config, Config)
    return Agent(
        config,
        Sequences(config),
        with_torso(make_networks, config, torso),
        Configured(make_policy, config),
        UpdateOfLoss(given(make_update, optimizer=optimizer), make_loss, config),
    )
