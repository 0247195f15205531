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
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, Self

import jax
import jax.numpy as jnp
import numpy as np
import tree

from agentkit import specs
from agentkit.actors.compiled import act_in_some, compiler_options
from agentkit.actors.policy import ActorIndex, Policy, first_state
from agentkit.actors.remote import layout_of
from agentkit.core import Parameters
from agentkit.errors import SpecError
from agentkit.nests import LeafReader, make_builder
from agentkit.types import FIRST, Nest
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


class ServedPolicy(NamedTuple):
    """Says what a server acts by.

    Attributes:
        policy: how to act in a single environment.
        spec: the environment's, of one of its agents where there are several.
        client: where parameters come from; on the device, see `VariableClient`'s `place`.
    """

    policy: Policy
    spec: specs.EnvironmentSpec
    client: AgedParameters


class InferenceServer:
    """Serves the remote actors of one run. Call `serve` again and again, always from one thread; a context manager.

    Attributes:
        address: for actors, as seen from this machine.
        num_batches: of requests that were answered together so far, with one call of each policy.
        num_requests: answered so far.
        num_actions: chosen so far, one of each agent in each environment in which it acted.
    """

    def __init__(
        self,
        policies: Mapping[str, ServedPolicy],
        run_id: str,
        address: str,
        *,
        num_envs: int | None = None,
        max_wait_seconds: float = MAX_WAIT_SECONDS,
    ):
        """Waits for the first parameters, and listens.

        Args:
            policies: by policy id; the only one of a single agent's run is `remote.ONLY`.
            run_id: the run's secret, which actors must know too.
            address: where to listen, see `agentkit.wire.Server`.
            num_envs: environments that each actor steps together; None for one, unbatched.
            max_wait_seconds: how long the first observation of a batch waits for the others.

        Raises:
            ConfigError: the address cannot be had.
            SpecError: a policy's actions, extras or state cannot be sent.
        """
        self._max_wait_seconds = max_wait_seconds
        self._policies = {policy_id: _BatchedPolicy(*served, num_envs) for policy_id, served in policies.items()}
        self.num_batches = self.num_requests = self.num_actions = 0
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
        self._update()
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
        rows = None
        try:
            if "layout" in request.body:
                self._greet(request)
            else:
                asked = request.body["rows"].items()
                rows = {policy_id: [*map(self._policies[policy_id].read, given)] for policy_id, given in asked}
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
            self._server.refuse(request, str(error), "request")
            return
        peer = self._peers.setdefault(request.sender, _Peer())
        peer.time, peer.request, peer.rows = time.monotonic(), None if rows is None else request, rows or {}

    def _greet(self, request: Request) -> None:
        """Answers an actor that means the same arrays with its first state.

        Raises:
            SpecError: it means others, or a policy that is not here.
        """
        policy = self._policies.get(request.body["policy"])
        if policy is None:
            raise SpecError(f"expected a policy of {', '.join(self._policies)}, found {request.body['policy']!r}")
        for name, expected in policy.layout.items():
            if (found := request.body["layout"].get(name)) != expected:
                raise SpecError(f"expected {name} {expected}, found {found}")
        index = ActorIndex(*map(int, request.body["actor_index"]))
        first = policy.begin(int(request.body["seed"]), index)
        self._server.answer(request, {**first, "parameters": self._about()})

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
        """Answers all who have asked, as one batch of each policy."""
        asking = [peer for peer in self._peers.values() if peer.request is not None]
        answers: dict[str, Iterator[Any]] = {}
        for policy_id, policy in self._policies.items():
            rows = [row for peer in asking for row in peer.rows.get(policy_id, ())]
            self.num_actions += policy.count(rows)
            answers[policy_id] = iter(policy.act(rows) if rows else ())
        self.num_batches += 1
        self.num_requests += len(asking)
        about = self._about()
        for peer in asking:
            own = {policy_id: [next(answers[policy_id]) for _ in rows] for policy_id, rows in peer.rows.items()}
            assert peer.request is not None
            try:
                self._server.answer(peer.request, {"rows": own, "parameters": about})
            except SpecError as error:  # So many rows that their answer is no message.
                self._server.refuse(peer.request, str(error), "rows")
            peer.time, peer.request, peer.rows = time.monotonic(), None, {}
        self._update()  # While the actors step their environments.

    def _update(self) -> None:
        for policy in self._policies.values():
            policy.client.update()

    def _about(self) -> dict[str, dict[str, float]]:
        """Returns which parameters each policy acts by."""
        return {
            policy_id: {"version": policy.client.version, "age_seconds": policy.client.age_seconds}
            for policy_id, policy in self._policies.items()
        }


