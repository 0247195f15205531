"""Actors whose policy runs on a server: the same actions, batches, outages, and nothing left behind."""

import socket
import subprocess
import sys
import threading
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentkit import core, specs
from agentkit.actors import (
    ActorIndex,
    BatchedPolicyActor,
    InferenceClient,
    InferenceServer,
    Policy,
    PolicyActor,
    RemoteActor,
    inference_server,
    stateless_policy,
)
from agentkit.actors.batches import SplitAdder
from agentkit.actors.remote import ONLY, InferenceClosedError
from agentkit.wire import listen_address
from tests.actors.served import (
    OBSERVATIONS,
    RUN,
    SCALAR,
    SEED,
    Client,
    FakeAdder,
    assert_equal,
    make_spec,
    num_sockets,
    only,
    play,
    recurrent,
    remote,
    serving,
)

pytestmark = pytest.mark.both_stacks


@pytest.mark.one_case
@pytest.mark.parametrize("observations", [SCALAR, OBSERVATIONS])
@pytest.mark.parametrize("num_envs", [3, 1, None])
def test_actions_and_extras_are_those_of_a_local_actor(observations: Any, num_envs: int | None) -> None:
    policy, spec, client, key = recurrent(), make_spec(observations), Client(2.0), jax.random.PRNGKey(SEED)
    near, far = ([FakeAdder() for _ in range(num_envs or 1)] for _ in range(2))
    actor_index = ActorIndex(2, 5)
    if num_envs is None:
        local: core.Actor = PolicyActor(policy, key, client, near[0], actor_index)
    else:
        local = BatchedPolicyActor(policy, key, client, near, num_envs=num_envs, actor_index=actor_index)
    with serving(policy, spec, client, num_envs=num_envs) as server:
        adder = far[0] if num_envs is None else SplitAdder(far)
        actor = remote(server, spec, adder=adder, num_envs=num_envs, actor_index=actor_index)
        expected, found = play(local, observations, num_envs), play(actor, observations, num_envs)
        actor.close()
    assert_equal(expected, found)
    assert {type(leaf) for leaf in jax.tree.leaves(found)} == {np.ndarray}
    assert jax.tree.map(lambda x: (x.dtype, x.shape), found) == jax.tree.map(lambda x: (x.dtype, x.shape), expected)
    for mine, theirs in zip(near, far, strict=True):
        assert [call[0] for call in mine.calls] == [call[0] for call in theirs.calls]
        assert_equal([call[1:] for call in mine.calls], [call[1:] for call in theirs.calls])
        assert type(theirs.calls[-1][-1]) is type(mine.calls[-1][-1])
        assert theirs.closed


def test_a_network_gives_nearly_the_numbers_of_a_local_one() -> None:
    spec = specs.EnvironmentSpec(specs.Array((20,), np.float32), specs.Array((5,), np.float32), SCALAR, SCALAR)
    params = np.random.default_rng(0).standard_normal((20, 5), np.float32)
    policy = stateless_policy(lambda params, key, o: jnp.tanh(o @ params))
    with serving(policy, spec, Client(params)) as server:
        actor = remote(server, spec)
        for t in range(3):
            observation = np.full(20, 0.1 * t, np.float32)
            np.testing.assert_allclose(actor.select_action(observation), np.tanh(observation @ params), rtol=1e-5)
        assert actor.policy._build([np.zeros(5)].__iter__())[1] == ()
        actor.close()


@pytest.mark.full
def test_actors_that_ask_together_are_answered_by_one_call() -> None:
    spec, num_actors, num_steps = make_spec(), 3, 10
    sizes: list[int] = []
    with serving(recurrent(), spec, max_wait_seconds=30.0) as server:
        batched = server._policies[ONLY]
        act = batched._act
        batched._act = lambda params, columns: (sizes.append(len(columns[0])), act(params, columns))[1]
        actors = [remote(server, spec, seed=seed) for seed in range(num_actors)]
        for actor in actors:
            actor.update(wait=True)
        found: dict[int, list] = {}

        def run(i: int) -> None:
            found[i] = play(actors[i], SCALAR, None, num_steps)

        threads = [threading.Thread(target=run, args=(i,)) for i in range(num_actors)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120.0)
        assert (server.num_batches, server.num_requests) == (num_steps, num_steps * num_actors)
        assert sizes == [4] * num_steps  # Padded: one shape is compiled.
        for i, actor in enumerate(actors):
            expected = play(PolicyActor(recurrent(), jax.random.PRNGKey(i), Client()), SCALAR, None, num_steps)
            assert_equal(expected, found[i])
            actor.close()


def test_nobody_waits_long_for_an_actor_that_does_not_ask() -> None:
    spec = make_spec()
    with serving(recurrent(), spec, max_wait_seconds=0.2) as server:
        quick, slow = remote(server, spec), remote(server, spec, seed=1)
        slow.select_action(np.float32(0))
        quick.select_action(np.float32(0))
        start = time.monotonic()
        for _ in range(30):
            quick.select_action(np.float32(0))
        # 0.2 s each until the slow one has been silent for ten times as long, 2 s; then at once. Waiting: 6 s.
        assert 1.0 < time.monotonic() - start < 5.0
        quick.close()
        slow.close()


