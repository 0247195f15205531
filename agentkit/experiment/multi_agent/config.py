"""Describes an experiment of several agents as data: which policies, who plays by which, in what environment."""

from __future__ import annotations

import dataclasses
import inspect
import pathlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal, final, get_args

from agentkit.agents.common.agent import Agent
from agentkit.agents.common.ranges import Count, CountFromZero, NotNegative, check_ranges
from agentkit.callbacks import Callback, check_callbacks
from agentkit.callbacks.base import has
from agentkit.datasets.episode_files import lasting_path
from agentkit.envs.multi_agent.loading import make_multi_agent
from agentkit.envs.resumable import episode_seed
from agentkit.errors import AgentkitError, ConfigError, OnNan, SaysWhatWasMeant, unknown_name
from agentkit.experiment.config import callback_record, identity
from agentkit.experiment.config.codes import parse
from agentkit.experiment.config.experiment_config import (
    REPLAYS,
    Seed,
    WhichCheckpoint,
    check_loggers,
    check_setting_names,
)
from agentkit.experiment.config.recipes import check, encode
from agentkit.experiment.policies.pool import Pool
from agentkit.experiment.runs.config_json import damaged, read_record
from agentkit.experiment.runs.record_check import check_record
from agentkit.files import check_path
from agentkit.loggers import Logger, RunInfo
from agentkit.types import AgentId

RANDOM = "random"
"""The policy that draws among the actions that are allowed, uniformly."""

SHARED, EACH = "shared", "each"


@final
@dataclasses.dataclass(frozen=True)
class Frozen(metaclass=SaysWhatWasMeant):
    """Names the policy of another run, or of a file, which plays as it was judged there and learns nothing.

    A run that begins keeps it in its own folder, and goes on against what it has kept.

    Attributes:
        run: the run folder, of one agent or of several; or a policy file (`LoadedPolicy.save`, ``export-policy``).
        policy: which of several; None for the only one.
        checkpoint: "newest", "best" (of a run of one agent), or a step that has one.
        imports: packages outside of agentkit whose functions it may name, see `experiment.read_config`; no run folder
            keeps them.
    """

    run: str | pathlib.Path
    policy: str | None = None
    checkpoint: WhichCheckpoint = "newest"
    imports: Sequence[str] = ()

    def __post_init__(self) -> None:
        """Refuses what is no checkpoint."""
        check_ranges(self)
        object.__setattr__(self, "run", lasting_path("run", self.run))


CountStepsBy = Literal["environment", "agents"]

PolicyOf = str | Mapping[AgentId, str] | Callable[[AgentId], str] | Callable[[AgentId, int], str] | None


