"""What every transport promises; one set of tests for all of them."""

import contextlib
import time

import jax.numpy as jnp
import numpy as np
import pytest

from agentkit.errors import ConfigError, SpecError, UnknownNameError
from agentkit.variables import SharedMemoryPublisher, SharedMemorySource, VariableClient
from agentkit.variables.served import ServedPublisher, ServedSource

pytestmark = pytest.mark.both_stacks

LONG = 60.0


class Memory:
    def __init__(self, tmp_path):
        self.path = tmp_path / "parameters"

    def publisher(self):
        return SharedMemoryPublisher(self.path)

    def source(self):
        return SharedMemorySource(self.path)


class OnWire:
    def __init__(self, tmp_path):
        self.address = "tcp://127.0.0.1:*"

    def publisher(self):
        publisher = ServedPublisher("run", self.address)
        self.address = publisher.address  # a learner that restarts serves where it did before
        return publisher

    def source(self):
        return ServedSource(self.address, "run", timeout=3.0)


@pytest.fixture(params=[Memory, OnWire])
def transport(request, tmp_path):
    return request.param(tmp_path)


def nest(value, size=3):
    return {"linear": {"w": np.full((size, 2), value, np.float32), "n": np.int64(value)}}


def get(source, newer_than=-1, names=("policy",)):
    """Asks until there is an answer; a server that has just been replaced takes a while to be found."""
    deadline = time.monotonic() + LONG
    while True:
        with contextlib.suppress(ConnectionError):
            found = source.get(names, newer_than)
            if found is not None:
                return found
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_nothing_is_there_before_the_first_publication(transport):
    with contextlib.closing(transport.publisher()) as publisher:
        assert publisher.version == -1
        assert transport.source().get(["policy"]) is None


def test_the_newest_by_name_and_only_if_it_is_newer(transport):
    with contextlib.closing(transport.publisher()) as publisher:
        source, start = transport.source(), time.time()
        publisher.publish(0, {"policy": nest(1), "critic": nest(2)})
        publisher.publish(5, {"policy": nest(3), "critic": nest(4)})
        found = source.get(["policy"], newer_than=0)
        assert found.version == publisher.version == 5 and list(found.variables) == ["policy"]
        np.testing.assert_array_equal(found.variables["policy"]["linear"]["w"], np.full((3, 2), 3, np.float32))
        assert found.variables["policy"]["linear"]["n"] == 3
        assert start - 1 < found.published < time.time() + 1
        assert source.get(["policy"], newer_than=5) is None
        assert set(source.get(["critic", "policy"]).variables) == {"critic", "policy"}
        assert source.get(["critic"]).variables["critic"]["linear"]["n"] == 4


def test_what_a_reader_gets_is_its_own(transport):
    with contextlib.closing(transport.publisher()) as publisher:
        published = nest(1)
        publisher.publish(0, {"policy": published})
        published["linear"]["w"][:] = 7
        source = transport.source()
        first = source.get(["policy"]).variables["policy"]["linear"]["w"]
        first[:] = 8
        assert (source.get(["policy"]).variables["policy"]["linear"]["w"] == 1).all()
        publisher.publish(1, {"policy": nest(2)})
        publisher.publish(2, {"policy": nest(3)})
        assert (first == 8).all()


def test_other_structures_shapes_and_dtypes_follow_each_other(transport):
    with contextlib.closing(transport.publisher()) as publisher:
        source = transport.source()
        nests = [
            nest(1),
            nest(2, size=300_000),
            {"linear": {"w": np.zeros((0, 4), np.float16)}},
            [jnp.ones(3, jnp.bfloat16), (np.bool_(True), None)],
            {"a": np.ones(3, np.complex64), "b": np.asfortranarray(np.arange(6.0).reshape(2, 3))},
            nest(6),
        ]
        for version, published in enumerate(nests):
            publisher.publish(version, {"policy": published})
            found = source.get(["policy"], newer_than=version - 1)
            assert found.version == version
            description = repr(found.variables["policy"])
            assert description.replace("dtype=bfloat16", "") == repr(_as_numpy(published)).replace("dtype=bfloat16", "")


