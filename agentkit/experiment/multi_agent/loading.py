"""Loads policies to play by: of runs of one agent or of several, and of policy files."""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import jax

from agentkit import nests
from agentkit.actors import CompiledPolicy
from agentkit.actors.policy import Policy
from agentkit.agents.common.agent import Agent
from agentkit.agents.common.ranges import check_bool
from agentkit.checkpoint import Checkpoint, read_latest, steps
from agentkit.envs.multi_agent.base import TurnEnvironment
from agentkit.envs.multi_agent.loading import make_multi_agent
from agentkit.errors import CheckpointError, ConfigError, SpecError, says_what_was_meant, unknown_name
from agentkit.experiment.config import identity
from agentkit.experiment.config.experiment_config import ExperimentConfig
from agentkit.experiment.multi_agent.assigning.who_plays import agents_by_policy
from agentkit.experiment.multi_agent.config import (
    Frozen,
    MultiAgentConfig,
    is_of_several_agents,
    policies_of,
    read_multi_agent_config,
)
from agentkit.experiment.multi_agent.players import Player, no_own_actor, player_of
from agentkit.experiment.policies.agent_parts import AgentParts, make_parts
from agentkit.experiment.policies.loaded_policy import LoadedPolicy, Origin
from agentkit.experiment.policies.loading import is_policy_file, load_one_agent
from agentkit.experiment.policies.policy_file import PolicyFile
from agentkit.experiment.policies.restore_policy import (
    check_fits,
    find_checkpoint,
    parse_step,
    placeholders,
    steps_explored,
)
from agentkit.experiment.runs.config_json import learner_parts
from agentkit.experiment.runs.learner_folders import (
    all_learners,
    frozen_file,
    is_launched,
    learner_folder,
    learner_folders,
    pools_folder,
)
from agentkit.specs import EnvironmentSpec
from agentkit.types import AgentId, Nest
from agentkit.variables import VariableClient, VariableStore


class Saved(NamedTuple):
    """Holds a policy that a run has trained, as a checkpoint has it.

    Attributes:
        agent_ids: of those who play by it.
        agent: for as many environments as there are of them.
        spec: of each of them.
        parts: of the agent.
        store: has the parameters.
    """

    agent_ids: list[AgentId]
    agent: Agent[Any]
    spec: EnvironmentSpec
    parts: AgentParts
    store: VariableStore

    def as_player(self, params: Nest | None = None) -> Player:
        """Returns the policy to be judged by; with other parameters where some are given."""
        store = self.store
        if params is not None:
            store = VariableStore()
            store.publish(0, {"policy": params})
        return player_of(self.agent, self.parts.networks, self.spec, store)


def read_saved(
    config: MultiAgentConfig,
    found: Checkpoint,
    agent_specs: Mapping[AgentId, EnvironmentSpec],
    wanted: Collection[str] | None = None,
) -> dict[str, Saved]:
    """Returns the policies that a run of several agents has trained, by id.

    Args:
        config: the run's.
        found: a checkpoint of it.
        agent_specs: of its environment.
        wanted: ids of policies, to read no others; None for all.

    Raises:
        ConfigError: a policy has a learner of its own.
        CheckpointError: the checkpoint is of other policies.
    """
    by_policy = agents_by_policy(config, agent_specs)
    saved = {}
    for policy_id, policy in policies_of(config, agent_specs).items():
        if not isinstance(policy, Agent) or (wanted is not None and policy_id not in wanted):
            continue
        if policy_id not in found.state["learner"]:
            raise CheckpointError(f"{found.path} has no policy {policy_id!r}; it is of another experiment.")
        agent_ids = by_policy[policy_id]
        agent, spec = policy.with_num_envs(len(agent_ids)), agent_specs[agent_ids[0]]
        parts, store = make_parts(agent, spec), VariableStore()
        learner = found.state["learner"][policy_id]
        if agent.make_learner is not None:
            raise ConfigError(f"{policy_id!r} has a learner of its own, whose policy cannot be read from a folder yet.")
        state = nests.restore_from_paths(placeholders(parts.state), learner["state"], f"The learner of {policy_id!r}")
        store.publish(int(learner["num_updates"]), parts.compiled_update.variables(state))
        saved[policy_id] = Saved(agent_ids, agent, spec, parts, store)
    return saved


