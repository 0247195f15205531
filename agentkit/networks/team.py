"""Networks of a team: agents that are alike share parameters, and each network sees whose observation it sees.

`agentkit.envs.multi_agent.team` says what a team's observations and actions are: nests by agent id. Here agents are an
axis ``[B, N, ...]``, in the order of their sorted ids.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from agentkit import specs
from agentkit.errors import SpecError
from agentkit.networks.action_mask import refuse_action_mask
from agentkit.networks.normalization import NestStatistics, normalize_nest, update_nest_statistics, update_statistics
from agentkit.networks.torsos import Torso
from agentkit.specs import ILLEGAL_VALUE
from agentkit.types import Array, Nest

Head = Callable[[Array, Nest, int], Array]
"""``(features [M, F], the agents' own observations [M, ...], their `num_outputs`) -> outputs [M, K]``."""


class Team(NamedTuple):
    """Describes the agents of a team, in the order of their sorted ids.

    Attributes:
        ids: N names.
        actions: the spec of each one's choice, or of its continuous actions ``[A]`` in [-1, 1].
        kinds: positions of agents that are alike, in tuples: they observe and choose by equal specs.
    """

    ids: tuple[str, ...]
    actions: tuple[specs.DiscreteArray | specs.BoundedArray, ...]
    kinds: tuple[tuple[int, ...], ...]

    @property
    def num_outputs(self) -> int:
        """K, the most that an agent has of choices or of continuous actions."""
        return max(map(num_outputs, self.actions))

    @property
    def chooses(self) -> np.ndarray:
        """Whether each agent makes one choice, bool ``[N]``; else its actions are continuous."""
        return np.array([isinstance(spec, specs.DiscreteArray) for spec in self.actions])

    @property
    def used(self) -> np.ndarray:
        """Which of K numbers each agent's actions have, bool ``[N, K]``."""
        return np.array([np.arange(self.num_outputs) < num_outputs(spec) for spec in self.actions])

    def vectors(self, actions: Mapping[str, Array]) -> jax.Array:
        """Returns actions by id as ``[B, N, K]``: choices one-hot, and zeros where an agent has fewer numbers."""

        def vector(spec: specs.Array, action: Array) -> Array:
            if isinstance(spec, specs.DiscreteArray):
                return jax.nn.one_hot(action, self.num_outputs)
            return jnp.pad(action, ((0, 0), (0, self.num_outputs - action.shape[1])))

        each = zip(self.ids, self.actions, strict=True)
        return jnp.stack([vector(spec, actions[agent]) for agent, spec in each], axis=1)

    def from_vectors(self, vectors: Array) -> dict[str, Array]:
        """Returns vectors ``[N, K]`` as the environment's action, by id: of choices the largest number's."""

        def action(spec: specs.Array, vector: Array) -> Array:
            found = jnp.argmax(vector) if isinstance(spec, specs.DiscreteArray) else vector[: num_outputs(spec)]
            return found.astype(spec.dtype)

        return {agent: action(self.actions[i], vectors[i]) for i, agent in enumerate(self.ids)}

    def choices(self, actions: Mapping[str, Array]) -> jax.Array:
        """Returns actions by id, ``[B]`` each, as int32 ``[B, N]``."""
        return jnp.stack([jnp.asarray(actions[agent], jnp.int32) for agent in self.ids], axis=-1)

    def to_action(self, choices: Array) -> dict[str, Array]:
        """Returns choices ``[N]`` as the environment's action, by id."""
        return {agent: choices[i].astype(self.actions[i].dtype) for i, agent in enumerate(self.ids)}


def num_outputs(action: specs.Array) -> int:
    """Returns how many numbers a network gives for an agent's action: one for each choice, or each continuous one."""
    return action.num_values if isinstance(action, specs.DiscreteArray) else math.prod(action.shape)


def is_team(environment_spec: specs.EnvironmentSpec) -> bool:
    """Returns whether an environment has a team: an observation and an action of each of its agents, by id."""
    observations, actions = environment_spec.observations, environment_spec.actions
    seen = observations.get("agents") if isinstance(observations, Mapping) else None
    return isinstance(seen, Mapping) and isinstance(actions, Mapping) and seen.keys() == actions.keys() and bool(seen)


def team_of(environment_spec: specs.EnvironmentSpec, agent: str, continuous: bool = False) -> Team:
    """Reads who is in a team off an environment's specs.

    Args:
        environment_spec: of the team.
        agent: who needs it, for the error.
        continuous: whether agents may have continuous actions, too.

    Raises:
        SpecError: it is no team, or an agent of it has other actions.
    """
    observations, actions = environment_spec.observations, environment_spec.actions
    if not is_team(environment_spec):
        raise SpecError(
            f"{agent} needs a team: observations {{'agents': {{id: observation}}}} and an action for each of the "
            f"same ids; found observations {specs.in_words(observations)!s:.150} and actions "
            f"{specs.in_words(actions)!s:.150}. The environment team:NAME makes a team of several agents, with no "
            "--policies, as agentkit.envs.multi_agent.team.TeamEnvironment does; for one agent take dqn or ppo."
        )
    seen = observations["agents"]
    ids = tuple(sorted(seen))
    for name in ids:
        if continuous and not isinstance(actions[name], specs.DiscreteArray):
            specs.canonical_action_size(actions[name], f"{agent}'s agent {name!r}")
            refuse_action_mask(seen[name])
        elif not isinstance(actions[name], specs.DiscreteArray):
            raise SpecError(
                f"{agent} needs one discrete action (a dm_env DiscreteArray) of each agent, found "
                f"{specs.in_words(actions[name])!s:.150} of {name!r}."
            )
    kinds: list[tuple[int, ...]] = []
    for i, name in enumerate(ids):
        alike = [k for k in kinds if (seen[ids[k[0]]], actions[ids[k[0]]]) == (seen[name], actions[name])]
        if alike:
            kinds[kinds.index(alike[0])] += (i,)
        else:
            kinds.append((i,))
    return Team(ids, tuple(actions[name] for name in ids), tuple(kinds))


def of_each_agent(team: Team, observation: Nest, torso: Torso, head: Head) -> jax.Array:
    """Applies a network to each agent's own observation and its identity; agents of one kind share its parameters.

    Args:
        team: whose observations they are.
        observation: of the team, by `torsos.encode_inputs`, leaves ``[B, ...]``.
        torso: from an agent's observations to features, to which an indicator of its identity ``[N]`` is added.
        head: from features to outputs.

    Returns:
        Outputs ``[B, N, K]``; where agents have fewer, `specs.ILLEGAL_VALUE` fills up to the most.
    """
    identities = np.eye(len(team.ids), dtype=np.float32)
    found: dict[int, Array] = {}
    for kind in team.kinds:
        each = [observation["agents"][team.ids[i]] for i in kind]
        own = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *each)  # [n B, ...]
        features = torso(own)
        batch = features.shape[0] // len(kind)
        identity = np.repeat(identities[list(kind)], batch, axis=0)  # [n B, N]
        features = jnp.concatenate([features, identity], axis=-1)
        outputs = head(features, own, num_outputs(team.actions[kind[0]]))
        found.update(zip(kind, jnp.split(outputs, len(kind)), strict=True))
    most = max(outputs.shape[-1] for outputs in found.values())

    def fill(outputs: Array) -> Array:
        more = np.full((len(outputs), most - outputs.shape[-1]), ILLEGAL_VALUE, np.float32)
        return jnp.concatenate([outputs, more], axis=-1) if more.size else outputs

    return jnp.stack([fill(found[i]) for i in range(len(team.ids))], axis=1)


