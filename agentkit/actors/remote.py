"""An actor whose policy runs in another process, an `InferenceServer`. Needs no JAX here.

    actor                                          server
      seed, actor_index, layout                ->
                                               <-  state, an example of results
      state, step_type, leaves of observation  ->
                                               <-  version, age_seconds, leaves of results, state

A request holds all that its answer follows from, and the server keeps nothing of an actor: it may be asked twice, and
another one that has taken its place may answer.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import dm_env
import numpy as np
import tree

from agentkit import specs
from agentkit.core import Actor, Adder
from agentkit.distributed.run_store_client import RunStoreError
from agentkit.errors import AgentkitError, ConfigError, SpecError
from agentkit.nests import LeafReader, make_builder
from agentkit.types import FIRST, MID, Nest
from agentkit.wire import Client, RefusedError, WireClosedError, WireTimeoutError, keys_at

PAUSE_SECONDS = 0.05
"""Between two attempts to reach a server that is away, beside what an attempt takes."""


class InferenceClosedError(AgentkitError, RuntimeError):
    """Says that the inference server is gone, or that this end of the connection was closed."""


def layout_of(spec: specs.EnvironmentSpec, num_envs: int | None) -> dict[str, str]:
    """Returns in words what server and actors must agree on before they exchange arrays."""

    def say(nest: Nest) -> str:
        return str(tree.map_structure(lambda leaf: f"{np.dtype(leaf.dtype)}{list(leaf.shape)}", nest))

    return {"num_envs": str(num_envs), "observations": say(spec.observations), "actions": say(spec.actions)}


class RemoteActor(Actor):
    """Acts in one environment, or in N that step together, with actions from a server.

    It holds the state of its policy and its PRNG key, and waits for a server that is away.
    """

    def __init__(
        self,
        find_address: Callable[[], str],
        run_id: str,
        spec: specs.EnvironmentSpec,
        *,
        seed: int,
        adder: Adder | None = None,
        num_envs: int | None = None,
        actor_index: tuple[int, int, int] = (0, 1, 0),
        outage_seconds: float = 300.0,
    ):
        """Makes a `RemoteActor`; it connects when it first acts or is updated with `wait`.

        Args:
            find_address: where the server is now, as `InferenceServer.address` has it; asked again while it is away.
            run_id: the run's secret.
            spec: the environment's, without the axis of N.
            seed: actions are those of a local actor with the key ``jax.random.PRNGKey(seed)``.
            adder: records the experience, of the whole batch where there is one; None records nothing.
            num_envs: N; None for one environment, unbatched.
            actor_index: of the actors that explore together, an `ActorIndex`: index, count, and steps taken before.
            outage_seconds: how long a call waits for a server that is away.
        """
        self._find_address = find_address
        self._run_id = run_id
        self._adder = adder
        self._num_envs = num_envs
        self._outage_seconds = outage_seconds
        self._introduction = {"seed": seed, "actor_index": list(actor_index), "layout": layout_of(spec, num_envs)}
        observations = spec.observations if num_envs is None else specs.add_leading(spec.observations, num_envs)
        self._read_leaves = LeafReader(observations, "observation")
        self._step_type: Any = np.full(() if num_envs is None else num_envs, FIRST, np.int8)
        self._client: Client | None = None
        self._closed = False
        self._build: Callable[..., Any] = tuple
        self._extras: Nest = ()
        self._state: list[np.ndarray] | None = None  # None before a server was met.
        self._version = -1
        self._published = -np.inf

    @property
    def version(self) -> int:
        """Counts the learner updates that the last action's parameters had seen; -1 before the first action."""
        return self._version

    @property
    def age_seconds(self) -> float:
        """Returns the age of the last action's parameters by the server's account; infinite before the first action."""
        return time.monotonic() - self._published

    def select_action(self, observation: Nest) -> Nest:
        """See `core.Actor`.

        Raises:
            InferenceClosedError: no server of the run answered for `outage_seconds`, or `disconnect` was called.
            SpecError: the observation is not as the spec says, or the server's environment is another one.
        """
        leaves = list(self._read_leaves(observation))
        self._meet()
        answer = self._ask({"state": self._state, "step_type": self._step_type, "observation": leaves})
        self._step_type = np.full_like(self._step_type, MID)
        self._state, self._version = answer["state"], answer["version"]
        self._published = time.monotonic() - answer["age_seconds"]
        action, self._extras = self._build(iter(answer["results"]))
        return action

    def observe_first(self, timestep: dm_env.TimeStep) -> None:
        """See `core.Actor`; each of N environments is at the start of an episode."""
        self._step_type = np.full_like(self._step_type, FIRST)
        if self._adder is not None:
            self._adder.add_first(timestep)

    def observe(self, action: Nest, next_timestep: dm_env.TimeStep) -> None:
        """See `core.Actor`; of N environments, one whose step type is FIRST has just been reset."""
        if self._num_envs is not None:
            self._step_type = np.asarray(next_timestep.step_type, np.int8)
        if self._adder is not None:
            self._adder.add(action, next_timestep, self._extras)

    def update(self, wait: bool = False) -> None:
        """Meets the server, with `wait`; it keeps the parameters fresh. Raises as `select_action`."""
        if wait:
            self._meet()

    def disconnect(self) -> None:
        """Ends a call that waits in another thread, and refuses new ones. May be called twice."""
        self._closed = True
        if self._client is not None:
            self._client.close()

    def close(self) -> None:
        """Closes the adder and the connection. May be called twice."""
        self.disconnect()
        if self._adder is not None:
            self._adder.close()

    def _meet(self) -> None:
        """Learns, once, the first state of the policy and how results are built."""
        if self._state is None:
            answer = self._ask(self._introduction)
            self._build = make_builder(answer["results"])
            self._state = answer["state"]

    def _ask(self, body: dict[str, Any]) -> dict[str, Any]:
        """Returns the answer of whichever server is there."""
        deadline = time.monotonic() + self._outage_seconds
        while True:
            try:
                if self._closed:
                    raise InferenceClosedError("This RemoteActor was closed.")
                return self._connect().ask(body, deadline - time.monotonic())
            except RefusedError as error:
                raise SpecError(
                    f"The inference server serves another environment: {error}. "
                    "Start server and actors with one and the same experiment."
                ) from error
            except (WireClosedError, WireTimeoutError, RunStoreError) as error:
                if isinstance(error, ConfigError):
                    raise  # Another run's store: waiting does not help.
                if time.monotonic() >= deadline and not self._closed:
                    raise InferenceClosedError(
                        f"No inference server answered for {self._outage_seconds:g} s ({error}). "
                        "Look at the log of the node inference-0, or act without (num_inference=0)."
                    ) from error
            time.sleep(PAUSE_SECONDS)

    def _connect(self) -> Client:
        """Returns the connection to where the server is, or was when it was last there."""
        if self._client is None or not self._client.connected:
            address = self._find_address()
            if self._client is None or self._client.address != address:
                if self._client is not None:
                    self._client.close()
                self._client = Client(address, keys_at(address, self._run_id))
        return self._client
