"""Views: a model sees past observations, actions and rewards of its choice (RLlib's view requirements).

One declaration serves three: the policy shows the views of the steps that it remembers, replay stores each step once
and its items refer to as many before them as the views reach back, and the update takes the same views from those.
The agent's networks, losses and hyperparameters stay as they are; its observations are the dictionary of the views.
A wrapper would show the same, as `frame_stack` does, and store each step as often as it is seen.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Generic, NamedTuple, final

import jax
import jax.numpy as jnp

from agentkit import specs
from agentkit.actors import Policy
from agentkit.actors.policy import PolicyState
from agentkit.agents.addons.rewards import AgentNetworks, Networks
from agentkit.agents.common.agent import Agent, Experience, PolicyOf
from agentkit.agents.common.experience import Segments, Sequences, Transitions
from agentkit.agents.common.experience_wrappers import DroppingExtras, WithRateLimiter
from agentkit.agents.common.past import show_batch
from agentkit.agents.common.views import Reach, View, Views, show
from agentkit.errors import ConfigError
from agentkit.learning import Update, UpdateOutput
from agentkit.specs import EnvironmentSpec
from agentkit.types import Array, Nest, Params, ReplaySample


def with_views(agent: Agent[AgentNetworks], views: Mapping[str, View]) -> Agent[Networks[AgentNetworks]]:
    """Returns the agent with a model that sees these views, by name, in the place of the observation.

    ``with_views(dqn.make_agent(), {"window": View("observation", "-50:0"), "actions": View("action", "-4:-1")})``

    A mask of legal actions stays where it is. Other add-ons that look at observations (`with_rnd`, `with_gail`) go
    around the agent before.

    Args:
        agent: one that keeps transitions, sequences or segments.
        views: what the model sees.

    Raises:
        ConfigError: no views, or an agent that keeps something else. When networks are made: the environment has no
            such column.
    """
    declared = Views.from_mapping(views)
    agent.refuse_own_actor("views")
    return agent.with_parts(
        experience=_with_reach(agent.experience, declared.reach),
        make_networks=MakeNetworks(agent.make_networks, declared),
        make_policy=MakePolicy(agent.make_policy, declared),
        make_update=MakeUpdate(agent.make_update, declared),
    )


def _with_reach(experience: Experience, reach: Reach) -> Experience:
    if isinstance(experience, WithRateLimiter | DroppingExtras):
        return dataclasses.replace(experience, experience=_with_reach(experience.experience, reach))
    if not isinstance(experience, Transitions | Sequences | Segments) or experience.reach is not None:
        twice = " with views" if isinstance(experience, Transitions | Sequences | Segments) else ""
        raise ConfigError(
            "Views look into transitions, sequences or segments as an agent keeps them in order, once; found "
            f"{type(experience).__name__}{twice}. Give all views in one with_views, and leave out what keeps "
            "experience in another way (with_her)."
        )
    if isinstance(experience, Segments) and experience.completes_episodes:
        raise ConfigError(
            'Views look into segments that follow each other, found batch_mode="complete_episodes". Set '
            '"truncate_episodes", or leave the views out.'
        )
    return dataclasses.replace(experience, reach=reach)


@final
@dataclasses.dataclass(frozen=True)
class MakeNetworks(Generic[AgentNetworks]):
    """Makes the agent's networks for the views, and keeps the environment's specs."""

    make_networks: Callable[[EnvironmentSpec], AgentNetworks]
    views: Views

    def __call__(self, environment_spec: EnvironmentSpec) -> Networks[AgentNetworks]:
        """Returns both."""
        seen = environment_spec._replace(observations=self.views.spec(environment_spec))
        return Networks(self.make_networks(seen), environment_spec)


class ViewState(NamedTuple):
    """Holds what a policy remembers of its episode.

    Attributes:
        agent: the state of the agent's own policy.
        observations: the last ones before this, oldest first, ``[reach, ...]``.
        actions: likewise; ``()`` where no view shows actions.
        num_steps: steps of this episode before this one, or one more than the views reach back, int32 ``[]``.
    """

    agent: PolicyState
    observations: Nest
    actions: Nest
    num_steps: Array


@final
@dataclasses.dataclass(frozen=True)
class MakePolicy(Generic[AgentNetworks]):
    """Makes the agent's policy, which remembers what the views show."""

    make_policy: PolicyOf[AgentNetworks]
    views: Views

    def __call__(self, networks: Networks[AgentNetworks], evaluation: bool = False) -> Policy:
        """Returns the policy: it begins anew at each episode."""
        policy, spec = self.make_policy(networks.agent, evaluation), networks.environment_spec
        views, reach = self.views, self.views.reach

        def init(key: Any) -> ViewState:
            return ViewState(policy.init(key), *_nothing(spec, reach))

        def reset(state: ViewState) -> ViewState:
            return ViewState(policy.reset(state.agent), *_nothing(spec, reach))

        def diversify(state: ViewState, index: Any, count: int) -> ViewState:
            return state._replace(agent=policy.diversify(state.agent, index, count))

        def begin(state: ViewState, num_steps: Any, num_envs: int) -> ViewState:
            return state._replace(agent=policy.begin(state.agent, num_steps, num_envs))

        def act(params: Params, key: Any, observation: Nest, state: ViewState) -> tuple[Nest, ViewState, Nest]:
            observations = jax.tree.map(_append, state.observations, observation)  # [reach + 1, ...]
            # The action of this step is not known yet, and no view shows what stands for it.
            actions = jax.tree.map(lambda rows: _append(rows, jnp.zeros_like(rows[0])), state.actions)
            shown = jax.tree.map(lambda leaf: leaf[0], show(views, observations, actions, state.num_steps[None]))
            action, agent_state, extras = policy.act(params, key, shown, state.agent)
            new = ViewState(
                agent_state,
                jax.tree.map(lambda rows: rows[1:], observations),
                ()
                if reach.action is None
                else jax.tree.map(lambda rows, a: _append(rows[1:], a), state.actions, action),
                jnp.minimum(state.num_steps + 1, reach.start + 1),
            )
            return action, new, extras

        return Policy(act, init, reset, diversify, begin, policy.extras_spec)


