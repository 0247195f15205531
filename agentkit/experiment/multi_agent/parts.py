"""What runs of several agents share on the host, on the device and launched: policies, logs, what may be resumed."""

from __future__ import annotations

import dataclasses
import pathlib
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

from agentkit import checkpoint
from agentkit.agents.common.agent import Agent
from agentkit.errors import CheckpointError, ConfigError
from agentkit.experiment.checks.short_runs import acts_at_random, learns_nothing
from agentkit.experiment.config.identity import difference
from agentkit.experiment.multi_agent.assigning.who_plays import agents_by_policy
from agentkit.experiment.multi_agent.config import SHARED, Frozen, MultiAgentConfig, policies_of
from agentkit.experiment.multi_agent.loading import find_kept, load_player
from agentkit.experiment.multi_agent.players import Player, Trained, make_trained
from agentkit.experiment.runs.learner_folders import frozen_file
from agentkit.experiment.runs.logs import RunLogs, learner_row
from agentkit.experiment.runs.resume_checks import began_as
from agentkit.experiment.training.devices import describe_devices
from agentkit.experiment.training.hooks import Hooks
from agentkit.files import refusing_unwritable
from agentkit.specs import EnvironmentSpec
from agentkit.types import AgentId, TableInfo


@final
@dataclasses.dataclass(frozen=True)
class NoPolicy:
    """Stands for the policy of a run that has several."""

    counts: tuple[int | None, int | None] = (None, None)

    @property
    def newest(self) -> Any:
        """Refuses to choose one.

        Raises:
            ConfigError: always.
        """
        raise ConfigError(
            "A run of several agents has no single policy. Take one from its folder with agentkit.load(run, "
            "policy=...), or play it with agentkit.evaluate_multi_agent."
        )

    best = newest


def make_policies(
    config: MultiAgentConfig, agent_specs: Mapping[AgentId, EnvironmentSpec]
) -> tuple[list[Trained], dict[str, Player]]:
    """Returns the policies that learn, and of all policies those to be judged by, by id.

    Raises:
        SpecError: an agent cannot take what it would see and do.
        ConfigError: settings contradict each other, or there is no such run to play by the policy of; or as
            `agents_by_policy`.
    """
    by_policy = agents_by_policy(config, agent_specs)
    trained: list[Trained] = []
    players: dict[str, Player] = {}
    for policy_id, policy in policies_of(config, agent_specs).items():
        spec = agent_specs[by_policy[policy_id][0]]
        if isinstance(policy, Agent):
            trained.append(make_trained(config, policy_id, policy, by_policy, spec))
            players[policy_id] = trained[-1].as_player()
        else:
            players[policy_id] = load_player(find_kept(config.run_directory, policy_id, policy), spec)
    return trained, players


def keep_frozen(config: MultiAgentConfig, players: Mapping[str, Player]) -> None:
    """Writes the `Frozen` policies into the run folder, so that it is played against the same however it goes on.

    The runs that they are of may learn more, lose checkpoints, move or be deleted. Call it before ``config.json`` is
    written. Warns of a run that has begun without, such as one of an earlier version.

    Args:
        config: what is run.
        players: of all policies, by id, as they were read for this run.

    Raises:
        ConfigError: the folder cannot be written.
    """
    run = config.run_directory
    if run is None or not isinstance(config.policies, Mapping):
        return
    for policy_id, policy in config.policies.items():
        loaded = players[policy_id].loaded
        if not isinstance(policy, Frozen) or loaded is None or find_kept(run, policy_id, policy) is not policy:
            continue
        kept = frozen_file(run, policy_id)
        with refusing_unwritable(kept):
            try:
                loaded.save(kept)
            except ConfigError as error:  # No file can hold it, such as an own learner's.
                warnings.warn(
                    f"policies[{policy_id!r}] cannot be kept in the run folder, and is what {policy.run} has at each "
                    f"start: {error}",
                    stacklevel=2,
                )
                kept.unlink(missing_ok=True)  # Of a run that was begun here before.
                continue
        if (pathlib.Path(run) / "config.json").is_file():
            warnings.warn(
                f"policies[{policy_id!r}]: {run} had not kept this policy when it began. It goes on against what "
                f"{policy.run} has now, which is kept from here on.",
                stacklevel=2,
            )


