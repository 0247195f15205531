"""REDQ: randomized ensembled double Q-learning (Chen et al. 2021, "Randomized Ensembled Double ...", 2101.05982).

SAC with many critic steps for each environment step. An ensemble keeps the critics from overestimating: each target is
the smallest value of a few randomly drawn critics, and the policy climbs the mean of all.

Differences from the paper:
  * The target entropy is minus the number of action dimensions; the paper's differ by environment (-1 for Hopper).
  * A policy step climbs the critics from before the last of the G steps on them, as in the authors' code.
  * The logarithm of the temperature is learned, as in the authors' code.
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
from agentkit.agents.common.soft_policy import SoftPolicyStep, soft_policy_step
from agentkit.agents.common.torso import with_torso
from agentkit.errors import ConfigError
from agentkit.learning import Schedule, Update, UpdateOutput, adam, objective, optimizer_step
from agentkit.types import LossOutput, Params, ReplaySample, Transition


@dataclasses.dataclass(frozen=True)
class Config(ReplayConfig):
    """Holds the hyperparameters of REDQ, in addition to those of `ReplayConfig`.

    Attributes:
        num_critics: N, critics in the ensemble.
        subset_size: M, critics whose smallest value is a target; at most N.
        policy_delay: critic steps for each step of policy and temperature; G in the paper, as `updates_per_step` is.
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

    min_replay_size: Count = 5_000
    updates_per_step: Positive = 20.0
    updates_per_call: Count = 20
    num_critics: Count = 10
    subset_size: Count = 2
    policy_delay: Count = 20
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
        """Refuses a value outside of its field's range, bounds in the wrong order, and too large a subset."""
        super().__post_init__()
        check_order(self, "min_log_std", "max_log_std")
        if self.subset_size > self.num_critics:
            raise ConfigError(
                f"subset_size must be at most num_critics, {self.num_critics}, found {self.subset_size}: the critics "
                "of a target are drawn without replacement."
            )


Networks = nets.ActorCriticNetworks


def make_networks(environment_spec: specs.EnvironmentSpec, config: Config, torso: nets.Torso = nets.torso) -> Networks:
    """Builds a tanh-Gaussian policy, and one critic that is applied to N sets of parameters."""
    sizes, log_stds = config.hidden_sizes, (config.min_log_std, config.max_log_std)
    return nets.actor_critic_networks(
        environment_spec,
        "REDQ",
        policy=lambda observation, size: nets.tanh_normal_action(observation, size, sizes, *log_stds, torso),
        critic=lambda observation, action: nets.action_value(observation, action, sizes, torso),
    )


def make_policy(networks: Networks, config: Config, evaluation: bool = False) -> actors.Policy:
    """Samples the policy, after uniform actions at first; in evaluation takes its mode."""
    if evaluation:
        return actors.mode_policy(networks.policy.apply, nets.mode)
    uniform = actors.uniform_action(networks.action_shape)
    return actors.sampling_policy(networks.policy.apply, nets.sample, uniform, config.num_random_steps)


class State(NamedTuple):
    """Holds the training state of REDQ.

    Attributes:
        policy: parameters.
        ensemble: parameters of all critics, leaves ``[N, ...]``.
        target_ensemble: their moving averages.
        log_alpha: logarithm of the temperature, ``[]``.
        opt_states: of policy, ensemble and log_alpha.
        policy_metrics: of the newest policy step, to log between two such steps.
        key: PRNG key ``uint32[2]``.
        num_updates: critic steps taken, int32 ``[]``.
    """

    policy: Params
    ensemble: Params
    target_ensemble: Params
    log_alpha: jax.Array
    opt_states: tuple[optax.OptState, optax.OptState, optax.OptState]
    policy_metrics: dict[str, jax.Array]
    key: jax.Array
    num_updates: jax.Array


class Losses(NamedTuple):
    """Holds the losses of critics, policy and temperature.

    Attributes:
        critic: ``(ensemble, state, batch, key) -> LossOutput``.
        policy: ``(policy, state, batch, key) -> LossOutput``, with the metric "entropy" ``[]`` of its actions.
        temperature: ``(log_alpha, state, batch, entropy) -> LossOutput``; the policy's loss has drawn the actions.
    """

    critic: Callable[[Params, State, ReplaySample[Transition], jax.Array], LossOutput]
    policy: Callable[[Params, State, ReplaySample[Transition], jax.Array], LossOutput]
    temperature: Callable[[jax.Array, State, ReplaySample[Transition], jax.Array], LossOutput]