@final
@dataclasses.dataclass(frozen=True)
class MultiAgentConfig(metaclass=SaysWhatWasMeant):
    """Describes an experiment of several agents for `agentkit.run` and `agentkit.launch`.

    Fields that are not explained here are those of `ExperimentConfig`; steps are the environment's, or agents', see
    `count_steps_by`.

    Attributes:
        policies: an agent, of which `policy_of` says whether all share it; or by policy id an agent, which learns for
            itself with its own replay and parameters, a `Frozen` one, or "random".
        environment: see `envs.make_multi_agent`.
        num_steps: to train for.
        policy_of: who plays by which policy: "shared" (all by one), "each" (each by one of its own, which has its id),
            a dictionary from agent id to policy id, a function of the agent id, or one of the agent id and the number
            of the episode, from 0: ``policy_of(agent_id, episode)``. None for the policies that have the agents' ids,
            or for the only one.
        opponents: earlier parameters of the policies that learn, to play against; None where all play by the newest.
        num_envs: environments that take their steps together, with one policy call of each agent for all in which it
            acts; None for one, without a batch. Steps are those of all of them.
        on_device: whether environments, policies and updates run in one compiled loop on JAX's device, see
            docs/on_device.md; the environment is one in JAX of several agents.
        count_steps_by: what a step is in `num_steps`, in periods and in logs: one of the "environment", however many
            agents act at it, or an action of one of the "agents".
        replay: of each policy that learns: "in_process" or "reverb"; in launched programs "served" (their default) or
            "reverb".
        seed: see `ExperimentConfig`, as all that follow.
    """

    policies: Agent[Any] | Mapping[str, Agent[Any] | Frozen | str]
    environment: Any
    num_steps: Count
    policy_of: PolicyOf = None
    opponents: Pool | None = None
    num_envs: Count | None = None
    on_device: bool = False
    count_steps_by: CountStepsBy = "environment"
    replay: str = "in_process"
    seed: Seed = 0
    run_directory: str | pathlib.Path | None = None
    evaluation_period: CountFromZero | None = None
    evaluation_episodes: Count | None = None
    evaluation_max_steps: Count | None = None
    checkpoint_period: CountFromZero = 10_000
    keep_checkpoints: Count = 2
    log_seconds: NotNegative = 5.0
    tensorboard: bool = False
    loggers: Sequence[str | Logger | Callable[[RunInfo], Logger]] = ()
    progress: bool | None = None
    on_nan: OnNan = "stop"
    step_timeout: NotNegative = 300.0
    environment_settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    callbacks: Sequence[Callback] = ()

    # What a training asks of an `ExperimentConfig`, and runs of several agents do not have yet.
    workers: ClassVar[int] = 0
    ready: ClassVar[int | None] = None
    devices: ClassVar[int | None] = None
    video_period: ClassVar[int] = 0
    init_from: ClassVar[None] = None
    data: ClassVar[None] = None

    def __post_init__(self) -> None:
        """Refuses impossible settings."""
        check_ranges(self)
        if self.run_directory is not None:
            check_path("run_directory", self.run_directory, "None records nothing.")
        choices = {"on_nan": get_args(OnNan), "count_steps_by": get_args(CountStepsBy), "replay": REPLAYS}
        for name, known in choices.items():
            if getattr(self, name) not in known:
                raise unknown_name(name, str(getattr(self, name)), known)
        if self.evaluation_period is not None and self.evaluation_episodes is None:
            object.__setattr__(self, "evaluation_episodes", 10)
        if not (self.opponents is None or isinstance(self.opponents, Pool)):
            raise ConfigError(
                f"opponents: expected a Pool, such as Pool('uniform'), or None; found {self.opponents!r:.80}."
            )
        check_setting_names(self.environment_settings, own={"seed", "raw"})
        object.__setattr__(self, "environment_settings", dict(self.environment_settings))
        object.__setattr__(self, "loggers", check_loggers(self.loggers))
        object.__setattr__(self, "callbacks", check_callbacks(self.callbacks))
        for callback in self.callbacks:
            _check_callback(callback)
        if not isinstance(self.policies, Agent):
            object.__setattr__(self, "policies", _check_policies(self.policies))
        elif self.policy_of not in (SHARED, EACH):
            raise ConfigError(
                f"policy_of: with one agent as policies, expected 'shared' or 'each', found {self.policy_of!r}. Give "
                "policies={'policy id': agent, ...} for others."
            )
        _check_policy_of(self)

    def make_environment(self, seed: int) -> Any:
        """Makes the environment, ready for agents."""
        return make_multi_agent(self.environment, seed, **self.environment_settings)

    def seeds_of_environments(self, seed: int) -> list[int]:
        """Returns the seed of each environment that an actor process steps."""
        return [seed] if self.num_envs is None else [episode_seed(seed, i) for i in range(self.num_envs)]

    def describe(self) -> dict[str, Any]:
        """Returns the experiment as plain values, for ``config.json``."""
        parts = {"policies", "policy_of", "opponents", "environment", "environment_settings", "loggers", "callbacks"}
        own = parts | {"run_directory"}
        given = {SHARED: self.policies} if isinstance(self.policies, Agent) else self.policies
        return {
            "agent": None,
            "agent_config": {},
            "policies": {policy_id: _describe_policy(policy) for policy_id, policy in given.items()},
            "policy_of": encode(dict(self.policy_of) if isinstance(self.policy_of, Mapping) else self.policy_of),
            "opponents": None if self.opponents is None else dataclasses.asdict(self.opponents),
            **identity.describe_environment(self.environment, self.environment_settings, ()),
            "loggers": identity.describe_loggers(self.loggers),
            **{f.name: encode(getattr(self, f.name)) for f in dataclasses.fields(self) if f.name not in own},
            **{name: getattr(self, name) for name in ("ready", "init_from", "data")},
            "callbacks": callback_record.describe(self.callbacks),
        }


