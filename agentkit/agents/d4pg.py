"""D4PG: distributed distributional DDPG (Barth-Maron et al. 2018, "Distributed Distributional ...", 1804.08617).

DDPG whose critic predicts the distribution of n-step returns, as probabilities of fixed atoms. The "distributed"
of its name is `agentkit launch d4pg --actors N`.

Differences from the paper:
  * Policy and critic are updated one after the other, the policy on the critic as it has just become.
  * The distribution is categorical; the paper's mixture of Gaussians, which it found worse, is left out.
  * Prioritised replay is off by default (the paper found that it helps little); the priority of an item is the
    divergence of the critic from its target, and importance weights are divided by the largest of the batch.
  * Each actor begins with `num_random_steps` uniform actions.
  * Smaller networks, and a learning rate that fits short trainings (the paper's is 1e-4).
  * Orthogonal initial weights; those of the policy's last layer are small.
  * Truncated episodes bootstrap.
  * Images are seen by one encoder, as in DrQ-v2: `common/drq.py`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from agentkit import actors, losses, specs
from agentkit import networks as nets
from agentkit.agents.common.agent import Agent, Configured, MakePolicy, UpdateOfLoss, check_config, checks_parts, given
from agentkit.agents.common.drq import with_drq
from agentkit.agents.common.experience import ReplayConfig, Transitions
from agentkit.agents.common.optimizers import Optimizers, optimizers_of
from agentkit.agents.common.prioritized import importance_weighted_loss
from agentkit.agents.common.ranges import (
    Count,
    CountFromTwo,
    CountFromZero,
    Finite,
    NotNegative,
    Positive,
    Sizes,
    check_order,
)
from agentkit.agents.common.torso import with_torso
from agentkit.learning import Schedule, Update, UpdateOutput, adam, objective, optimizer_step
from agentkit.types import LossOutput, Nest, Params, ReplaySample, Transition


@dataclasses.dataclass(frozen=True)
class Config(ReplayConfig):
    """Holds the hyperparameters of D4PG, in addition to those of `ReplayConfig`.

    Attributes:
        num_atoms: values that the critic's distribution is spread over, at least 2.
        vmin: the smallest of them; choose the range so that it holds all discounted returns.
        vmax: the largest.
        hidden_sizes: units of each hidden layer of the policy and of the critic.
        policy_learning_rate: Adam's step size for the policy.
        critic_learning_rate: Adam's step size for the critic.
        max_grad_norm: clips the global norm of each of the two gradients; None for no clipping.
        adam_epsilon: added to the root of Adam's second moment.
        target_update_period: updates between copies to both targets.
        exploration_noise: standard deviation of the noise on an actor's actions, in units of half their range.
        num_random_steps: uniform actions that each actor begins with, in all its environments together.
    """

    n_step: Count = 5
    num_atoms: CountFromTwo = 51
    vmin: Finite = -150.0
    vmax: Finite = 150.0
    hidden_sizes: Sizes = (256, 256)
    policy_learning_rate: Positive | Schedule = 3e-4
    critic_learning_rate: Positive | Schedule = 3e-4
    max_grad_norm: Positive | None = None
    adam_epsilon: Positive = 1e-8
    target_update_period: Count = 100
    exploration_noise: NotNegative = 0.3
    num_random_steps: CountFromZero = 1_000

    def __post_init__(self) -> None:
        """Refuses a value outside of its field's range, and bounds in the wrong order."""
        super().__post_init__()
        check_order(self, "vmin", "vmax")


class Networks(NamedTuple):
    """Holds the pure functions of an environment's networks.

    Attributes:
        policy: ``observation [B, ...] -> action [B, A]`` in [-1, 1].
        critic: ``observation [B, ...], action [B, A] -> logits [B, N]``, of the atoms' probabilities.
        atoms: the values that a return can take, rising, float32 ``[N]``.
        action_shape: ``(A,)``.
    """

    policy: nets.Network
    critic: nets.Network
    atoms: jax.Array
    action_shape: tuple[int, ...]


def make_networks(environment_spec: specs.EnvironmentSpec, config: Config, torso: nets.Torso = nets.torso) -> Networks:
    """Builds a deterministic policy and a distributional critic, for continuous actions in [-1, 1]."""

    def logits(observation: Nest, action: jax.Array, hidden_sizes: Sequence[int], torso: nets.Torso) -> jax.Array:
        return nets.critic(observation, action, hidden_sizes, config.num_atoms, torso)

    made = nets.deterministic_networks(environment_spec, "D4PG", config.hidden_sizes, logits, torso)
    atoms = nets.evenly_spaced_atoms(config.vmin, config.vmax, config.num_atoms)
    return Networks(made.policy, made.critic, atoms, made.action_shape)


def make_policy(networks: Networks, config: Config, evaluation: bool = False) -> actors.Policy:
    """Adds noise to the policy's actions, after uniform actions at first; in evaluation adds none."""
    if evaluation:
        return actors.deterministic_policy(networks.policy.apply)
    sigma, num_random_steps = config.exploration_noise, config.num_random_steps
    return actors.gaussian_noise_policy(networks.policy.apply, networks.action_shape, sigma, num_random_steps)