def _as_numpy(value):
    if isinstance(value, dict):
        return {key: _as_numpy(child) for key, child in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_as_numpy(child) for child in value)
    return None if value is None else np.array(value, order="C")


def test_a_learner_that_restarts_from_an_older_checkpoint_is_seen(transport):
    with contextlib.closing(transport.publisher()) as first:
        source, other = transport.source(), transport.source()
        first.publish(100, {"policy": nest(100), "critic": nest(100)})
        assert source.get(["policy"]).version == other.get(["policy"]).version == 100
        assert source.get(["critic"]).version == 100
    with contextlib.closing(transport.publisher()) as second:
        second.publish(50, {"policy": nest(50), "critic": nest(50)})
        found = get(source, newer_than=100)
        assert (found.version, found.variables["policy"]["linear"]["n"]) == (50, 50)
        # From here on versions count again; and each reader, and each name, is told once.
        assert source.get(["policy"], newer_than=50) is None
        assert source.get(["critic"], newer_than=100).version == 50
        assert get(other, newer_than=100).version == 50
        second.publish(60, {"policy": nest(60), "critic": nest(60)})
        assert source.get(["policy"], newer_than=50).version == 60


def test_a_fresh_source_compares_versions(transport):
    with contextlib.closing(transport.publisher()) as publisher:
        publisher.publish(3, {"policy": nest(3)})
        source = transport.source()
        assert source.get(["policy"], newer_than=7) is None
        assert source.get(["policy"], newer_than=2).version == 3


def test_an_unknown_name_is_refused_with_the_nearest(transport):
    with contextlib.closing(transport.publisher()) as publisher:
        publisher.publish(0, {"policy": nest(0)})
        with pytest.raises(UnknownNameError, match=r"'polcy'.*Did you mean 'policy'"):
            transport.source().get(["polcy"])


def test_versions_of_a_publisher_never_go_down(transport):
    with contextlib.closing(transport.publisher()) as publisher:
        publisher.publish(3, {"policy": nest(0)})
        publisher.publish(3, {"policy": nest(1)})
        with pytest.raises(ConfigError, match="version 2 were published after version 3"):
            publisher.publish(2, {"policy": nest(2)})
        assert transport.source().get(["policy"]).variables["policy"]["linear"]["n"] == 1


def test_what_cannot_travel_is_refused_and_the_last_stays(transport):
    with contextlib.closing(transport.publisher()) as publisher:
        publisher.publish(0, {"policy": nest(0)})
        with pytest.raises(SpecError, match="policy/name: "):
            publisher.publish(1, {"policy": {"name": "x"}})
        assert transport.source().get(["policy"]).version == publisher.version == 0


def test_a_client_acts_on_while_the_learner_is_away_and_finds_the_next_one(transport):
    first = transport.publisher()
    client = VariableClient(transport.source(), timeout=LONG)
    first.publish(9, {"policy": nest(9)})
    assert client.params["linear"]["n"] == 9
    first.close()
    first.close()
    for _ in range(3):
        client.update(wait=True)
    assert client.version == 9
    with contextlib.closing(transport.publisher()) as second:
        second.publish(4, {"policy": nest(4)})
        deadline = time.monotonic() + LONG
        while client.version == 9:
            assert time.monotonic() < deadline
            client.update()
            time.sleep(0.01)
        assert client.params["linear"]["n"] == 4 and client.age_seconds < LONG and not client.lost


def test_a_closed_publisher_says_so(transport):
    publisher = transport.publisher()
    publisher.publish(0, {"policy": nest(0)})
    publisher.close()
    with pytest.raises((ConfigError, RuntimeError), match="closed"):
        publisher.publish(1, {"policy": nest(1)})


def test_a_closed_source_begins_anew(transport):
    with contextlib.closing(transport.publisher()) as publisher:
        publisher.publish(0, {"policy": nest(0)})
        source = transport.source()
        assert source.get(["policy"]).version == 0
        source.close()
        source.close()
        assert source.get(["policy"], newer_than=0) is None
        assert source.get(["policy"]).version == 0
