"""QMIX: monotonic value mixing (Rashid et al. 2018, "QMIX: Monotonic Value Function Factorisation", 1803.11485).

A team learns one value of its joint actions, which rises with the value that each agent gives its own: so each agent
acts greedily by itself, and the team does. The mixing weights come from hypernetworks that see the whole state.

With ``mixer="sum"`` it is VDN: value decomposition networks (Sunehag et al. 2017, "Value-Decomposition Networks For
Cooperative Multi-Agent Learning", 1706.05296), whose joint value is the sum of the agents' (eq. 4). All else is the
same, so VDN is a setting and not a second file.

Differences from the paper:
  * Agents have no memory: two layers of 64 units in place of a layer, a GRU and a layer. Their last action is no input.
  * Replay holds 250,000 steps in place of 5,000 episodes, a batch 512 steps in place of 32 episodes, and there is an
    update every 50 steps in place of one an episode. The target network is copied every 200 updates.
  * Adam instead of RMSProp (with its decay of 0.99), and gradients clipped to a global norm of 10, as in the authors'
    code. So is `double` (van Hasselt et al. 2016), which is off here, as in the paper.
  * Agents that are not alike have parameters of their own; those that are alike share them, and see who they are.
  * Where the environment has no state, the mixer sees all observations. Agents that have terminated count as 0.
  * Truncated episodes bootstrap.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, get_args

import haiku as hk
import jax
import jax.numpy as jnp

from agentkit import losses, specs
from agentkit import networks as nets
from agentkit.actors import Policy, epsilon_greedy_policy, epsilon_ladder_policy, fixed_epsilon_policy
from agentkit.agents.common.agent import Agent, Configured, MakePolicy, UpdateOfLoss, check_config, checks_parts, given
from agentkit.agents.common.experience import ReplayConfig, Transitions
from agentkit.agents.common.optimizers import Optimizer, optimizer_of
from agentkit.agents.common.prioritized import importance_weighted_loss
from agentkit.agents.common.ranges import Count, Fraction, Positive, ScheduleOfSteps, Sizes
from agentkit.agents.common.torso import with_torso
from agentkit.errors import unknown_name
from agentkit.learning import Linear, Loss, Schedule, SgdState, Update, adam, periodic, sgd
from agentkit.types import Array, LossOutput, Nest, ReplaySample, Transition

Mixer = Literal["monotonic", "sum"]


@dataclasses.dataclass(frozen=True)
class Config(ReplayConfig):
    """Holds the hyperparameters of QMIX, in addition to those of `ReplayConfig`.

    Attributes:
        hidden_sizes: units of each hidden layer of the agents' action values.
        mixer: how the agents' values become the team's: "monotonic" (QMIX) or their "sum" (VDN).
        mixing_size: units of the mixer's hidden layer, where it is monotonic.
        double: select the bootstrap actions with the online network (van Hasselt et al. 2016).
        learning_rate: Adam's step size.
        max_grad_norm: clips the gradients' global norm; None for no clipping.
        adam_epsilon: added to the root of Adam's second moment.
        target_update_period: updates between copies to the target network.
        epsilon: probability of a random action, for each agent by itself; a schedule counts the team's steps in all
            environments of an actor.
        epsilon_evaluation: probability of a random action in evaluation.
        epsilon_ladder: a fixed epsilon for each actor instead, from 0.4 to 0.0007 (Horgan et al. 2018).
    """

    batch_size: Count = 512
    updates_per_step: Positive = 0.02
    replay_size: Count = 250_000
    hidden_sizes: Sizes = (64, 64)
    mixer: Mixer = "monotonic"
    mixing_size: Count = 32
    double: bool = False
    learning_rate: Positive | Schedule = 5e-4
    max_grad_norm: Positive | None = 10.0
    adam_epsilon: Positive = 1e-8
    target_update_period: Count = 200
    epsilon: Fraction | ScheduleOfSteps = Linear(1.0, 0.05, 50_000)
    epsilon_evaluation: Fraction = 0.0
    epsilon_ladder: bool = False

    def __post_init__(self) -> None:
        """Refuses a value outside of its field's range, and an unknown mixer."""
        super().__post_init__()
        if self.mixer not in get_args(Mixer):
            raise unknown_name("mixer", str(self.mixer), get_args(Mixer))


class Params(NamedTuple):
    """Holds the parameters of the agents' values, with which they act, and of the mixer."""

    agents: Any
    mixer: Any


class Networks(NamedTuple):
    """Holds the networks of a team of N agents with up to A actions each.

    Attributes:
        init: ``key -> Params``.
        q_values: ``(params, observation [B, ...]) -> [B, N, A]``, of each agent by its own observation: Q_a.
        mix: ``(params, values [B, N], observation [B, ...]) -> [B]``: Q_tot.
        team: who they are.
    """

    init: Callable[[jax.Array], Params]
    q_values: Callable[[Params, Nest], jax.Array]
    mix: Callable[[Params, Array, Nest], jax.Array]
    team: nets.Team