def find_policies(run: str | pathlib.Path, which: str | int) -> Checkpoint:
    """Returns a checkpoint of a run of several agents; of a launched one, what its learners have saved, as one.

    Learners of a launched run save in the same periods, and not at the same steps. The step is that of the oldest. Its
    pools of opponents are those of now.

    Args:
        run: the run folder.
        which: "newest", or a step; of a launched run each learner's newest up to it.

    Raises:
        ConfigError: there is none of that step, or of a launched run up to it; or it is "best".
        CheckpointError: there is none that can be read.
    """
    if which == "best":
        raise ConfigError(
            f"The run {run} is of several agents, which keeps no best policies: its checkpoints hold all policies. "
            "Take the newest, or the step of another one."
        )
    if not is_launched(run):
        return find_checkpoint(run, which)
    found = {folder.name: _find_up_to(folder, which) for folder in learner_folders(run)}
    if not found:
        raise CheckpointError(f"The run {run} has no checkpoint yet. Train it for longer.")
    oldest = min(found.values(), key=lambda each: each.step)
    learners = {policy_id: each.state["learner"] for policy_id, each in found.items()}
    state: dict[str, Any] = {"learner": learners, "launched": True, "explored": oldest.state.get("explored", {})}
    if (pools := read_latest(pools_folder(run))) is not None:
        state["self_play"] = pools.state
    return Checkpoint(oldest.step, all_learners(run), state)


def _find_up_to(folder: pathlib.Path, which: str | int) -> Checkpoint:
    if which != "newest":
        newest = parse_step(which)
        which = max((step for step in steps(folder / "checkpoints") if step <= newest), default=newest)
    return find_checkpoint(folder, which)


def specs_of(config: MultiAgentConfig) -> dict[AgentId, EnvironmentSpec]:
    """Returns the specs of an experiment's agents, by id; the environment is made for it."""
    with contextlib.closing(config.make_environment(config.seed)) as environment:
        return dict(environment.agent_specs())


def load_players(
    config: MultiAgentConfig,
    run: Any,
    checkpoint: str | int = "newest",
    agent_ids: Collection[AgentId] | None = None,
) -> dict[str, Player]:
    """Returns the policies of a run of several agents, by id.

    Args:
        config: the run's.
        run: its folder.
        checkpoint: "newest", or a step.
        agent_ids: of those who are to play by them; None for all. Policies of none of these are not looked for.

    Raises:
        ConfigError: there is no such checkpoint.
        CheckpointError: there is none that can be read, or it is of other policies.
    """
    found, agent_specs = find_policies(run, checkpoint), specs_of(config)
    by_policy = {
        policy_id: own
        for policy_id, own in agents_by_policy(config, agent_specs).items()
        if agent_ids is None or not set(agent_ids).isdisjoint(own)
    }
    saved = read_saved(config, found, agent_specs, by_policy)
    players = {policy_id: each.as_player() for policy_id, each in saved.items()}
    policies = policies_of(config, agent_specs)
    for policy_id, own in by_policy.items():
        if not isinstance(policy := policies[policy_id], Agent):
            players[policy_id] = load_player(find_kept(run, policy_id, policy), agent_specs[own[0]])
    return players


def find_kept(run: Any, policy_id: str, policy: Frozen | str) -> Frozen | str:
    """Returns where to read a policy that learns nothing: the file that a run has kept, or what its config names.

    Args:
        run: the run folder; None for none.
        policy_id: the policy's.
        policy: as the config has it. Runs of earlier versions have kept no file.
    """
    if isinstance(policy, str) or run is None or not (pathlib.Path(run) / "config.json").is_file():
        return policy  # A file in a folder without a run is of another one, that was there before.
    kept = frozen_file(run, policy_id)
    return Frozen(kept, imports=policy.imports) if kept.is_file() else policy


