"""Gradients of linear policies and values on segments, by loops in plain numpy.

With ``hidden_sizes=()`` the agents' networks are linear: logits or means are ``o W + b``, and so is the value.
"""

from typing import Any, NamedTuple

import jax
import numpy as np

from agentkit import networks as nets
from agentkit import specs
from agentkit.actors import PolicyVariables
from agentkit.learning import Update
from agentkit.types import ReplaySample, Step

KEY = jax.random.PRNGKey(0)
_SCALAR = specs.Array((), np.float32)
_OBSERVATION_SIZE, _ACTION_SIZE = 3, 2
SPECS = {
    "discrete": specs.EnvironmentSpec(
        specs.Array((_OBSERVATION_SIZE,), np.float32), specs.DiscreteArray(_ACTION_SIZE, np.int32), _SCALAR, _SCALAR
    ),
    "continuous": specs.EnvironmentSpec(
        specs.Array((_OBSERVATION_SIZE,), np.float32),
        specs.BoundedArray((_ACTION_SIZE,), np.float32, -1.0, 1.0),
        _SCALAR,
        _SCALAR,
    ),
}

# Which rows of four segments begin an episode, the row behind each included.
_FIRST = np.array(
    [
        [1, 0, 0, 0, 0, 0],  # Ends in mid-episode.
        [0, 0, 0, 1, 0, 0],  # Row 2 is the final observation of an episode that terminated.
        [0, 0, 1, 0, 0, 1],  # Row 1 is of one that was truncated, and so is row 4.
        [1, 0, 1, 0, 0, 0],  # Row 1 is of an episode of one step, which terminated.
    ],
    bool,
)
_TERMINATIONS = [(1, 1), (3, 0)]  # Segment and row of the action.


class Weights(NamedTuple):
    """Of the linear networks; `log_std` is of continuous actions."""

    w: np.ndarray
    b: np.ndarray
    value_w: np.ndarray
    value_b: np.ndarray
    log_std: np.ndarray


def weights(kind: str) -> Weights:
    """Random ones."""
    rng = np.random.default_rng(3)
    shapes = (_OBSERVATION_SIZE, _ACTION_SIZE), (_ACTION_SIZE,), (_OBSERVATION_SIZE, 1), (1,), (_ACTION_SIZE,)
    w, b, value_w, value_b, log_std = (rng.normal(size=shape).astype(np.float32) for shape in shapes)
    return Weights(w, b, value_w, value_b, 0.3 * log_std if kind == "continuous" else np.zeros(0, np.float32))


def policy_params(weights: Weights, layer: str) -> dict[str, Any]:
    """As Haiku keeps them."""
    params = {layer: {"w": weights.w, "b": weights.b}}
    return {**params, "~": {"log_std": weights.log_std}} if weights.log_std.size else params


def value_params(weights: Weights, layer: str) -> dict[str, Any]:
    """As Haiku keeps them."""
    return {layer: {"w": weights.value_w, "b": weights.value_b}}


def segments(kind: str) -> ReplaySample:
    """Four of five rows and the one behind them, with every way in which an episode and a segment can end."""
    rng = np.random.default_rng(4)
    shape = _FIRST.shape
    observation = rng.normal(size=(*shape, _OBSERVATION_SIZE)).astype(np.float32)
    final = np.concatenate([_FIRST[:, 1:], np.zeros((shape[0], 1), bool)], axis=1)
    reward = np.where(final, 0.0, rng.normal(size=shape)).astype(np.float32)
    discount = np.where(final, 0.0, 1.0).astype(np.float32)
    for row in _TERMINATIONS:
        discount[row] = 0.0
    if kind == "discrete":
        sample = np.where(final, 0, rng.integers(_ACTION_SIZE, size=shape)).astype(np.int32)
        action = sample
    else:
        sample = np.where(final[..., None], 0.0, rng.normal(size=(*shape, _ACTION_SIZE))).astype(np.float32)
        action = np.clip(sample, -1, 1)
    extras = nets.PolicyExtras(sample, np.where(final, 0.0, -0.7).astype(np.float32))
    return ReplaySample((), Step(observation, action, reward, discount, _FIRST, extras))


def state_of(update: Update, params: Any) -> Any:
    """The first training state, but for the parameters; nothing is normalised."""
    return jax.jit(update.init)(KEY)._replace(variables=PolicyVariables(params, ()))


class Element(NamedTuple):
    """One action of the segments."""

    observation: np.ndarray
    sample: np.ndarray
    advantage: float
    value: float
    whole_return: float


def elements(batch: ReplaySample, weights: Weights, discount: float, lambda_: float) -> list[Element]:
    """Every action with its advantage: a walk from it to the end of its episode, or of the segment.

    `whole_return` is the sum of the rewards on this walk, with the value of what follows them.
    """
    found = []
    for observation, reward, env_discount, first, sample in zip(
        batch.data.observation,
        batch.data.reward,
        batch.data.discount,
        batch.data.start_of_episode,
        batch.data.extras.sample,
        strict=True,
    ):
        value = (observation @ weights.value_w + weights.value_b)[:, 0].astype(np.float64)
        length = len(reward) - 1
        for t in range(length):
            if first[t + 1]:
                continue  # The final observation of an episode.
            advantage, whole, weight, product = 0.0, 0.0, 1.0, 1.0
            for k in range(t, length):
                if first[k + 1]:
                    break
                gamma = discount * env_discount[k]
                advantage += weight * (reward[k] + gamma * value[k + 1] - value[k])
                whole += product * reward[k]
                weight *= gamma * lambda_
                product *= gamma
                behind = value[k + 1]
            found.append(Element(observation[t], sample[t], advantage, value[t], whole + product * behind))
    return found


def log_prob_gradient(weights: Weights, element: Element, kind: str) -> Weights:
    """Of an action's log-probability."""
    outputs = element.observation @ weights.w + weights.b
    if kind == "discrete":
        slope, log_std = np.eye(_ACTION_SIZE)[element.sample] - _softmax(outputs), np.zeros(0)
    else:
        noise = (element.sample - outputs) / np.exp(weights.log_std)
        slope, log_std = noise / np.exp(weights.log_std), noise**2 - 1.0
    return _policy_gradient(element, slope, log_std)


def entropy_gradient(weights: Weights, element: Element, kind: str) -> Weights:
    """Of the entropy of the policy where the action was taken."""
    if kind == "continuous":
        return _policy_gradient(element, np.zeros(_ACTION_SIZE), np.ones(_ACTION_SIZE))
    probabilities = _softmax(element.observation @ weights.w + weights.b)
    entropy = -np.sum(probabilities * np.log(probabilities))
    return _policy_gradient(element, -probabilities * (np.log(probabilities) + entropy), np.zeros(0))


def value_gradient(element: Element, target: float) -> Weights:
    """Of half the squared error of the value."""
    error = element.value - target
    zero = np.zeros(())
    return Weights(zero, zero, error * element.observation[:, None], np.full(1, error), zero)


def _policy_gradient(element: Element, slope: np.ndarray, log_std: np.ndarray) -> Weights:
    zero = np.zeros(())
    return Weights(np.outer(element.observation, slope), slope, zero, zero, log_std)


def _softmax(logits: np.ndarray) -> np.ndarray:
    exponentials = np.exp(logits - logits.max())
    return exponentials / exponentials.sum()


def total(gradients: list[Weights], factors: Any) -> Weights:
    """The sum of factor times gradient."""
    return Weights(
        *(sum(f * part for f, part in zip(factors, parts, strict=True)) for parts in zip(*gradients, strict=True))
    )
