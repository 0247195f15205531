"""The server that chooses actions for many actors in one compiled call.

From SEED RL (Espeholt et al. 2020, arXiv:1910.06591): actors step environments and send observations; parameters are
with the server. It pays for large networks, whose weights are then read once per batch and held once per machine, or
where only the server has an accelerator. Keys and states of policies are the actors' (`remote` has what travels), so
that a server that is killed takes none along.

One thread does all, so there is nothing to lock, and who calls `serve` learns of every error (decision 24).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol, Self

import jax
import jax.numpy as jnp
import numpy as np
import tree

from agentkit import specs
from agentkit.actors.compiled import act_in_each, compiler_options
from agentkit.actors.policy import ActorIndex, Policy, first_state
from agentkit.actors.remote import layout_of
from agentkit.core import Parameters
from agentkit.errors import SpecError
from agentkit.nests import LeafReader, make_builder
from agentkit.types import FIRST, MID, Nest
from agentkit.wire import Request, Server, keys_at
from agentkit.wire.message import encode

MAX_WAIT_SECONDS = 0.002
"""How long the first observation of a batch waits for the others."""

SLOW_FACTOR = 10.0
"""An actor that takes this many times `max_wait_seconds` to its next observation is not waited for."""

GONE_SECONDS = 10.0
"""An actor that has not asked for this long is not counted any more."""


class AgedParameters(Parameters, Protocol):
    """Describes parameters that know how old they are: a `VariableClient`."""

    @property
    def version(self) -> int:
        """Counts the learner updates that the parameters have seen."""
        ...

    @property
    def age_seconds(self) -> float:
        """Returns the seconds since the parameters were published."""
        ...


class InferenceServer:
    """Serves `RemoteActor`s of one run. Call `serve` again and again, always from one thread; a context manager.

    Attributes:
        address: for actors, as seen from this machine.
        num_batches: calls of the policy so far.
        num_requests: observations answered so far (of N environments each, where actors are batched).
    """

    def __init__(
        self,
        policy: Policy,
        spec: specs.EnvironmentSpec,
        client: AgedParameters,
        run_id: str,
        address: str,
        *,
        num_envs: int | None = None,
        max_wait_seconds: float = MAX_WAIT_SECONDS,
    ):
        """Waits for the first parameters, and listens.

        Args:
            policy: how to act in a single environment.
            spec: the environment's.
            client: where parameters come from; on the device, see `VariableClient`'s `place`.
            run_id: the run's secret, which actors must know too.
            address: where to listen, see `agentkit.wire.Server`.
            num_envs: environments that each actor steps together; None for one, unbatched.
            max_wait_seconds: how long the first observation of a batch waits for the others.

        Raises:
            ConfigError: the address cannot be had.
            SpecError: the policy's actions, extras or state cannot be sent.
        """
        self._client = client
        self._max_wait_seconds = max_wait_seconds
        self._layout = layout_of(spec, num_envs)
        self._batched = _BatchedPolicy(policy, spec, client.params, num_envs)
        self.num_batches = self.num_requests = 0
        self._peers: dict[bytes, _Peer] = {}  # By connection.
        self._server = Server(address, keys_at(address, run_id))
        self.address = self._server.address

    @property
    def num_actors(self) -> int:
        """Counts the actors that have asked lately."""
        return len(self._peers)

    def serve(self, seconds: float) -> int:
        """Serves actors for `seconds`; returns the number of requests answered meanwhile.

        Raises:
            VariablesTimeoutError: see `VariableClient.update`.
        """
        before, until = self.num_requests, time.monotonic() + seconds
        self._client.update()
        while (now := time.monotonic()) < until:
            due = self._due(now)
            if due <= now:
                self._answer()
                continue
            request = self._server.receive(min(due, until) - now)
            while request is not None:
                self._take(request)
                request = self._server.receive(0.0)
        gone = time.monotonic() - GONE_SECONDS
        self._peers = {sender: peer for sender, peer in self._peers.items() if peer.time > gone}
        return self.num_requests - before

    def close(self) -> None:
        """Stops listening and drops every connection. May be called twice."""
        self._server.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _take(self, request: Request) -> None:
        """Keeps a request for the next batch, or introduces an actor; refuses what is neither."""
        leaves = None
        try:
            if "layout" in request.body:
                self._greet(request)
            else:
                leaves = self._batched.read(request.body)
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
            self._server.refuse(request, str(error), "request")
            return
        peer = self._peers.setdefault(request.sender, _Peer())
        peer.time, peer.request, peer.leaves = time.monotonic(), None if leaves is None else request, leaves or ()

    def _greet(self, request: Request) -> None:
        """Answers an actor that means the same arrays with its first state.

        Raises:
            SpecError: it means others.
        """
        for name, expected in self._layout.items():
            if (found := request.body["layout"].get(name)) != expected:
                raise SpecError(f"expected {name} {expected}, found {found}")
        index = ActorIndex(*map(int, request.body["actor_index"]))
        self._server.answer(request, self._batched.begin(int(request.body["seed"]), index))

    def _due(self, now: float) -> float:
        """Returns when to answer: as soon as all who are expected to have asked, or the first has waited enough."""
        patience = SLOW_FACTOR * self._max_wait_seconds
        first, missing = math.inf, False
        for peer in self._peers.values():
            if peer.request is not None:
                first = min(first, peer.time)
            elif now - peer.time < patience:
                missing = True
        return first + self._max_wait_seconds if missing else first

    def _answer(self) -> None:
        """Answers all who have asked, as one batch."""
        asking = [peer for peer in self._peers.values() if peer.request is not None]
        columns = zip(*_padded([peer.leaves for peer in asking]), strict=True)
        results, state = self._batched.act(self._client.params, [np.stack(column) for column in columns])
        self.num_batches += 1
        self.num_requests += len(asking)
        about = {"version": self._client.version, "age_seconds": self._client.age_seconds}
        for i, peer in enumerate(asking):
            own = {"results": [leaf[i] for leaf in results], "state": [leaf[i] for leaf in state]}
            assert peer.request is not None
            self._server.answer(peer.request, {**about, **own})
            peer.time, peer.request, peer.leaves = time.monotonic(), None, ()
        self._client.update()  # While the actors step their environments.


class _Peer:
    """One actor's connection. `time` is when it was met, asked or was answered: whichever was last."""

    time: float = 0.0
    request: Request | None = None
    leaves: Sequence[Any] = ()