class _Peer:
    """One actor's connection. `time` is when it was met, asked or was answered: whichever was last."""

    time: float = 0.0
    request: Request | None = None
    rows: Mapping[str, list[Sequence[Any]]] = {}  # Of leaves, by policy id.


class _BatchedPolicy:
    """A policy for R rows at once, each of an agent. R is padded to a power of two, for few compilations.

    A row's state is its agent's PRNG key and the leaves of its policy state, in a list. With environments that step
    together a row has room for all N, and says in which of them the agent acts.
    """

    def __init__(self, policy: Policy, spec: specs.EnvironmentSpec, client: AgedParameters, num_envs: int | None):
        self.client = client
        self.layout = layout_of(spec, num_envs)
        self._num_envs = num_envs
        self._init, act = _functions(policy, num_envs)
        lead = () if num_envs is None else (num_envs,)
        observations = spec.observations if num_envs is None else specs.add_leading(spec.observations, num_envs)
        row = {"observation": observations, "step_type": specs.Array(lead, np.int8)}
        if num_envs is not None:
            row["numbers"] = specs.Array(lead, np.int32)
        first = jax.eval_shape(lambda key: self._init(key, ActorIndex()), jax.random.PRNGKey(0))
        example = tree.map_structure(lambda leaf: np.zeros(leaf.shape, leaf.dtype), row)
        results, _ = jax.eval_shape(act, client.params, first, example)
        leaves, structure = jax.tree.flatten(first)
        try:
            row["state"] = [specs.Array(leaf.shape, np.dtype(leaf.dtype)) for leaf in leaves]
        except TypeError as error:  # such as JAX's typed PRNG keys
            raise SpecError(f"Expected a policy state of numeric arrays, found {first[1]}. Keep raw keys.") from error
        self._results = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), results)
        try:
            encode(0, self._results)
        except SpecError as error:
            raise SpecError(
                f"An inference server cannot send this: {error} Or act without one (num_inference=0)."
            ) from error
        build = make_builder(row)

        def act_on_leaves(params: Any, leaves: Sequence[Any]) -> tuple:
            given = build(iter(leaves))
            return act(params, jax.tree.unflatten(structure, given["state"]), given)

        self._act = jax.jit(jax.vmap(act_on_leaves, in_axes=(None, 0)), **compiler_options())
        self.read = LeafReader({**row, "observation": tree.flatten(observations)}, "row of a request")

    def begin(self, seed: int, index: ActorIndex) -> dict[str, Nest]:
        """Returns the first state of an actor, and an example of results."""
        state = jax.device_get(self._init(jax.random.PRNGKey(seed), index))
        return {"state": jax.tree.leaves(state), "results": self._results}

    def act(self, rows: Sequence[Sequence[np.ndarray]]) -> list[dict[str, list[np.ndarray]]]:
        """Returns leaves of results and of the new state for each row, of leaves in the order of `read`."""
        columns = [np.stack(column) for column in zip(*_padded(rows), strict=True)]
        results, state = jax.device_get(self._act(self.client.params, columns))
        found = {"results": tree.flatten(results), "state": jax.tree.leaves(state)}
        return [{name: [leaf[i] for leaf in leaves] for name, leaves in found.items()} for i in range(len(rows))]

    def count(self, rows: Sequence[Sequence[np.ndarray]]) -> int:
        """Returns the actions that rows ask for; of several environments the numbers are a row's first leaf."""
        if self._num_envs is None:
            return len(rows)
        return sum(int(np.sum(row[0] < self._num_envs)) for row in rows)


def _functions(policy: Policy, num_envs: int | None) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Returns ``(key, actor_index) -> state`` and ``(params, state, row) -> (results, state)``.

    Both are for one actor. Keys are split as `PolicyActor`, `BatchedPolicyActor` and `ReadyPolicyActor` split them, so
    that actions are the same.
    """

    def init(key: Any, actor_index: ActorIndex) -> tuple:
        init_key, key = jax.random.split(key)
        return key, first_state(policy, init_key, actor_index, num_envs)

    def act(params: Any, state: Any, row: Any) -> tuple:
        key, kept = state
        observation, step_type = row["observation"], row["step_type"]
        if num_envs is not None:
            action, key, kept, extras = act_in_some(policy, params, key, observation, kept, step_type, row["numbers"])
        else:
            key, act_key = jax.random.split(key)
            begun = jax.tree.map(lambda new, old: jnp.where(step_type == FIRST, new, old), policy.reset(kept), kept)
            action, kept, extras = policy.act(params, act_key, observation, begun)
        return (action, extras), (key, kept)

    return init, act


def _padded(parts: Sequence[Any]) -> list[Any]:
    """Returns the parts, the last one repeated until their number is a power of two."""
    return [*parts] + [parts[-1]] * ((1 << (len(parts) - 1).bit_length()) - len(parts))
