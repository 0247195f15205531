"""CrossQ: critics of normalised batches (Bhatt et al. 2024, "CrossQ: Batch Normalization in Deep ...", 1902.05605).

SAC without target networks. Critics are normalised over batches, and see the actions of replay and those of the policy
in one batch, so that both are normalised alike and the critics can be their own targets. They learn as much from a
step as REDQ and DroQ, with one update for each.

Differences from the paper:
  * Only the critics are normalised; the authors' code normalises the policy, too.
  * Critics have layers of 1,024 units, as in SB3's and sbx's; the paper's have 2,048.
  * The logarithm of the temperature is learned, by the same optimiser.
  * A policy step climbs the critics from before the last step on them.
  * Orthogonal initial weights; those of the policy's last layer are small.
  * Truncated episodes bootstrap.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import haiku as hk
import jax
import jax.numpy as jnp
import optax

from agentkit import actors, specs
from agentkit import networks as nets
from agentkit.agents.common.agent import Agent, Configured, MakePolicy, UpdateOfLoss, check_config, checks_parts, given
from agentkit.agents.common.experience import ReplayConfig, Transitions
from agentkit.agents.common.optimizers import Optimizers, optimizers_of
from agentkit.agents.common.prioritized import importance_weighted_loss
from agentkit.agents.common.ranges import Count, CountFromZero, Finite, OpenFraction, Positive, Sizes, check_order
from agentkit.agents.common.soft_policy import SoftPolicyStep, soft_policy_step
from agentkit.agents.common.torso import with_torso
from agentkit.learning import Schedule, Update, UpdateOutput, adam, objective, optimizer_step
from agentkit.types import Array, LossOutput, Nest, Params, ReplaySample, Transition

NUM_CRITICS = 2


@dataclasses.dataclass(frozen=True)
class Config(ReplayConfig):
    """Holds the hyperparameters of CrossQ, in addition to those of `ReplayConfig`.

    Attributes:
        policy_delay: critic steps for each step of policy and temperature.
        hidden_sizes: units of each hidden layer of the policy.
        critic_hidden_sizes: units of each hidden layer of a critic.
        norm_momentum: share of the running statistics that a batch leaves as they are, in [0, 1).
        norm_warmup: updates in which batches are normalised by themselves alone; later their statistics are corrected
            towards the running ones.
        learning_rate: Adam's step size, for all three losses.
        adam_b1: decay of Adam's first moment, in [0, 1).
        max_grad_norm: clips the global norm of each of the three gradients; None for no clipping.
        adam_epsilon: added to the root of Adam's second moment.
        initial_temperature: alpha at the start, > 0.
        learn_temperature: whether to tune alpha to the target entropy.
        target_entropy: in nats; None for minus the number of action dimensions.
        num_random_steps: uniform actions that each actor begins with, in all its environments together.
        min_log_std: lower bound of the policy's log standard deviation, before the tanh.
        max_log_std: upper bound.
    """

    min_replay_size: Count = 5_000
    policy_delay: Count = 3
    hidden_sizes: Sizes = (256, 256)
    critic_hidden_sizes: Sizes = (1024, 1024)
    norm_momentum: OpenFraction = 0.99
    norm_warmup: CountFromZero = 100_000
    learning_rate: Positive | Schedule = 1e-3
    adam_b1: OpenFraction = 0.5
    max_grad_norm: Positive | None = None
    adam_epsilon: Positive = 1e-8
    initial_temperature: Positive = 1.0
    learn_temperature: bool = True
    target_entropy: Finite | None = None
    num_random_steps: CountFromZero = 5_000
    min_log_std: Finite = -10.0
    max_log_std: Finite = 2.0

    def __post_init__(self) -> None:
        """Refuses a value outside of its field's range, and bounds in the wrong order."""
        super().__post_init__()
        check_order(self, "min_log_std", "max_log_std")


Networks = nets.ActorCriticNetworks
"""Its critic has running statistics beside its parameters, which come with its values.

``init`` is ``key -> (params, statistics)``, and ``apply``
``((params, statistics), observation [B, ...], action [B, A], training=False) -> (q [B], statistics)``.
"""


