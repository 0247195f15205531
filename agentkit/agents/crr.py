"""CRR: critic-regularized regression (Wang et al. 2020, "Critic Regularized Regression", 2006.15134).

The policy imitates those actions of the data that its critic finds better than its own: all of them, weighted by their
advantage ("exp"), or only those with a positive one ("binary").

Differences from the paper:
  * The critics are twins whose smaller value counts; the paper has one, with a distribution of returns.
  * The policy is one Gaussian whose deviation does not depend on the observation; the paper has a mixture of five.
  * Evaluation takes the policy's mean; the paper draws among its samples by their values (CWP, section 3.2).
  * Networks are multilayer perceptrons; the paper's are residual, with layer normalisation.
  * Targets move a little at each update; the paper copies them every 100.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import optax

from agentkit import actors, losses, specs
from agentkit import networks as nets
from agentkit.agents.common.agent import Agent, Configured, MakePolicy, UpdateOfLoss, check_config, checks_parts, given
from agentkit.agents.common.experience import ReplayConfig, Transitions
from agentkit.agents.common.optimizers import Optimizers, optimizers_of
from agentkit.agents.common.prioritized import importance_weighted_loss
from agentkit.agents.common.ranges import Count, Positive, Rate, Sizes
from agentkit.agents.common.torso import with_torso
from agentkit.errors import unknown_name
from agentkit.learning import Schedule, Update, UpdateOutput, adam, objective, optimizer_step
from agentkit.types import LossOutput, Nest, Params, ReplaySample, Transition

Weights = Literal["exp", "binary"]


@dataclasses.dataclass(frozen=True)
class Config(ReplayConfig):
    """Holds the hyperparameters of CRR, in addition to those of `ReplayConfig`.

    Attributes:
        weights: of the data's actions: "exp" of the advantage, or "binary", whether it is positive.
        num_sampled_actions: m, actions of the policy whose mean value is the baseline, and as many for targets.
        temperature: beta, by which an advantage is divided before "exp", > 0; smaller is greedier.
        max_weight: the largest weight, > 0; the paper's 20.
        hidden_sizes: units of each hidden layer of the policy and of each critic.
        learning_rate: Adam's step size, for both losses.
        max_grad_norm: clips the global norm of each of the two gradients; None for no clipping.
        adam_epsilon: added to the root of Adam's second moment.
        tau: fraction by which all targets move at each update, in (0, 1].
    """

    weights: Weights = "exp"
    num_sampled_actions: Count = 4
    temperature: Positive = 1.0
    max_weight: Positive = 20.0
    hidden_sizes: Sizes = (256, 256)
    learning_rate: Positive | Schedule = 3e-4
    max_grad_norm: Positive | None = None
    adam_epsilon: Positive = 1e-8
    tau: Rate = 0.005

    def __post_init__(self) -> None:
        """Refuses a value outside of its field's range, and an unknown kind of weights."""
        super().__post_init__()
        if self.weights not in get_args(Weights):
            raise unknown_name("kind of weights", self.weights, get_args(Weights))


Networks = nets.ActorCriticNetworks


def make_networks(environment_spec: specs.EnvironmentSpec, config: Config, torso: nets.Torso = nets.torso) -> Networks:
    """Builds a Gaussian policy and twin critics, for an environment of continuous actions in [-1, 1]."""
    return nets.actor_critic_networks(
        environment_spec,
        "CRR",
        policy=lambda observation, size: nets.gaussian_action(observation, size, config.hidden_sizes, torso),
        critic=lambda observation, action: nets.twin_action_values(observation, action, config.hidden_sizes, torso),
    )


def make_policy(networks: Networks, config: Config, evaluation: bool = False) -> actors.Policy:
    """Samples the policy and clips to [-1, 1]; in evaluation takes its mean."""
    del config
    return actors.clipped_gaussian_policy(networks.policy.apply, evaluation)


class State(NamedTuple):
    """Holds the training state of CRR.

    Attributes:
        policy: parameters.
        critics: parameters of both.
        target_policy: moving average of the policy's.
        target_critics: moving average of the critics'.
        opt_states: of policy and critics.
        key: PRNG key ``uint32[2]``.
        num_updates: int32 ``[]``.
    """

    policy: Params
    critics: Params
    target_policy: Params
    target_critics: Params
    opt_states: tuple[optax.OptState, optax.OptState]
    key: jax.Array
    num_updates: jax.Array


class Losses(NamedTuple):
    """Holds the losses of critics and policy.

    Attributes:
        critic: ``(critics, state, batch, key) -> LossOutput``.
        policy: ``(policy, state, batch, key) -> LossOutput``, with the critics in `state` as they have just become.
    """

    critic: Callable[[Params, State, ReplaySample[Transition], jax.Array], LossOutput]
    policy: Callable[[Params, State, ReplaySample[Transition], jax.Array], LossOutput]