def log_learner(
    config: MultiAgentConfig,
    policy_id: str,
    logs: RunLogs,
    hooks: Hooks,
    counts: Callable[[], tuple[int, int, TableInfo]],
) -> Callable[[dict[str, float]], None]:
    """Returns what writes a learner's rows; each policy has a log of its own, but for one that all agents share.

    Args:
        config: what is run.
        policy_id: that it learns.
        logs: of the run.
        hooks: see the rows, too.
        counts: returns the steps so far as the run counts them, those of agents, and the policy's table.
    """
    only = isinstance(config.policies, Agent) and config.policy_of == SHARED
    label = f"learner-{policy_id}"
    if not only:
        logs.learners[label] = logs.log(label)

    def write(row: dict[str, float]) -> None:
        own = logs.learner if only else logs.learners[label]  # Looked up late: `agentkit.iterate` replaces them.
        num_steps, num_agent_steps, table = counts()
        hooks.log_learner(own, {**learner_row(row, num_steps, table), "agent_steps": num_agent_steps})

    return write


def tell(by_policy: Mapping[str, Sequence[AgentId]], where: str = "") -> list[str]:
    """Returns lines for the user: the device, with what else runs on it, and who plays by which policy."""
    said = "; ".join(f"{policy_id}: {', '.join(agent_ids)}" for policy_id, agent_ids in by_policy.items())
    device = f"Device: {describe_devices(None)}"
    return [f"{device}, {where}; the first chunk is compiled, for a while." if where else device, f"Policies: {said}"]


def short_runs_of(
    config: MultiAgentConfig, by_policy: Mapping[str, Sequence[AgentId]], num_actors: int = 1
) -> list[str]:
    """Returns lines on the policies that learn nothing in so few steps, or act at random in all; see `short_runs`.

    Agents that act in turns, or play by it in some episodes, have fewer steps than are counted here, so that it is said
    of none that learns.

    Args:
        config: that is to be run.
        by_policy: the ids of the agents that play by each policy.
        num_actors: actor processes that share the steps.
    """
    lines: list[str] = []
    for policy_id, policy in policies_of(config, by_policy).items():
        if isinstance(policy, Agent):
            number = len(by_policy[policy_id])
            agent = policy.with_num_envs(number * (config.num_envs or 1))
            total = config.num_steps * (1 if config.count_steps_by == "agents" else number)
            steps = f"{config.num_steps:,} steps, at most {total:,} of its {number} agents" if number > 1 else ""
            actors = 1 if config.on_device else number * num_actors  # The compiled loop acts for all as one.
            said = [*learns_nothing(agent, total, steps), *acts_at_random(agent, total, actors, steps)]
            lines += [f"policies[{policy_id!r}]: {line}" for line in said]
    return lines


def check_resumed(config: MultiAgentConfig, found: checkpoint.Checkpoint | None) -> None:
    """Refuses to go on with other policies than the saved ones.

    Args:
        config: to go on with.
        found: the checkpoint; None for a run that has none yet, or is new.

    Raises:
        CheckpointError: says what differs.
    """
    if (began := began_as(config, found)) is not None:
        check_same_policies(config, began[0], config.run_directory if found is None else found.path)


def check_same_policies(config: MultiAgentConfig, saved: Mapping[str, Any], where: object) -> None:
    """Refuses to go on with other policies, or another map to them, than the saved ones.

    Args:
        config: to go on with.
        saved: what `MultiAgentConfig.describe` returned then.
        where: it is saved.

    Raises:
        CheckpointError: it names what differs.
    """
    now = config.describe()
    told = f"Resume {where} with what it was saved with, or start a new run."
    if saved.get("policies", {}).keys() != now["policies"].keys():
        raise CheckpointError(
            f"policies: saved {sorted(saved.get('policies', {}))}, found {sorted(now['policies'])}. {told}"
        )
    without = {"policy_of": None, "opponents": None, "num_envs": None, "count_steps_by": "environment"}
    for name, default in without.items():  # Of older runs, which have no such entry.
        if (before := saved.get(name, default)) != now[name]:
            raise CheckpointError(f"{name}: saved {before}, found {now[name]}. {told}")
    for policy_id, one in saved["policies"].items():
        other = now["policies"][policy_id]
        frozen = one.get("frozen"), other.get("frozen")
        differs = ("frozen", *frozen) if any(frozen) else difference(one, other)
        if differs is not None and differs[1] != differs[2]:
            raise CheckpointError(
                f"policies[{policy_id!r}]: saved {differs[0]}={differs[1]}, found {differs[2]}. {told}"
            )
