"""Runs an experiment of several agents as a program.

Each policy that learns has a replay and a learner, which are those of one agent; each actor plays all agents.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any

from agentkit.checkpoint import Checkpoint
from agentkit.counting import count_of
from agentkit.distributed import Program, RestartPolicy
from agentkit.envs import given
from agentkit.envs.resumable import episode_seed
from agentkit.errors import CheckpointError, ConfigError
from agentkit.experiment.config.experiment_config import ExperimentConfig
from agentkit.experiment.launching.nodes.inference import inference_role
from agentkit.experiment.launching.nodes.learner import learner_node
from agentkit.experiment.launching.nodes.multi_agent import multi_agent_actor_node, multi_agent_evaluator_node
from agentkit.experiment.launching.nodes.multi_agent_inference import multi_agent_inference_node
from agentkit.experiment.launching.nodes.opponents import opponents_node, opponents_role
from agentkit.experiment.launching.nodes.replay import replay_node
from agentkit.experiment.launching.program import LaunchConfig, allow_steps, make_roles, number_of_evaluators
from agentkit.experiment.multi_agent.config import MultiAgentConfig, changes_by_episode
from agentkit.experiment.multi_agent.parts import check_same_policies, keep_frozen
from agentkit.experiment.multi_agent.players import Player, Trained
from agentkit.experiment.runs.config_json import check_run_directory, read_record, write_config
from agentkit.experiment.runs.learner_folders import newest_of_each
from agentkit.experiment.runs.logs import drop_later_rows
from agentkit.experiment.runs.resume_checks import ResumeError, check_code, check_command, check_same_as, check_total
from agentkit.experiment.training.carrying import drop_others


def make_multi_agent_program(config: MultiAgentConfig, launch: LaunchConfig, trained: list[Trained]) -> Program:
    """Builds the program: for each policy replay <- learner, and actors and evaluators that play by all of them.

    Where opponents come from pools, a node keeps these. Inference nodes, where there are any, act by all policies that
    learn.

    Args:
        config: what to run.
        launch: how many processes of which kind.
        trained: the policies that learn.
    """
    program = Program(f"{count_of(len(trained), 'policy', 'policies')} on {given.name_of(config.environment)}")
    roles = make_roles(launch.num_actors, launch.learner_gpus, config.replay)
    if launch.num_inference:
        roles.append(inference_role(launch.num_actors, launch.num_inference))
    if config.opponents is not None:
        roles.append(opponents_role())
    for role in roles:
        if role.name in ("actor", "evaluator"):
            role = allow_steps(role, config.step_timeout)
        program.add_role(dataclasses.replace(role, restart=RestartPolicy(max_restarts=launch.max_restarts)))
    replays, learners = {}, {}
    for number, each in enumerate(trained):
        experiment, name, listen = _of_policy(config, each, number), each.policy_id, launch.listen
        replays[name] = replay = program.add_node(
            "replay", replay_node, experiment, each.spec, listen=listen, learner_id=name
        )
        learners[name] = program.add_node(
            "learner", learner_node, experiment, each.spec, replay,
            listen=listen, learner_id=name, learned_share=each.learned_share,
        )  # fmt: skip
    opponents, age = None, launch.max_parameter_age_seconds
    if config.opponents is not None:
        opponents = program.add_node("opponents", opponents_node, config, learners, listen=launch.listen)
    inference = [
        program.add_node(
            "inference", multi_agent_inference_node, config, learners,
            listen=launch.listen, max_parameter_age_seconds=age,
        )
        for _ in range(launch.num_inference)
    ]  # fmt: skip
    for _ in range(launch.num_actors):
        program.add_node(
            "actor", multi_agent_actor_node, config, replays, learners, opponents,
            max_parameter_age_seconds=age, inference=inference,
        )  # fmt: skip
    for _ in range(number_of_evaluators(config, launch)):
        program.add_node(
            "evaluator", multi_agent_evaluator_node, config, learners, num_evaluators=launch.num_evaluators
        )
    return program


def _of_policy(config: MultiAgentConfig, trained: Trained, number: int) -> ExperimentConfig:
    """Returns what replay and learner of one policy are to do, as an experiment of one agent."""
    # Not the next seeds, which are those of other runs: their learners would begin and draw alike.
    seed = config.seed if number == 0 else episode_seed(config.seed, number)
    return ExperimentConfig(
        trained.agent, _seen_by_actors, config.num_steps, num_envs=len(trained.agent_ids) * (config.num_envs or 1),
        seed=seed, run_directory=config.run_directory, replay=config.replay, progress=False,
        checkpoint_period=config.checkpoint_period, keep_checkpoints=config.keep_checkpoints, on_nan=config.on_nan,
        log_seconds=config.log_seconds, tensorboard=config.tensorboard, loggers=config.loggers,
        callbacks=config.callbacks, evaluation_period=config.evaluation_period,  # Which callbacks may ask for.
        evaluation_episodes=config.evaluation_episodes,
    )  # fmt: skip


def _seen_by_actors() -> Any:
    """Stands for the environment in an experiment of one policy: replay and learner see none."""
    raise ConfigError("The environment of several agents is made by actors and evaluators alone.")


def prepare_multi_agent(
    config: MultiAgentConfig,
    launch: LaunchConfig,
    resume: bool,
    trained: list[Trained],
    players: Mapping[str, Player],
) -> Mapping[str, Any] | None:
    """Looks at the run folder before anything is started; returns the state to go on from, if any.

    Args:
        config: what to run.
        launch: how.
        resume: whether to go on with the run in the folder.
        trained: the policies that learn.
        players: of all policies, by id; frozen ones are kept in the run folder.

    Raises:
        ResumeError: the run is another experiment's, or one in one process, or a policy has no checkpoint.
        ConfigError: a pool of opponents or policies by episode with inference nodes; or as `check_run_directory`.
    """
    if launch.num_inference and config.opponents is not None:
        raise ConfigError(
            "num_inference (--inference): an inference node acts by the newest parameters alone, and opponents from a "
            "pool play by earlier ones. Leave out one of the two: num_inference or opponents (--opponents)."
        )
    if launch.num_inference and changes_by_episode(config.policy_of):
        raise ConfigError(
            "num_inference (--inference): an inference node is asked for the agents of a policy, which change by "
            "episode here. Leave out num_inference, or take the episode out of policy_of."
        )
    directory = check_run_directory(config, resume)
    if directory is None:
        return None
    found = _find_saved(config, directory, trained) if resume else {}
    check_code(config, directory)
    keep_frozen(config, players)
    write_config(config, directory, launch=dataclasses.asdict(launch))
    if not found:
        drop_later_rows(directory, 0)
        return None
    drop_others(directory, "launch")  # Of a run in one process, which it was.
    newest = max(found.values(), key=lambda each: each.step)
    drop_later_rows(directory, newest.step)  # Also of nodes that this program has no more.
    return newest.state


def _find_saved(config: MultiAgentConfig, directory: pathlib.Path, trained: list[Trained]) -> dict[str, Checkpoint]:
    """Returns the newest checkpoint of each policy, or none where the run has saved nothing yet."""
    record = read_record(directory)
    try:
        check_command("launch", directory)
        check_same_policies(config, record, directory)
        check_same_as(record, config, f"The run {directory}")
        found = newest_of_each(directory, [each.policy_id for each in trained])
        for each in found.values():
            check_total(config, each)
        return found
    except CheckpointError as error:
        raise ResumeError(str(error)) from error
