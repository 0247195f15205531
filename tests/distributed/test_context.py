"""What a node's context says of it: that it is busy, where it is, and that it has lost its run store."""

import contextlib
import time
from types import SimpleNamespace

import pytest

from agentkit.distributed import NodeContext, NodeTakenError, RunStore, RunStoreClient, WrongRunError
from agentkit.distributed.context import NodeId

pytestmark = pytest.mark.both_stacks

RUN = "0123456789abcdef0123456789abcdef"
LEARNER = NodeId("learner-0", "learner", 0)


@pytest.fixture(autouse=True)
def _quick_heartbeats(monkeypatch):
    monkeypatch.setattr("agentkit.distributed.context.HEARTBEAT_SECONDS", 0.05)


@contextlib.contextmanager
def joined(store):
    with contextlib.closing(RunStoreClient(store.address, RUN, node="learner-0")) as client:
        context = NodeContext(LEARNER, client)
        with contextlib.closing(context):
            yield context


def test_a_call_within_an_announced_one_is_a_part_of_it():
    """A save of replay within one that hands all over: what follows the inner one is still announced."""
    with RunStore(RUN) as store, joined(store) as context:
        with context.busy("handing over", 60.0):
            with context.busy("saving", 30.0):
                assert store.get("busy/learner-0")["what"] == "handing over"
            assert store.get("busy/learner-0")["seconds"] == 60.0
        assert store.get("busy/learner-0") is None
        with context.busy("freeing", 10.0):
            assert store.get("busy/learner-0")["what"] == "freeing"


def test_a_run_store_that_was_started_again_learns_where_the_node_is():
    with contextlib.ExitStack() as stores:
        first = stores.enter_context(RunStore(RUN))
        with joined(first) as context:
            context.ready({"address": "here"})
            port = int(first.address.rpartition(":")[2])
            first.close()
            second = stores.enter_context(RunStore(RUN, port=port))
            deadline = time.monotonic() + 60.0
            while second.get("endpoint/learner-0") is None:
                assert time.monotonic() < deadline, "whoever joins now waits for it in vain"
                time.sleep(0.02)
            assert second.get("endpoint/learner-0") == {"incarnation": 0, "value": {"address": "here"}}


@pytest.mark.parametrize("error", [WrongRunError, NodeTakenError])
def test_who_has_no_place_any_more_is_to_be_started_again(error):
    """Its loop then asks anew, and is told whether the address is another run's: exit code 0 would end the loop."""

    def heartbeat(*words, **more):
        raise error("not here")

    context = NodeContext(LEARNER, SimpleNamespace(heartbeat=heartbeat))
    assert context.wait(10.0) and context.lost and context.replaced == (error is NodeTakenError)
    context.close()


def test_who_was_started_again_meanwhile_is_told_that_it_is_replaced():
    with RunStore(RUN) as store, joined(store) as context:
        context.sync()
        assert not context.replaced
        store.node("learner-0", supervised=True, incarnation=1)
        context.sync()
        assert context.replaced and context.should_stop