class State(NamedTuple):
    """Holds the training state of D4PG.

    Attributes:
        policy: parameters.
        critic: parameters.
        target_policy: an older copy.
        target_critic: an older copy.
        opt_states: of policy and critic.
        key: PRNG key ``uint32[2]``.
        num_updates: int32 ``[]``.
    """

    policy: Params
    critic: Params
    target_policy: Params
    target_critic: Params
    opt_states: tuple[optax.OptState, optax.OptState]
    key: jax.Array
    num_updates: jax.Array


class Losses(NamedTuple):
    """Holds the losses of critic and policy.

    Attributes:
        critic: ``(critic, state, batch, key) -> LossOutput``.
        policy: ``(policy, state, batch, key) -> LossOutput``, with the critic in `state` as it has just become.
    """

    critic: Callable[[Params, State, ReplaySample[Transition], jax.Array], LossOutput]
    policy: Callable[[Params, State, ReplaySample[Transition], jax.Array], LossOutput]


def make_losses(networks: Networks, config: Config) -> Losses:
    """Builds the two losses of algorithm 1, on a batch of `Transition`s ``[B, ...]``."""
    policy_at, logits_at, atoms = networks.policy.apply, networks.critic.apply, networks.atoms

    def critic_loss(critic: Params, state: State, batch: ReplaySample[Transition], key: jax.Array) -> LossOutput:
        del key
        o_tm1, a_tm1, r_t, discount_t, o_t, _ = batch.data
        logits_t = logits_at(state.target_critic, o_t, policy_at(state.target_policy, o_t))  # [B, N]
        logits_tm1 = logits_at(critic, o_tm1, a_tm1)
        divergence = losses.categorical_td_loss(logits_tm1, r_t, discount_t, logits_t, atoms)  # [B], eq. 4
        q_tm1 = nets.categorical_mean(logits_tm1, atoms)
        metrics = {"q": jnp.mean(q_tm1), "at_edge": nets.share_at_edge(q_tm1, config.vmin, config.vmax)}
        return importance_weighted_loss(divergence, metrics, batch, config)

    def policy_loss(policy: Params, state: State, batch: ReplaySample[Transition], key: jax.Array) -> LossOutput:
        del key
        o_tm1 = batch.data.observation
        logits = logits_at(state.critic, o_tm1, policy_at(policy, o_tm1))
        return LossOutput(-jnp.mean(nets.categorical_mean(logits, atoms)), {})  # its gradient is minus eq. 5

    return Losses(critic_loss, policy_loss)


def make_update(networks: Networks, losses: Losses, config: Config, optimizer: Optimizers | None = None) -> Update:
    """Takes a step on the critic, then one on the policy, and copies both targets now and then (algorithm 1)."""
    of_policy, of_critic = (
        adam(rate, config.max_grad_norm, epsilon=config.adam_epsilon)
        for rate in (config.policy_learning_rate, config.critic_learning_rate)
    )
    optimizers = optimizers_of(optimizer, config, policy=of_policy, critic=of_critic)

    def init(key: jax.Array) -> State:
        key, policy_key, critic_key = jax.random.split(key, 3)
        policy, critic = networks.policy.init(policy_key), networks.critic.init(critic_key)
        target_policy, target_critic = jax.tree.map(jnp.copy, (policy, critic))
        opt_states = optimizers["policy"].init(policy), optimizers["critic"].init(critic)
        num_updates = jnp.zeros((), jnp.int32)
        return State(policy, critic, target_policy, target_critic, opt_states, key, num_updates)

    def update(state: State, batch: ReplaySample[Transition]) -> tuple[State, UpdateOutput]:
        # Losses that draw nothing make these keys dead code.
        critic_key, policy_key = jax.random.split(jax.random.fold_in(state.key, state.num_updates))
        policy_opt, critic_opt = state.opt_states

        grads, output = jax.grad(objective(losses.critic), has_aux=True)(state.critic, state, batch, critic_key)
        critic, critic_opt = optimizer_step(optimizers["critic"], grads, state.critic, critic_opt)
        state = state._replace(critic=critic)

        grads, policy_output = jax.grad(objective(losses.policy), has_aux=True)(state.policy, state, batch, policy_key)
        policy, policy_opt = optimizer_step(optimizers["policy"], grads, state.policy, policy_opt)
        num_updates, period = state.num_updates + 1, config.target_update_period
        target_policy = optax.periodic_update(policy, state.target_policy, num_updates, period)
        target_critic = optax.periodic_update(critic, state.target_critic, num_updates, period)
        metrics = {
            "critic_loss": output.loss,
            "policy_loss": policy_output.loss,
            **output.metrics,
            **policy_output.metrics,
        }
        opt_states = policy_opt, critic_opt
        state = State(policy, critic, target_policy, target_critic, opt_states, state.key, num_updates)
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
    """Returns D4PG as an agent, with any of its parts replaced; it sees images by `with_drq`."""
    check_config(config, Config)
    agent = Agent(
        config,
        Transitions(config),
        with_torso(make_networks, config, torso),
        Configured(make_policy, config),
        UpdateOfLoss(given(make_update, optimizer=optimizer), make_losses, config),
    )
    return with_drq(agent)
