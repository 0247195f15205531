"""Runs actors and evaluators of several agents; learners and replays are those of one agent, one of each policy."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import jax

from agentkit.actors import ActorIndex, InferenceClient, InferenceClosedError
from agentkit.counting import Counter
from agentkit.distributed.context import NodeContext
from agentkit.errors import ReplayClosedError
from agentkit.experiment.config.evaluation_plan import evaluation_plan
from agentkit.experiment.launching.nodes import evaluator
from agentkit.experiment.launching.nodes.actor import act, close_on_stop, connect, find_actor_index, open_log
from agentkit.experiment.launching.nodes.inference import connect_to_inference
from agentkit.experiment.launching.nodes.multi_agent_inference import RemoteLoop, RemotePlayer, make_remote_player
from agentkit.experiment.launching.nodes.opponents import LaunchedSelfPlay
from agentkit.experiment.launching.sharing.callbacks import keep_states, node_hooks
from agentkit.experiment.launching.sharing.common import watch_steps
from agentkit.experiment.launching.sharing.exploring import AGENT_TURNS, find_episodes, find_start
from agentkit.experiment.launching.sharing.step_goal import StepGoal
from agentkit.experiment.launching.sharing.transports import make_client
from agentkit.experiment.multi_agent.assigning.by_episode import (
    Place,
    PoliciesByEpisode,
    actors_of,
    find_by_episode,
    players_of,
)
from agentkit.experiment.multi_agent.assigning.changing import ChangingPlayer
from agentkit.experiment.multi_agent.assigning.who_plays import agents_by_policy
from agentkit.experiment.multi_agent.build import make_adders, make_loop, open_environments
from agentkit.experiment.multi_agent.config import MultiAgentConfig, changes_by_episode
from agentkit.experiment.multi_agent.judging.evaluation import MultiAgentEvaluator
from agentkit.experiment.multi_agent.parts import make_policies
from agentkit.experiment.multi_agent.players import AnyPlayer, Player, Trained
from agentkit.experiment.multi_agent.self_play import Seat
from agentkit.experiment.multi_agent.work import AnyLoop, told_of_episodes
from agentkit.replay import Replay
from agentkit.types import AgentId
from agentkit.variables import VariableClient, VariableStore
from agentkit.wire import WireClosedError, WireTimeoutError

Endpoints = Mapping[str, Mapping[str, Any]]
"""Of the replay or the learner of each policy that learns, by policy id."""
Pair = tuple[AgentId, str]
"""An agent id, and the id of a policy by which that agent may play."""


def multi_agent_actor_node(
    context: NodeContext, config: MultiAgentConfig, replays: Endpoints, learners: Endpoints,
    opponents: Mapping[str, Any] | None = None, *, max_parameter_age_seconds: float | None = None,
    inference: Sequence[Mapping[str, Any]] = (),
) -> None:  # fmt: skip
    """Plays all agents of its environments, each by the newest parameters of its policy, until it is told to stop.

    Args:
        context: the node's.
        config: what is run.
        replays: the endpoints of the replay nodes.
        learners: the endpoints of the learners.
        opponents: the endpoint of the node that keeps pools of opponents; None where all play by the newest.
        max_parameter_age_seconds: see `LaunchConfig`.
        inference: the endpoints of inference nodes, one of which acts for those who learn; none: they do so here.
    """
    seed, num_steps = find_start(context, config.seed, 2)
    index = find_actor_index(context, num_steps)
    with contextlib.ExitStack() as stack:
        watch = stack.enter_context(watch_steps(context, config))
        environments = open_environments(config, seed, watch, stack)
        agent_specs = environments[0].agent_specs()
        by_policy = agents_by_policy(config, agent_specs)
        trained, players = make_policies(config, agent_specs)
        servers = _connect(context, trained, replays, stack)
        asked = connect_to_inference(context, inference, stack) if inference else None
        newest = {} if asked else _make_clients(context, trained, learners, max_parameter_age_seconds)
        keys = _make_keys(seed, agent_specs, by_policy)
        made = _make_others(players, keys, servers.keys(), config)
        self_play = None
        if opponents:
            self_play = LaunchedSelfPlay(context, opponents, trained, newest, config.num_envs or 1)
            stack.enter_context(self_play)
        seats = self_play.seats if self_play else {}
        for each in trained:
            server, client = servers[each.policy_id], asked or newest[each.policy_id]
            made |= _make_actors(each, server, client, keys, index, config.num_envs, seats)
        actors = actors_of(config, _by_agent(made, keys))
        clients: dict[str, Any] = {each.policy_id: actors[each.agent_ids[0]] for each in trained} if asked else newest
        num_begun = find_episodes(context, index.num_actors) if changes_by_episode(config.policy_of) else 0
        by_episode = find_by_episode(config, agent_specs, actors, Place(index.actor_id, index.num_actors, num_begun))
        hooks, log, counter = node_hooks(context, config), open_log(context, config, stack), Counter()
        loop = make_loop(config, environments, actors, hooks, log, counter, by_episode)
        stepped: Any = RemoteLoop(loop, actors, asked) if asked else told_of_episodes(loop, self_play, by_episode)
        for client in clients.values():
            client.update(wait=True)
        hooks.watch(count_updates=lambda: sum(client.version for client in clients.values()))
        hooks.emit("on_start", environments[0])
        context.ready()
        close_on_stop(context, [each.close for each in (*servers.values(), self_play, asked) if each is not None])
        written = [(replays[policy_id], server) for policy_id, server in servers.items()]
        count = functools.partial(_count, loop, counter, len(keys), by_episode)
        try:
            act(context, stepped, list(clients.values()), written, StepGoal(context, index.num_actors), count)
            for actor in actors.values():
                actor.close()
        except (ReplayClosedError, InferenceClosedError, WireClosedError, WireTimeoutError):
            if not context.should_stop:
                raise


def _connect(
    context: NodeContext, trained: Sequence[Trained], replays: Endpoints, stack: contextlib.ExitStack
) -> dict[str, Replay]:
    """Returns the client of each policy's replay."""
    return {
        each.policy_id: connect(context, each.agent.make_tables(each.spec), replays[each.policy_id], stack)
        for each in trained
    }


