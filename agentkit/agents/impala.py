"""IMPALA: importance weighted actor-learner architecture (Espeholt et al. 2018, "IMPALA: Scalable ...", 1802.01561).

Many actors fill a queue of segments, one learner takes each once. It may be some updates ahead of the policy that
acted: V-trace corrects values and policy gradient for that. With an `lstm_size` the policy has an LSTM, which begins a
segment with the state that the actor had there.

Differences from the paper:
  * Adam instead of RMSProp; losses are means over rows, not sums. The step size falls where `learning_rate` is a
    schedule.
  * Without images and LSTM policy and value share nothing: values are not normalised, and where they are large their
    loss drowns the policy's in layers that both share. Else they share a few ReLU layers (for images behind the
    convolutions of Mnih et al. 2015, or with `residual_torso` behind those of the paper's larger network), an LSTM if
    wanted, and have linear heads.
  * Rewards and actions before are no inputs of the network; ``--wrapper observation_action_reward`` makes them some.
  * Rewards are not clipped.
  * Continuous actions, too: Gaussian, clipped to the bounds on their way to the environment.
  * Truncated episodes bootstrap. An episode's final observation takes one of the T rows; only its value is of use.
  * Actors that share a process with the learner wait for it: then its data are on-policy, and V-trace corrects nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp

from agentkit import losses, specs
from agentkit import networks as nets
from agentkit.actors import Policy, stochastic_policy
from agentkit.agents.common.agent import Agent, Configured, MakePolicy, UpdateOfLoss, check_config
from agentkit.agents.common.experience import Segments, SegmentsConfig
from agentkit.agents.common.ranges import Count, Fraction, NotNegative, Positive, Sizes
from agentkit.agents.common.torso import with_torso
from agentkit.errors import ConfigError
from agentkit.learning import Loss, Schedule, Update, adam, sgd, value_in_update
from agentkit.types import LossOutput, Params, ReplaySample, Step, has_action


@dataclasses.dataclass(frozen=True)
class Config(SegmentsConfig):
    """Holds the hyperparameters of IMPALA, in addition to those of `SegmentsConfig`.

    Attributes:
        hidden_sizes: units of each tanh layer of policy and value; with images or an `lstm_size` of the shared ReLU
            layers.
        lstm_size: units of the LSTM behind them; None for a policy without memory.
        residual_torso: images go through the paper's residual convolutions (figure 3, right) first, not through DQN's.
        queue_size: segments that wait for the learner, at most: so far may actors be ahead; None for as few as can be.
        vtrace_lambda: from 0 (one-step targets) to 1 (eq. 1).
        rho_clip: the largest ratio in V-trace's errors (rho bar).
        policy_rho_clip: the largest ratio in the policy gradient.
        learning_rate: Adam's step size.
        max_grad_norm: clips the gradients' global norm; None for no clipping.
        adam_epsilon: added to the root of Adam's second moment.
        value_cost: weight of the value loss.
        entropy_cost: weight of the entropy bonus.
        initial_std: standard deviation of continuous actions at first, in units of half the bounds' distance.
    """

    segment_length: Count = 20
    hidden_sizes: Sizes = (64, 64)
    lstm_size: Count | None = None
    residual_torso: bool = False
    queue_size: Count | None = None
    vtrace_lambda: Fraction = 1.0
    rho_clip: Positive = 1.0
    policy_rho_clip: Positive = 1.0
    learning_rate: Positive | Schedule = 3e-4
    max_grad_norm: Positive | None = 1.0
    adam_epsilon: Positive = 1e-8
    value_cost: NotNegative = 0.5
    entropy_cost: NotNegative | Schedule = 0.01
    initial_std: Positive = 1.0


def make_networks(
    environment_spec: specs.EnvironmentSpec, config: Config, torso: nets.Torso = nets.torso
) -> nets.PolicyValue:
    """Builds layers for the policy and others for the value; with images or an LSTM both share ReLU layers and it."""
    if config.residual_torso and torso is not nets.torso:
        raise ConfigError("Expected residual_torso=True or a torso of your own, found both. Leave one of them out.")
    has_image = any(nets.is_image(leaf.shape) for leaf in jax.tree.leaves(environment_spec.observations))
    if config.lstm_size is None and not config.residual_torso and not has_image:
        return nets.policy_value(environment_spec, config.hidden_sizes, config.initial_std, torso)
    if config.residual_torso:
        torso = nets.residual_torso
    return nets.recurrent_policy_value(
        environment_spec, config.hidden_sizes, config.initial_std, config.lstm_size, torso
    )


def make_policy(networks: nets.PolicyValue, config: Config, evaluation: bool = False) -> Policy:
    """Samples the policy; in evaluation takes its mode."""
    del config
    return stochastic_policy(networks, evaluation)


def make_loss(networks: nets.PolicyValue, config: Config) -> Loss:
    """Builds policy gradient, value and entropy losses (section 4.2) on segments, leaves ``[B, T + 1, ...]``."""

    def loss(params: Params, target_params: Params, batch: ReplaySample[Step], key: jax.Array) -> LossOutput:
        del target_params, key
        steps = batch.data
        distribution, values = networks.apply(params, steps.observation, nets.stored_memory(steps))  # [B, T + 1]
        distribution, extras, reward, discount = jax.tree.map(
            lambda x: jnp.asarray(x)[:, :-1], (distribution, steps.extras, steps.reward, steps.discount)
        )
        mask = has_action(steps.start_of_episode)  # [B, T]
        log_prob = distribution.log_prob(extras.sample)
        log_ratio = jnp.where(mask > 0, log_prob - extras.log_prob, 0.0)
        vtrace = losses.vtrace(
            reward.astype(jnp.float32),
            config.discount * discount.astype(jnp.float32),
            values,
            log_ratio,
            mask,
            lambda_=config.vtrace_lambda,
            rho_clip=config.rho_clip,
            policy_rho_clip=config.policy_rho_clip,
        )
        means = {
            "policy_loss": -log_prob * vtrace.advantage,
            "value_loss": 0.5 * jnp.square(vtrace.target - values[:, :-1]),
            "entropy": distribution.entropy(),
            "kl": losses.approximate_kl(log_ratio),
        }
        metrics = {name: losses.masked_mean(x, mask) for name, x in means.items()}
        metrics["explained_variance"] = losses.explained_variance(values[:, :-1], vtrace.target, mask)
        total = metrics["policy_loss"] + config.value_cost * metrics["value_loss"]
        entropy_cost = value_in_update(config.entropy_cost, batch, mask.size)
        return LossOutput(total - entropy_cost * metrics["entropy"], metrics)

    return loss


def make_update(networks: nets.PolicyValue, loss: Loss, config: Config) -> Update:
    """Makes an update of one step of Adam on each batch of segments.

    Actors may compute its gradient, unless a cost is scheduled.

    Raises:
        ConfigError: a learning rate by steps, and no `batch_size` that says how many steps an update is of.
    """
    rate, num_segments = config.learning_rate, config.batch_size
    if isinstance(rate, Schedule) and rate.by == "steps" and num_segments is None:
        raise ConfigError(f'learning_rate={rate} counts steps, found batch_size=None. Set batch_size, or by="updates".')
    steps_per_update = (num_segments or 1) * config.segment_length
    optimizer = adam(rate, config.max_grad_norm, epsilon=config.adam_epsilon, steps_per_update=steps_per_update)
    update = sgd(loss, networks.init, optimizer)
    # An actor does not know which update its gradient is for.
    return update._replace(gradient=None, apply=None) if isinstance(config.entropy_cost, Schedule) else update


def make_agent(
    config: Config = Config(),
    *,
    torso: nets.Torso | str | None = None,
    make_networks: Callable[[specs.EnvironmentSpec, Config], nets.PolicyValue] = make_networks,
    make_policy: MakePolicy[nets.PolicyValue, Config] = make_policy,
    make_loss: Callable[[nets.PolicyValue, Config], Loss] = make_loss,
    make_update: Callable[[nets.PolicyValue, Loss, Config], Update] = make_update,
) -> Agent[nets.PolicyValue]:
    """Returns IMPALA as an agent, with its torso or any of its four parts replaced."""
    check_config(config, Config)
    return Agent(
        config,
        Segments(config, queue_size=config.queue_size),
        with_torso(make_networks, config, torso),
        Configured(make_policy, config),
        UpdateOfLoss(make_update, make_loss, config),
    )
