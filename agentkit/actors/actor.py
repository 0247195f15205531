"""The actors: a `Policy` made to act in one environment, or in N that step together.

An actor owns what changes while it acts: a PRNG key, the policy's state, its copy of the
parameters and its adders. Choosing an action is one compiled call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import dm_env
import jax
import jax.numpy as jnp
import numpy as np

from agentkit import nests
from agentkit.actors.batches import SplitAdder
from agentkit.actors.compiled import CompiledPolicy, compiled
from agentkit.actors.policy import ALONE, ActorIndex, Policy, first_state
from agentkit.core import Actor, Adder, Parameters
from agentkit.errors import CheckpointError, ConfigError
from agentkit.types import FIRST, LAST, MID, Nest


class PolicyActor(Actor):
    """Acts in one environment."""

    def __init__(
        self,
        policy: Policy | CompiledPolicy,
        key: jax.Array,
        client: Parameters,
        adder: Adder | None = None,
        actor_index: ActorIndex = ALONE,
    ):
        """Makes a `PolicyActor`.

        Args:
            policy: how to act; as a `CompiledPolicy`, what another actor has compiled of it is used again.
            key: PRNG key ``uint32[2]``; equal keys, parameters and observations give equal actions.
            client: where parameters come from; its `params` are given to the policy.
            adder: records the experience; None records nothing (evaluation).
            actor_index: of the actors that explore together.
        """
        self._client = client
        self._adder = adder
        init_key, self._key = jax.random.split(key)
        program = compiled(policy)
        self._state = first_state(program.policy, init_key, actor_index)
        self._extras_spec = program.policy.extras_spec
        self._is_first: np.bool_ = np.True_
        self._extras: Nest = ()
        self._act = program.act
        self._reset = program.reset

    def select_action(self, observation: Nest) -> Nest:
        """See `core.Actor`."""
        if self._is_first:
            self._is_first = np.False_
            if self._reset is not None:
                self._state = self._reset(self._state)
        action, self._key, self._state, extras = self._act(self._client.params, self._key, observation, self._state)
        self._extras = to_numpy(extras)
        return to_numpy(action)

    def observe_first(self, timestep: dm_env.TimeStep) -> None:
        """See `core.Actor`."""
        self._is_first = np.True_
        if self._adder is not None:
            self._adder.add_first(timestep)

    def observe(self, action: Nest, next_timestep: dm_env.TimeStep) -> None:
        """See `core.Actor`."""
        if self._adder is not None:
            self._adder.add(action, next_timestep, self._extras)

    def update(self, wait: bool = False) -> None:
        """See `core.Actor`."""
        self._client.update(wait)

    def save(self, mid_episode: bool = True) -> dict[str, Any]:
        """Returns key, policy state and the adder's unfinished episode; without it, the actor resumes at a new one."""
        adders = [] if self._adder is None else [self._adder]
        found = save_actor(self._key, self._state, np.asarray(self._is_first), adders if mid_episode else None)
        # Where others have their turns, an action may wait to be recorded when it is saved: with what goes beside it.
        return {**found, "extras": save_extras(self._extras, self._extras_spec) if mid_episode else {}}

    def restore(self, state: dict[str, Any]) -> None:
        """See `core.Saveable`."""
        adders = [] if self._adder is None else [self._adder]
        self._key, self._state = restore_actor(state, self._state, adders)
        self._is_first = np.bool_(state["is_first"])
        self._extras = restore_extras(state.get("extras", {}), self._extras_spec)

    def close(self) -> None:
        """Closes the adder."""
        if self._adder is not None:
            self._adder.close()


