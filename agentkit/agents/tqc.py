"""TQC: truncated quantile critics (Kuznetsov et al. 2020, "Controlling Overestimation Bias ...", 2005.04269).

SAC whose critics say the distribution of returns, as quantiles. A target is the mixture of all critics' quantiles
without the largest ones, which is finer against overestimation than the smaller of two values.

Differences from the paper:
  * All networks have hidden layers of one size; the paper's critics have three of 512 units.
  * Two quantiles of each critic are dropped; the paper tunes this for each environment (0 to 5).
  * The logarithm of the temperature is learned.
  * All three gradients are taken at the parameters from before the update.
  * Orthogonal initial weights; those of the policy's last layer are small.
  * Truncated episodes bootstrap.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from agentkit import actors, specs
from agentkit import networks as nets
from agentkit.agents.common.agent import Agent, Configured, MakePolicy, UpdateOfLoss, check_config, checks_parts, given
from agentkit.agents.common.experience import ReplayConfig, Transitions
from agentkit.agents.common.optimizers import Optimizers, optimizers_of
from agentkit.agents.common.prioritized import importance_weighted_loss
from agentkit.agents.common.ranges import Count, CountFromZero, Finite, Positive, Rate, Sizes, check_order
from agentkit.agents.common.soft_policy import soft_policy_step
from agentkit.agents.common.torso import with_torso
from agentkit.errors import ConfigError
from agentkit.learning import Schedule, Update, UpdateOutput, adam, objective, optimizer_step
from agentkit.losses import quantile_huber_loss
from agentkit.types import LossOutput, Params, ReplaySample, Transition


@dataclasses.dataclass(frozen=True)
class Config(ReplayConfig):
    """Holds the hyperparameters of TQC, in addition to those of `ReplayConfig`.

    Attributes:
        num_critics: N, critics in the ensemble.
        num_quantiles: M, of each critic.
        num_dropped: d, the largest quantiles that a target leaves out, for each critic; less than `num_quantiles`.
        hidden_sizes: units of each hidden layer of the policy and of each critic.
        learning_rate: Adam's step size, for all three losses.
        max_grad_norm: clips the global norm of each of the three gradients; None for no clipping.
        adam_epsilon: added to the root of Adam's second moment.
        tau: fraction by which the target critics move at each update, in (0, 1].
        initial_temperature: alpha at the start, > 0.
        learn_temperature: whether to tune alpha to the target entropy.
        target_entropy: in nats; None for minus the number of action dimensions.
        num_random_steps: uniform actions that each actor begins with, in all its environments together.
        min_log_std: lower bound of the policy's log standard deviation, before the tanh.
        max_log_std: upper bound.
    """

    num_critics: Count = 5
    num_quantiles: Count = 25
    num_dropped: CountFromZero = 2
    hidden_sizes: Sizes = (256, 256)
    learning_rate: Positive | Schedule = 3e-4
    max_grad_norm: Positive | None = None
    adam_epsilon: Positive = 1e-8
    tau: Rate = 0.005
    initial_temperature: Positive = 1.0
    learn_temperature: bool = True
    target_entropy: Finite | None = None
    num_random_steps: CountFromZero = 5_000
    min_log_std: Finite = -10.0
    max_log_std: Finite = 2.0

    def __post_init__(self) -> None:
        """Refuses a value outside of its field's range, bounds in the wrong order, and to drop all quantiles."""
        super().__post_init__()
        check_order(self, "min_log_std", "max_log_std")
        if self.num_dropped >= self.num_quantiles:
            raise ConfigError(
                f"num_dropped must be less than num_quantiles, {self.num_quantiles}, found {self.num_dropped}: of each "
                "critic as many are left out of a target, and some must stay."
            )


Networks = nets.ActorCriticNetworks


