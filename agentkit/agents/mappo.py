"""MAPPO: multi-agent PPO (Yu et al. 2022, "The Surprising Effectiveness of PPO in Cooperative Games", 2103.01955).

PPO for a team: each agent's policy sees its own observation, and in training a critic sees the team's state. Agents
that are alike share parameters. On-policy: N environments fill segments of T rows, and the learner takes each once.

With ``critic="own"`` it is IPPO (de Witt et al. 2020, 2011.09533): the critic sees what its agent sees.

Differences from the paper:
  * Agents have no memory (the paper's MLP variant, without its layer norms); `hidden_sizes` are tanh layers.
  * The critic sees the state, or all observations where there is none, beside an agent's own observation and identity:
    the paper's agent-specific state, with nothing pruned. It predicts the team's return for each agent.
  * Squared value errors, clipped like the ratio, in place of Huber's beyond 10; values are of normalised returns, by
    running statistics in place of PopArt's, and observations are normalised, of each agent by its own statistics.
  * Advantages are normalised in each minibatch, of which there is one.
  * Agents that have terminated are seen as zeros, and count in the values only (the paper's death masking).
  * Episodes that are cut off bootstrap; the paper's code ends them. Where they are much shorter than 1 / (1 - discount)
    steps, values take long to get there, and the policy follows their lag: take a smaller discount (0.95 for 25 steps).
  * The step size is 5e-4, the default of the authors' code; their scripts for MPE have 7e-4.
  * An update has 2,048 rows at least where no `segment_length` says otherwise; the paper's has 3,200 in MPE.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp

from agentkit import losses, specs
from agentkit import networks as nets
from agentkit.actors import Policy, PolicyVariables, stochastic_policy, with_normalized_observations
from agentkit.agents.common import advantages
from agentkit.agents.common.advantages import EstimateAdvantages, Minibatch, Trajectories, with_rows
from agentkit.agents.common.agent import Agent, Configured, MakePolicy, UpdateOfLoss, check_config, checks_parts, given
from agentkit.agents.common.epochs import Fitted, run_epochs
from agentkit.agents.common.experience import Segments, SegmentsConfig
from agentkit.agents.common.optimizers import Optimizer, optimizer_of
from agentkit.agents.common.ranges import Count, Fraction, NotNegative, Positive, Sizes
from agentkit.agents.common.torso import with_torso
from agentkit.errors import unknown_name
from agentkit.learning import Loss, Schedule, Update, UpdateOutput, adam, objective, optimizer_step, value_in_update
from agentkit.types import Array, LossOutput, Nest, Params, ReplaySample, Step

if TYPE_CHECKING:
    import optax

Critic = Literal["team", "own"]


@dataclasses.dataclass(frozen=True)
class Config(SegmentsConfig):
    """Holds the hyperparameters of MAPPO, in addition to those of `SegmentsConfig`.

    Attributes:
        hidden_sizes: units of each tanh layer of the policies, and of the critic.
        critic: sees what the whole "team" does (MAPPO), or its agent's "own" observation (IPPO).
        gae_lambda: from 0 (one-step errors) to 1 (whole returns).
        learning_rate: Adam's step size.
        max_grad_norm: clips the gradients' global norm; None for no clipping.
        adam_epsilon: added to the root of Adam's second moment.
        num_epochs: passes over the data of an update.
        num_minibatches: gradient steps per epoch; divides batch_size * segment_length.
        clip_epsilon: the ratio's clip, of each agent by itself.
        value_clip: clip of a value's move from before the update, in units of the value network; None for none.
        value_cost: weight of the value loss.
        entropy_cost: weight of the entropy bonus.
        normalize_observations: whether to normalise vectors of floats by their running mean and deviation.
        normalize_values: whether the value network predicts normalised returns.
        normalize_advantages: whether to normalise them to mean 0 and deviation 1 in each minibatch.
    """

    hidden_sizes: Sizes = (64, 64)
    critic: Critic = "team"
    gae_lambda: Fraction = 0.95
    learning_rate: Positive | Schedule = 5e-4
    max_grad_norm: Positive | None = 10.0
    adam_epsilon: Positive = 1e-5
    num_epochs: Count = 10
    num_minibatches: Count = 1
    clip_epsilon: Positive = 0.2
    value_clip: Positive | None = 0.2
    value_cost: NotNegative = 1.0
    entropy_cost: NotNegative = 0.01
    normalize_observations: bool = True
    normalize_values: bool = True
    normalize_advantages: bool = True

    def __post_init__(self) -> None:
        """Refuses a value outside of its field's range, and an unknown critic."""
        super().__post_init__()
        if self.critic not in get_args(Critic):
            raise unknown_name("critic", str(self.critic), get_args(Critic))


