"""Helpers for tests of actors whose policy runs on a server: a policy with state, servers in threads, fixed games."""

import contextlib
import os
import threading
from typing import Any, NamedTuple

import dm_env
import jax
import jax.numpy as jnp
import numpy as np

from agentkit import core, specs
from agentkit.actors import InferenceClient, InferenceServer, Policy, RemoteActor, ServedPolicy
from agentkit.actors.remote import ONLY
from agentkit.wire import listen_address

RUN = "a secret"
SEED = 7
FIRST, MID, LAST = dm_env.StepType
SCALAR = specs.Array((), np.float32)
OBSERVATIONS = {"image": specs.Array((2, 3), np.uint8), "position": specs.Array((4,), np.float32)}


class Client:
    """Parameters at hand; as a `VariableClient`'s."""

    def __init__(self, params: Any = 1.0):
        self.params, self.version, self.age_seconds, self.num_updates = params, 5, 0.25, 0

    def update(self, wait: bool = False) -> None:
        self.num_updates += 1


class FakeAdder(core.Adder):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.calls: list[tuple] = []
        self.closed = False

    def add_first(self, timestep: dm_env.TimeStep) -> None:
        self.calls.append(("first", timestep))

    def add(self, action: Any, next_timestep: dm_env.TimeStep, extras: Any = ()) -> None:
        self.calls.append(("add", action, next_timestep, extras))

    def reset(self) -> None:
        self.calls.append(("reset",))

    def close(self) -> None:
        self.closed = True


class Extras(NamedTuple):
    log_prob: Any
    step: Any


def make_spec(observations: Any = SCALAR) -> specs.EnvironmentSpec:
    action = {"move": specs.Array((2,), np.float32), "jump": specs.DiscreteArray(3)}
    return specs.EnvironmentSpec(observations, action, SCALAR, SCALAR)


def recurrent() -> Policy:
    """Actions are noise plus a sum over the episode; the state is that sum and a count of all steps."""

    def act(params: Any, key: jax.Array, observation: Any, state: Any) -> tuple:
        total, count = state
        total = total + params * sum(jnp.sum(leaf.astype(jnp.float32)) for leaf in jax.tree.leaves(observation))
        noise = jax.random.normal(key, (2,))
        jump = jax.random.randint(key, (), 0, 3) + 3 * count
        return {"move": noise + total, "jump": jump}, (total, count + 1), Extras(jnp.sum(noise), count)

    return Policy(
        act,
        init=lambda key: (jax.random.normal(key, ()), jnp.zeros((), jnp.int32)),
        reset=lambda state: (jnp.zeros_like(state[0]), state[1]),
        diversify=lambda state, index, count: (state[0], 100 * index + count),
    )


def only(policy: Policy, spec: specs.EnvironmentSpec, client: Any = None) -> dict[str, ServedPolicy]:
    return {ONLY: ServedPolicy(policy, spec, client or Client())}


def serving(policy: Policy, spec: specs.EnvironmentSpec, client: Any = None, **settings: Any):
    """A server of one policy, with a thread that serves."""
    return serving_all(only(policy, spec, client), **settings)


@contextlib.contextmanager
def serving_all(policies: dict[str, ServedPolicy], run_id: str = RUN, **settings: Any):
    """A server with a thread that serves."""
    stop = threading.Event()
    address = listen_address("lo")
    with InferenceServer(policies, run_id, address, **settings) as server:

        def serve() -> None:
            while not stop.is_set():
                server.serve(0.02)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield server
        finally:
            stop.set()
            thread.join(60.0)
            assert not thread.is_alive()


def remote(
    server: Any, spec: specs.EnvironmentSpec, run_id: str = RUN, outage_seconds: float = 120.0, **settings: Any
) -> RemoteActor:
    client = InferenceClient(lambda: server.address, run_id, outage_seconds=outage_seconds)
    return RemoteActor(client, spec, **{"seed": SEED, **settings})


def random_nest(spec: Any, rng: np.random.Generator, lead: tuple = ()) -> Any:
    return jax.tree.map(lambda s: np.asarray(rng.integers(0, 9, (*lead, *s.shape)), s.dtype), spec)


def num_sockets() -> int:
    """How many this process has open."""
    found = 0
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found += os.readlink(f"/proc/self/fd/{name}").startswith("socket:")
    return found


def step_types(t: int, num_envs: int | None) -> Any:
    """Episodes of three steps in the first environment, of four in the second, and so on."""
    kinds = [FIRST if t % (3 + i) == 0 else MID for i in range(num_envs or 1)]
    return kinds[0] if num_envs is None else np.asarray(kinds)


def play(actor: core.Actor, observations: Any, num_envs: int | None, num_steps: int = 12) -> list:
    """Actions in a fixed sequence of observations and episode starts."""
    rng, actions = np.random.default_rng(3), []
    lead = () if num_envs is None else (num_envs,)
    ones = np.float32(1) if num_envs is None else np.ones(num_envs, np.float32)
    for t in range(num_steps):
        kind = step_types(t, num_envs)
        timestep = dm_env.TimeStep(kind, ones, ones, random_nest(observations, rng, lead))
        if t == 0 or (num_envs is None and kind is FIRST):
            actor.observe_first(timestep)
        else:
            actor.observe(actions[-1], timestep)
        actions.append(actor.select_action(timestep.observation))
    return actions


def assert_equal(a: Any, b: Any) -> None:
    jax.tree.map(np.testing.assert_array_equal, a, b)
