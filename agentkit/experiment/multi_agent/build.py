"""Makes every part of a run of several agents, as `experiment.local` does of one agent's."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from agentkit import checkpoint
from agentkit.actors.policy import ActorIndex
from agentkit.callbacks import Episode
from agentkit.core import Adder
from agentkit.counting import Counter
from agentkit.datasets import ReplayDataset
from agentkit.envs import given
from agentkit.envs.resumable import episode_seed
from agentkit.envs.step_check import StepCheck
from agentkit.errors import OnNan
from agentkit.experiment.checks.agent_fits import check_table
from agentkit.experiment.checks.step_watch import StepWatch
from agentkit.experiment.config.evaluation_plan import evaluation_plan
from agentkit.experiment.multi_agent import on_device
from agentkit.experiment.multi_agent.assigning.by_episode import (
    PoliciesByEpisode,
    actors_of,
    find_by_episode,
    players_of,
)
from agentkit.experiment.multi_agent.assigning.changing import ChangingActor
from agentkit.experiment.multi_agent.assigning.who_plays import agents_by_policy
from agentkit.experiment.multi_agent.batched_loop import BatchedMultiAgentLoop
from agentkit.experiment.multi_agent.config import MultiAgentConfig
from agentkit.experiment.multi_agent.judging.evaluation import MultiAgentEvaluator
from agentkit.experiment.multi_agent.parts import (
    NoPolicy,
    check_resumed,
    keep_frozen,
    log_learner,
    make_policies,
    short_runs_of,
    tell,
)
from agentkit.experiment.multi_agent.players import AnyPlayer, Player, Trained
from agentkit.experiment.multi_agent.pools import check_pool
from agentkit.experiment.multi_agent.self_play import Seat, SeatAdder, SelfPlay
from agentkit.experiment.multi_agent.work import AnyLoop, Learners, Learning, PlayAndLearn
from agentkit.experiment.on_device.several.acting import keys_of_each
from agentkit.experiment.policies.make_actor import make_tables_with_room
from agentkit.experiment.runs.logs import RunLogs, drop_later_rows
from agentkit.experiment.runs.resume_checks import begin
from agentkit.experiment.training.carrying import drop_others
from agentkit.experiment.training.devices import choose_dispatch
from agentkit.experiment.training.hooks import Hooks
from agentkit.experiment.training.in_turns import check_turns, make_replay_in_turns
from agentkit.experiment.training.own_learner import make_learner
from agentkit.experiment.training.switched_state import as_of_one_process
from agentkit.experiment.training.training_loop import Training
from agentkit.learning import LearnerCallbacks
from agentkit.multi_agent_loop import MultiAgentLoop
from agentkit.replay import Replay
from agentkit.types import AgentId


def build(
    config: MultiAgentConfig,
    stack: contextlib.ExitStack,
    found: checkpoint.Checkpoint | None,
    hooks: Hooks,
    *,
    resume: bool,
) -> Training:
    """Makes every part and takes a checkpoint back; the stack closes what there is to close.

    Args:
        config: what to run.
        stack: see above.
        found: the checkpoint; None for a new run.
        hooks: the callbacks.
        resume: whether the run folder may have a run in it.
    """
    check_resumed(config, found)
    found, (seed, explored) = as_of_one_process(found, config.seed, hooks)
    watch = stack.enter_context(StepWatch(given.name_of(config.environment), config.step_timeout, beside=True))
    environments = open_environments(config, seed, watch, stack)
    agent_specs = environments[0].agent_specs()
    by_policy = agents_by_policy(config, agent_specs)
    trained, players = make_policies(config, agent_specs)
    for each in trained:
        check_turns(check_table(each.agent, each.spec))
    self_play = SelfPlay(config.opponents, config.seed, trained, config.num_envs or 1) if config.opponents else None
    choose_dispatch([each.parts.state for each in trained])
    keep_frozen(config, players)
    lacking = begin(config)
    logs = _open_logs(config, stack, found, resume)
    replays = {each.policy_id: _open_replay(config, each, number, stack, found) for number, each in enumerate(trained)}
    counter = Counter()
    keys = dict(zip(players, keys_of_each(jax.random.PRNGKey(seed), len(players)), strict=True))
    seats = self_play.seats if self_play else {}
    actors = _make_actors(config, by_policy, trained, players, replays, keys, seats, explored)
    for actor in actors.values():
        stack.enter_context(contextlib.closing(actor))
    by_episode = find_by_episode(config, agent_specs, actors)
    loop = make_loop(config, environments, actors, hooks, logs.write_episode, counter, by_episode)
    learning = []
    for each in trained:
        replay, key = replays[each.policy_id], keys[each.policy_id]
        callbacks = _find_callbacks(config, each, replay, loop, by_episode, logs, hooks)
        learning.append(_start_learning(each, replay, key, callbacks, config.on_nan, stack))
    unequal = None
    if found is not None and not (loop.resumable and all(replay.resumable for replay in replays.values())):
        why = "What Reverb holds is not had back to the bit" if loop.resumable else "The environment cannot be saved"
        unequal = f"{why}: a new episode begins, and the run is not equal to another."
    for message in filter(None, (lacking, *tell(by_policy), unequal, *short_runs_of(config, by_policy))):
        logs.message(message)
    evaluator = None
    if evaluation_plan(config).period:
        judged = players_of(config, agent_specs, by_policy, players)
        evaluator = stack.enter_context(MultiAgentEvaluator(config, judged, watch))
    learners: Any = Learners({each.trained.policy_id: each.learner for each in learning})
    work = PlayAndLearn(learning, actors, loop, counter, self_play, by_episode)
    contents = {f"replay-{policy_id}": replay.save for policy_id, replay in replays.items()}
    policies: Any = NoPolicy()
    training = Training(config, work, learners, evaluator, logs, hooks, policies, contents)
    hooks.watch(lambda: loop.num_steps, lambda: learners.num_updates_done)
    if found is not None:
        training.restore(found)
        drop_others(found.path.parents[1], "train")  # Of a launched run, which it was.
    hooks.emit("on_start", environments[0])
    return training


def open_environments(config: MultiAgentConfig, seed: int, watch: StepWatch, stack: contextlib.ExitStack) -> list[Any]:
    """Makes the environments of one process, one or `num_envs`, whose calls are watched; the stack closes them."""
    return [
        stack.enter_context(contextlib.closing(watch.make(functools.partial(config.make_environment, each))))
        for each in config.seeds_of_environments(seed)
    ]


def make_loop(
    config: MultiAgentConfig,
    environments: Sequence[Any],
    actors: Mapping[AgentId, Any],
    hooks: Hooks,
    log: Callable[[dict[str, float]], None],
    counter: Counter | None = None,
    by_episode: PoliciesByEpisode | None = None,
) -> AnyLoop:
    """Makes the loop of one process, which checks each time step.

    Args:
        config: what is run.
        environments: of `open_environments`.
        actors: by agent id, for as many: of the kind that `num_envs` asks for.
        hooks: are told of each episode.
        log: called with its record afterwards.
        counter: of steps and episodes; None for the loop's own.
        by_episode: who has played by which policy, for the record; None where that is so for the whole run.
    """

    def end_episode(record: dict[str, float], number: int = 0) -> None:
        if by_episode is not None:
            record |= by_episode.returns(record, number) | by_episode.steps()
        hooks.emit("on_episode", Episode(environments[number], record, {}))
        log(record)

    agent_specs = environments[0].agent_specs()
    checks = {agent_id: StepCheck(spec, None, config.on_nan) for agent_id, spec in agent_specs.items()}
    count_agents = config.count_steps_by == "agents"
    given: Any = {"counter": counter, "log": end_episode, "checks": checks, "count_agents": count_agents}
    if config.num_envs is None:
        return MultiAgentLoop(environments[0], actors, **given)
    return BatchedMultiAgentLoop(environments, actors, **given)


def check_policies(config: MultiAgentConfig) -> tuple[dict[str, list[AgentId]], list[Trained], dict[str, Player]]:
    """Returns what `agents_by_policy` and `make_policies` do, from a look at the environment.

    Raises:
        SpecError: an agent cannot take what it would see and do.
        ConfigError: nobody plays by a policy, or settings contradict each other.
        StepTimeoutError: the environment hangs while it is made.
    """
    with contextlib.ExitStack() as stack:
        watch = stack.enter_context(StepWatch(given.name_of(config.environment), config.step_timeout, beside=True))
        environment = watch.make(functools.partial(config.make_environment, config.seed))
        agent_specs = stack.enter_context(contextlib.closing(environment)).agent_specs()
    by_policy = agents_by_policy(config, agent_specs)
    trained, players = make_policies(config, agent_specs)
    if config.on_device:
        on_device.check_settings(config)
        on_device.check_trained(config, trained, on_device.find_environment(config))
    if config.opponents:
        check_pool(trained)
    return by_policy, trained, players


def _open_logs(
    config: MultiAgentConfig, stack: contextlib.ExitStack, found: checkpoint.Checkpoint | None, resume: bool
) -> RunLogs:
    if found is not None and found.state.get("launched"):
        drop_later_rows(found.path.parents[1], found.step)
    return RunLogs(config, stack, found, resume)


def _open_replay(
    config: MultiAgentConfig,
    trained: Trained,
    number: int,
    stack: contextlib.ExitStack,
    found: checkpoint.Checkpoint | None,
) -> Replay:
    tables = make_tables_with_room(trained.agent, trained.spec, len(trained.agent_ids) * (config.num_envs or 1))
    seed = config.seed if number == 0 else episode_seed(config.seed, number)
    replay = stack.enter_context(make_replay_in_turns(config.replay, tables, seed))
    if found is not None:
        replay.restore(found.path / f"replay-{trained.policy_id}")
    return replay


def _make_actors(
    config: MultiAgentConfig,
    by_policy: Mapping[str, Sequence[AgentId]],
    trained: list[Trained],
    players: Mapping[str, Player],
    replays: Mapping[str, Replay],
    keys: Mapping[str, jax.Array],
    seats: Mapping[AgentId, Seat],
    explored: int,
) -> dict[AgentId, AnyPlayer | ChangingActor]:
    learning = {each.policy_id: each for each in trained}
    made: dict[AgentId, dict[str, AnyPlayer]] = {}
    for policy_id, agent_ids in by_policy.items():
        _, policy_key = jax.random.split(keys[policy_id])  # The other is the learner's.
        for number, agent_id in enumerate(agent_ids):
            key, own = keys_of_each(policy_key, number + 1)[number], made.setdefault(agent_id, {})
            if policy_id not in learning:
                own[policy_id] = players[policy_id].make_actor(key, config.num_envs)
                continue
            each, seat = learning[policy_id], seats.get(agent_id)
            index = ActorIndex(number, len(agent_ids), explored)
            own[policy_id] = each.make_actor(
                index, key, make_adders(each, replays[policy_id], config.num_envs, seat), seat
            )
    return actors_of(config, made)


def make_adders(trained: Trained, replay: Replay, num_envs: int | None, seat: Seat | None) -> Adder | list[Adder]:
    """Returns the adder of an agent that plays by a policy; of N environments, a list of one for each.

    Args:
        trained: the policy.
        replay: the tables that it writes into.
        num_envs: N; None for one environment, unbatched.
        seat: says where the agent plays by earlier parameters, and records nothing; None for nowhere.
    """
    adders: list[Adder] = [trained.agent.make_adder(replay, trained.spec) for _ in range(num_envs or 1)]
    if seat is not None:
        adders = [SeatAdder(adder, seat, number) for number, adder in enumerate(adders)]
    return adders[0] if num_envs is None else adders


def _find_callbacks(
    config: MultiAgentConfig,
    trained: Trained,
    replay: Replay,
    loop: AnyLoop,
    by_episode: PoliciesByEpisode | None,
    logs: RunLogs,
    hooks: Hooks,
) -> LearnerCallbacks:
    """Returns what a policy's learner calls; each policy has a log of its own."""
    plan = trained.agent.batch_plan

    def count_actions() -> float:
        if by_episode is not None:
            return by_episode.num_actions(trained.policy_id)
        return loop.num_agent_steps * trained.learned_share

    return LearnerCallbacks(
        publisher=trained.store,
        write_priorities=None if plan.num_prior else lambda keys, p: replay.update_priorities(plan.table, keys, p),
        log=log_learner(
            config,
            trained.policy_id,
            logs,
            hooks,
            lambda: (loop.num_steps, loop.num_agent_steps, replay.info(plan.table)),
        ),
        log_seconds=config.log_seconds,
        count_steps=lambda: loop.num_steps,
        steps_per_action=lambda: loop.num_steps / max(count_actions(), 1),
    )


def _start_learning(
    trained: Trained,
    replay: Replay,
    key: jax.Array,
    callbacks: LearnerCallbacks,
    on_nan: OnNan,
    stack: contextlib.ExitStack,
) -> Learning:
    """Makes dataset and learner of a policy, which publishes its first parameters."""
    dataset = stack.enter_context(contextlib.closing(ReplayDataset(replay, trained.agent.batch_plan)))
    learner_key, _ = jax.random.split(key)
    learner = make_learner(trained.parts, dataset, learner_key, callbacks=callbacks, on_nan=on_nan)
    stack.enter_context(contextlib.closing(learner))
    trained.client.update(wait=True)
    return Learning(trained, replay, dataset, learner)
