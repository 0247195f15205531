"""Makes every part of a run of several agents in one compiled loop, as `on_device.build` does of one agent's."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from typing import Any, final

import jax

from agentkit import checkpoint
from agentkit.agents.common.experience import Segments, Sequences
from agentkit.envs import given
from agentkit.envs.jax.multi_agent_base import JaxMultiAgentEnvironment
from agentkit.envs.jax.step_check import check_steps
from agentkit.envs.jax.turn_base import JaxTurnEnvironment
from agentkit.envs.prefixes import IN_JAX_OF_SEVERAL_AGENTS
from agentkit.experiment.checks.step_watch import StepWatch
from agentkit.experiment.config.evaluation_plan import evaluation_plan
from agentkit.experiment.multi_agent.assigning.who_plays import agents_by_policy, who_plays
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
from agentkit.experiment.multi_agent.players import Player, Trained
from agentkit.experiment.multi_agent.pools import check_pool
from agentkit.experiment.multi_agent.work import Learners
from agentkit.experiment.on_device.build import keys_of
from agentkit.experiment.on_device.checks import (
    STEP_LIMIT,
    check_agent,
    check_callbacks,
    check_last_round,
    check_memory,
    check_precision,
    find_inside,
    needed_experience,
    refuse_changed,
    refused,
)
from agentkit.experiment.on_device.chunks import OneRun
from agentkit.experiment.on_device.loop import DeviceLoop, State
from agentkit.experiment.on_device.segments import segments_of_round
from agentkit.experiment.on_device.several.acting import Party, keys_of_each
from agentkit.experiment.on_device.several.chance import random_policy
from agentkit.experiment.on_device.several.opponents import pools_of
from agentkit.experiment.on_device.several.rounds import SeveralRounds
from agentkit.experiment.on_device.work import ActAndLearnOnDevice
from agentkit.experiment.runs.logs import RunLogs
from agentkit.experiment.runs.resume_checks import begin
from agentkit.experiment.training.hooks import Hooks
from agentkit.experiment.training.training_loop import Training
from agentkit.learning import Learner, LearnerCallbacks
from agentkit.types import AgentId
from agentkit.variables import VariableClient


@final
class DeviceLearners(Learners):
    """Makes one learner of several whose updates a compiled loop makes: `on_device.chunks.DeviceLearner`, by policy id.

    Args:
        learners: by policy id.
    """

    def __init__(self, learners: Mapping[str, Learner]):
        super().__init__(learners)
        self._on_device = dict(learners)

    @property
    def state(self) -> dict[str, Any]:
        """Returns the training states."""
        return {policy_id: learner.state for policy_id, learner in self._on_device.items()}

    @property
    def tally(self) -> dict[str, Any]:
        """Returns what was counted; see `learning.Learner.tally`."""
        return {policy_id: learner.tally for policy_id, learner in self._on_device.items()}

    def take(self, state: Mapping[str, Any], metrics: Mapping[str, Any], tally: Mapping[str, Any]) -> None:
        """Takes over what a chunk has made; see `learning.Learner.take`."""
        for policy_id, learner in self._on_device.items():
            learner.take(state[policy_id], metrics[policy_id], tally[policy_id])


def check_settings(config: MultiAgentConfig) -> None:
    """Refuses settings and callbacks that need the host's loop.

    Args:
        config: with `on_device`.

    Raises:
        ConfigError: names the first, and what to do.
    """
    check_precision()
    if config.replay != "in_process":
        raise refused("replay (--replay)", "experience stays on the device. Leave it out")
    if config.num_steps >= STEP_LIMIT:
        raise refused(f"num_steps={config.num_steps:,}", f"steps are counted below {STEP_LIMIT:,}. Take fewer")
    if config.opponents is not None and config.opponents.period >= STEP_LIMIT:
        raise refused(
            f"Pool(period={config.opponents.period:,})", f"steps are counted below {STEP_LIMIT:,}. Take fewer"
        )
    check_callbacks(config.callbacks)


def check_trained(config: MultiAgentConfig, trained: Sequence[Trained], environment: JaxMultiAgentEnvironment) -> None:
    """Refuses agents that act, learn or keep experience as the compiled loop cannot.

    Args:
        config: see `check_settings`.
        trained: the policies that learn.
        environment: in which they act.

    Raises:
        ConfigError: says why, and what to do.
    """
    for each in trained:
        number, experience = len(each.agent_ids), each.agent.experience
        rows = _rows_of(config, environment, number, config.num_steps)
        check_agent(each.agent, number * (config.num_envs or 1), rows)
        if isinstance(experience, Sequences) and (isinstance(environment, JaxTurnEnvironment) or config.opponents):
            raise refused(
                f"{each.policy_id!r}, which learns from sequences, where agents act in turns or have opponents",
                "it keeps as many rows of each agent in each environment. Take an agent that learns from "
                "transitions (dqn) or segments (ppo, with a core_size where it needs a memory)",
            )
    lengths = _lengths_of_rounds(config, trained)
    if len(set(lengths.values())) > 1:
        found = ", ".join(f"{policy_id}: {length}" for policy_id, length in lengths.items())
        raise refused(
            "policies whose updates have segments of unlike length",
            f"all learn at the end of a round (steps in each environment for an update: {found}). Give them one "
            "segment_length and batch_size for as many agents",
        )


def find_environment(config: MultiAgentConfig) -> JaxMultiAgentEnvironment:
    """Returns the experiment's environment as the compiled loop steps it.

    Raises:
        ConfigError: it is none in JAX, has wrappers around it, or its actions would have to be changed for an agent.
        SpecError: it gives something else than its specs say.
    """
    name = given.name_of(config.environment)
    with contextlib.closing(config.make_environment(config.seed)) as environment:
        found = find_inside(environment, name, JaxMultiAgentEnvironment)
        if found is None:
            own_in_jax = ", ".join(f"'jax:{each}'" for each in IN_JAX_OF_SEVERAL_AGENTS)
            raise refused(
                f"the environment {name}",
                f"it is none of several agents that is written in JAX. Take {own_in_jax}, one of JaxMARL's "
                "('jaxmarl:MPE_simple_spread_v3') or Pgx's ('pgx:connect_four'), or a class of your own, derived from "
                "agentkit.envs.jax.multi_agent_base.JaxMultiAgentEnvironment",
            )
        own, prepared = found.agent_specs(), environment.agent_specs()
    for agent_id, spec in own.items():
        refuse_changed(name, spec, prepared[agent_id], agent_id)
    check_steps(found, name)
    return found


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
        config: with `on_device`, whose settings `check_settings` has seen.
        stack: see above.
        found: the checkpoint; None for a new run.
        hooks: the callbacks.
        resume: whether the run folder may have a run in it.
    """
    check_resumed(config, found)
    watch = stack.enter_context(StepWatch(given.name_of(config.environment), config.step_timeout, beside=True))
    environment = find_environment(config)
    agent_specs = environment.agent_specs()
    plays, by_policy = who_plays(config, agent_specs), agents_by_policy(config, agent_specs)
    trained, players = make_policies(config, agent_specs)
    check_trained(config, trained, environment)
    if config.opponents:
        check_pool(trained)
    already = 0 if found is None else found.step
    loop = DeviceLoop(_make_rounds(config, environment, plays, trained, players, already))
    check_last_round(config.num_steps, loop.rows)
    learner_key, acting_key = keys_of(config.seed)
    memory = check_memory(loop.held(acting_key))
    keep_frozen(config, players)
    lacking = begin(config)
    logs = RunLogs(config, stack, found, resume)
    who = tell(by_policy, "with the environments")
    for message in filter(None, (lacking, *who, memory, *short_runs_of(config, by_policy))):
        logs.message(message)
    each_step = _agent_steps_of(config, 1 if isinstance(environment, JaxTurnEnvironment) else len(plays))
    learners: Any = DeviceLearners(
        {
            each.policy_id: _make_learner(config, each, key, logs, hooks, lambda: work, each_step)
            for each, key in zip(trained, keys_of_each(learner_key, len(trained)), strict=True)
        }
    )
    plans = {each.policy_id: each.agent.batch_plan for each in trained}
    experiment: Any = config
    chunks = OneRun(loop, acting_key)
    work: ActAndLearnOnDevice = ActAndLearnOnDevice(experiment, chunks, learners, logs, plans, each_step, _save_pools)
    evaluator = None
    if evaluation_plan(experiment).period:
        by_agent = {agent_id: players[policy_id] for agent_id, policy_id in plays.items()}
        evaluator = stack.enter_context(MultiAgentEvaluator(config, by_agent, watch))
    policies: Any = NoPolicy()
    training = Training(experiment, work, learners, evaluator, logs, hooks, policies, work.contents)
    hooks.watch(lambda: work.num_steps, lambda: learners.num_updates_done)
    if found is not None:
        work.restore_replay(found.path)
        training.restore(found)
    hooks.emit("on_start", None)
    return training


