"""An actor for environments that are ready at different times, whose policy runs in another process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, final

import dm_env
import numpy as np
import tree

from agentkit import specs
from agentkit.actors.batches import index
from agentkit.actors.remote import ONLY, InferenceClient, RemotePolicy
from agentkit.core import Adder
from agentkit.types import FIRST, LAST, Nest


@final
class RemoteReadyActor:
    """Acts in those of N environments that are ready, M at a time, with actions from a server.

    It is to `ReadyPolicyActor` what `RemoteActor` is to `PolicyActor`. A row has room for all N, or the server would
    compile a program for each M, and could not answer several actors with one call.
    """

    def __init__(
        self,
        client: InferenceClient,
        spec: specs.EnvironmentSpec,
        *,
        seed: int,
        adders: Sequence[Adder],
        actor_index: tuple[int, int, int] = (0, 1, 0),
        policy_id: str = ONLY,
    ):
        """Makes a `RemoteReadyActor`.

        Args:
            client: whom to ask; it is closed with this.
            spec: of one environment, and in it of one agent.
            seed: see `RemoteActor`, as the other arguments.
            adders: one for each of the N environments.
            actor_index: of the actors that explore together; each of their environments counts as one.
            policy_id: to act by, of the server's.
        """
        self.policy = RemotePolicy(
            client, spec, seed=seed, num_envs=len(adders), actor_index=actor_index, policy_id=policy_id
        )
        self._adders = list(adders)
        self._step_type = np.full(len(adders), FIRST, np.int8)
        self._numbers = np.zeros(0, np.int32)  # That were asked for last.
        self._extras: list[Nest] = [()] * len(adders)

    @property
    def version(self) -> int:
        """See `InferenceClient.version`."""
        return self.policy.client.version(self.policy.policy_id)

    @property
    def age_seconds(self) -> float:
        """See `InferenceClient.age_seconds`."""
        return self.policy.client.age_seconds(self.policy.policy_id)

    def select_action(self, observation: Nest, numbers: np.ndarray) -> Nest:
        """Returns actions ``[M, ...]`` for observations ``[M, ...]`` of the environments of these numbers.

        Raises:
            InferenceClosedError, SpecError: see `RemoteActor.select_action`.
        """
        rows = {self.policy.policy_id: [self.request(observation, numbers)]}
        return self.take(self.policy.client.act(rows)[self.policy.policy_id][0])

    def request(self, observation: Nest, numbers: np.ndarray) -> dict[str, Any]:
        """Returns the row that asks for the actions, for who asks for several agents at once; raises as that."""
        self._numbers, lacking = numbers, len(self._adders) - len(numbers)
        rows = np.pad(np.arange(len(numbers)), (0, lacking))  # More of the first: it is an observation like any.
        step_type = np.pad(self._step_type[numbers], (0, lacking), constant_values=LAST)  # Which counts no step.
        acting = np.pad(numbers, (0, lacking), constant_values=len(self._adders)).astype(np.int32)
        return self.policy.request(tree.map_structure(lambda leaf: leaf[rows], observation), step_type, acting)

    def take(self, answer: Mapping[str, Any]) -> Nest:
        """Returns the actions ``[M, ...]`` of the answer to `request`."""
        action, extras = self.policy.take(answer)
        for row, number in enumerate(self._numbers.tolist()):
            self._extras[number] = index(extras, row)
        return tree.map_structure(lambda leaf: leaf[: len(self._numbers)], action)

    def observe_one(self, number: int, action: Nest, timestep: dm_env.TimeStep) -> None:
        """Records an action of one environment and the time step, unbatched, that followed; FIRST begins an episode."""
        self._step_type[number] = timestep.step_type
        if timestep.first():
            self._adders[number].add_first(timestep)
        else:
            self._adders[number].add(action, timestep, self._extras[number])

    def update(self, wait: bool = False) -> None:
        """Meets the server, with `wait`; it keeps the parameters fresh. Raises as `select_action`."""
        if wait:
            self.policy.meet()

    def close(self) -> None:
        """Closes the adders and the connection. May be called twice."""
        self.policy.client.close()
        for adder in self._adders:
            adder.close()
