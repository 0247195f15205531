"""The batches of a learner's process: from a replay server that may go and come back, or from several in turn."""

from __future__ import annotations

import collections
import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from agentkit.agents.common.agent import Agent
from agentkit.datasets import ReplayDataset
from agentkit.distributed.run_store_client import RunStoreClient
from agentkit.errors import ReplayClosedError, ReplayTimeoutError
from agentkit.experiment.launching.nodes.replay import check_reachable, connect_to_replay, keep_alive
from agentkit.experiment.launching.sharing.common import KEEP_ALIVE_SECONDS
from agentkit.experiment.launching.sharing.priorities import LargestPriorities
from agentkit.experiment.runs.learner_folders import contents_name
from agentkit.replay import Replay
from agentkit.specs import EnvironmentSpec
from agentkit.types import DrawnBatch

BATCH_SECONDS = 0.5
"""How long one call waits for a batch, before the learner looks at what else there is to do."""

_POLL_SECONDS = 0.001
_RECONNECT_SECONDS = 5.0


class ServerData:
    """Iterates an agent's batches from one replay node.

    Attributes:
        address: the server's, "host:port".
        contents: the name in a checkpoint of what the server holds.
        waited_seconds: spent waiting for batches so far.
    """

    def __init__(
        self, agent: Agent, spec: EnvironmentSpec, endpoint: Mapping[str, Any], store: RunStoreClient | None = None
    ):
        """Connects.

        Args:
            agent: whose batches they are.
            spec: of the environment.
            endpoint: the replay node's.
            store: says where the server is when it has come back; needed for a served replay on another machine.

        Raises:
            ConfigError: the server is on another machine, and listens on that alone.
            ReplayClosedError: it does not answer.
        """
        self._tables = agent.make_tables(spec)
        self._plan = agent.batch_plan
        self._endpoint, self._store = endpoint, store
        self.address = str(endpoint["address"])
        self._node = str(endpoint.get("node", "replay-0"))
        self.contents = contents_name(self._node)
        self.waited_seconds = 0.0
        self._keep_alive_at = 0.0
        self._largest: LargestPriorities | None = None
        check_reachable(endpoint)
        # Decision 18: exact sampling would cost a round trip for each batch.
        self.replay = self._connect(wait=120.0)
        self._dataset: ReplayDataset | None = ReplayDataset(self.replay, self._plan, timeout=BATCH_SECONDS)

    def _connect(self, wait: float) -> Replay:
        return connect_to_replay(
            self._tables, self._endpoint, timeout=10.0, wait=wait, draw_ahead=True, store=self._store
        )

    def __iter__(self) -> Iterator[DrawnBatch]:
        return self

    def __next__(self) -> DrawnBatch:
        """Returns the next batch.

        Raises:
            ReplayTimeoutError: none within `BATCH_SECONDS`.
            ReplayClosedError: the server is away.
        """
        start = time.monotonic()
        try:
            return next(self._connected())
        finally:
            self.waited_seconds += time.monotonic() - start

    def ready(self) -> bool:
        """Returns True if there is a batch; raises ReplayClosedError where the server is away."""
        return self._connected().ready()

    def _connected(self) -> ReplayDataset:
        if self._dataset is None:
            raise ReplayClosedError(f"The replay server at {self.address} is away.")
        return self._dataset

    def write_priorities(self, keys: np.ndarray, priorities: np.ndarray) -> None:
        """Writes priorities, which are hints: those that a server misses while it is away are dropped."""
        with contextlib.suppress(ReplayClosedError, ReplayTimeoutError):
            self.replay.update_priorities(self._plan.table, keys, priorities)

    def share_priorities(self, store: RunStoreClient) -> None:
        """Tells actors the largest priority so far, now and then."""
        if self._largest is None:
            self._largest = LargestPriorities(store, self._endpoint)
        self._largest.share(self.replay)

    def may_draw(self) -> bool:
        """Returns whether the rate limiter lets a batch be drawn now.

        Raises:
            ReplayClosedError: the server is away.
            ReplayTimeoutError: it does not answer.
        """
        table, info = self._plan.table, self.replay.info(self._plan.table)
        return self.replay.table(table).rate_limiter.can_sample(
            self._plan.batch_size, size=info.size, inserted=info.num_inserted, sampled=info.num_sampled
        )

    def answers(self) -> bool:
        """Returns whether the server is there."""
        try:
            self.replay.info(self._plan.table)
        except (ReplayClosedError, ReplayTimeoutError):
            return False
        return True

    def reconnect(self) -> None:
        """Makes everything anew where the server answers; else leaves it for the next time."""
        self.close()
        self._look_for_server()
        with contextlib.suppress(ReplayClosedError, ReplayTimeoutError):
            self.replay = self._connect(wait=1.0)
            self._dataset = ReplayDataset(self.replay, self._plan, timeout=BATCH_SECONDS)

    def _look_for_server(self) -> None:
        """Takes the endpoint that the run store has now: a server may come back on another machine."""
        found = None if self._store is None else self._store.peek(f"endpoint/{self._node}")
        if found is not None:  # Else the store is away, or was started again and has not heard of it yet.
            self._endpoint = found["value"]
            self.address = str(self._endpoint["address"])

    def keep_alive(self) -> None:
        """Lets TCP notice a host that vanished; new connections come and go, so it is done again and again."""
        if time.monotonic() >= self._keep_alive_at:
            self._keep_alive_at = time.monotonic() + KEEP_ALIVE_SECONDS
            keep_alive(self._endpoint)

    def writers_of_contents(self) -> dict[str, Any]:
        """Returns the functions by which a checkpoint writes the server's contents, by name."""
        return {self.contents: self.replay.save}

    def close(self) -> None:
        """Disconnects. May be called twice."""
        if self._dataset is not None:
            self._dataset.close()
            self._dataset = None
        self.replay.close()


