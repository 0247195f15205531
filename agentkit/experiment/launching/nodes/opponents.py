"""Runs the node that keeps the pools of opponents of a launched program, and lets actors play against them.

At the start of each episode an actor asks who plays by which earlier parameters, and tells how its last one went; what
it has not played by before it fetches. So win rates are those of all actors' games, and an actor that is started again
plays against all that was kept.
"""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any, final

import jax

from agentkit import checkpoint
from agentkit.distributed import Role
from agentkit.distributed.context import NodeContext
from agentkit.distributed.program import ONE_CORE
from agentkit.distributed.run_store_client import RunStoreError
from agentkit.errors import CheckpointError
from agentkit.experiment.launching.sharing.common import (
    OUTAGE_SECONDS,
    STATUS_SECONDS,
    listen_at,
    log,
    resume_step,
    watch_steps,
)
from agentkit.experiment.launching.sharing.transports import make_client
from agentkit.experiment.multi_agent.config import MultiAgentConfig
from agentkit.experiment.multi_agent.parts import make_policies
from agentkit.experiment.multi_agent.players import Trained
from agentkit.experiment.multi_agent.pools import Pools
from agentkit.experiment.multi_agent.self_play import Seat
from agentkit.experiment.policies.restore_policy import read_params
from agentkit.experiment.runs.learner_folders import pools_folder, read_pools
from agentkit.types import AgentId, Nest
from agentkit.variables import VariableClient
from agentkit.wire import Client, Request, Server, WireClosedError, WireTimeoutError, keys_at, reachable_address

SERVE_SECONDS = 0.1
"""How often the node looks whether it is time to keep parameters, or to stop."""

ANSWER_SECONDS = 5.0
"""How long an actor waits for an answer before it looks where the node is now."""


def opponents_role() -> Role:
    """Builds the role of the node, which stops once the actors have."""
    return Role("opponents", stop_order=1, num_cpus=0.0, environment=ONE_CORE)


def opponents_node(
    context: NodeContext, config: MultiAgentConfig, learners: Mapping[str, Mapping[str, Any]], *, listen: str = "lo"
) -> None:
    """Keeps the parameters that learners publish, and answers actors, until it is told to stop.

    Args:
        context: the node's.
        config: what is run; it has a pool.
        learners: the endpoints of the learners, by policy id.
        listen: the network device to listen on; "lo" is this machine alone.
    """
    assert config.opponents is not None
    with (
        watch_steps(context, config) as watch,
        contextlib.closing(watch.make(lambda: config.make_environment(config.seed))) as environment,
    ):
        agent_specs = environment.agent_specs()
    trained, _ = make_policies(config, agent_specs)
    pools = Pools(config.opponents, config.seed, trained)
    folder = None if context.run_directory is None else pools_folder(context.run_directory)
    _restore(context, pools, trained)
    clients = {each.policy_id: make_client(context, learners[each.policy_id]) for each in trained}
    with contextlib.ExitStack() as stack:
        where = listen_at(context, stack, listen, context.store.status()["values"].get(f"port/{context.name}"))
        server = Server(where, keys_at(where, context.store.run_id))
        stack.callback(server.close)
        if server.address.startswith("tcp://"):
            context.store.put(f"port/{context.name}", int(server.address.rpartition(":")[2]))
        context.ready({"node": context.name, "address": reachable_address(server.address, listen)})
        answers, shown = Answers(pools), 0.0
        while not context.should_stop:
            request = server.receive(SERVE_SECONDS)
            if request is not None:
                answers.give(server, request)
            steps = max(answers.num_steps, context.totals().get("steps", 0))
            if pools.is_due(steps):
                _keep(pools, steps, clients)
                _save(context, folder, pools)
            context.heartbeat()
            if time.monotonic() - shown > STATUS_SECONDS:
                shown = time.monotonic()
                context.gauge(games=answers.num_games, kept=len(pools.by_policy[trained[0].policy_id]))
        _save(context, folder, pools)


def _restore(context: NodeContext, pools: Pools, trained: Sequence[Trained]) -> None:
    """Takes back what the run has kept; a program that begins, what is no later than its learners."""
    folder = context.run_directory
    if folder is not None and (state := read_pools(folder, resume_step(context))) is not None:
        pools.restore(state, trained)


def _keep(pools: Pools, steps: int, clients: Mapping[str, VariableClient]) -> None:
    for client in clients.values():
        client.update(wait=True)
    pools.keep(steps, {policy_id: client.params for policy_id, client in clients.items()})


def _save(context: NodeContext, folder: pathlib.Path | None, pools: Pools) -> None:
    """Writes the pools into the run folder. A failure is told, and tried again with the next parameters."""
    if folder is None:
        return
    try:
        checkpoint.write(folder, pools.newest_step, pools.save(), max_to_keep=1)
    except CheckpointError as error:
        log(context, str(error))


