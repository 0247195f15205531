"""Distributions of actions for policy gradients, in plain jax.numpy: actors, which sample, load no rlax.

All kinds have the same methods. A sample is ``[..., A]`` of a Gaussian, ``[...]`` of a categorical, and of a joint
distribution a tuple of its parts' samples.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from agentkit.types import Array


class Distribution(Protocol):
    """Declares what a policy's loss asks of its distribution; `Categorical`, `DiagonalNormal` and `Joint` have it."""

    def sample(self, key: jax.Array) -> Any:
        """Draws a sample, ``[..., A]``, ``[...]``, or a tuple of its parts' samples."""
        ...

    def mode(self) -> Any:
        """Returns the likeliest sample."""
        ...

    def log_prob(self, sample: Any) -> jax.Array:
        """Returns the log-probability, or log-density, of a sample ``[...]``."""
        ...

    def entropy(self) -> jax.Array:
        """Returns the entropy in nats ``[...]``."""
        ...

    def kl(self, other: Any) -> jax.Array:
        """Returns KL(self, other) in nats ``[...]``, for another one of its kind."""
        ...


class Categorical(NamedTuple):
    """Describes the choice of one of A actions.

    Attributes:
        logits: log-probabilities but for a constant, ``[..., A]``.
    """

    logits: Array

    def sample(self, key: jax.Array) -> jax.Array:
        """Draws an action, int32 ``[...]``."""
        return jax.random.categorical(key, self.logits).astype(jnp.int32)

    def mode(self) -> jax.Array:
        """Returns the likeliest action, int32 ``[...]``."""
        return jnp.argmax(self.logits, axis=-1).astype(jnp.int32)

    def log_prob(self, sample: Array) -> jax.Array:
        """Returns log-probabilities ``[...]``."""
        log_probs = jax.nn.log_softmax(self.logits)
        return jnp.take_along_axis(log_probs, sample[..., None].astype(jnp.int32), axis=-1)[..., 0]

    def entropy(self) -> jax.Array:
        """Returns the entropy in nats, ``[...]``."""
        log_probs = jax.nn.log_softmax(self.logits)
        return -jnp.sum(jnp.exp(log_probs) * log_probs, axis=-1)

    def kl(self, other: Categorical) -> jax.Array:
        """Returns KL(self, other) in nats, ``[...]``."""
        log_probs = jax.nn.log_softmax(self.logits)
        return jnp.sum(jnp.exp(log_probs) * (log_probs - jax.nn.log_softmax(other.logits)), axis=-1)


class DiagonalNormal(NamedTuple):
    """Describes an action whose dimensions are independent Gaussians.

    Attributes:
        mean: ``[..., A]``.
        log_std: ``[..., A]``.
    """

    mean: Array
    log_std: Array

    def sample(self, key: jax.Array) -> jax.Array:
        """Draws an action ``[..., A]``."""
        return self.mean + jnp.exp(self.log_std) * jax.random.normal(key, self.mean.shape)

    def mode(self) -> jax.Array:
        """Returns the mean ``[..., A]``."""
        return self.mean

    def log_prob(self, sample: Array) -> jax.Array:
        """Returns the log-density, summed over the dimensions of an action, ``[...]``."""
        noise = (sample - self.mean) * jnp.exp(-self.log_std)
        return jnp.sum(-0.5 * jnp.square(noise) - self.log_std - 0.5 * jnp.log(2 * jnp.pi), axis=-1)

    def entropy(self) -> jax.Array:
        """Returns the entropy in nats, ``[...]``."""
        return jnp.sum(self.log_std + 0.5 * jnp.log(2 * jnp.pi * jnp.e), axis=-1)

    def kl(self, other: DiagonalNormal) -> jax.Array:
        """Returns KL(self, other) in nats, summed over the dimensions of an action, ``[...]``."""
        log_scale = self.log_std - other.log_std
        shift = (self.mean - other.mean) * jnp.exp(-other.log_std)
        return jnp.sum(0.5 * (jnp.exp(2.0 * log_scale) + jnp.square(shift) - 1.0) - log_scale, axis=-1)


class Joint(NamedTuple):
    """Combines independent distributions of several actions that are taken together.

    Losses of policy gradients take it as any distribution. Agents that learn values would need an output for each
    combination, and refuse such actions.

    Attributes:
        parts: a distribution of each, which may be joint, too.
    """

    parts: tuple[Distribution, ...]

    def sample(self, key: jax.Array) -> tuple[Any, ...]:
        """Draws a sample of each part."""
        keys = jax.random.split(key, len(self.parts))
        return tuple(part.sample(k) for part, k in zip(self.parts, keys, strict=True))

    def mode(self) -> tuple[Any, ...]:
        """Returns the mode of each part."""
        return tuple(part.mode() for part in self.parts)

    def log_prob(self, sample: tuple[Any, ...]) -> jax.Array:
        """Sums the parts' log-probabilities, ``[...]``."""
        return _sum([part.log_prob(x) for part, x in zip(self.parts, sample, strict=True)])

    def entropy(self) -> jax.Array:
        """Sums the parts' entropies in nats, ``[...]``."""
        return _sum([part.entropy() for part in self.parts])

    def kl(self, other: Joint) -> jax.Array:
        """Sums the parts' KL(self, other) in nats, ``[...]``."""
        return _sum([part.kl(its) for part, its in zip(self.parts, other.parts, strict=True)])


def _sum(parts: list[Array]) -> jax.Array:
    return jnp.sum(jnp.stack(parts), axis=0)