def _make_clients(
    context: NodeContext, trained: Sequence[Trained], learners: Endpoints, max_age_seconds: float | None = None
) -> dict[str, VariableClient]:
    """Returns what has the newest parameters of each policy."""
    return {each.policy_id: make_client(context, learners[each.policy_id], max_age_seconds) for each in trained}


def _make_keys(
    seed: int, agent_ids: Collection[AgentId], by_policy: Mapping[str, Sequence[AgentId]]
) -> dict[Pair, jax.Array]:
    """Returns a PRNG key for each agent with each policy by which it may play."""
    pairs = [(who, name) for who in agent_ids for name, ids in by_policy.items() if who in ids]
    return dict(zip(pairs, jax.random.split(jax.random.PRNGKey(seed), len(pairs)), strict=True))


def _count(loop: AnyLoop, counter: Counter, num_pairs: int, by_episode: PoliciesByEpisode | None) -> dict[str, int]:
    """Returns what an actor counts: steps, episodes, its agents' actions, and those of one by a policy, on average."""
    acted = loop.num_agent_steps
    counts = {"steps": loop.num_steps, "agent_steps": acted, AGENT_TURNS: acted // num_pairs}
    return {**counts, "episodes": counter.get("episodes"), **(by_episode.steps() if by_episode else {})}


def _make_others(
    players: Mapping[str, Player], keys: Mapping[Pair, jax.Array], learning: Collection[str], config: MultiAgentConfig
) -> dict[Pair, AnyPlayer | RemotePlayer]:
    """Returns the actors of the policies that do not learn."""
    others = {(agent_id, policy_id): key for (agent_id, policy_id), key in keys.items() if policy_id not in learning}
    return {pair: players[pair[1]].make_actor(key, config.num_envs) for pair, key in others.items()}


def _make_actors(
    trained: Trained,
    server: Replay,
    client: VariableClient | InferenceClient,
    keys: Mapping[Pair, jax.Array],
    index: ActorIndex,
    num_envs: int | None,
    seats: Mapping[AgentId, Seat],
) -> dict[Pair, AnyPlayer | RemotePlayer]:
    """Returns the actors of those who play by a policy; they explore beside those of the program's other actors."""
    count = len(trained.agent_ids)
    actors: dict[Pair, AnyPlayer | RemotePlayer] = {}
    for number, agent_id in enumerate(trained.agent_ids):
        pair = agent_id, trained.policy_id
        own = ActorIndex(index.actor_id * count + number, index.num_actors * count, index.num_steps)
        seat = seats.get(agent_id)
        adders = make_adders(trained, server, num_envs, seat)
        if isinstance(client, InferenceClient):
            actors[pair] = make_remote_player(client, trained, own, keys[pair], adders)
        else:
            actors[pair] = trained.make_actor(own, keys[pair], adders, seat or client)
    return actors


def _by_agent(made: Mapping[Pair, Any], pairs: Iterable[Pair]) -> dict[AgentId, dict[str, Any]]:
    """Returns the actors by agent id and policy id, in the order of these pairs."""
    found: dict[AgentId, dict[str, Any]] = {}
    for agent_id, policy_id in pairs:
        found.setdefault(agent_id, {})[policy_id] = made[agent_id, policy_id]
    return found


def multi_agent_evaluator_node(
    context: NodeContext, config: MultiAgentConfig, learners: Endpoints, *, num_evaluators: int = 1
) -> None:
    """Evaluates as `evaluator_node` does, with the newest parameters of all policies.

    Args:
        context: the node's.
        config: what is run.
        learners: the endpoints of the learners.
        num_evaluators: evaluators that take turns.
    """
    plan = evaluation_plan(config)
    with contextlib.ExitStack() as stack:
        watch = stack.enter_context(watch_steps(context, config))
        with contextlib.closing(watch.make(lambda: config.make_environment(config.seed))) as environment:
            agent_specs = environment.agent_specs()
        by_policy = agents_by_policy(config, agent_specs)
        trained, players = make_policies(config, agent_specs)
        clients = _make_clients(context, trained, learners)
        hooks = node_hooks(context, config)
        hooks.watch(count_updates=lambda: sum(client.version for client in clients.values()))

        def refresh() -> None:
            for client in clients.values():
                client.update(wait=True)

        def newest() -> dict[AgentId, Player | ChangingPlayer]:
            found = dict(players)
            for policy_id, client in clients.items():
                store = VariableStore()
                store.publish(client.version, {"policy": client.params})
                found[policy_id] = dataclasses.replace(players[policy_id], store=store)
            return players_of(config, agent_specs, by_policy, found)

        def evaluate(steps: int, should_stop: Callable[[], bool]) -> dict[str, float] | None:
            hooks.watch(count_steps=lambda: steps)  # The others go on meanwhile.
            refresh()
            judge.players = newest()
            return judge.run(plan.episodes, number=steps, should_stop=should_stop)

        def tell(record: dict[str, float]) -> None:
            hooks.emit("on_evaluation", record)
            keep_states(context, hooks)
            logger.write(record)

        refresh()
        judge = stack.enter_context(MultiAgentEvaluator(config, newest(), watch))
        logger = evaluator.open_log(context, config, stack)
        last = evaluator.last_evaluation(context)
        turns = evaluator.Turns(context, plan.period, config.num_steps, num_evaluators, last)
        context.heartbeat(evaluations=0)
        hooks.emit("on_start", None)
        context.ready()
        turns.take(evaluate, tell, refresh=refresh, requested=hooks.requested.is_set)