def _make_rounds(
    config: MultiAgentConfig,
    environment: JaxMultiAgentEnvironment,
    plays: Mapping[AgentId, str],
    trained: Sequence[Trained],
    players: Mapping[str, Player],
    already: int,
) -> SeveralRounds:
    """Makes the rounds of policies that learn, from checkpoints of `already` steps on, and of those that do not."""
    num_envs, learning = config.num_envs or 1, {each.policy_id: each for each in trained}
    longest = max(_lengths_of_rounds(config, trained).values(), default=1)  # The last round goes beyond the target.
    parties = []
    for policy_id, player in players.items():
        agent_ids = [agent_id for agent_id, other in plays.items() if other == policy_id]
        if policy_id not in learning:
            parties.append(_fixed_party(policy_id, agent_ids, player))
            continue
        each, number = learning[policy_id], len(agent_ids)
        policy = each.parts.pure_policy
        assert policy is not None, "check_trained has refused others"
        rows = _rows_of(config, environment, number, max(config.num_steps, already)) + longest * num_envs * number
        experience = needed_experience(each.agent, rows)
        parties.append(
            Party(policy_id, agent_ids, policy, each.parts.update, experience, learned_share=each.learned_share)
        )
    steps_each = 1 if config.count_steps_by == "environment" else len(plays)
    return SeveralRounds(environment, parties, num_envs, steps_each, config.opponents)