def make_networks(
    environment_spec: specs.EnvironmentSpec, config: Config, torso: nets.Torso = nets.torso
) -> nets.PolicyValue:
    """Builds action logits ``[B, N, A]`` and values ``[B, N]``, for a team whose agents have a discrete action each."""
    team, observations = nets.team_of(environment_spec, "MAPPO"), environment_spec.observations

    def logits(observation: Nest) -> jax.Array:
        observation = nets.hide_ended(observation)

        def head(features: Array, own: Nest, num_actions: int) -> jax.Array:
            outputs = nets.orthogonal_mlp(features, config.hidden_sizes, num_actions, 0.01, jnp.tanh)
            return nets.mask_illegal(outputs, own)

        return nets.of_each_agent(team, observation, torso, head)

    def values(observation: Nest) -> jax.Array:
        observation = nets.hide_ended(observation)
        seen = torso(nets.seen_by_all(observation)) if config.critic == "team" else None

        def head(features: Array, own: Nest, num_actions: int) -> jax.Array:
            del own, num_actions
            if seen is not None:
                features = jnp.concatenate([features, jnp.tile(seen, (len(features) // len(seen), 1))], axis=-1)
            return nets.orthogonal_mlp(features, config.hidden_sizes, 1, activation=jnp.tanh)

        return nets.of_each_agent(team, observation, torso, head)[..., 0]

    policy, critic = (nets.make_network(function, observations) for function in (logits, values))

    def init(key: jax.Array) -> nets.PolicyCritic:
        policy_key, critic_key = jax.random.split(key)
        return nets.PolicyCritic(policy.init(policy_key), critic.init(critic_key))

    def apply(params: nets.PolicyCritic, observation: Nest) -> tuple[nets.Categorical, Array]:
        return nets.Categorical(policy.apply(params.policy, observation)), critic.apply(params.critic, observation)

    shape = (len(team.ids),)
    stored = nets.PolicyExtras(specs.Array(shape, jnp.int32, "sample"), specs.Array(shape, jnp.float32, "log_prob"))
    return nets.PolicyValue(nets.as_recurrent(init, apply), team.to_action, observations, stored)


def make_policy(networks: nets.PolicyValue, config: Config, evaluation: bool = False) -> Policy:
    """Samples each agent's action, on normalised observations; in evaluation takes each one's likeliest."""
    del config
    return with_normalized_observations(stochastic_policy(networks, evaluation))


class State(NamedTuple):
    """Holds the training state of MAPPO.

    Attributes:
        variables: parameters and statistics of observations.
        returns: statistics of the value targets ``[]``.
        opt_state: of the parameters.
        key: PRNG key ``uint32[2]``.
    """

    variables: PolicyVariables
    returns: nets.RunningStatistics
    opt_state: optax.OptState
    key: jax.Array


def make_loss(networks: nets.PolicyValue, config: Config) -> Loss:
    """Builds the agents' surrogates and the critic's loss (appendix A), on a minibatch of rows ``[M, ...]``."""

    def loss(params: Params, state: State, batch: ReplaySample[Minibatch], key: jax.Array) -> LossOutput:
        del state, key
        rows = batch.data
        distribution, value = networks.apply(params, rows.observation)  # [M, N]
        counts = jnp.broadcast_to(rows.mask[:, None], value.shape)
        acts = counts * nets.active_agents(rows.observation)
        # Rows without an action have arbitrary log-ratios, whose exp may overflow.
        log_ratio = jnp.where(acts > 0, distribution.log_prob(rows.extras.sample) - rows.extras.log_prob, 0.0)
        ratio = jnp.exp(log_ratio)  # Of each agent: a joint one would be clipped for what another agent does.
        advantage = losses.standardize(rows.advantage, acts) if config.normalize_advantages else rows.advantage
        policy_loss = losses.masked_mean(losses.clipped_policy_loss(ratio, advantage, config.clip_epsilon), acts)
        value_losses = losses.clipped_value_loss(value, rows.old_value, rows.target, config.value_clip)
        value_loss = losses.masked_mean(value_losses, counts)
        entropy = losses.masked_mean(distribution.entropy(), acts)
        metrics = {
            "policy_loss": policy_loss,
            "value_loss": value_loss,
            "entropy": entropy,
            "kl": losses.masked_mean(losses.approximate_kl(log_ratio), acts),
            "clipped": losses.masked_mean((jnp.abs(ratio - 1.0) > config.clip_epsilon).astype(jnp.float32), acts),
        }
        return LossOutput(policy_loss + config.value_cost * value_loss - config.entropy_cost * entropy, metrics)

    return loss


def estimate_advantages(segments: Trajectories, config: Config) -> jax.Array:
    """Returns each agent's advantages ``[B, T, N]`` of the team's rewards by GAE, from its values ``[B, T + 1, N]``."""

    def of_one(values: Array) -> jax.Array:
        return advantages.estimate_advantages(segments._replace(values=values), config)

    return jax.vmap(of_one, in_axes=-1, out_axes=-1)(segments.values)


def observe_team(variables: PolicyVariables, segments: Step) -> nets.NestStatistics:
    """Returns the observations' statistics with those of segments taken in, of each agent until it has terminated."""
    return advantages.observe_segments(variables, segments, nets.update_team_statistics)


def make_update(
    networks: nets.PolicyValue,
    loss: Loss,
    config: Config,
    optimizer: Optimizer | None = None,
    estimate_advantages: EstimateAdvantages[Config] = estimate_advantages,
) -> Update:
    """Takes all epochs over the segments of one batch as one update (algorithm 1)."""
    # Adam is of step size 1: `optimizer_step` multiplies its steps by the learning rate, which may be scheduled. An
    # optimiser of one's own has its learning rate in it.
    step_size = config.learning_rate if optimizer is None else 1.0
    transformation = optimizer_of(optimizer, config, adam(1.0, config.max_grad_norm, epsilon=config.adam_epsilon))

    def init(key: jax.Array) -> State:
        key, params_key = jax.random.split(key)
        params = networks.init(params_key)
        statistics = nets.init_nest_statistics(networks.observation_spec) if config.normalize_observations else ()
        return State(PolicyVariables(params, statistics), nets.init_statistics(()), transformation.init(params), key)

    def update(state: State, batch: ReplaySample[Step]) -> tuple[State, UpdateOutput]:
        key, epochs_key = jax.random.split(state.key)
        rows, returns, explained_variance = advantages.compute_advantages(
            networks,
            state.variables,
            state.returns,
            batch.data,
            functools.partial(estimate_advantages, config=config),
            discount=config.discount,
            normalize_values=config.normalize_values,
        )
        learning_rate = value_in_update(step_size, batch, rows.mask)

        def step(learned: Fitted, minibatch: Minibatch, key: jax.Array) -> tuple[Fitted, dict[str, Array]]:
            params, opt_state = learned
            grads, output = jax.grad(objective(loss), has_aux=True)(params, state, with_rows(batch, minibatch), key)
            return optimizer_step(transformation, grads, params, opt_state, learning_rate), output.metrics

        (params, opt_state), metrics = run_epochs(
            step,
            (state.variables.params, state.opt_state),
            rows,
            epochs_key,
            num_epochs=config.num_epochs,
            num_minibatches=config.num_minibatches,
            mask=rows.mask,
        )
        variables = PolicyVariables(params, observe_team(state.variables, batch.data))
        metrics |= {"explained_variance": explained_variance}
        return State(variables, returns, opt_state, key), UpdateOutput(metrics)

    return Update(init, update, lambda state: {"policy": state.variables})


@checks_parts
def make_agent(
    config: Config = Config(),
    *,
    torso: nets.Torso | str | None = None,
    make_networks: Callable[[specs.EnvironmentSpec, Config], nets.PolicyValue] = make_networks,
    make_policy: MakePolicy[nets.PolicyValue, Config] = make_policy,
    make_loss: Callable[[nets.PolicyValue, Config], Loss] = make_loss,
    optimizer: Optimizer | None = None,
    estimate_advantages: EstimateAdvantages[Config] | None = None,
    make_update: Callable[[nets.PolicyValue, Loss, Config], Update] = make_update,
) -> Agent[nets.PolicyValue]:
    """Returns MAPPO as an agent, with any of its parts replaced."""
    check_config(config, Config)
    return Agent(
        config,
        Segments(config, num_minibatches=config.num_minibatches),
        with_torso(make_networks, config, torso),
        Configured(make_policy, config),
        UpdateOfLoss(
            given(make_update, optimizer=optimizer, estimate_advantages=estimate_advantages), make_loss, config
        ),
    )
