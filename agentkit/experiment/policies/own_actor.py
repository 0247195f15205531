"""Makes an actor of a user's own one that a run can save, restore and close; see `core.Actor`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, final

import dm_env
import jax
import numpy as np
import tree

from agentkit.actors import ActorIndex, BatchedPolicyActor, PolicyActor
from agentkit.actors.policy import ALONE
from agentkit.adders import NullAdder
from agentkit.agents.common.agent import Agent, no_policy
from agentkit.core import Actor, ActorParts, Adder, Parameters, Saveable
from agentkit.errors import CheckpointError, SpecError
from agentkit.specs import EnvironmentSpec
from agentkit.types import Nest

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
        make_policy_actor: Callable[[Any, Adder | None], Actor],
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
            make_policy_actor: from the agent's policy, and the adder to record by, to its actor.
            actor_index: which one it is of the actors that explore together.

        Raises:
            SpecError: `make_actor` returned something else, or agentkit's actor of another number of environments.
        """
        agent = self.agent
        assert agent.make_actor is not None, "find_policy has seen it"
        stock, lent = None, None if adder is None else LentAdder(adder)
        if agent.make_policy is not no_policy:
            policy = agent.make_policy(self.networks, self.evaluation)

            def stock() -> Actor:
                return make_policy_actor(policy, lent)

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
                actor_index.num_steps,
            )
        )
        check_methods("make_actor", "core.Actor", actor, _METHODS)
        if not isinstance(actor, PolicyActor | BatchedPolicyActor):
            if lent is not None:
                lent.is_saved_elsewhere = True
            return OwnActor(actor, adder, environment_spec.actions, num_envs)
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


def _check_action(action: Nest, spec: Nest, num_envs: int | None, name: str) -> None:
    """Refuses an action of other parts or shapes than the environment's; of N environments, leaves are ``[N, ...]``."""
    leading = () if num_envs is None else (num_envs,)
    try:
        leaves = zip(tree.flatten(spec), tree.flatten_up_to(spec, action, check_types=False), strict=True)
        fits = all(_is_numbers(leaf, (*leading, *each.shape)) for each, leaf in leaves)
    except (TypeError, ValueError):
        fits = False
    if not fits:
        expected = tree.map_structure(lambda leaf: f"{leaf.dtype}{[*leading, *leaf.shape]}", spec)
        raise SpecError(
            f"make_actor: expected an action {expected} of {name}.select_action, found {action!r:.80}. Return e.g. "
            "np.int32(1) for one choice."
        )


def _is_numbers(value: Any, shape: tuple[int, ...]) -> bool:
    array = np.asarray(value)
    return array.shape == shape and (array.dtype.kind in "fiub" or array.dtype.name == "bfloat16")


@final
class LentAdder(Adder):
    """Records by an adder that is another's: where that one saves it, who records by it does not do so again.

    Attributes:
        is_saved_elsewhere: whether that is so. Of an unfinished episode that is dropped, nothing is kept then.
    """

    def __init__(self, adder: Adder):
        """Takes the adder."""
        self._adder: Any = adder
        self.is_saved_elsewhere = False

    def add_first(self, timestep: dm_env.TimeStep) -> None:
        """See `core.Adder`."""
        self._adder.add_first(timestep)

    def add(self, action: Nest, next_timestep: dm_env.TimeStep, extras: Nest = ()) -> None:
        """See `core.Adder`."""
        self._adder.add(action, next_timestep, extras)

    def reset(self) -> None:
        """See `core.Adder`."""
        self._adder.reset()

    def save(self) -> dict[str, Any]:
        """Returns the adder's state, or nothing."""
        return {} if self.is_saved_elsewhere else self._adder.save()

    def restore(self, state: dict[str, Any]) -> None:
        """Restores it, or nothing."""
        if not self.is_saved_elsewhere:
            self._adder.restore(state)

    def close(self) -> None:
        """Closes the adder."""
        self._adder.close()


@final
class OwnActor:
    """Has what a run asks of an actor beside the methods of `core.Actor`, which are the user's actor's own."""

    def __init__(self, actor: Actor, adder: Adder | None, action_spec: Nest, num_envs: int | None):
        """Takes the actor, and the adder that it was given, which is saved and closed here; and what it chooses of."""
        self._actor, self._adder = actor, adder
        self._action_spec, self._num_envs = action_spec, num_envs
        self._has_acted = False
        self.observe_first = actor.observe_first
        self.update = actor.update

    def select_action(self, observation: Nest) -> Nest:
        """Returns the actor's action; the first one is looked at.

        Raises:
            SpecError: it is none of the environment's.
        """
        action = self._actor.select_action(observation)
        if not self._has_acted:
            self._has_acted = True
            _check_action(action, self._action_spec, self._num_envs, type(self._actor).__name__)
        return action

    def observe(self, action: Nest, next_timestep: dm_env.TimeStep) -> None:
        """Tells the actor what came of its action.

        Raises:
            SpecError: what it gave to its adder does not fit.
        """
        try:
            self._actor.observe(action, next_timestep)
        except SpecError as error:
            name = type(self._actor).__name__
            raise SpecError(f"make_actor: what {name} gave to its adder does not fit. {error}") from error

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
        if adder is not None and state["adder"] is None:  # A new episode begins, whatever the actor's own parts held.
            adder.reset()

    def close(self) -> None:
        """Closes the actor, if it can be, and its adder."""
        close_own(self._actor)
        if self._adder is not None:
            self._adder.close()