def _save_pools(state: State) -> dict[str, Any]:
    """Returns what a checkpoint has for tournaments; a run goes on from what the compiled loop keeps."""
    opponents = state.acting.opponents
    return {} if opponents == () else {"self_play": {"pools": pools_of(opponents)}}


def _fixed_party(policy_id: str, agent_ids: Sequence[AgentId], player: Player) -> Party:
    """Returns the party of a policy that learns nothing; its parameters become numbers of the program."""
    if player.policy is None or player.store is None:
        return Party(policy_id, agent_ids, random_policy(player.spec.actions))
    client = VariableClient(player.store, update_seconds=math.inf)
    client.update(wait=True)
    return Party(policy_id, agent_ids, player.policy.policy, params=client.params)


def _make_learner(
    config: MultiAgentConfig, trained: Trained, key: jax.Array, logs: RunLogs, hooks: Hooks, work: Any, each_step: int
) -> Learner:
    """Makes the learner of a policy, whose updates the compiled loop makes."""
    nothing: Any = iter(())  # The loop brings its own data.
    callbacks = LearnerCallbacks(
        publisher=trained.store,
        log=log_learner(
            config,
            trained.policy_id,
            logs,
            hooks,
            lambda: (work().num_steps, work().num_steps * each_step, work().table(trained.policy_id)),
        ),
        log_seconds=config.log_seconds,
    )
    learner = Learner(trained.parts.compiled_update, nothing, key, callbacks=callbacks, on_nan=config.on_nan)
    trained.client.update(wait=True)
    return learner


def _agent_steps_of(config: MultiAgentConfig, num_agents: int) -> int:
    """Returns the steps of agents that one step is, as the run counts them."""
    return 1 if config.count_steps_by == "agents" else num_agents


def _rows_of(config: MultiAgentConfig, environment: JaxMultiAgentEnvironment, number: int, num_steps: int) -> int:
    """Returns how many rows so many of the agents give in some steps, as the run counts them, at most."""
    is_one_a_step = config.count_steps_by == "agents" or isinstance(environment, JaxTurnEnvironment)
    return num_steps * (1 if is_one_a_step else number)


def _lengths_of_rounds(config: MultiAgentConfig, trained: Sequence[Trained]) -> dict[str, int]:
    """Returns the steps in each environment for an update, of each policy that learns from segments."""
    lengths = {}
    for each in trained:
        if isinstance(experience := each.agent.experience, Segments):
            segments = segments_of_round(experience, len(each.agent_ids) * (config.num_envs or 1))
            lengths[each.policy_id] = segments * experience.segment_length
    return lengths