def _append(rows: Array, value: Array) -> Array:
    return jnp.concatenate([rows, jnp.asarray(value, rows.dtype)[None]])


def _nothing(spec: EnvironmentSpec, reach: Reach) -> tuple[Nest, Nest, Array]:
    """Returns what is remembered at an episode's start: observations, actions, and their number."""

    def rows(nest: Nest, count: int) -> Nest:
        return jax.tree.map(jnp.asarray, specs.zeros(specs.add_leading(nest, count)))

    actions = () if reach.action is None else rows(spec.actions, reach.action)
    return rows(spec.observations, reach.observation), actions, jnp.int32(0)


@final
@dataclasses.dataclass(frozen=True)
class MakeUpdate(Generic[AgentNetworks]):
    """Makes the agent's update, which takes the views from the rows that were stored."""

    make_update: Callable[[AgentNetworks], Update]
    views: Views

    def __call__(self, networks: Networks[AgentNetworks]) -> Update:
        """Returns the update."""
        own, views = self.make_update(networks.agent), self.views

        def seen(batch: ReplaySample[Nest]) -> ReplaySample[Nest]:
            return batch._replace(data=show_batch(views, batch.data))

        def update(state: Nest, batch: ReplaySample[Nest]) -> tuple[Nest, UpdateOutput]:
            return own.update(state, seen(batch))

        def gradient(params: Params, batch: ReplaySample[Nest], key: jax.Array) -> Params:
            assert own.gradient is not None
            return own.gradient(params, seen(batch), key)

        return own._replace(update=update, gradient=None if own.gradient is None else gradient)