class ShardedData:
    """Iterates an agent's batches from several replay nodes in turn, with `ServerData`'s methods.

    A shard that has no batch now, or is away, is passed over. Each keeps its own rate limit, so the learner
    does as many updates per insert as with one server, whichever shard an actor writes to.

    Attributes:
        waited_seconds: as in `ServerData`.
    """

    def __init__(self, shards: Sequence[ServerData]):
        """Takes the shards, at least one; closed with this."""
        self._shards = tuple(shards)
        self._turns = collections.deque(self._shards)
        self._last = self._shards[0]
        self._retry_at = dict.fromkeys(self._shards, 0.0)
        self.waited_seconds = 0.0

    @property
    def address(self) -> str:
        """Returns the servers' addresses, with commas."""
        return ", ".join(shard.address for shard in self._shards)

    def __iter__(self) -> Iterator[DrawnBatch]:
        return self

    def __next__(self) -> DrawnBatch:
        """Returns the next batch of the next shard that has one; raises as `ServerData` does."""
        start = time.monotonic()
        try:
            while time.monotonic() < start + BATCH_SECONDS:
                away = 0
                for _ in self._shards:
                    self._turns.rotate(-1)
                    try:
                        if self._turns[-1].ready():
                            self._last = self._turns[-1]
                            return next(self._last)
                    except ReplayClosedError:
                        away += 1
                        self._try_again(self._turns[-1])
                    except ReplayTimeoutError:
                        continue  # It was due, and still on its way.
                if away == len(self._shards):
                    raise ReplayClosedError(f"The replay servers at {self.address} are away.")
                time.sleep(_POLL_SECONDS)
        finally:
            self.waited_seconds += time.monotonic() - start
        raise ReplayTimeoutError(f"No shard at {self.address} gave a batch within {BATCH_SECONDS:g} s.")

    def _try_again(self, shard: ServerData) -> None:
        """Connects anew, now and then: each attempt takes time from the other shards."""
        if time.monotonic() >= self._retry_at[shard]:
            shard.reconnect()
            self._retry_at[shard] = time.monotonic() + _RECONNECT_SECONDS

    def write_priorities(self, keys: np.ndarray, priorities: np.ndarray) -> None:
        """Writes the priorities of the newest batch to the shard that it came from."""
        self._last.write_priorities(keys, priorities)

    def may_draw(self) -> bool:
        """Returns whether a shard lets a batch be drawn now; raises as `ServerData` does."""
        return any(shard.may_draw() for shard in self._shards)

    def answers(self) -> bool:
        """Returns whether any server is there."""
        return any(shard.answers() for shard in self._shards)

    def reconnect(self) -> None:
        """Connects anew to the servers that do not answer."""
        for shard in self._shards:
            if not shard.answers():
                shard.reconnect()

    def share_priorities(self, store: RunStoreClient) -> None:
        """Tells each shard's actors its largest priority so far, now and then."""
        for shard in self._shards:
            shard.share_priorities(store)

    def keep_alive(self) -> None:
        """Lets TCP notice hosts that vanished."""
        for shard in self._shards:
            shard.keep_alive()

    def writers_of_contents(self) -> dict[str, Any]:
        """Returns the functions by which a checkpoint writes all servers' contents, by name."""
        return {name: write for shard in self._shards for name, write in shard.writers_of_contents().items()}

    def close(self) -> None:
        """Disconnects from all."""
        for shard in self._shards:
            shard.close()


def make_data(
    agent: Agent,
    spec: EnvironmentSpec,
    replay: Mapping[str, Any] | Sequence[Mapping[str, Any]],
    store: RunStoreClient | None = None,
) -> ServerData | ShardedData:
    """Connects to a replay node's endpoint, or to those of several, for an agent's batches; see `ServerData`."""
    if isinstance(replay, Mapping):
        return ServerData(agent, spec, replay, store)
    with contextlib.ExitStack() as stack:
        shards = [
            stack.enter_context(contextlib.closing(ServerData(agent, spec, endpoint, store))) for endpoint in replay
        ]
        stack.pop_all()
    return ShardedData(shards)