class BatchedPolicyActor(Actor):
    """Acts in N environments with one policy call; one adder records all, or each has an adder of its own."""

    def __init__(
        self,
        policy: Policy | CompiledPolicy,
        key: jax.Array,
        client: Parameters,
        adders: Sequence[Adder] | Adder | None = None,
        *,
        num_envs: int,
        actor_index: ActorIndex = ALONE,
    ):
        """Makes a `BatchedPolicyActor`.

        Args:
            policy: how to act in a single environment, as for `PolicyActor`; mapped over the N.
            key: PRNG key ``uint32[2]``.
            client: where parameters come from.
            adders: one for the whole batch, one for each environment, or None to record nothing.
            num_envs: N.
            actor_index: of the actors that explore together; each of their environments counts as one.
        """
        self._adder = adders if isinstance(adders, Adder) else None if adders is None else SplitAdder(adders)
        self._adders = [] if adders is None else [adders] if isinstance(adders, Adder) else list(adders)
        if self._adder is not adders and len(self._adders) != num_envs:
            raise ConfigError(f"Expected one adder for each of {num_envs} environments, found {len(self._adders)}.")
        self._client = client
        init_key, self._key = jax.random.split(key)
        program = compiled(policy)
        self._state = first_state(program.policy, init_key, actor_index, num_envs)
        self._step_type = np.full(num_envs, FIRST, np.int8)
        self._extras: Nest = ()
        self._act = program.act_in_all

    def select_action(self, observation: Nest) -> Nest:
        """See `core.Actor`; leaves are ``[N, ...]``."""
        action, self._key, self._state, extras = self._act(
            self._client.params, self._key, observation, self._state, self._step_type
        )
        self._extras = to_numpy(extras)
        return to_numpy(action)

    def observe_first(self, timestep: dm_env.TimeStep) -> None:
        """See `core.Actor`; every environment is at the start of an episode."""
        self._step_type = np.full_like(self._step_type, FIRST)
        if self._adder is not None:
            self._adder.add_first(timestep)

    def observe(self, action: Nest, next_timestep: dm_env.TimeStep) -> None:
        """See `core.Actor`; an environment whose step type is FIRST has just been reset."""
        self._step_type = np.asarray(next_timestep.step_type, np.int8)
        if self._adder is not None:
            self._adder.add(action, next_timestep, self._extras)

    def update(self, wait: bool = False) -> None:
        """See `core.Actor`."""
        self._client.update(wait)

    def save(self, mid_episode: bool = True) -> dict[str, Any]:
        """Returns key, policy states and the adders' unfinished episodes; without them, all resume at new ones."""
        return save_actor(self._key, self._state, self._step_type == FIRST, self._adders if mid_episode else None) | {
            "is_last": (self._step_type == LAST) & mid_episode
        }

    def restore(self, state: dict[str, Any]) -> None:
        """See `core.Saveable`."""
        self._key, self._state = restore_actor(state, self._state, self._adders)
        is_last = state.get("is_last", False)  # Of older checkpoints nobody knows.
        self._step_type = np.where(state["is_first"], FIRST, np.where(is_last, LAST, MID)).astype(np.int8)

    def close(self) -> None:
        """Closes the adders."""
        if self._adder is not None:
            self._adder.close()


def to_numpy(nest: Nest) -> Nest:
    """Returns a nest of JAX arrays as numpy arrays."""
    # jax.tree walks in C++: choosing an action for a batch of 8 took 42 us, with dm-tree 53.
    if isinstance(nest, jax.Array):
        return np.asarray(nest)
    return jax.tree.map(np.asarray, nest) if nest else nest  # Most policies have no extras, (): 5 us less a step.


def save_actor(key: Any, state: Nest, is_first: np.ndarray, adders: Sequence[Any] | None) -> dict[str, Any]:
    """Returns what a checkpoint holds of an actor; without `adders` it is resumed at the start of an episode."""
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(state)]
    return {
        "key": np.asarray(key),
        "policy_state": {str(i): leaf for i, leaf in enumerate(leaves)},
        "is_first": is_first if adders is not None else np.ones_like(is_first),
        "adders": None if adders is None else {str(i): adder.save() for i, adder in enumerate(adders)},
    }


def save_extras(extras: Nest, spec: Nest) -> dict[str, np.ndarray]:
    """Returns extras for a checkpoint; of a policy that declares none, whose adders take none, nothing."""
    return nests.number_leaves(extras) if jax.tree.leaves(spec) else {}


def restore_extras(saved: Mapping[str, Any], spec: Nest) -> Nest:
    """Returns the extras that `save_extras` was given; ``()`` where there were none.

    Raises:
        CheckpointError: they are of another policy.
    """
    return nests.restore_from_numbers(saved, spec, "extras") if saved else ()


def restore_actor(state: dict[str, Any], like: Nest, adders: Sequence[Any]) -> tuple[Any, Nest]:
    """Returns key and policy state of what `save_actor` returned, and restores the adders.

    Raises:
        CheckpointError: it does not fit the policy state `like`, or these adders.
    """
    leaves, structure = jax.tree.flatten(like)
    saved, saved_adders = state["policy_state"], state["adders"]
    if len(saved) != len(leaves) or (saved_adders is not None and len(saved_adders) != len(adders)):
        raise CheckpointError(
            f"This actor has {len(leaves)} policy state arrays and {len(adders)} adders; the checkpoint has "
            f"{len(saved)} and {len(saved_adders or ())}. Resume with the agent and num_envs it was saved with."
        )
    new = [jnp.asarray(saved[str(i)]) for i in range(len(leaves))]
    for i, (leaf, found) in enumerate(zip(leaves, new, strict=True)):
        if found.shape != leaf.shape or found.dtype != leaf.dtype:
            raise CheckpointError(
                f"Policy state array {i}: expected {leaf.dtype}{list(leaf.shape)}, found {found.dtype}"
                f"{list(found.shape)}. Resume with the agent and num_envs it was saved with."
            )
    for i, adder in enumerate(adders if saved_adders is not None else ()):
        adder.restore(saved_adders[str(i)])
    return jnp.asarray(state["key"]), jax.tree.unflatten(structure, new)
