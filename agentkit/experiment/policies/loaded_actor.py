"""Acts as the trained actor of a user's own did, out of a run folder."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Any, final

import dm_env
import jax
import numpy as np

from agentkit.actors import PolicyActor
from agentkit.actors.policy import Policy
from agentkit.child import check_not_forked
from agentkit.errors import ConfigError
from agentkit.experiment.policies.loaded_policy import ActingState, LoadedPolicy, Origin
from agentkit.experiment.policies.own_actor import OwnActing
from agentkit.experiment.policies.policy_file import PolicyFile
from agentkit.types import Nest
from agentkit.variables import VariableClient, VariableStore


@final
class LoadedActor(LoadedPolicy):
    """Acts as a `LoadedPolicy` does, by an agent's own actor, for one observation at a time.

    An actor that remembers keeps its memory itself: the state that is returned has nothing in it, and None begins an
    episode. ``environment`` is None among its `core.ActorParts`.
    """

    def __init__(self, acting: OwnActing, params: Nest, file: PolicyFile, seed: int, origin: Origin | None = None):
        """Makes the actor.

        Args:
            acting: makes it.
            params: its parameters, the learner's "policy".
            file: says what it takes and returns.
            seed: of its choices.
            origin: the run that it is of.
        """
        check_not_forked()
        self._describe(acting.agent, file, seed, not acting.evaluation, origin)
        self.arrays = params
        self.acting = acting
        store = VariableStore()
        store.publish(0, {"policy": params})
        client, key = VariableClient(store), jax.random.PRNGKey(seed)

        def make_policy_actor(policy: Policy) -> PolicyActor:
            return PolicyActor(policy, key, client)

        self._actor = acting.make(file.environment_spec, key, client, make_policy_actor=make_policy_actor)
        self._actor.update(wait=True)

    def __call__(self, observation: Nest, state: ActingState | None = None) -> tuple[Nest, ActingState]:
        """Returns the action for an observation; see `LoadedPolicy`.

        Raises:
            SpecError: see `LoadedPolicy`.
            ConfigError: a batch of observations.
        """
        observation, batch_size = self._read(observation)
        if batch_size is not None:
            raise ConfigError(
                f"An actor of one's own (make_actor) acts for one observation at a time; found a batch of {batch_size}."
            )
        if state is None:
            self._actor.observe_first(dm_env.restart(observation))
        action = self._actor.select_action(observation)
        return self._in_bounds(action), ActingState(self._key, ())

    def save(self, path: str | pathlib.Path, *, extra: Mapping[str, np.ndarray] | None = None) -> None:
        """Refuses: a policy file has parameters of a policy, and here code acts.

        Raises:
            ConfigError: always.
        """
        raise ConfigError(_ONLY_FROM_FOLDER.format("save"))

    def export(self, path: str | pathlib.Path, format: str | None = None) -> list[pathlib.Path]:
        """Refuses, as `save` does.

        Raises:
            ConfigError: always.
        """
        raise ConfigError(_ONLY_FROM_FOLDER.format("export"))

    @property
    def pure_policy(self) -> Any:
        """Refuses: an actor of one's own is no pure function.

        Raises:
            ConfigError: always.
        """
        raise ConfigError(_ONLY_FROM_FOLDER.format("pure_policy"))


_ONLY_FROM_FOLDER = (
    "{}: the run's agent acts by an actor of its own (make_actor), which is Python code and no file can hold. Load it "
    "from its run folder, where that code can be imported."
)