def test_new_parameters_are_used_and_their_age_is_told() -> None:
    spec, client = make_spec(), Client(np.float32(1))
    policy = Policy(lambda params, key, o, state: ({"move": params * jnp.ones(2), "jump": jnp.int32(0)}, (), ()))
    with serving(policy, spec, client) as server:
        actor = remote(server, spec)
        assert (actor.version, actor.age_seconds) == (-1, np.inf)
        assert actor.select_action(np.float32(0))["move"][0] == 1
        assert actor.version == 5 and 0.25 <= actor.age_seconds < 60.0
        age = actor.age_seconds
        time.sleep(0.05)
        assert actor.age_seconds >= age + 0.05
        client.params, client.version = np.float32(2), 6
        assert actor.select_action(np.float32(0))["move"][0] == 2 and actor.version == 6
        assert client.num_updates >= 2
        actor.close()


# Outages ----------------------------------------------------------------------------------------------


def test_a_restarted_server_goes_on_from_what_the_actor_keeps() -> None:
    spec, policy = make_spec(), recurrent()
    local = PolicyActor(policy, jax.random.PRNGKey(SEED), Client())
    expected = [local.select_action(np.float32(1)) for _ in range(4)]
    address = {}
    actor = RemoteActor(InferenceClient(lambda: address["now"], RUN), spec, seed=SEED)
    found = []
    for _ in range(2):
        with serving(policy, spec) as server:
            address["now"] = server.address
            found += [actor.select_action(np.float32(1)) for _ in range(2)]
    actor.close()
    assert_equal(expected, found)


def test_a_request_that_was_under_way_is_repeated() -> None:
    """The first server dies between a request and its reply."""
    spec, policy = make_spec(), recurrent()
    expected = PolicyActor(policy, jax.random.PRNGKey(SEED), Client()).select_action(np.float32(1))
    dying = InferenceServer(only(policy, spec), RUN, listen_address("lo"), max_wait_seconds=60.0)
    address = {"now": dying.address}
    actor = RemoteActor(InferenceClient(lambda: address["now"], RUN, outage_seconds=120.0), spec, seed=SEED)
    found = []
    thread = threading.Thread(target=lambda: found.append(actor.select_action(np.float32(1))))
    dying._due = lambda now: now + 60.0  # type: ignore[method-assign]
    thread.start()
    deadline = time.monotonic() + 120.0
    while not any(peer.request for peer in dying._peers.values()):
        dying.serve(0.02)
        assert time.monotonic() < deadline
    dying.close()
    with serving(policy, spec) as server:
        address["now"] = server.address
        thread.join(120.0)
    actor.close()
    assert_equal(found, [expected])


def test_without_a_server_the_wait_ends_with_a_named_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
    actor = RemoteActor(InferenceClient(lambda: address, RUN, outage_seconds=0.5), make_spec(), seed=0)
    start = time.monotonic()
    with pytest.raises(InferenceClosedError, match=r"No inference server answered for 0\.5 s"):
        actor.select_action(np.float32(0))
    assert 0.5 <= time.monotonic() - start < 60.0


@pytest.mark.parametrize("answers", [True, False])
def test_disconnect_ends_a_wait_in_another_thread(answers: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:  # It accepts, and never says a word.
        address = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
        if not answers:
            listener.close()
        actor = RemoteActor(InferenceClient(lambda: address, RUN), make_spec(), seed=0)
        timer = threading.Timer(0.5, actor.disconnect)
        timer.start()
        start = time.monotonic()
        with pytest.raises(InferenceClosedError, match="was closed"):
            actor.select_action(np.float32(0))
        assert time.monotonic() - start < 60.0
        timer.join()


def test_closing_leaves_no_thread_and_no_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inference_server, "GONE_SECONDS", 0.5)
    spec = make_spec()
    with serving(recurrent(), spec) as server:  # What pyzmq keeps open in a process that has used it.
        remote(server, spec).update(wait=True)
    threads, sockets = threading.active_count(), num_sockets()
    for _ in range(2):
        with serving(recurrent(), spec) as server:
            actor = remote(server, spec)
            actor.select_action(np.float32(0))
            actor.close()
            actor.close()
            deadline = time.monotonic() + 60.0
            while server.num_actors:
                assert time.monotonic() < deadline
                time.sleep(0.01)
        server.close()
        with pytest.raises(InferenceClosedError):
            actor.select_action(np.float32(0))
    assert (threading.active_count(), num_sockets()) == (threads, sockets)


_WITHOUT_JAX = """
import sys
for name in ("jax", "jaxlib", "haiku", "tensorflow"):
    sys.modules[name] = None  # importing it fails
import numpy as np
from agentkit import specs
from agentkit.actors import InferenceClient, RemoteActor
scalar = specs.Array((), np.float32)
action = {"move": specs.Array((2,), np.float32), "jump": specs.DiscreteArray(3)}
spec = specs.EnvironmentSpec(scalar, action, scalar, scalar)
actor = RemoteActor(InferenceClient(lambda: sys.argv[1], sys.argv[2]), spec, seed=7)
print(actor.select_action(np.float32(1))["move"].sum())
actor.close()
"""


@pytest.mark.full
def test_an_actor_needs_no_jax() -> None:
    spec = make_spec()
    local = PolicyActor(stateless_policy(_shift), jax.random.PRNGKey(SEED), Client())
    with serving(stateless_policy(_shift), spec) as server:
        command = [sys.executable, "-c", _WITHOUT_JAX, server.address, RUN]
        text = subprocess.run(command, capture_output=True, text=True, timeout=120.0, check=False)
    assert text.returncode == 0, text.stderr
    assert float(text.stdout) == pytest.approx(float(local.select_action(np.float32(1))["move"].sum()))


def _shift(params: Any, key: jax.Array, observation: Any) -> Any:
    return {"move": jax.random.normal(key, (2,)) + params * observation, "jump": jnp.int32(1)}