def make_networks(environment_spec: specs.EnvironmentSpec, config: Config, torso: nets.Torso = nets.torso) -> Networks:
    """Builds a tanh-Gaussian policy, and one critic that is applied to two sets of parameters and statistics."""
    observations, actions = environment_spec.observations, environment_spec.actions
    size = specs.canonical_action_size(actions, "CrossQ")
    sizes, log_stds = config.hidden_sizes, (config.min_log_std, config.max_log_std)
    policy = nets.make_network(lambda o: nets.tanh_normal_action(o, size, sizes, *log_stds, torso), observations)

    def value(observation: Nest, action: Array, training: bool) -> Array:
        observation = nets.encode_inputs(observations, observation)
        settings = training, config.norm_momentum, config.norm_warmup
        return nets.renormalized_critic(observation, action, config.critic_hidden_sizes, *settings, torso)

    critic: Any = hk.without_apply_rng(hk.transform_with_state(value))
    examples = jax.tree.map(lambda x: x[None], (specs.zeros(observations), specs.zeros(actions)))

    def apply(variables: tuple[Params, Nest], observation: Nest, action: Array, training: bool = False) -> Any:
        return critic.apply(*variables, observation, action, training)

    return Networks(policy, nets.Network(lambda key: critic.init(key, *examples, False), apply), (size,))


def make_policy(networks: Networks, config: Config, evaluation: bool = False) -> actors.Policy:
    """Samples the policy, after uniform actions at first; in evaluation takes its mode."""
    if evaluation:
        return actors.mode_policy(networks.policy.apply, nets.mode)
    uniform = actors.uniform_action(networks.action_shape)
    return actors.sampling_policy(networks.policy.apply, nets.sample, uniform, config.num_random_steps)


class State(NamedTuple):
    """Holds the training state of CrossQ.

    Attributes:
        policy: parameters.
        critics: parameters of both, leaves ``[2, ...]``.
        statistics: of the critics' layers, leaves ``[2, ...]``.
        log_alpha: logarithm of the temperature, ``[]``.
        opt_states: of policy, critics and log_alpha.
        policy_metrics: of the newest policy step, to log between two such steps.
        key: PRNG key ``uint32[2]``.
        num_updates: critic steps taken, int32 ``[]``.
    """

    policy: Params
    critics: Params
    statistics: Nest
    log_alpha: jax.Array
    opt_states: tuple[optax.OptState, optax.OptState, optax.OptState]
    policy_metrics: dict[str, jax.Array]
    key: jax.Array
    num_updates: jax.Array


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


class JointPass(NamedTuple):
    """Holds the critics' values of the actions of replay and of those that follow them, normalised together.

    Attributes:
        q_tm1: ``[2, B]``.
        q_t: ``[2, B]``.
        log_prob_t: of the policy's actions ``[B]``.
        statistics: the running ones, with those of this batch, leaves ``[2, ...]``.
    """

    q_tm1: jax.Array
    q_t: jax.Array
    log_prob_t: jax.Array
    statistics: Nest


def joint_pass(
    networks: Networks, critics: Params, state: State, batch: ReplaySample[Transition], key: jax.Array
) -> JointPass:
    """Applies the critics to one batch of both times, which moves their running statistics."""
    o_tm1, a_tm1, _, _, o_t, _ = batch.data
    a_t, log_prob_t = nets.sample_and_log_prob(networks.policy.apply(state.policy, o_t), key)
    observation, action = jax.tree.map(lambda *both: jnp.concatenate(both), (o_tm1, a_tm1), (o_t, a_t))  # [2 B, ...]
    critics_at = jax.vmap(networks.critic.apply, in_axes=(0, None, None, None))
    q, statistics = critics_at((critics, state.statistics), observation, action, True)  # [2, 2 B]
    q_tm1, q_t = jnp.split(q, 2, axis=1)
    return JointPass(q_tm1, q_t, log_prob_t, statistics)