def load_player(frozen: Frozen | str, spec: EnvironmentSpec, imports: Sequence[str] = ()) -> Player:
    """Returns a policy that learns nothing here.

    Args:
        frozen: of another run, or of a policy file; or "random".
        spec: of the agents that are to play by it.
        imports: see `experiment.read_config`; those of `frozen` count, too.

    Raises:
        ConfigError: there is no such run, checkpoint or policy.
        CheckpointError: it has no readable checkpoint.
        SpecError: it was trained for others than these.
        UntrustedCodeError: it names code that is neither loaded nor in `imports`.
    """
    loaded = None if isinstance(frozen, str) else _load_frozen(frozen, (*frozen.imports, *imports))
    if isinstance(frozen, str) or loaded is None:
        return Player(spec)
    if not isinstance(loaded.acting, Policy):
        raise no_own_actor(f"The policy of {frozen.run}")
    check_fits(spec, loaded.environment_spec.observations, loaded.environment_spec.actions)
    store = VariableStore()
    store.publish(0, {"policy": jax.device_put(loaded.arrays)})
    return Player(loaded.environment_spec, CompiledPolicy(loaded.acting), store, loaded)


def load_opponent(
    agent_id: AgentId, frozen: Frozen | str, spec: EnvironmentSpec, imports: Sequence[str] = ()
) -> Player:
    """Returns what `load_player` does, for an agent that a user has chosen another policy for.

    Raises:
        ConfigError: as `load_player`, and for a policy that was trained for others than this agent.
        CheckpointError: as `load_player`.
        UntrustedCodeError: as `load_player`.
    """
    try:
        return load_player(frozen, spec, imports)
    except SpecError as error:
        run = frozen if isinstance(frozen, str) else frozen.run
        raise ConfigError(f"{run} cannot play as {agent_id!r}. {error}") from error


def _load_frozen(frozen: Frozen, imports: Sequence[str], since: tuple[Frozen, ...] = ()) -> LoadedPolicy | None:
    """Returns the policy that is named, and none of those beside it; None for a run's policy that is chance.

    Args:
        frozen: what names it.
        imports: packages whose code the runs may name.
        since: the frozen policies that led here, each in the run of the one before.
    """
    run, checkpoint = frozen.run, frozen.checkpoint
    if frozen in since:
        raise ConfigError(
            f"{run}: policy {frozen.policy!r} is a frozen one, which comes from this run again. Name a run that has "
            "trained it."
        )
    if is_policy_file(run) or not is_of_several_agents(run):
        if frozen.policy is not None:
            what = "a policy file, which has one policy" if is_policy_file(run) else "a run of one agent"
            raise ConfigError(f"{run} is {what}; leave out policy={frozen.policy!r}.")
        return load_one_agent(run, checkpoint=checkpoint, imports=imports)
    config = read_multi_agent_config(run, imports=imports)
    policies = policies_of(config, specs_of(config))
    wanted = _choose_policy(run, frozen.policy, policies)
    if isinstance(policy := policies[wanted], Agent):
        return _load_trained(config, run, wanted, checkpoint)
    kept = find_kept(run, wanted, policy)
    return None if isinstance(kept, str) else _load_frozen(kept, imports, (*since, frozen))


def _choose_policy(run: Any, policy: str | None, known: Collection[str]) -> str:
    if policy is None and len(known) > 1:
        raise ConfigError(f"{run} has the policies {', '.join(known)}: say which, policy=... (--policy ID).")
    wanted = next(iter(known)) if policy is None else policy
    if wanted not in known:
        raise unknown_name(f"policy of {run}", wanted, known)
    return wanted


@says_what_was_meant
def load(
    path: str | pathlib.Path | ExperimentConfig, *, policy: str | None = None, checkpoint: str | int = "newest",
    explore: bool = False, seed: int = 0, imports: Sequence[str] = (), **changes: Any,
) -> LoadedPolicy:  # fmt: skip
    """Returns the policy of a run's newest checkpoint or of another one, or of a policy file.

    Args:
        path: a run folder, or the experiment of one agent that was run in one; what `LoadedPolicy.save` or `push`
            wrote, file or folder; or ``hf:owner/name`` on the Hugging Face hub.
        policy: of a run of several agents, the policy's id, and of several learners, the learner's; None for the only
            one that learned.
        checkpoint: of a run folder: "newest", "best" (see `callbacks.keep_best`), or a step that has one.
        explore: whether to act as in training; else as in evaluation.
        seed: of what is sampled.
        imports: packages outside of agentkit whose functions the folder may name; see `read_config`.
        **changes: `agent`, and for a run folder `environment`, where they cannot be made again from the folder.

    Raises:
        ConfigError: neither a run folder nor a policy file, or one whose agent cannot be made again; or there is no
            such checkpoint, or there are several policies and none is named.
        CheckpointError: the run has no readable checkpoint.
        UnknownNameError: the run has trained no such policy.
        UntrustedCodeError: it names code that is neither loaded nor in `imports`.
    """
    check_bool("explore", explore)
    given: dict[str, Any] = {"checkpoint": checkpoint, "explore": explore, "seed": seed, "imports": imports, **changes}
    if (
        isinstance(path, str | pathlib.Path)
        and (pathlib.Path(path) / "config.json").is_file()
        and is_of_several_agents(path)
    ):
        return load_multi_agent(path, policy, **given)
    if isinstance(path, str | pathlib.Path) and (parts := learner_parts(path)):
        learner_id = _choose_policy(path, policy, [part.name for part in parts])
        return load_one_agent(learner_folder(path, learner_id), **given)
    if policy is not None:
        raise ConfigError(f"policy: {path} is no run of several agents; leave out {policy!r}.")
    return load_one_agent(path, **given)