def make_losses(networks: Networks, config: Config) -> Losses:
    """Builds the two losses of algorithm 1, on a batch of `Transition`s ``[B, ...]``."""
    policy_at = networks.policy.apply
    ensemble_at = jax.vmap(networks.critic.apply, in_axes=(0, None, None))  # [N, B]
    target_entropy = -float(networks.action_shape[0]) if config.target_entropy is None else config.target_entropy

    def critic_loss(ensemble: Params, state: State, batch: ReplaySample[Transition], key: jax.Array) -> LossOutput:
        o_tm1, a_tm1, r_t, discount_t, o_t, _ = batch.data
        sample_key, subset_key = jax.random.split(key)
        a_t, log_prob_t = nets.sample_and_log_prob(policy_at(state.policy, o_t), sample_key)
        drawn = jax.random.permutation(subset_key, config.num_critics)[: config.subset_size]
        subset = jax.tree.map(lambda leaf: leaf[drawn], state.target_ensemble)
        v_t = jnp.min(ensemble_at(subset, o_t, a_t), axis=0) - jnp.exp(state.log_alpha) * log_prob_t
        target = jax.lax.stop_gradient(r_t + discount_t * v_t)  # [B], eq. 1
        q_tm1 = ensemble_at(ensemble, o_tm1, a_tm1)
        errors = q_tm1 - target[None]  # [N, B]
        loss = 0.5 * jnp.sum(jnp.square(errors), axis=0)
        metrics = {"q": jnp.mean(q_tm1), "critics_std": jnp.mean(jnp.std(q_tm1, axis=0))}
        return importance_weighted_loss(loss, metrics, batch, config, priorities=jnp.mean(jnp.abs(errors), axis=0))

    def policy_loss(policy: Params, state: State, batch: ReplaySample[Transition], key: jax.Array) -> LossOutput:
        o_tm1 = batch.data.observation
        action, log_prob = nets.sample_and_log_prob(policy_at(policy, o_tm1), key)
        q = jnp.mean(ensemble_at(state.ensemble, o_tm1, action), axis=0)
        loss = jnp.mean(jnp.exp(state.log_alpha) * log_prob - q)
        return LossOutput(loss, {"entropy": -jnp.mean(log_prob)})

    def temperature_loss(
        log_alpha: jax.Array, state: State, batch: ReplaySample[Transition], entropy: jax.Array
    ) -> LossOutput:
        del state, batch
        return LossOutput(log_alpha * (entropy - target_entropy), {})  # SAC's eq. 18, of log alpha

    return Losses(critic_loss, policy_loss, temperature_loss)


def make_update(networks: Networks, losses: Losses, config: Config, optimizer: Optimizers | None = None) -> Update:
    """Takes a step on the critics, and at every `policy_delay`-th update on policy and temperature (algorithm 1)."""
    default = adam(config.learning_rate, config.max_grad_norm, epsilon=config.adam_epsilon)
    optimizers = optimizers_of(optimizer, config, policy=default, critic=default, temperature=default)

    def init(key: jax.Array) -> State:
        keys = jax.random.split(key, 2 + config.num_critics)
        policy, ensemble = networks.policy.init(keys[1]), jax.vmap(networks.critic.init)(keys[2:])
        log_alpha = jnp.log(jnp.asarray(config.initial_temperature, jnp.float32))
        learned = {"policy": policy, "critic": ensemble, "temperature": log_alpha}
        opt_states = tuple(optimizers[name].init(params) for name, params in learned.items())
        metrics, targets = {"policy_loss": jnp.zeros(()), "entropy": jnp.zeros(())}, jax.tree.map(jnp.copy, ensemble)
        return State(policy, ensemble, targets, log_alpha, opt_states, metrics, keys[0], jnp.zeros((), jnp.int32))

    def update(state: State, batch: ReplaySample[Transition]) -> tuple[State, UpdateOutput]:
        key, critic_key, policy_key = jax.random.split(state.key, 3)
        grads, output = jax.grad(objective(losses.critic), has_aux=True)(state.ensemble, state, batch, critic_key)
        policy_opt, critics_opt, alpha_opt = state.opt_states
        ensemble, critics_opt = optimizer_step(optimizers["critic"], grads, state.ensemble, critics_opt)
        targets = optax.incremental_update(ensemble, state.target_ensemble, config.tau)

        # A conditional copies all that it returns, so it returns no more than what may change.
        num_updates = state.num_updates + 1
        unchanged = SoftPolicyStep(state.policy, policy_opt, state.log_alpha, alpha_opt, state.policy_metrics)
        policy, policy_opt, log_alpha, alpha_opt, policy_metrics = jax.lax.cond(
            num_updates % config.policy_delay == 0,
            lambda: soft_policy_step(losses, optimizers, config.learn_temperature, state, batch, policy_key),
            lambda: unchanged,
        )
        alpha, opt_states = jnp.exp(state.log_alpha), (policy_opt, critics_opt, alpha_opt)
        metrics = {"critic_loss": output.loss, **output.metrics, **policy_metrics, "temperature": alpha}
        state = State(policy, ensemble, targets, log_alpha, opt_states, policy_metrics, key, num_updates)
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
    """Returns REDQ as an agent, with any of its parts replaced."""
    check_config(config, Config)
    return Agent(
        config,
        Transitions(config),
        with_torso(make_networks, config, torso),
        Configured(make_policy, config),
        UpdateOfLoss(given(make_update, optimizer=optimizer), make_losses, config),
    )
