"""An actor for environments that are ready at different times."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import dm_env
import jax
import numpy as np

from agentkit.actors.actor import restore_actor, save_actor, to_numpy
from agentkit.actors.batches import element, index
from agentkit.actors.compiled import CompiledPolicy, compiled
from agentkit.actors.policy import ALONE, ActorIndex, Policy, first_state
from agentkit.core import Adder, Parameters
from agentkit.errors import ConfigError
from agentkit.types import FIRST, Nest


@final
class ReadyPolicyActor:
    """Acts in those of N environments that are ready, M at a time, with one policy call.

    Each environment has a state of the policy and an adder of its own, so that its steps stay in their order, however
    often the others are acted for in between (decision 74).
    """

    def __init__(
        self,
        policy: Policy | CompiledPolicy,
        key: jax.Array,
        client: Parameters,
        adders: Sequence[Adder],
        actor_index: ActorIndex = ALONE,
    ):
        """Makes a `ReadyPolicyActor`.

        Args:
            policy: how to act in a single environment, as for `PolicyActor`; mapped over those that are ready.
            key: PRNG key ``uint32[2]``.
            client: where parameters come from.
            adders: one for each of the N environments.
            actor_index: of the actors that explore together; each of their environments counts as one.
        """
        num_envs = len(adders)
        if num_envs < 1:
            raise ConfigError("Expected an adder for each environment, found none.")
        self._client = client
        self._adders = list(adders)
        init_key, self._key = jax.random.split(key)
        program = compiled(policy)
        self._states = first_state(program.policy, init_key, actor_index, num_envs)  # [N, ...]
        self._step_type = np.full(num_envs, FIRST, np.int8)
        self._chosen: list[tuple[Nest, Nest]] = [((), ())] * num_envs  # The newest action and extras of each.
        self._act = program.act_in_some

    def select_action(self, observation: Nest, numbers: np.ndarray) -> Nest:
        """Returns actions ``[M, ...]`` for observations ``[M, ...]`` of the environments of these numbers."""
        action, self._key, self._states, extras = self._act(
            self._client.params, self._key, observation, self._states, self._step_type[numbers], numbers
        )
        action, extras = to_numpy(action), to_numpy(extras)
        for row, number in enumerate(numbers.tolist()):
            self._chosen[number] = index(action, row), index(extras, row)
        return action

    def observe(self, timestep: dm_env.TimeStep, numbers: np.ndarray) -> None:
        """Records time steps ``[M]`` that the latest actions of these environments led to; FIRST begins an episode."""
        self._step_type[numbers] = timestep.step_type
        is_first = self._step_type[numbers] == FIRST
        for row, number in enumerate(numbers.tolist()):
            if is_first[row]:
                self._adders[number].add_first(element(timestep, row))
            else:
                action, extras = self._chosen[number]
                self._adders[number].add(action, element(timestep, row), extras)

    def update(self, wait: bool = False) -> None:
        """See `core.Actor`."""
        self._client.update(wait)

    def save(self, mid_episode: bool = False) -> dict[str, Any]:
        """Returns key and policy states; a resumed actor begins new episodes, since nobody can repeat who was ready."""
        del mid_episode
        return save_actor(self._key, self._states, self._step_type == FIRST, None)

    def restore(self, state: dict[str, Any]) -> None:
        """See `core.Saveable`."""
        self._key, self._states = restore_actor(state, self._states, self._adders)
        self._step_type[:] = FIRST

    def close(self) -> None:
        """Closes the adders."""
        for adder in self._adders:
            adder.close()