def make_networks(environment_spec: specs.EnvironmentSpec, config: Config, torso: nets.Torso = nets.torso) -> Networks:
    """Builds a tanh-Gaussian policy, and a critic of M quantiles that is applied to N sets of parameters."""
    sizes, log_stds = config.hidden_sizes, (config.min_log_std, config.max_log_std)
    return nets.actor_critic_networks(
        environment_spec,
        "TQC",
        policy=lambda observation, size: nets.tanh_normal_action(observation, size, sizes, *log_stds, torso),
        critic=lambda observation, action: nets.critic(observation, action, sizes, config.num_quantiles, torso),
    )


def make_policy(networks: Networks, config: Config, evaluation: bool = False) -> actors.Policy:
    """Samples the policy, after uniform actions at first; in evaluation takes its mode."""
    if evaluation:
        return actors.mode_policy(networks.policy.apply, nets.mode)
    uniform = actors.uniform_action(networks.action_shape)
    return actors.sampling_policy(networks.policy.apply, nets.sample, uniform, config.num_random_steps)


class State(NamedTuple):
    """Holds the training state of TQC.

    Attributes:
        policy: parameters.
        critics: parameters of all, leaves ``[N, ...]``.
        target_critics: their moving averages.
        log_alpha: logarithm of the temperature, ``[]``.
        opt_states: of policy, critics and log_alpha.
        key: PRNG key ``uint32[2]``.
    """

    policy: Params
    critics: Params
    target_critics: Params
    log_alpha: jax.Array
    opt_states: tuple[optax.OptState, optax.OptState, optax.OptState]
    key: jax.Array


class Losses(NamedTuple):
    """Holds the losses of critics, policy and temperature.

    Attributes:
        critic: ``(critics, state, batch, key) -> LossOutput``.
        policy: ``(policy, state, batch, key) -> LossOutput``, with the metric "entropy" ``[]`` of its actions.
        temperature: ``(log_alpha, state, batch, entropy) -> LossOutput``; the policy's loss has drawn the actions.
    """

    critic: Callable[[Params, State, ReplaySample[Transition], jax.Array], LossOutput]
    policy: Callable[[Params, State, ReplaySample[Transition], jax.Array], LossOutput]
    temperature: Callable[[jax.Array, State, ReplaySample[Transition], jax.Array], LossOutput]


def make_losses(networks: Networks, config: Config) -> Losses:
    """Builds the losses of algorithm 1, on a batch of `Transition`s ``[B, ...]``."""
    policy_at = networks.policy.apply
    critics_at = jax.vmap(networks.critic.apply, in_axes=(0, None, None))  # [N, B, M]
    fractions = (jnp.arange(config.num_quantiles) + 0.5) / config.num_quantiles  # [M]
    num_kept = config.num_critics * (config.num_quantiles - config.num_dropped)
    target_entropy = -float(networks.action_shape[0]) if config.target_entropy is None else config.target_entropy

    def critic_loss(critics: Params, state: State, batch: ReplaySample[Transition], key: jax.Array) -> LossOutput:
        o_tm1, a_tm1, r_t, discount_t, o_t, _ = batch.data
        a_t, log_prob_t = nets.sample_and_log_prob(policy_at(state.policy, o_t), key)
        z_t = jnp.moveaxis(critics_at(state.target_critics, o_t, a_t), 0, 1)  # [B, N, M]
        kept = jnp.sort(z_t.reshape(len(r_t), -1), axis=1)[:, :num_kept]  # The mixture, truncated.
        soft = kept - jnp.exp(state.log_alpha) * log_prob_t[:, None]
        targets = jax.lax.stop_gradient(r_t[:, None] + discount_t[:, None] * soft)  # [B, K]
        z_tm1 = critics_at(critics, o_tm1, a_tm1)  # [N, B, M]
        loss = jnp.mean(jax.vmap(quantile_huber_loss, in_axes=(0, None, None))(z_tm1, fractions, targets), axis=0)
        error = jnp.mean(z_tm1, axis=(0, 2)) - jnp.mean(targets, axis=1)  # [B]
        return importance_weighted_loss(loss, {"q": jnp.mean(z_tm1)}, batch, config, priorities=jnp.abs(error))

    def policy_loss(policy: Params, state: State, batch: ReplaySample[Transition], key: jax.Array) -> LossOutput:
        o_tm1 = batch.data.observation
        action, log_prob = nets.sample_and_log_prob(policy_at(policy, o_tm1), key)
        q = jnp.mean(critics_at(state.critics, o_tm1, action), axis=(0, 2))  # Of all quantiles: none is dropped here.
        loss = jnp.mean(jnp.exp(state.log_alpha) * log_prob - q)
        return LossOutput(loss, {"entropy": -jnp.mean(log_prob)})

    def temperature_loss(
        log_alpha: jax.Array, state: State, batch: ReplaySample[Transition], entropy: jax.Array
    ) -> LossOutput:
        del state, batch
        return LossOutput(log_alpha * (entropy - target_entropy), {})  # SAC's eq. 18, of log alpha

    return Losses(critic_loss, policy_loss, temperature_loss)