def make_losses(networks: Networks, config: Config) -> Losses:
    """Builds the two losses of algorithm 1, on a batch of `Transition`s ``[B, ...]``."""
    policy_at, twins_at = networks.policy.apply, networks.critic.apply

    def mean_value(policy: Params, critics: Params, observation: Nest, key: jax.Array) -> jax.Array:
        """Returns the mean value ``[B]`` of actions that the policy draws."""
        distribution = policy_at(policy, observation)

        def value(key: jax.Array) -> jax.Array:
            return jnp.minimum(*twins_at(critics, observation, jnp.clip(distribution.sample(key), -1.0, 1.0)))

        return jnp.mean(jax.vmap(value)(jax.random.split(key, config.num_sampled_actions)), axis=0)

    def critic_loss(critics: Params, state: State, batch: ReplaySample[Transition], key: jax.Array) -> LossOutput:
        o_tm1, a_tm1, r_t, discount_t, o_t, _ = batch.data
        v_t = mean_value(state.target_policy, state.target_critics, o_t, key)
        target = jax.lax.stop_gradient(r_t + discount_t * v_t)  # [B]
        q_1, q_2 = twins_at(critics, o_tm1, a_tm1)
        loss = jnp.square(target - q_1) + jnp.square(target - q_2)
        return importance_weighted_loss(loss, {"q": jnp.mean(q_1)}, batch, config, priorities=jnp.abs(target - q_1))

    def policy_loss(policy: Params, state: State, batch: ReplaySample[Transition], key: jax.Array) -> LossOutput:
        o_tm1, a_tm1 = batch.data.observation, batch.data.action
        q = jnp.minimum(*twins_at(state.critics, o_tm1, a_tm1))
        advantage = q - mean_value(policy, state.critics, o_tm1, key)  # eq. 5
        if config.weights == "binary":
            weights = losses.binary_weights(advantage)  # eq. 3
        else:
            weights = losses.exponential_weights(advantage, config.temperature, config.max_weight)  # eq. 4
        loss = -jnp.mean(weights * policy_at(policy, o_tm1).log_prob(a_tm1))  # eq. 1
        return LossOutput(loss, {})

    return Losses(critic_loss, policy_loss)


def make_update(networks: Networks, losses: Losses, config: Config, optimizer: Optimizers | None = None) -> Update:
    """Takes a step on the critics, then one on the policy, and moves all targets (algorithm 1)."""
    default = adam(config.learning_rate, config.max_grad_norm, epsilon=config.adam_epsilon)
    optimizers = optimizers_of(optimizer, config, policy=default, critic=default)

    def init(key: jax.Array) -> State:
        key, policy_key, critic_key = jax.random.split(key, 3)
        policy, critics = networks.policy.init(policy_key), networks.critic.init(critic_key)
        target_policy, target_critics = jax.tree.map(jnp.copy, (policy, critics))
        opt_states = optimizers["policy"].init(policy), optimizers["critic"].init(critics)
        num_updates = jnp.zeros((), jnp.int32)
        return State(policy, critics, target_policy, target_critics, opt_states, key, num_updates)

    def update(state: State, batch: ReplaySample[Transition]) -> tuple[State, UpdateOutput]:
        # No key of the critics is a key of the policy: fold_in takes negative numbers for other ones.
        critic_key = jax.random.fold_in(state.key, state.num_updates)
        policy_key = jax.random.fold_in(state.key, -state.num_updates - 1)
        policy_opt, critics_opt = state.opt_states

        grads, output = jax.grad(objective(losses.critic), has_aux=True)(state.critics, state, batch, critic_key)
        critics, critics_opt = optimizer_step(optimizers["critic"], grads, state.critics, critics_opt)
        state = state._replace(critics=critics)

        grads, policy_output = jax.grad(objective(losses.policy), has_aux=True)(state.policy, state, batch, policy_key)
        policy, policy_opt = optimizer_step(optimizers["policy"], grads, state.policy, policy_opt)
        target_policy = optax.incremental_update(policy, state.target_policy, config.tau)
        target_critics = optax.incremental_update(critics, state.target_critics, config.tau)
        metrics = {
            "critic_loss": output.loss,
            "policy_loss": policy_output.loss,
            **output.metrics,
            **policy_output.metrics,
        }
        opt_states, num_updates = (policy_opt, critics_opt), state.num_updates + 1
        state = State(policy, critics, target_policy, target_critics, opt_states, state.key, num_updates)
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
    """Returns CRR as an agent, with any of its parts replaced."""
    check_config(config, Config)
    return Agent(
        config,
        Transitions(config),
        with_torso(make_networks, config, torso),
        Configured(make_policy, config),
        UpdateOfLoss(given(make_update, optimizer=optimizer), make_losses, config),
    )