def make_networks(environment_spec: specs.EnvironmentSpec, config: Config, torso: nets.Torso = nets.torso) -> Networks:
    """Builds the agents' action values and their mixer, for a team whose agents have a discrete action each."""
    team, observations = nets.team_of(environment_spec, "QMIX"), environment_spec.observations

    def head(features: Array, own: Nest, num_actions: int) -> jax.Array:
        return nets.mask_illegal(nets.mlp(features, config.hidden_sizes, num_actions), own)

    def mix(observation: Nest, values: Array) -> jax.Array:
        if config.mixer == "sum":
            return jnp.sum(values, axis=-1)
        return mix_monotonically(torso(nets.seen_by_all(observation)), values, config.mixing_size)

    agents = nets.make_network(lambda observation: nets.of_each_agent(team, observation, torso, head), observations)
    mixer = nets.make_network(mix, observations, specs.Array((len(team.ids),), jnp.float32))

    def init(key: jax.Array) -> Params:
        agents_key, mixer_key = jax.random.split(key)
        return Params(agents.init(agents_key), mixer.init(mixer_key))

    return Networks(
        init,
        q_values=lambda params, observation: agents.apply(params.agents, observation),
        mix=lambda params, values, observation: mixer.apply(params.mixer, observation, values),
        team=team,
    )


def mix_monotonically(state: Array, values: Array, size: int) -> jax.Array:
    """Returns Q_tot ``[B]`` of the agents' values ``[B, N]``, which falls with none of them (section 4.1, figure 2).

    One hidden layer of ELUs, whose weights and biases hypernetworks give by the state: linear ones, with absolute
    values for the weights, and for the last bias one with a hidden layer of ReLUs.

    Args:
        state: features ``[B, F]``.
        values: ``[B, N]``.
        size: units of the hidden layer.
    """
    first = jnp.abs(hk.Linear(values.shape[-1] * size)(state)).reshape(-1, values.shape[-1], size)
    hidden = jax.nn.elu(jnp.einsum("bn,bns->bs", values, first) + hk.Linear(size)(state))
    final = jnp.abs(hk.Linear(size)(state))
    bias: jax.Array = nets.mlp(state, (size,), 1)[:, 0]
    return jnp.sum(hidden * final, axis=-1) + bias


def make_policy(networks: Networks, config: Config, evaluation: bool = False) -> Policy:
    """Explores epsilon-greedily, each agent by itself: by a falling or fixed epsilon, or on the ladder."""
    if evaluation:
        chooser = fixed_epsilon_policy(networks.q_values, config.epsilon_evaluation)
    elif config.epsilon_ladder:
        chooser = epsilon_ladder_policy(networks.q_values)
    else:
        chooser = epsilon_greedy_policy(networks.q_values, config.epsilon)

    def act(params: Params, key: jax.Array, observation: Nest, state: Nest) -> tuple[Nest, Nest, Nest]:
        choices, state, extras = chooser.act(params, key, observation, state)
        return networks.team.to_action(choices), state, extras

    return chooser._replace(act=act)


def make_loss(networks: Networks, config: Config) -> Loss:
    """Builds half the squared TD errors of the team's value (eq. 6), on a batch of `Transition`s ``[B, ...]``."""

    def total(params: Params, q: Array, choices: Array, observation: Nest) -> jax.Array:
        chosen = jnp.take_along_axis(q, choices[..., None], axis=-1)[..., 0]  # [B, N]
        return networks.mix(params, chosen * nets.active_agents(observation), observation)

    def loss(params: Params, state: SgdState, batch: ReplaySample[Transition], key: jax.Array) -> LossOutput:
        del key
        o_tm1, a_tm1, r_t, discount_t, o_t, _extras = batch.data
        q_tm1, q_target_t = networks.q_values(params, o_tm1), networks.q_values(state.target_params, o_t)  # [B, N, A]
        # What is best for each agent is best for the team (eq. 4), so the maximum of eq. 6 needs no search.
        best = jnp.argmax(networks.q_values(params, o_t) if config.double else q_target_t, axis=-1)
        target = r_t + discount_t * total(state.target_params, q_target_t, best, o_t)
        errors = jax.lax.stop_gradient(target) - total(params, q_tm1, networks.team.choices(a_tm1), o_tm1)  # [B]
        metrics = {"q": nets.mean_legal(q_tm1), "q_total": jnp.mean(target)}
        return importance_weighted_loss(losses.huber(errors, None), metrics, batch, config, priorities=jnp.abs(errors))

    return loss


def make_update(networks: Networks, loss: Loss, config: Config, optimizer: Optimizer | None = None) -> Update:
    """Takes a step of Adam on the loss; copies the target network every `target_update_period` updates."""
    default = adam(config.learning_rate, config.max_grad_norm, epsilon=config.adam_epsilon)
    optimizer = optimizer_of(optimizer, config, default)
    return sgd(loss, networks.init, optimizer, periodic(config.target_update_period))


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
    """Returns QMIX as an agent, with any of its parts replaced."""
    check_config(config, Config)
    return Agent(
        config,
        Transitions(config),
        with_torso(make_networks, config, torso),
        Configured(make_policy, config),
        UpdateOfLoss(given(make_update, optimizer=optimizer), make_loss, config),
    )