def make_update(networks: Networks, losses: Losses, config: Config, optimizer: Optimizers | None = None) -> Update:
    """Takes a gradient step each on critics, policy and temperature (algorithm 1)."""
    default = adam(config.learning_rate, config.max_grad_norm, epsilon=config.adam_epsilon)
    optimizers = optimizers_of(optimizer, config, policy=default, critic=default, temperature=default)

    def init(key: jax.Array) -> State:
        keys = jax.random.split(key, 2 + config.num_critics)
        policy, critics = networks.policy.init(keys[1]), jax.vmap(networks.critic.init)(keys[2:])
        log_alpha = jnp.log(jnp.asarray(config.initial_temperature, jnp.float32))
        learned = {"policy": policy, "critic": critics, "temperature": log_alpha}
        opt_states = tuple(optimizers[name].init(params) for name, params in learned.items())
        return State(policy, critics, jax.tree.map(jnp.copy, critics), log_alpha, opt_states, keys[0])

    def update(state: State, batch: ReplaySample[Transition]) -> tuple[State, UpdateOutput]:
        key, critic_key, policy_key = jax.random.split(state.key, 3)
        critic_grads, output = jax.grad(objective(losses.critic), has_aux=True)(state.critics, state, batch, critic_key)
        policy, policy_opt, log_alpha, alpha_opt, policy_metrics = soft_policy_step(
            losses, optimizers, config.learn_temperature, state, batch, policy_key
        )
        critics, critics_opt = optimizer_step(optimizers["critic"], critic_grads, state.critics, state.opt_states[1])
        targets = optax.incremental_update(critics, state.target_critics, config.tau)
        metrics = {
            "critic_loss": output.loss,
            **output.metrics,
            **policy_metrics,
            "temperature": jnp.exp(state.log_alpha),
        }
        state = State(policy, critics, targets, log_alpha, (policy_opt, critics_opt, alpha_opt), key)
        return state, UpdateOutput(metrics, output.priorities)

    return Update(init, update, lambda state: {"policy": state.policy})


@checks_parts
def make_agent(
    config: Config = Config(),
    *,
    torso: nets.Torso | str | None = None,
    make_networks: Callable[[specs.EnvironmentSpec, Config], Networks] = make_networks,
    make_policy: MakePolicy[Networks, Config] = make_policy,
    make_losses: Callable[[Networks, Config], Losses] = make_losses,
    optimizer: Optimizers | None = None,
    make_update: Callable[[Networks, Losses, Config], Update] = make_update,
) -> Agent[Networks]:
    """Returns TQC as an agent, with any of its parts replaced."""
    check_config(config, Config)
    return Agent(
        config,
        Transitions(config),
        with_torso(make_networks, config, torso),
        Configured(make_policy, config),
        UpdateOfLoss(given(make_update, optimizer=optimizer), make_losses, config),
    )
