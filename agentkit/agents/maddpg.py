"""MADDPG: multi-agent DDPG (Lowe et al. 2017, "Multi-Agent Actor-Critic for Mixed Cooperative-...", 1706.02275).

DDPG for a team: each agent's policy sees its own observation, and in training a critic sees what all agents see and do,
so that to it the environment stands still while the others learn. Each agent climbs it along its own action.

Differences from the paper:
  * One critic, of the team's return: the agents of a team have one reward. The paper has a critic for each agent, whose
    reward may be its own, also an opponent's; nobody here guesses what others do (its sections 4.2, 4.3).
  * Agents that are alike share their policy's parameters, and see who they are.
  * Policies and critic are two layers of 64 units with orthogonal initial weights, and take their steps together: the
    policy climbs the critic as it was before the update, in the authors' code as it is after.
  * Choices among actions are drawn by straight-through Gumbel-softmax (the critic sees one-hot vectors), in the paper
    by soft ones. Continuous actions have Gaussian noise of a fixed size.
  * Replay begins to be learned from at 10,000 steps (25,600 in the authors' code). Truncated episodes bootstrap.
  * Agents that have terminated take no part in the policies' loss.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from agentkit import losses, specs
from agentkit import networks as nets
from agentkit.actors import Policy, stateless_policy
from agentkit.agents.common.agent import Agent, Configured, MakePolicy, UpdateOfLoss, check_config, checks_parts, given
from agentkit.agents.common.experience import ReplayConfig, Transitions
from agentkit.agents.common.optimizers import Optimizer, optimizer_of
from agentkit.agents.common.prioritized import importance_weighted_loss
from agentkit.agents.common.ranges import Count, Fraction, NotNegative, Positive, Rate, Sizes
from agentkit.agents.common.torso import with_torso
from agentkit.learning import Loss, Schedule, SgdState, Update, adam, polyak, sgd
from agentkit.types import Array, LossOutput, Nest, ReplaySample, Transition


@dataclasses.dataclass(frozen=True)
class Config(ReplayConfig):
    """Holds the hyperparameters of MADDPG, in addition to those of `ReplayConfig`.

    Attributes:
        hidden_sizes: units of each hidden layer of the policies and of the critic.
        policy_learning_rate: Adam's step size for the policies.
        critic_learning_rate: Adam's step size for the critic.
        max_grad_norm: clips the global norm of each of the two gradients; None for no clipping.
        adam_epsilon: added to the root of Adam's second moment.
        tau: fraction by which the targets move at each update, in (0, 1].
        output_cost: weight of the policies' squared outputs (logits, or numbers before tanh), which keeps them small.
        exploration_noise: standard deviation of the noise on continuous actions, in units of half their range.
    """

    discount: Fraction = 0.95
    batch_size: Count = 1_024
    updates_per_step: Positive = 0.01
    min_replay_size: Count = 10_000
    hidden_sizes: Sizes = (64, 64)
    policy_learning_rate: Positive | Schedule = 1e-2
    critic_learning_rate: Positive | Schedule = 1e-2
    max_grad_norm: Positive | None = 0.5
    adam_epsilon: Positive = 1e-8
    tau: Rate = 0.01
    output_cost: NotNegative = 1e-3
    exploration_noise: NotNegative = 0.3


class Params(NamedTuple):
    """Holds the parameters of the agents' policies, with which they act, and of the critic."""

    policy: Any
    critic: Any


class Networks(NamedTuple):
    """Holds the networks of a team of N agents, whose actions are vectors of K numbers, `Team.vectors`.

    Attributes:
        init: ``key -> Params``.
        outputs: ``(params, observation [B, ...]) -> [B, N, K]``, of each agent by its own observation: logits of its
            choices, or continuous actions before tanh.
        critic: ``(params, observation [B, ...], actions [B, N, K]) -> q [B]``.
        team: who they are.
    """

    init: Callable[[jax.Array], Params]
    outputs: Callable[[Params, Nest], jax.Array]
    critic: Callable[[Params, Nest, Array], jax.Array]
    team: nets.Team


def make_networks(environment_spec: specs.EnvironmentSpec, config: Config, torso: nets.Torso = nets.torso) -> Networks:
    """Builds the agents' policies and their critic; an agent has one discrete action, or continuous ones in [-1, 1]."""
    team, observations = nets.team_of(environment_spec, "MADDPG", continuous=True), environment_spec.observations

    def head(features: Array, own: Nest, num_outputs: int) -> jax.Array:
        return nets.mask_illegal(nets.orthogonal_mlp(features, config.hidden_sizes, num_outputs, 0.01), own)

    def value(observation: Nest, actions: Array) -> jax.Array:
        features = torso(nets.seen_by_all(observation))
        features = jnp.concatenate([features, actions.reshape(len(actions), -1)], axis=-1)
        return nets.orthogonal_mlp(features, config.hidden_sizes, 1)[:, 0]

    policy = nets.make_network(lambda observation: nets.of_each_agent(team, observation, torso, head), observations)
    critic = nets.make_network(value, observations, specs.Array((len(team.ids), team.num_outputs), jnp.float32))

    def init(key: jax.Array) -> Params:
        policy_key, critic_key = jax.random.split(key)
        return Params(policy.init(policy_key), critic.init(critic_key))

    return Networks(
        init,
        outputs=lambda params, observation: policy.apply(params.policy, observation),
        critic=lambda params, observation, actions: critic.apply(params.critic, observation, actions),
        team=team,
    )