_OF_ONE_AGENT = ("wrap", "on_step", "on_evaluation_episode")


def _check_callback(callback: Callback) -> None:
    """Refuses a callback that sees the stream of one agent, or its policy."""
    seen = [event for event in _OF_ONE_AGENT if has(callback, event)]
    if seen:
        raise ConfigError(
            f"callbacks: {type(callback).__name__} has {seen[0]}, which is of one agent's stream. Those of several "
            "agents have on_start, on_episode, on_learner_log, on_evaluation, on_checkpoint and on_end."
        )


def _check_policies(policies: Any) -> dict[str, Any]:
    if not isinstance(policies, Mapping) or not policies:
        raise ConfigError(f"policies: expected an agent, or agents by policy id, found {policies!r:.80}.")
    for policy_id, policy in policies.items():
        check_word("policy id", policy_id)
        if not (isinstance(policy, Agent | Frozen) or policy == RANDOM):
            raise ConfigError(
                f"policies[{policy_id!r}]: expected an agent (dqn.make_agent()), a Frozen(run), or 'random'; found "
                f"{policy!r:.80}."
            )
    if not any(isinstance(policy, Agent) for policy in policies.values()):
        raise ConfigError("policies: none of them learns. Give at least one agent, such as dqn.make_agent().")
    return dict(policies)


def changes_by_episode(policy_of: Any) -> bool:
    """Returns whether who plays by which policy is a function of agent id and episode.

    One that could do without the episode is, if it calls that so: ``def policy_of(agent_id, episode=0)``.
    """
    try:
        named = "episode" in inspect.signature(policy_of).parameters
    except (TypeError, ValueError):  # It is no function, or one written in C.
        return False
    return _takes(policy_of, "an agent id", 0) and (named or not _takes(policy_of, "an agent id"))


def _takes(function: Any, *arguments: Any) -> bool:
    try:
        inspect.signature(function).bind(*arguments)
    except TypeError:
        return False
    except ValueError:  # Some functions written in C have no signature.
        return True
    return True


def _check_policy_of(config: MultiAgentConfig) -> None:
    """Refuses what is neither words, nor a dictionary, nor a function, and what policies by episode do not go with."""
    given = config.policy_of
    if not changes_by_episode(given):
        if given is None or isinstance(given, str | Mapping) or _takes(given, "an agent id"):
            return
        raise ConfigError(
            "policy_of: expected a dictionary, a function of the agent id, or one of the agent id and the episode's "
            f"number; found {given!r:.80}."
        )
    for name, found, why in (
        ("on_device", config.on_device or None, "The compiled loop has one program for all episodes"),
        ("opponents", config.opponents, "A pool's games are counted by the policy that an agent keeps"),
    ):
        if found is not None:
            raise ConfigError(
                f"policy_of: expected a map for the whole run beside {name}={found!r:.80}; found a function of agent "
                f"id and episode. {why}. Leave {name} out, or take the episode out of the function."
            )


def check_word(what: str, name: Any) -> None:
    """Refuses an id that is no word: files and arrays of a checkpoint are called by it.

    Raises:
        ConfigError: it has other characters.
    """
    if not isinstance(name, str) or not re.fullmatch(r"[\w.-]+", name) or name.startswith("."):
        raise ConfigError(f"{what}: expected letters, digits, '_', '-' and '.', found {name!r}.")


def policies_of(config: MultiAgentConfig, agent_ids: Any) -> dict[str, Agent[Any] | Frozen | str]:
    """Returns the policies by their ids."""
    if isinstance(config.policies, Agent):
        return dict.fromkeys(agent_ids if config.policy_of == EACH else [SHARED], config.policies)
    return dict(config.policies)


