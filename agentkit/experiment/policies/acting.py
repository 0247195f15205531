"""How a loaded policy acts: by a pure function that JAX compiles, or by an actor of a user's own."""

from __future__ import annotations

from typing import Any, NamedTuple, final

import dm_env
import jax
import jax.numpy as jnp
import numpy as np

from agentkit.actors import ActorIndex, PolicyActor
from agentkit.actors.policy import Policy, first_state
from agentkit.core import Adder
from agentkit.errors import ConfigError, SpecError
from agentkit.experiment.policies.own_actor import OwnActing
from agentkit.specs import EnvironmentSpec
from agentkit.types import Nest
from agentkit.variables import VariableClient, VariableStore


class ActingState(NamedTuple):
    """Holds what a policy carries from one step of an episode to the next.

    Attributes:
        key: PRNG key ``uint32[2]``.
        policy: the policy's own state, such as a recurrent core's; leaves ``[B, ...]`` of a batch.
    """

    key: jax.Array
    policy: Nest


@final
class ActsByPolicy:
    """Acts by a pure policy, for one observation or for a batch.

    Attributes:
        key: PRNG key ``uint32[2]``, of the episodes that begin next.
    """

    def __init__(self, policy: Policy, params: Nest, seed: int, num_steps: int = 0):
        """Takes the policy, its parameters, the seed of its sampling, and the steps at which it explores on."""
        self._policy, self._params = policy, jax.device_put(params)
        self._index = ActorIndex(num_steps=num_steps)
        self.key = jax.random.PRNGKey(seed)

        def act(params: Nest, state: ActingState, observation: Nest) -> tuple[Nest, ActingState]:
            key, act_key = jax.random.split(state.key)
            action, policy_state, _ = policy.act(params, act_key, observation, state.policy)
            return action, ActingState(key, policy_state)

        def act_batch(params: Nest, state: ActingState, observation: Nest) -> tuple[Nest, ActingState]:
            key, act_key = jax.random.split(state.key)
            keys = jax.random.split(act_key, len(jax.tree.leaves(observation)[0]))
            action, policy_state, _ = jax.vmap(policy.act, (None, 0, 0, 0))(params, keys, observation, state.policy)
            return action, ActingState(key, policy_state)

        self._act, self._act_batch = jax.jit(act), jax.jit(act_batch)
        self._expected: dict[int | None, Any] = {}  # By the size of a batch: what a state looks like.

    def act(
        self, observation: Nest, batch_size: int | None, state: ActingState | None, begins: np.ndarray | None = None
    ) -> tuple[Nest, ActingState]:
        """Returns the agent's action, and the state to hand in next.

        Args:
            observation: of one, or leaves ``[B, ...]``.
            batch_size: B; None for one.
            state: of the call before; None for a beginning.
            begins: where an episode begins, bool ``[B]`` or ``[]``; None for nowhere.

        Raises:
            SpecError: the state is not one of this policy, or of another number of rows.
        """
        if state is None:
            following, init_key, key = jax.random.split(self.key, 3)
            if not isinstance(following, jax.core.Tracer):  # Or this would be kept when the trace is gone.
                self.key = following
            policy_state = first_state(self._policy, init_key, self._index, batch_size)
            state = ActingState(key, self._begun(policy_state, batch_size))
        else:
            self._check(state, observation, batch_size)
            if begins is not None and begins.any():
                state = ActingState(state.key, self._begun(state.policy, batch_size, begins))
        act = self._act if batch_size is None else self._act_batch
        return act(self._params, state, observation)

    def _begun(self, state: Nest, batch_size: int | None, begins: np.ndarray | None = None) -> Nest:
        """Returns the policy's state where episodes begin, in all rows or in some."""
        if not jax.tree.leaves(state):
            return state
        reset = (self._policy.reset if batch_size is None else jax.vmap(self._policy.reset))(state)
        if begins is None:
            return reset

        def choose(new: Any, old: Any) -> Any:
            return jnp.where(begins.reshape(begins.shape + (1,) * (old.ndim - begins.ndim)), new, old)

        return jax.tree.map(choose, reset, state)

    def _check(self, state: ActingState, observation: Nest, batch_size: int | None) -> None:
        """Refuses a state that looks neither like a first one nor like one that follows."""
        if batch_size not in self._expected:
            key = jax.random.PRNGKey(0)
            first = jax.eval_shape(lambda: ActingState(key, first_state(self._policy, key, num_envs=batch_size)))
            act = self._act if batch_size is None else self._act_batch
            _, following = jax.eval_shape(act, self._params, first, observation)
            self._expected[batch_size] = (self._form(first), self._form(following))
        if self._form(state) not in self._expected[batch_size]:
            rows = "one observation" if batch_size is None else f"a batch of {batch_size}"
            raise SpecError(
                f"Unexpected state: expected what this policy returned beside its last action for {rows}, or None "
                f"where all episodes begin; found {state!r:.200}. Say where some begin by episode_start."
            )

    @staticmethod
    def _form(state: Any) -> Any:
        leaves, structure = jax.tree.flatten(state)
        return structure, [np.shape(leaf) for leaf in leaves]


@final
class ActsByActor:
    """Acts by an agent's own actor, for one observation at a time.

    An actor that remembers keeps its memory itself: the state that is returned has nothing in it, and None begins an
    episode. ``environment`` is None among its `core.ActorParts`.

    Attributes:
        key: PRNG key ``uint32[2]``, which the actor was made with.
    """

    def __init__(
        self, acting: OwnActing, params: Nest, environment_spec: EnvironmentSpec, seed: int, num_steps: int = 0
    ):
        """Makes the actor, with the learner's "policy" as its parameters; it explores on at so many steps."""
        store = VariableStore()
        store.publish(0, {"policy": params})
        client, index, self.key = VariableClient(store), ActorIndex(num_steps=num_steps), jax.random.PRNGKey(seed)

        def make_policy_actor(policy: Policy, adder: Adder | None) -> PolicyActor:
            return PolicyActor(policy, self.key, client, adder, index)

        self._actor = acting.make(
            environment_spec, self.key, client, make_policy_actor=make_policy_actor, actor_index=index
        )
        self._actor.update(wait=True)

    def act(
        self, observation: Nest, batch_size: int | None, state: ActingState | None, begins: np.ndarray | None = None
    ) -> tuple[Nest, ActingState]:
        """Returns the action, as `ActsByPolicy.act` does.

        Raises:
            ConfigError: a batch of observations.
        """
        if batch_size is not None:
            raise ConfigError(
                f"An actor of one's own (make_actor) acts for one observation at a time; found a batch of {batch_size}."
            )
        if state is None or (begins is not None and begins):
            self._actor.observe_first(dm_env.restart(observation))
        return self._actor.select_action(observation), ActingState(self.key, ())