def seen_by_all(observation: Nest) -> Nest:
    """Returns what a mixer or a critic of the whole team sees: the state, or all observations where there is none."""
    hidden = "agents" if "state" in observation else "state"
    return {name: part for name, part in observation.items() if name != hidden}


def active_agents(observation: Nest) -> jax.Array:
    """Returns 1 for each agent that acts on observations ``[B, ...]``, 0 for each that has terminated, ``[B, N]``."""
    if "active" in observation:
        return jnp.asarray(observation["active"], jnp.float32)
    return jnp.ones((jax.tree.leaves(observation)[0].shape[0], len(observation["agents"])))


def hide_ended(observation: Nest) -> Nest:
    """Returns a team's observations with zeros for each agent that has terminated.

    A team gives zeros for it, which are not zeros any more once they are normalised.

    Args:
        observation: of the team, leaves ``[...]``, ``[B, ...]`` or ``[B, T, ...]``.
    """
    if "active" not in observation:
        return observation
    active = jnp.asarray(observation["active"])

    def hide(leaf: Array, i: int) -> Array:
        there = jnp.expand_dims(active[..., i], tuple(range(active.ndim - 1, leaf.ndim)))
        return jnp.where(there > 0, leaf, jnp.zeros_like(leaf))

    own = observation["agents"]
    hidden = {agent: jax.tree.map(functools.partial(hide, i=i), own[agent]) for i, agent in enumerate(sorted(own))}
    return {**observation, "agents": hidden}


def update_team_statistics(statistics: NestStatistics, batch: Nest, mask: Array | None = None) -> NestStatistics:
    """Takes in a team's observations; of each agent those that it made before it terminated.

    Args:
        statistics: of `init_nest_statistics`; ``()`` for none.
        batch: a team's observations, leaves ``[B, ...]``.
        mask: 1 for each that counts, ``[B]``; None for all.
    """
    if not statistics:
        return ()
    active = active_agents(batch)
    mask = jnp.ones(len(active)) if mask is None else mask
    masks = {name: jax.tree.map(lambda leaf: mask, part) for name, part in batch.items()}
    for i, agent in enumerate(sorted(batch["agents"])):
        masks["agents"][agent] = jax.tree.map(lambda leaf, i=i: mask * active[:, i], batch["agents"][agent])
    each = zip(statistics, jax.tree.leaves(batch), jax.tree.leaves(masks), strict=True)
    return tuple(update_statistics(s, leaf, counts) if s else () for s, leaf, counts in each)


def update_observation_statistics(
    spec: specs.EnvironmentSpec, statistics: NestStatistics, batch: Nest, mask: Array | None = None
) -> NestStatistics:
    """Takes in observations of any environment; of a team as `update_team_statistics` does.

    Args:
        spec: of the environment.
        statistics: of `init_nest_statistics`; ``()`` for none.
        batch: observations, leaves ``[B, ...]``.
        mask: 1 for each that counts, ``[B]``; None for all.
    """
    update = update_team_statistics if is_team(spec) else update_nest_statistics
    return update(statistics, batch, mask)


def normalize_observations(
    spec: specs.EnvironmentSpec, statistics: NestStatistics, observation: Nest, limit: float, epsilon: float = 1e-6
) -> Nest:
    """Normalises observations of any environment; those of a team's agents that have terminated stay zeros.

    Returns them as they are if there are no statistics.

    Args:
        spec: of the environment.
        statistics: as for `normalize_nest`.
        observation: likewise; of a team see `hide_ended`.
        limit: likewise.
        epsilon: likewise.
    """
    normalized = normalize_nest(statistics, observation, limit, epsilon)
    return hide_ended(normalized) if statistics and is_team(spec) else normalized