@says_what_was_meant
def load_multi_agent(
    run: str | pathlib.Path,
    policy: str | None = None,
    *,
    checkpoint: str | int = "newest",
    explore: bool = False,
    seed: int = 0,
    imports: Sequence[str] = (),
    **changes: Any,
) -> LoadedPolicy:
    """Returns a policy that a run of several agents has trained, to act with or to save as a file.

    `agentkit.load` does the same, and loads whatever else there is.

    Args:
        run: the run folder.
        policy: its id; None for the only one.
        checkpoint: "newest", or a step.
        explore: whether to act as in training; else as in evaluation.
        seed: of what is sampled.
        imports: see `experiment.read_config`.
        **changes: fields of `MultiAgentConfig` that cannot be made again from the folder, such as `environment`.

    Raises:
        ConfigError: no such run or checkpoint, or it has several policies and none is named.
        UnknownNameError: it has trained no such policy.
    """
    config = read_multi_agent_config(run, imports=imports, **changes)
    return _load_trained(config, run, policy, checkpoint, explore, seed)


def _load_trained(
    config: MultiAgentConfig,
    run: Any,
    policy: str | None,
    checkpoint: str | int,
    explore: bool = False,
    seed: int = 0,
) -> LoadedPolicy:
    """Returns what `load_multi_agent` does, of a run whose experiment is at hand."""
    found, agent_specs = find_policies(run, checkpoint), specs_of(config)
    learned = [name for name, one in policies_of(config, agent_specs).items() if isinstance(one, Agent)]
    wanted = _choose_policy(run, policy, learned)
    agent_ids, agent, spec, parts, store = read_saved(config, found, agent_specs, [wanted])[wanted]
    made = make_multi_agent(config.environment, config.seed, raw=True, **config.environment_settings)
    with contextlib.closing(made) as environment:
        own_actions = environment.agent_specs()[agent_ids[0]].actions
        in_turns = isinstance(environment, TurnEnvironment)
    explored = steps_explored(found.state, found.step)
    if config.on_device and (in_turns or config.count_steps_by == "agents"):
        explored //= len(agent_specs)  # The run's steps are there those of all agents.
    file = PolicyFile(identity.describe_agent(agent.with_num_envs(1), 1), spec, own_actions, explored)
    acting = agent.make_policy(parts.networks, evaluation=not explore)
    client = VariableClient(store)
    return LoadedPolicy(agent, acting, client.params, file, seed, explore, Origin(None, (found.step, client.version)))


def agents_of(run: str | pathlib.Path, policy: str | None = None, imports: Sequence[str] = ()) -> list[AgentId]:
    """Returns the ids of the agents that play by a policy which a run of several agents has trained.

    Args:
        run: the run folder.
        policy: its id; None for the only one.
        imports: see `experiment.read_config`.

    Raises:
        ConfigError: it has several policies and none is named.
        UnknownNameError: it has trained no such policy.
    """
    config = read_multi_agent_config(run, imports=imports)
    agent_specs = specs_of(config)
    learned = [name for name, one in policies_of(config, agent_specs).items() if isinstance(one, Agent)]
    wanted = _choose_policy(run, policy, learned)
    return agents_by_policy(config, agent_specs)[wanted]
