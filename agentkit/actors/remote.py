"""Actors whose policy runs in another process, an `InferenceServer`. They need no JAX here.

    actors                                             server
      policy, seed, actor_index, layout            ->
                                                   <-  parameters, state, an example of results
      rows: of each policy, for each agent that acts,
        state, step_type, leaves of observation    ->
                                                   <-  parameters, rows: leaves of results, state

`parameters` is the version and the age of what each policy acts by. A request holds all that its answer follows from,
and the server keeps nothing of an actor: it may be asked twice, and another one that has taken its place may answer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

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

ONLY = "policy"
"""The policy id of a run with one agent."""


class InferenceClosedError(AgentkitError, RuntimeError):
    """Says that the inference server is gone, or that this end of the connection was closed."""


def layout_of(spec: specs.EnvironmentSpec, num_envs: int | None) -> dict[str, str]:
    """Returns in words what server and actors must agree on before they exchange arrays."""

    def say(nest: Nest) -> str:
        return str(tree.map_structure(lambda leaf: f"{np.dtype(leaf.dtype)}{list(leaf.shape)}", nest))

    return {"num_envs": str(num_envs), "observations": say(spec.observations), "actions": say(spec.actions)}


@final
class InferenceClient:
    """Asks the inference server of a run, and waits for one that is away. Remote actors of a process may share it."""

    def __init__(self, find_address: Callable[[], str], run_id: str, *, outage_seconds: float = 300.0):
        """Makes a client; it connects when it first asks.

        Args:
            find_address: where the server is now, as `InferenceServer.address` has it; asked again while it is away.
            run_id: the run's secret.
            outage_seconds: how long a call waits for a server that is away.
        """
        self._find_address = find_address
        self._run_id = run_id
        self._outage_seconds = outage_seconds
        self._client: Client | None = None
        self._closed = False
        self._parameters: dict[str, tuple[int, float]] = {}  # Version, and when it was published, by policy id.

    def version(self, policy_id: str) -> int:
        """Counts the learner updates that a policy's parameters had seen at the last answer; -1 before the first."""
        return self._parameters.get(policy_id, (-1, -np.inf))[0]

    def age_seconds(self, policy_id: str) -> float:
        """Returns the age of these parameters by the server's account; infinite before the first answer."""
        return time.monotonic() - self._parameters.get(policy_id, (-1, -np.inf))[1]

    def act(self, rows: Mapping[str, Sequence[Nest]]) -> dict[str, list[dict[str, Any]]]:
        """Returns the answers to the rows of each policy, by policy id; raises as `ask`."""
        answers: dict[str, list[dict[str, Any]]] = self.ask({"rows": rows})["rows"]
        return answers

    def ask(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the answer of whichever server is there.

        Raises:
            InferenceClosedError: no server of the run answered for `outage_seconds`, or `close` was called.
            SpecError: the server's environment is another one.
        """
        deadline = time.monotonic() + self._outage_seconds
        while True:
            try:
                if self._closed:
                    raise InferenceClosedError("This InferenceClient was closed.")
                answer: dict[str, Any] = self._connect().ask(body, deadline - time.monotonic())
                break
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
        now = time.monotonic()
        self._parameters = {
            policy_id: (int(told["version"]), now - told["age_seconds"])
            for policy_id, told in answer["parameters"].items()
        }
        return answer

    def close(self) -> None:
        """Ends a call that waits in another thread, and refuses new ones. May be called twice."""
        self._closed = True
        if self._client is not None:
            self._client.close()

    def _connect(self) -> Client:
        """Returns the connection to where the server is, or was when it was last there."""
        if self._client is None or not self._client.connected:
            address = self._find_address()
            if self._client is None or self._client.address != address:
                if self._client is not None:
                    self._client.close()
                self._client = Client(address, keys_at(address, self._run_id))
                if self._closed:  # While the address was looked for.
                    self._client.close()
        return self._client


@final
class RemotePolicy:
    """Keeps what is one agent's of a policy that a server runs: the PRNG key and the state, in N environments or one.

    Attributes:
        client: to ask.
        policy_id: of the policy.
    """

    def __init__(
        self,
        client: InferenceClient,
        spec: specs.EnvironmentSpec,
        *,
        seed: int,
        num_envs: int | None,
        actor_index: tuple[int, int, int],
        policy_id: str,
    ):
        """Makes a policy without a state, which it gets from the server; arguments are those of `RemoteActor`."""
        self.client, self.policy_id, self._num_envs = client, policy_id, num_envs
        self._introduction = {
            "policy": policy_id,
            "seed": seed,
            "actor_index": list(actor_index),
            "layout": layout_of(spec, num_envs),
        }
        observations = spec.observations if num_envs is None else specs.add_leading(spec.observations, num_envs)
        self._read_leaves = LeafReader(observations, "observation")
        self._build: Callable[..., Any] = tuple
        self._state: list[np.ndarray] | None = None  # None before a server was met.

    def meet(self) -> None:
        """Learns, once, the first state and how results are built; raises as `InferenceClient.ask`."""
        if self._state is None:
            answer = self.client.ask(self._introduction)
            self._build = make_builder(answer["results"])
            self._state = answer["state"]

    def request(self, observation: Nest, step_type: Any, numbers: np.ndarray | None = None) -> dict[str, Any]:
        """Returns the row that asks for an action.

        Args:
            observation: leaves ``[N, ...]`` of N environments.
            step_type: of the time steps that they are of, int8, likewise.
            numbers: of the environments to act in, int32 ``[N]``: N stands for none. None for all of them.

        Raises:
            SpecError: the observation is not as the spec says; or as `meet`.
        """
        row = {"observation": list(self._read_leaves(observation)), "step_type": step_type}
        if self._num_envs is not None:
            row["numbers"] = np.arange(self._num_envs, dtype=np.int32) if numbers is None else numbers
        self.meet()
        return {**row, "state": self._state}

    def take(self, answer: Mapping[str, Any]) -> tuple[Nest, Nest]:
        """Takes the new state of an answer to a row; returns action and extras."""
        self._state = answer["state"]
        action, extras = self._build(iter(answer["results"]))
        return action, extras


class RemoteActor(Actor):
    """Acts in one environment, or in N that step together, with actions from a server.

    It holds the state of its policy and its PRNG key, and waits for a server that is away.
    """

    def __init__(
        self,
        client: InferenceClient,
        spec: specs.EnvironmentSpec,
        *,
        seed: int,
        adder: Adder | None = None,
        num_envs: int | None = None,
        actor_index: tuple[int, int, int] = (0, 1, 0),
        policy_id: str = ONLY,
    ):
        """Makes a `RemoteActor`; it meets the server when it first acts or is updated with `wait`.

        Args:
            client: whom to ask; it is closed with this.
            spec: the environment's, without the axis of N.
            seed: actions are those of a local actor with the key ``jax.random.PRNGKey(seed)``.
            adder: records the experience, of the whole batch where there is one; None records nothing.
            num_envs: N; None for one environment, unbatched.
            actor_index: of the actors that explore together, an `ActorIndex`: index, count, and steps taken before.
            policy_id: to act by, of the server's.
        """
        self.policy = RemotePolicy(
            client, spec, seed=seed, num_envs=num_envs, actor_index=actor_index, policy_id=policy_id
        )
        self._adder = adder
        self._num_envs = num_envs
        self._step_type: Any = np.full(() if num_envs is None else num_envs, FIRST, np.int8)
        self._extras: Nest = ()

    @property
    def version(self) -> int:
        """See `InferenceClient.version`."""
        return self.policy.client.version(self.policy.policy_id)

    @property
    def age_seconds(self) -> float:
        """See `InferenceClient.age_seconds`."""
        return self.policy.client.age_seconds(self.policy.policy_id)

    def select_action(self, observation: Nest) -> Nest:
        """See `core.Actor`.

        Raises:
            InferenceClosedError: no server of the run answered in time, or `disconnect` was called.
            SpecError: the observation is not as the spec says, or the server's environment is another one.
        """
        rows = {self.policy.policy_id: [self.request(observation)]}
        return self.take(self.policy.client.act(rows)[self.policy.policy_id][0])

    def request(self, observation: Nest) -> dict[str, Any]:
        """Returns the row that asks for the action, for who asks for several agents at once; raises as that."""
        return self.policy.request(observation, self._step_type)

    def take(self, answer: Mapping[str, Any]) -> Nest:
        """Returns the action of the answer to `request`."""
        self._step_type = np.full_like(self._step_type, MID)
        action, self._extras = self.policy.take(answer)
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
            self.policy.meet()

    def disconnect(self) -> None:
        """Ends a call that waits in another thread, and refuses new ones. May be called twice."""
        self.policy.client.close()

    def close(self) -> None:
        """Closes the adder and the connection. May be called twice."""
        self.disconnect()
        if self._adder is not None:
            self._adder.close()
