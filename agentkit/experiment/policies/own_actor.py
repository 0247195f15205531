"""Makes an actor of a user's own one that a run can save, restore and close; see `core.Actor`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, final

import jax
import numpy as np

from agentkit.actors import ActorIndex, BatchedPolicyActor, PolicyActor
from agentkit.actors.policy import ALONE
from agentkit.adders import NullAdder
from agentkit.agents.common.agent import Agent, no_policy
from agentkit.core import Actor, ActorParts, Adder, Parameters, Saveable
from agentkit.errors import CheckpointError, SpecError
from agentkit.specs import EnvironmentSpec

_METHODS = ("select_action", "observe_first", "observe", "update")


@final
@dataclasses.dataclass(frozen=True)
class OwnActing:
    """Stands in a policy's place where an agent has a `make_actor`: `make` is what `make_actor` does with a policy.

    Attributes:
        agent: has the `make_actor`.
        networks: of the agent.
        evaluation: whether its actors are to be judged by.
    """

    agent: Agent
    networks: Any
    evaluation: bool

    def make(
        self,
        environment_spec: EnvironmentSpec,
        key: jax.Array,
        variables: Parameters,
        adder: Adder | None = None,
        *,
        num_envs: int | None = None,
        environment: Any = None,
        make_policy_actor: Callable[[Any], Actor],
        actor_index: ActorIndex = ALONE,
    ) -> PolicyActor | BatchedPolicyActor | OwnActor:
        """Makes the user's actor; one of agentkit's own needs nothing around it.

        Args:
            environment_spec: of one environment.
            key: PRNG key ``uint32[2]``, which its seed is made of.
            variables: see `core.ActorParts`; so are the others.
            adder: see there.
            num_envs: see there.
            environment: see there.
            make_policy_actor: from the agent's policy to its actor.
            actor_index: which one it is of the actors that explore together.

        Raises:
            SpecError: `make_actor` returned something else, or agentkit's actor of another number of environments.
        """
        agent = self.agent
        assert agent.make_actor is not None, "find_policy has seen it"
        stock = None
        if agent.make_policy is not no_policy:
            policy = agent.make_policy(self.networks, self.evaluation)

            def stock() -> Actor:
                return make_policy_actor(policy)

        actor = agent.make_actor(
            ActorParts(
                environment_spec,
                NullAdder() if adder is None else adder,
                variables,
                seed_of(key),
                num_envs,
                self.evaluation,
                environment,
                stock,
                actor_index.actor_id,
                actor_index.num_actors,
            )
        )
        check_methods("make_actor", "core.Actor", actor, _METHODS)
        if not isinstance(actor, PolicyActor | BatchedPolicyActor):
            return OwnActor(actor, adder)
        if isinstance(actor, BatchedPolicyActor) is (num_envs is None):
            right = "PolicyActor" if num_envs is None else "BatchedPolicyActor(..., num_envs=parts.num_envs)"
            raise SpecError(
                f"make_actor: parts.num_envs is {num_envs}, found a {type(actor).__name__}. Return an "
                f"actors.{right} there."
            )
        return actor


def seed_of(key: Any) -> int:
    """Returns the seed in [0, 2**31) that stands for a PRNG key ``uint32[2]`` where there is no JAX."""
    return int(np.random.SeedSequence(np.asarray(key).tolist()).generate_state(1)[0] >> 1)


def check_methods(box: str, kind: str, made: object, methods: Sequence[str]) -> None:
    """Refuses what a box of an agent has made, if it cannot be asked what a run asks of it.

    Raises:
        SpecError: it lacks a method.
    """
    lacking = [name for name in methods if not callable(getattr(made, name, None))]
    if lacking:
        raise SpecError(
            f"{box}: expected a {kind} of it, found {made!r:.80} without {', '.join(lacking)}. Return an object with "
            "these methods."
        )


def restore_own(kind: str, made: Saveable, state: dict[str, Any]) -> None:
    """Gives a user's actor or learner its saved state back.

    Raises:
        CheckpointError: it cannot take it.
    """
    try:
        made.restore(state)
    except (KeyError, TypeError, ValueError) as error:
        name = type(made).__qualname__
        raise CheckpointError(f"The saved state of the {kind} {name} does not fit: {error!r:.200}.") from error


def close_own(made: object) -> None:
    """Closes a user's actor or learner, if it can be."""
    close = getattr(made, "close", None)
    if close is not None:
        close()


@final
class OwnActor:
    """Has what a run asks of an actor beside the methods of `core.Actor`, which are the user's actor's own."""

    def __init__(self, actor: Actor, adder: Adder | None):
        """Takes the actor, and the adder that it was given, which is saved and closed here."""
        self._actor, self._adder = actor, adder
        self.select_action = actor.select_action
        self.observe_first = actor.observe_first
        self.observe = actor.observe
        self.update = actor.update

    def save(self, mid_episode: bool = True) -> dict[str, Any]:
        """Returns the actor's state, if it is `core.Saveable`, and the adder's unfinished episode."""
        adder: Any = self._adder
        return {
            "own": self._actor.save() if isinstance(self._actor, Saveable) else {},
            "adder": adder.save() if mid_episode and adder is not None else None,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Restores the state that `save` returned.

        Raises:
            CheckpointError: the user's actor cannot take it.
        """
        adder: Any = self._adder
        if adder is not None and state["adder"] is not None:
            adder.restore(state["adder"])
        if isinstance(self._actor, Saveable):
            restore_own("actor", self._actor, state["own"])

    def close(self) -> None:
        """Closes the actor, if it can be, and its adder."""
        close_own(self._actor)
        if self._adder is not None:
            self._adder.close()