class _BatchedPolicy:
    """A policy for A actors at once. A is padded to a power of two, for few compilations.

    The state of an actor is its PRNG key and the leaves of its policy state, in a list.
    """

    def __init__(self, policy: Policy, spec: specs.EnvironmentSpec, params: Any, num_envs: int | None):
        self._init, act = _functions(policy, num_envs)
        self._act = jax.jit(jax.vmap(act, in_axes=(None, 0, 0, 0)), **compiler_options())
        observations = spec.observations if num_envs is None else specs.add_leading(spec.observations, num_envs)
        step_type = specs.Array(() if num_envs is None else (num_envs,), np.int8)
        zeros = tree.map_structure(lambda leaf: np.zeros(leaf.shape, leaf.dtype), (observations, step_type))
        first = jax.eval_shape(lambda key: self._init(key, ActorIndex()), jax.random.PRNGKey(0))
        results, _ = jax.eval_shape(act, params, first, zeros[1] + MID, zeros[0])
        leaves, self._structure = jax.tree.flatten(first)
        try:
            state = [specs.Array(leaf.shape, np.dtype(leaf.dtype)) for leaf in leaves]
        except TypeError as error:  # such as JAX's typed PRNG keys
            raise SpecError(f"Expected a policy state of numeric arrays, found {first[1]}. Keep raw keys.") from error
        self._results = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), results)
        try:
            encode(0, self._results)
        except SpecError as error:
            raise SpecError(
                f"An inference server cannot send this: {error} Or act without one (num_inference=0)."
            ) from error
        flat = tree.flatten(observations)
        self._num_leaves = len(flat)
        self._build_observation = make_builder(observations)
        self.read = LeafReader({"observation": flat, "state": state, "step_type": step_type}, "request")

    def begin(self, seed: int, index: ActorIndex) -> dict[str, Nest]:
        """Returns the first state of an actor, and an example of results."""
        state = jax.device_get(self._init(jax.random.PRNGKey(seed), index))
        return {"state": jax.tree.leaves(state), "results": self._results}

    def act(self, params: Any, leaves: Sequence[np.ndarray]) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Returns leaves of results and of new states, ``[A, ...]``, for those of requests, in the order of `read`."""
        observation = self._build_observation(iter(leaves[: self._num_leaves]))
        state = jax.tree.unflatten(self._structure, leaves[self._num_leaves : -1])
        results, state = jax.device_get(self._act(params, state, leaves[-1], observation))
        return tree.flatten(results), jax.tree.leaves(state)


def _functions(policy: Policy, num_envs: int | None) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Returns ``(key, actor_index) -> state`` and ``(params, state, step_type, observation) -> (results, state)``.

    Both are for one actor. Keys are split as `PolicyActor` and `BatchedPolicyActor` split them, so that actions are
    the same.
    """

    def init(key: Any, actor_index: ActorIndex) -> tuple:
        init_key, key = jax.random.split(key)
        return key, first_state(policy, init_key, actor_index, num_envs)

    def act(params: Any, state: Any, step_type: Any, observation: Any) -> tuple:
        key, act_key = jax.random.split(state[0])
        if num_envs is not None:
            action, policy_state, extras = act_in_each(policy, params, act_key, observation, state[1], step_type)
        else:
            is_first, kept = step_type == FIRST, state[1]
            begun = jax.tree.map(lambda new, old: jnp.where(is_first, new, old), policy.reset(kept), kept)
            action, policy_state, extras = policy.act(params, act_key, observation, begun)
        return (action, extras), (key, policy_state)

    return init, act


def _padded(parts: list[Any]) -> list[Any]:
    """Returns the parts, the last one repeated until their number is a power of two."""
    return parts + parts[-1:] * ((1 << (len(parts) - 1).bit_length()) - len(parts))
