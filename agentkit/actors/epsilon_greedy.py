"""Epsilon-greedy exploration: the best action by value, and now and then any action."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from agentkit.actors.policy import Params, Policy, stateless_policy
from agentkit.actors.step_count import count_from, count_one_more, no_steps, steps_taken
from agentkit.specs import ILLEGAL_VALUE
from agentkit.types import Array, Nest

LADDER_EPSILON = 0.4
LADDER_ALPHA = 7.0
"""Epsilon and alpha of `epsilon_ladder_policy`, the paper's."""


def explore(key: jax.Array, q: Array, epsilon: Array | float) -> Array:
    """Chooses an action, int32 ``[]``: uniform with probability `epsilon`, else the best by values `q` ``[A]``.

    Those that networks have ruled out (`specs.ILLEGAL_VALUE`, or less) are never chosen. Of values ``[N, A]`` N actions
    are chosen, each as if alone.
    """
    if q.ndim > 1:
        return jax.vmap(explore, (0, 0, None))(jax.random.split(key, len(q)), q, epsilon)
    chance, uniform = jax.random.uniform(key, (2,))
    random_action = random_legal(uniform, q > ILLEGAL_VALUE / 2)
    return jnp.where(chance < epsilon, random_action, jnp.argmax(q).astype(jnp.int32))


def random_legal(uniform: Array, legal: Array) -> Array:
    """Picks the `legal` action, bool ``[A]``, on which `uniform` in [0, 1) falls; returns it as int32 ``[]``."""
    order = jnp.cumsum(legal)  # 1 for the first that is legal, 2 for the second, ...
    return jnp.argmax(order > jnp.floor(uniform * order[-1])).astype(jnp.int32)


def epsilon_greedy_policy(
    q_values: Callable[..., Array], epsilon: float | Callable[[Array], Array], takes_key: bool = False
) -> Policy:
    """Makes an epsilon-greedy policy; its state is the step count of all environments of its actor.

    Args:
        q_values: ``(params, observation [B, ...]) -> [B, A]``; where it `takes_key`, with a PRNG key as third argument.
        epsilon: chance of a uniform action; may be a function of the number of steps taken, int32 ``[]``.
        takes_key: whether `q_values` takes a key.
    """

    def act(params: Params, key: jax.Array, observation: Nest, count: Array) -> tuple[Nest, Nest, Nest]:
        q, key = _single(q_values, takes_key, params, observation, key)
        return explore(key, q, epsilon(steps_taken(count)) if callable(epsilon) else epsilon), count_one_more(count), ()

    return Policy(act, init=no_steps, begin=count_from)


def fixed_epsilon_policy(q_values: Callable[..., Array], epsilon: float, takes_key: bool = False) -> Policy:
    """Makes an epsilon-greedy policy without a state, for evaluation: nothing in it counts steps.

    Args:
        q_values: as for `epsilon_greedy_policy`.
        epsilon: chance of a uniform action.
        takes_key: as for `epsilon_greedy_policy`.
    """

    def act(params: Params, key: jax.Array, observation: Nest) -> Nest:
        q, key = _single(q_values, takes_key, params, observation, key)
        return explore(key, q, epsilon)

    return stateless_policy(act)


def epsilon_ladder_policy(q_values: Callable[..., Array], takes_key: bool = False) -> Policy:
    """Makes an epsilon-greedy policy whose epsilon each actor keeps, from 0.4 down to 0.0007.

    Of N that explore together, the i-th has 0.4^(1 + 7 i / (N - 1)) (Horgan et al. 2018, "Distributed Prioritized
    Experience Replay", 1803.00933, section 4.1); one alone has 0.4. The state is that epsilon, float32 ``[]``.

    Args:
        q_values: as for `epsilon_greedy_policy`.
        takes_key: likewise.
    """

    def act(params: Params, key: jax.Array, observation: Nest, epsilon: Array) -> tuple[Nest, Nest, Nest]:
        q, key = _single(q_values, takes_key, params, observation, key)
        return explore(key, q, epsilon), epsilon, ()

    def diversify(epsilon: Array, index: Array, count: int) -> Array:
        return epsilon ** (1.0 + LADDER_ALPHA * index / jnp.maximum(count - 1, 1))

    return Policy(act, init=lambda key: jnp.float32(LADDER_EPSILON), diversify=diversify)


def _single(
    q_values: Callable[..., Array], takes_key: bool, params: Params, observation: Nest, key: jax.Array
) -> tuple[Array, jax.Array]:
    """Returns the values ``[A]`` for one observation, and a key that nothing was drawn from."""
    batch = jax.tree.map(lambda x: x[None], observation)
    if not takes_key:
        return q_values(params, batch)[0], key
    values_key, key = jax.random.split(key)
    return q_values(params, batch, values_key)[0], key