def make_losses(networks: Networks, config: Config) -> Losses:
    """Builds the three losses, SAC's without target networks, on a batch of `Transition`s ``[B, ...]``."""
    critics_at = jax.vmap(networks.critic.apply, in_axes=(0, None, None, None))
    target_entropy = -float(networks.action_shape[0]) if config.target_entropy is None else config.target_entropy

    def critic_loss(critics: Params, state: State, batch: ReplaySample[Transition], key: jax.Array) -> LossOutput:
        q_tm1, q_t, log_prob_t, _ = joint_pass(networks, critics, state, batch, key)
        v_t = jnp.min(q_t, axis=0) - jnp.exp(state.log_alpha) * log_prob_t
        target = jax.lax.stop_gradient(batch.data.reward + batch.data.discount * v_t)  # [B]
        errors = q_tm1 - target[None]  # [2, B]
        per_item = 0.5 * jnp.sum(jnp.square(errors), axis=0)
        metrics = {"q": jnp.mean(q_tm1), "critics_gap": jnp.mean(jnp.abs(q_tm1[0] - q_tm1[1]))}
        priorities = jnp.mean(jnp.abs(errors), axis=0)
        return importance_weighted_loss(per_item, metrics, batch, config, priorities)

    def policy_loss(policy: Params, state: State, batch: ReplaySample[Transition], key: jax.Array) -> LossOutput:
        o_tm1 = batch.data.observation
        action, log_prob = nets.sample_and_log_prob(networks.policy.apply(policy, o_tm1), key)
        q, _ = critics_at((state.critics, state.statistics), o_tm1, action, False)  # [2, B]
        loss = jnp.mean(jnp.exp(state.log_alpha) * log_prob - jnp.min(q, axis=0))
        return LossOutput(loss, {"entropy": -jnp.mean(log_prob)})

    def temperature_loss(
        log_alpha: jax.Array, state: State, batch: ReplaySample[Transition], entropy: jax.Array
    ) -> LossOutput:
        del state, batch
        return LossOutput(log_alpha * (entropy - target_entropy), {})  # SAC's eq. 18, of log alpha

    return Losses(critic_loss, policy_loss, temperature_loss)


def make_update(networks: Networks, losses: Losses, config: Config, optimizer: Optimizers | None = None) -> Update:
    """Takes a step on the critics, and at every `policy_delay`-th update on policy and temperature."""
    default = adam(config.learning_rate, config.max_grad_norm, epsilon=config.adam_epsilon, b1=config.adam_b1)
    optimizers = optimizers_of(optimizer, config, policy=default, critic=default, temperature=default)

    def init(key: jax.Array) -> State:
        keys = jax.random.split(key, 2 + NUM_CRITICS)
        policy, (critics, statistics) = networks.policy.init(keys[1]), jax.vmap(networks.critic.init)(keys[2:])
        log_alpha = jnp.log(jnp.asarray(config.initial_temperature, jnp.float32))
        learned = {"policy": policy, "critic": critics, "temperature": log_alpha}
        opt_states = tuple(optimizers[name].init(params) for name, params in learned.items())
        metrics = {"policy_loss": jnp.zeros(()), "entropy": jnp.zeros(())}
        return State(policy, critics, statistics, log_alpha, opt_states, metrics, keys[0], jnp.zeros((), jnp.int32))

    def update(state: State, batch: ReplaySample[Transition]) -> tuple[State, UpdateOutput]:
        key, critic_key, policy_key = jax.random.split(state.key, 3)
        grads, output = jax.grad(objective(losses.critic), has_aux=True)(state.critics, state, batch, critic_key)
        # The same pass as in the loss, which XLA computes once.
        statistics = joint_pass(networks, state.critics, state, batch, critic_key).statistics
        policy_opt, critics_opt, alpha_opt = state.opt_states
        critics, critics_opt = optimizer_step(optimizers["critic"], grads, state.critics, critics_opt)

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
        state = State(policy, critics, statistics, log_alpha, opt_states, policy_metrics, key, num_updates)
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
    """Returns CrossQ as an agent, with any of its parts replaced."""
    check_config(config, Config)
    return Agent(
        config,
        Transitions(config),
        with_torso(make_networks, config, torso),
        Configured(make_policy, config),
        UpdateOfLoss(given(make_update, optimizer=optimizer), make_losses, config),
    )