@final
class Answers:
    """Answers actors out of pools.

    Attributes:
        num_games: that actors have told of.
        num_steps: the most of the program's that an actor has told of; quick ones know it before a heartbeat says so.
    """

    def __init__(self, pools: Pools):
        """Takes the pools, whose games it counts."""
        self._pools = pools
        self._given: dict[str, tuple[int, Nest]] = {}  # By player: the number of its last episode, and the answer.
        self.num_games = self.num_steps = 0

    def give(self, server: Server, request: Request) -> None:
        """Answers a request of a `LaunchedSelfPlay`."""
        try:
            if "episode" in request.body:
                answer = self._begin(request.body)
            else:
                earlier = self._pools.find(request.body["agent"], int(request.body["step"]))
                answer = None if earlier is None else earlier.arrays()
        except (KeyError, TypeError, ValueError) as error:
            server.refuse(request, f"Expected a question about a pool, found {error!r}.", "question")
            return
        server.answer(request, answer)

    def _begin(self, body: Any) -> Nest:
        """Counts the player's last episode and draws for its next; one that is asked about twice is drawn once."""
        player, number = str(body["player"]), int(body["episode"])
        self.num_steps = max(self.num_steps, int(body["steps"]))
        last, answer = self._given.get(player, (-1, None))
        if number == last:
            return answer
        if (ended := body["ended"]) is not None:
            found = {agent_id: self._pools.find(agent_id, int(step)) for agent_id, step in ended["playing"].items()}
            self._pools.count(found, ended["returns"])
            self.num_games += 1
        playing = {agent_id: earlier.step for agent_id, earlier in self._pools.draw().items()}
        kept = {each.step for pool in self._pools.by_policy.values() for each in pool}
        self._given[player] = number, {"playing": playing, "kept": sorted(kept)}
        return self._given[player][1]


@dataclasses.dataclass
class _Games:
    """Holds what is told and asked of the games in one environment.

    Attributes:
        player: a name for them, which no other environment has.
        episode: number of the next question.
        playing: in the newest episode: who plays by the parameters of which step.
        ended: how it went, once it has ended; None before, and once that was told.
    """

    player: str
    episode: int = 0
    playing: dict[AgentId, int] = dataclasses.field(default_factory=dict)
    ended: dict[str, Any] | None = None


@final
class LaunchedSelfPlay:
    """Gives the seats of an actor process by what the opponents node says.

    Attributes:
        seats: of the agents that learn.
    """

    def __init__(
        self,
        context: NodeContext,
        endpoint: Mapping[str, Any],
        trained: Sequence[Trained],
        clients: Mapping[str, VariableClient],
        num_envs: int = 1,
    ):
        """Connects at the first episode.

        Args:
            context: the actor's.
            endpoint: of the opponents node.
            trained: the policies that learn.
            clients: of the newest parameters of each, by policy id.
            num_envs: of the actor process.
        """
        self._context, self._node = context, endpoint["node"]
        self._of_agent = {agent_id: each for each in trained for agent_id in each.agent_ids}
        self.seats = {agent_id: Seat(clients[each.policy_id], num_envs) for agent_id, each in self._of_agent.items()}
        name = secrets.token_hex(8)
        self._games = [_Games(f"{name}-{number}") for number in range(num_envs)]
        self._fetched: dict[tuple[str, int], Nest] = {}  # By policy id and step.
        self._client: Client | None = None
        self._closed = False

    def begin(self, num_steps: int, number: int = 0) -> None:
        """Begins an episode; waits for the node while it is away.

        Raises:
            WireClosedError, WireTimeoutError, RunStoreError: it is away for `OUTAGE_SECONDS`, or this was closed.
        """
        games = self._games[number]
        while True:
            steps = self._context.totals().get("steps", 0) + self._context.unsent("steps")
            question = {"player": games.player, "episode": games.episode, "ended": games.ended, "steps": steps}
            answer = self._ask(question)
            games.episode, games.ended = games.episode + 1, None
            kept = set(answer["kept"])
            self._fetched = {key: params for key, params in self._fetched.items() if key[1] in kept}
            games.playing = {agent_id: int(step) for agent_id, step in answer["playing"].items()}
            held = {agent_id: self._fetch(agent_id, step) for agent_id, step in games.playing.items()}
            if all(params is not None for params in held.values()):  # Else they left the pool in this moment.
                break
        for agent_id, seat in self.seats.items():
            seat.held[number] = held.get(agent_id)

    def _fetch(self, agent_id: AgentId, step: int) -> Nest | None:
        trained = self._of_agent[agent_id]
        key = trained.policy_id, step
        if key not in self._fetched:
            arrays = self._ask({"agent": agent_id, "step": step})
            if arrays is None:
                return None
            params = read_params(trained.parts.update, arrays, f"The pool of {trained.policy_id!r}, step {step:,},")
            self._fetched[key] = jax.device_put(params)
        return self._fetched[key]

    def end(self, returns: Mapping[AgentId, float], number: int = 0) -> None:
        """Remembers how the episode went, for the next question."""
        games = self._games[number]
        games.ended = {"playing": games.playing, "returns": {key: float(value) for key, value in returns.items()}}

    def _ask(self, question: Nest) -> Any:
        deadline = time.monotonic() + OUTAGE_SECONDS
        while True:
            try:
                if self._client is None:
                    self._client = self._connect()
                return self._client.ask(question, ANSWER_SECONDS)
            except (WireClosedError, WireTimeoutError, RunStoreError):
                if self._closed or self._context.should_stop or time.monotonic() > deadline:
                    raise
                if self._client is not None:
                    self._client.close()
                    self._client = None

    def _connect(self) -> Client:
        found = self._context.store.get(f"endpoint/{self._node}", timeout=1.0)
        address = str(found["value"]["address"])
        return Client(address, keys_at(address, self._context.store.run_id), patience=ANSWER_SECONDS)

    def __enter__(self) -> LaunchedSelfPlay:
        """Returns this."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Disconnects."""
        self.close()

    def close(self) -> None:
        """Ends a wait for the node. May be called twice, and from another thread."""
        self._closed = True
        if self._client is not None:
            self._client.close()