def _describe_policy(policy: Agent[Any] | Frozen | str) -> dict[str, Any]:
    if isinstance(policy, Agent):
        return identity.describe_agent(policy.with_num_envs(1), 1)
    return {"frozen": {"run": policy} if isinstance(policy, str) else {
        "run": str(policy.run), "policy": policy.policy, "checkpoint": policy.checkpoint
    }}  # fmt: skip


def is_of_several_agents(run: str | pathlib.Path) -> bool:
    """Returns whether a run folder is of several agents."""
    return "policies" in read_record(run)


def read_multi_agent_config(
    directory: str | pathlib.Path, *, imports: Sequence[str] = (), **changes: Any
) -> MultiAgentConfig:
    """Returns the experiment that a run folder's ``config.json`` describes, made again.

    Args:
        directory: the run folder.
        imports: see `experiment.read_config`.
        **changes: fields to replace.

    Raises:
        ConfigError: no such run, or a part of it cannot be made again, or it is a run of one agent.
        UntrustedCodeError: it names code that is neither loaded nor in `imports`.
    """
    record = read_record(directory)
    if "policies" not in record:
        raise ConfigError(f"{directory} is a run of one agent.")
    return multi_agent_from_record(record, directory, imports=imports, **changes)


def multi_agent_from_record(
    record: Mapping[str, Any], directory: str | pathlib.Path, *, imports: Sequence[str] = (),
    file: str = "config.json", **changes: Any,
) -> MultiAgentConfig:  # fmt: skip
    """Returns the experiment that `MultiAgentConfig.describe` described; see `config_json.experiment_from_record`."""
    names = {field.name for field in dataclasses.fields(MultiAgentConfig)}
    settings = {name: value for name, value in record.items() if name in names}
    try:
        check_record(record)
        policies = {name: _rebuild_policy(policy, directory, imports) for name, policy in record["policies"].items()}
        (policy_of,) = check([parse(record["policy_of"], f"{directory}, policy_of")], imports, directory)
        settings |= {"policy_of": policy_of.build()}
        settings |= {"opponents": Pool(**record["opponents"]) if record.get("opponents") else None}
        if "environment" not in changes:
            checked = identity.check_rebuildable(record, directory, imports, identity.ENVIRONMENT_PARTS)
            settings |= identity.rebuild_environment(record, checked)
        settings["loggers"] = identity.rebuild_loggers(record["loggers"], directory, imports)
    except (TypeError, ValueError, AttributeError, LookupError) as error:
        if isinstance(error, AgentkitError):
            raise
        raise damaged(pathlib.Path(directory) / file, error) from error
    settings.pop("callbacks", None)  # Only a training makes them again.
    only = policies.get(SHARED)
    settings["policies"] = only if isinstance(only, Agent) and settings["policy_of"] in (SHARED, EACH) else policies
    return MultiAgentConfig(**(settings | {"run_directory": directory} | changes))


def read_to_judge(
    directory: str | pathlib.Path,
    *,
    imports: Sequence[str] = (),
    environment_settings: Mapping[str, Any] | None = None,
    **changes: Any,
) -> MultiAgentConfig:
    """Returns a run's experiment, whose policies are to be judged; raises as `read_multi_agent_config`.

    Args:
        directory: the run folder.
        imports: see `experiment.read_config`.
        environment_settings: beside the run's own, or instead of them.
        **changes: other fields to replace.
    """
    config = read_multi_agent_config(directory, imports=imports, **changes)
    settings = {**config.environment_settings, **(environment_settings or {})}
    return dataclasses.replace(config, environment_settings=settings)


def _rebuild_policy(record: Mapping[str, Any], run: object, imports: Sequence[str]) -> Agent[Any] | Frozen | str:
    if "frozen" in record:
        frozen = record["frozen"]
        return RANDOM if frozen["run"] == RANDOM else Frozen(**frozen, imports=tuple(imports))
    checked = identity.check_rebuildable(record, run, imports, identity.AGENT_PARTS)
    rebuilt: Agent[Any] = identity.rebuild_agent(record, checked, run)
    return rebuilt