def choose(team: nets.Team, outputs: Array, noise: Array | float) -> jax.Array:
    """Returns the actions ``[B, N, K]`` of outputs: one-hot choices, by the largest logit with its noise, or tanh.

    A choice has the gradient of the softmax (straight-through Gumbel-softmax of temperature 1, Jang et al. 2017).

    Args:
        team: whose outputs they are.
        outputs: ``[B, N, K]``.
        noise: added to logits: Gumbel noise draws a choice by its probability, 0 takes the likeliest.
    """
    soft = jax.nn.softmax(outputs + noise)
    hard = jax.nn.one_hot(jnp.argmax(outputs + noise, axis=-1), outputs.shape[-1])
    choice = hard + soft - jax.lax.stop_gradient(soft)
    return jnp.where(team.chooses[None, :, None], choice, jnp.tanh(outputs) * team.used[None])


def make_policy(networks: Networks, config: Config, evaluation: bool = False) -> Policy:
    """Draws choices by their probability and adds noise to continuous actions; in evaluation does neither."""
    team = networks.team

    def act(params: Params, key: jax.Array, observation: Nest) -> Nest:
        outputs = networks.outputs(params, jax.tree.map(lambda x: x[None], observation))  # [1, N, K]
        if evaluation:
            return team.from_vectors(choose(team, outputs, 0.0)[0])
        choice_key, noise_key = jax.random.split(key)
        actions = choose(team, outputs, jax.random.gumbel(choice_key, outputs.shape))[0]
        noise = config.exploration_noise * jax.random.normal(noise_key, actions.shape)
        return team.from_vectors(jnp.where(team.chooses[:, None], actions, jnp.clip(actions + noise, -1.0, 1.0)))

    return stateless_policy(act)


def make_loss(networks: Networks, config: Config) -> Loss:
    """Builds the critic's and the policies' losses (algorithm 1), on a batch of `Transition`s ``[B, ...]``."""
    team, q_at = networks.team, networks.critic

    def drawn(params: Params, observation: Nest, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        outputs = networks.outputs(params, observation)
        return choose(team, outputs, jax.random.gumbel(key, outputs.shape)), outputs

    def loss(params: Params, state: SgdState, batch: ReplaySample[Transition], key: jax.Array) -> LossOutput:
        target_key, policy_key = jax.random.split(key)
        o_tm1, a_tm1, r_t, discount_t, o_t, _ = batch.data
        taken, (a_t, _) = team.vectors(a_tm1), drawn(state.target_params, o_t, target_key)
        target = r_t + discount_t * q_at(state.target_params, o_t, a_t)
        q = q_at(params, o_tm1, taken)
        errors = jax.lax.stop_gradient(target) - q  # [B], eq. 6
        metrics = {"q": jnp.mean(q), "critic_loss": jnp.mean(jnp.square(errors))}
        output = importance_weighted_loss(jnp.square(errors), metrics, batch, config, priorities=jnp.abs(errors))

        own, outputs = drawn(params, o_tm1, policy_key)
        still = params._replace(critic=jax.lax.stop_gradient(params.critic))

        def climbed(mine: Array) -> jax.Array:  # Of one agent; the others did what replay has.
            return q_at(still, o_tm1, jnp.where(mine[None, :, None], own, taken))

        values = jax.vmap(climbed)(np.eye(len(team.ids), dtype=bool))  # [N, B], eq. 5
        acts = nets.active_agents(o_tm1)  # [B, N]
        sizes = jnp.mean(jnp.square(outputs), axis=-1, where=outputs > specs.ILLEGAL_VALUE / 2)
        policy_loss = -losses.masked_mean(values.T, acts) + config.output_cost * losses.masked_mean(sizes, acts)
        return output._replace(loss=output.loss + policy_loss, metrics={**metrics, "policy_loss": policy_loss})

    return loss


def make_update(networks: Networks, loss: Loss, config: Config, optimizer: Optimizer | None = None) -> Update:
    """Takes a step of Adam on each of the two losses, whose parameters are apart, and moves the targets."""
    each = {
        name: adam(rate, config.max_grad_norm, epsilon=config.adam_epsilon)
        for name, rate in (("policy", config.policy_learning_rate), ("critic", config.critic_learning_rate))
    }
    default = optax.multi_transform(each, Params("policy", "critic"))
    return sgd(loss, networks.init, optimizer_of(optimizer, config, default), polyak(config.tau))


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
    """Returns MADDPG as an agent, with any of its parts replaced."""
    check_config(config, Config)
    return Agent(
        config,
        Transitions(config),
        with_torso(make_networks, config, torso),
        Configured(make_policy, config),
        UpdateOfLoss(given(make_update, optimizer=optimizer), make_loss, config),
    )
