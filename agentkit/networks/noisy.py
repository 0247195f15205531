"""Noisy linear layers: exploration by noise whose size is learned (Fortunato et al. 2018, 1706.10295)."""

from __future__ import annotations

from collections.abc import Sequence

import haiku as hk
import jax
import jax.numpy as jnp

from agentkit.networks.torsos import Torso, torso
from agentkit.types import Array, Nest


class NoisyLinear(hk.Module):
    """Computes (mu_w + sigma_w eps_w) x + mu_b + sigma_b eps_b, with factorised Gaussian noise (paper, eqs. 9 to 11).

    With unit normals e_in ``[P]`` and e_out ``[Q]``, eps_w is f(e_in) f(e_out)^T and eps_b is f(e_out), where
    f(x) = sgn(x) sqrt(|x|): P + Q draws instead of P Q. All rows of a batch share one draw (paper, section 3.1:
    noise is fixed over a batch); each call draws anew.

    Applied without a PRNG key (``apply(params, None, x)``) there is no noise: y = mu_w x + mu_b.
    """

    def __init__(self, num_outputs: int, sigma: float = 0.5, name: str | None = None):
        """Makes a layer.

        Args:
            num_outputs: Q.
            sigma: sigma_0, the noise's initial size, times sqrt(P) (paper, section 3.2: 0.5).
            name: of the Haiku module.
        """
        super().__init__(name=name)
        self._num_outputs = num_outputs
        self._sigma = sigma

    def __call__(self, x: Array) -> jax.Array:
        """Maps float32 ``[B, P]`` to ``[B, Q]``."""
        num_inputs, num_outputs = x.shape[-1], self._num_outputs
        bound = num_inputs**-0.5
        mean_init = hk.initializers.RandomUniform(-bound, bound)
        sigma_init = hk.initializers.Constant(self._sigma * bound)
        w = hk.get_parameter("w", (num_inputs, num_outputs), init=mean_init)
        b = hk.get_parameter("b", (num_outputs,), init=mean_init)
        w_sigma = hk.get_parameter("w_sigma", (num_inputs, num_outputs), init=sigma_init)
        b_sigma = hk.get_parameter("b_sigma", (num_outputs,), init=sigma_init)
        key = hk.maybe_next_rng_key()
        if key is not None:
            noise = _signed_sqrt(jax.random.normal(key, (num_inputs + num_outputs,)))
            noise_in, noise_out = noise[:num_inputs], noise[num_inputs:]
            w = w + w_sigma * jnp.outer(noise_in, noise_out)
            b = b + b_sigma * noise_out
        return x @ w + jnp.broadcast_to(b, (x.shape[0], num_outputs))


def _signed_sqrt(x: Array) -> jax.Array:
    return jnp.sign(x) * jnp.sqrt(jnp.abs(x))


def noisy_mlp(features: Array, hidden_sizes: Sequence[int], num_outputs: int, sigma: float) -> jax.Array:
    """Applies an `mlp` of noisy layers: ``[B, F]`` to ``[B, num_outputs]``."""
    for size in hidden_sizes:
        features = jax.nn.relu(NoisyLinear(size, sigma)(features))
    return NoisyLinear(num_outputs, sigma)(features)


def noisy_duelling_logits(
    observation: Nest,
    num_actions: int,
    num_atoms: int,
    hidden_sizes: Sequence[int],
    sigma: float,
    torso: Torso = torso,
) -> jax.Array:
    """Returns logits of return distributions ``[B, A, N]``, of duelling noisy streams (Hessel et al. 2018, section 4).

    The streams are duelling for each atom alone: value + advantage - mean advantage over the actions.
    """
    features = torso(observation)
    value = noisy_mlp(features, hidden_sizes, num_atoms, sigma)[:, None]  # [B, 1, N]
    advantage = noisy_mlp(features, hidden_sizes, num_actions * num_atoms, sigma)
    advantage = advantage.reshape(-1, num_actions, num_atoms)  # [B, A, N]
    advantage = advantage - jnp.mean(advantage, axis=1, keepdims=True)
    return jnp.broadcast_to(value, advantage.shape) + advantage
