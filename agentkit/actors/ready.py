"""An actor for environments that are ready at different times."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import dm_env
import jax
import numpy as np
import tree

from agentkit.actors.actor import restore_actor, restore_extras, save_actor, save_extras, to_numpy
from agentkit.actors.batches import element, index
from agentkit.actors.compiled import CompiledPolicy, compiled
from agentkit.actors.policy import ALONE, ActorIndex, Policy, first_state
from agentkit.core import Adder, Parameters
from agentkit.errors import ConfigError
from agentkit.types import FIRST, LAST, MID, Nest


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
        *,
        number_varies: bool = False,
    ):
        """Makes a `ReadyPolicyActor`.

        Args:
            policy: how to act in a single environment, as for `PolicyActor`; mapped over those that are ready.
            key: PRNG key ``uint32[2]``.
            client: where parameters come from.
            adders: one for each of the N environments.
            actor_index: of the actors that explore together; each of their environments counts as one.
            number_varies: whether M is another one at each call: it is then filled up to a power of two, so that few
                programs are compiled.
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
        self._actions: list[Nest] = [()] * num_envs  # The newest of each, as the extras.
        self._extras: list[Nest] = [()] * num_envs
        self._extras_spec = program.policy.extras_spec
        self._number_varies = number_varies
        self._act = program.act_in_some

    def select_action(self, observation: Nest, numbers: np.ndarray) -> Nest:
        """Returns actions ``[M, ...]`` for observations ``[M, ...]`` of the environments of these numbers."""
        step_type, acting = self._step_type[numbers], numbers
        if self._number_varies:
            observation, step_type, acting = _filled_up(observation, step_type, numbers, len(self._adders))
        action, self._key, self._states, extras = self._act(
            self._client.params, self._key, observation, self._states, step_type, acting
        )
        action, extras = to_numpy(action), to_numpy(extras)
        for row, number in enumerate(numbers.tolist()):
            self._actions[number], self._extras[number] = index(action, row), index(extras, row)
        return action

    def observe(self, timestep: dm_env.TimeStep, numbers: np.ndarray) -> None:
        """Records time steps ``[M]`` that the latest actions of these environments led to; FIRST begins an episode."""
        for row, number in enumerate(numbers.tolist()):
            self.observe_one(number, self._actions[number], element(timestep, row))

    def observe_one(self, number: int, action: Nest, timestep: dm_env.TimeStep) -> None:
        """Records an action of one environment and the time step, unbatched, that followed; FIRST begins an episode."""
        self._step_type[number] = timestep.step_type
        if timestep.first():
            self._adders[number].add_first(timestep)
        else:
            self._adders[number].add(action, timestep, self._extras[number])

    def update(self, wait: bool = False) -> None:
        """See `core.Actor`."""
        self._client.update(wait)

    def save(self, mid_episode: bool = False) -> dict[str, Any]:
        """Returns key and policy states; in mid-episode the adders' states and the extras of waiting actions, too.

        Where the environments' own timing says who is ready, nobody can repeat it: a resumed actor begins new episodes.
        """
        adders: Any = self._adders if mid_episode else None
        waiting = self._extras if mid_episode else []
        return save_actor(self._key, self._states, self._step_type == FIRST, adders) | {
            "extras": {str(i): save_extras(extras, self._extras_spec) for i, extras in enumerate(waiting)}
        }

    def restore(self, state: dict[str, Any]) -> None:
        """See `core.Saveable`."""
        self._key, self._states = restore_actor(state, self._states, self._adders)
        self._step_type[:] = np.where(state["is_first"], FIRST, MID)
        for number, saved in state.get("extras", {}).items():
            self._extras[int(number)] = restore_extras(saved, self._extras_spec)

    def close(self) -> None:
        """Closes the adders."""
        for adder in self._adders:
            adder.close()


def _filled_up(observation: Nest, step_type: np.ndarray, numbers: np.ndarray, num_envs: int) -> tuple[Nest, Any, Any]:
    """Returns the arguments of `CompiledPolicy.act_in_some` for a power of two of environments, or for all.

    Those that are added have a number that no environment has, of which JAX keeps no state, and the step type LAST,
    which counts no step.
    """
    count = len(numbers)
    lacking = min(1 << (count - 1).bit_length(), num_envs) - count
    if not lacking:
        return observation, step_type, numbers
    rows = np.pad(np.arange(count), (0, lacking))  # More of the first: it is an observation like any.
    observation = tree.map_structure(lambda leaf: leaf[rows], observation)
    step_type = np.pad(step_type, (0, lacking), constant_values=LAST)
    return observation, step_type, np.pad(numbers, (0, lacking), constant_values=num_envs)
