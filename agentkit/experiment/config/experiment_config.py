"""Describes an experiment as data: which agent in which environment, for how long, and what to record."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Annotated, Any, get_args

import numpy as np

from agentkit import envs
from agentkit.agents import registry
from agentkit.agents.common.agent import Agent, check_is_agent
from agentkit.agents.common.ranges import Count, CountFromZero, NotNegative, Range, check_ranges, whole
from agentkit.callbacks import Callback, check_callbacks
from agentkit.datasets.episode_files import lasting_path
from agentkit.envs import given
from agentkit.envs.columns import ColumnSource, check_columns
from agentkit.envs.prefixes import registered
from agentkit.envs.workers import check_workers
from agentkit.errors import ConfigError, OnNan, SaysWhatWasMeant, unknown_name
from agentkit.experiment.config import callback_record, identity
from agentkit.experiment.config.recipes import encode
from agentkit.files import check_path
from agentkit.loggers import Logger, RunInfo
from agentkit.replay import Replay, Table
from agentkit.wrappers.base import (
    check_no_statistics,
    check_order,
    check_statistics,
    observes_rewards,
    without_training_only,
)

REPLAYS = ("in_process", "reverb", "served")
LOGGERS = ("csv", "jsonl", "mlflow", "tensorboard", "wandb")
"""Loggers by name; "csv" is always there."""
Seed = Annotated[int, whole("a whole number in [0, 2**31)", lambda value: 0 <= value < 2**31)]
WhichCheckpoint = Annotated[
    str | int,
    Range(
        "'newest', 'best' or a step",
        lambda which: which in ("newest", "best") if isinstance(which, str) else type(which) is int and which >= 0,
    ),
]


@dataclasses.dataclass(frozen=True)
class ExperimentConfig(metaclass=SaysWhatWasMeant):
    """Describes an experiment for `agentkit.run`.

    Attributes:
        agent: e.g. ``agents.registry.make("sac")`` or ``dqn.make_agent(dqn.Config(...))``.
        environment: a name for `agentkit.envs.make`; or a class, or a function ``(seed, **environment_settings)`` or
            without a seed, that makes an environment of gymnasium's or dm_env's kind, or a vector environment of
            gymnasium's; or an instance, which is copied.
        num_steps: environment steps to train for; a resumed run goes on until this many in all.
        seed: every random choice follows from it.
        replay: "in_process" or "reverb"; for launched programs "served" or "reverb", see `agentkit.launch`; or a
            function ``tables -> Replay``, which in a launched program makes an `InProcessReplay` that is served.
        run_directory: where logs and checkpoints go; None records nothing.
        num_envs: environments stepped together by one batched actor; None for one, unbatched, or for as many as a
            vector environment has that is handed in.
        workers: processes that the environments of an actor are shared out to; 0 steps them in its own, one after the
            other. The run is the same, bit for bit.
        ready: of environments in workers, or of EnvPool's, how many are acted for at a time, whichever are ready first;
            None for all together. Which are ready depends on the machine: such a run cannot be repeated.
        evaluation_period: steps between evaluations; 0 for none at all; None for a tenth of `num_steps`.
        evaluation_episodes: episodes of each evaluation; None for 10. Where both are None, there are fewer episodes and
            evaluations if they are long: together they take about a tenth of the steps. See
            `experiment.config.evaluation_plan`.
        evaluation_max_steps: after which an evaluation's episode is cut off; None for `num_steps`, but 1,000 at least
            and 100,000 at most.
        checkpoint_period: steps between checkpoints; 0 saves at the end only.
        keep_checkpoints: how many of the newest checkpoints stay.
        log_seconds: seconds between rows of the learner's log.
        tensorboard: the same as "tensorboard" among the `loggers`.
        loggers: besides CSV, by name ("jsonl", "mlflow", "tensorboard", "wandb") or of your own: a `loggers.Logger`,
            or a function that makes one of a `loggers.RunInfo`. See docs/logging.md.
        progress: show a live progress line; None shows one on a terminal and in a notebook.
        step_timeout: seconds after which an environment that has not returned from a step or reset is an error; 0 for
            any time.
        environment_settings: arguments of the environment by name, such as ``{"render_mode": "rgb_array"}``.
        wrappers: functions ``environment -> environment``, applied in this order to each single environment.
        callbacks: called at the run's events, see `agentkit.callbacks`.
        on_nan: what to do about a reward, observation, loss, priority or parameter that is NaN or infinite: "stop"
            ends the run before its last checkpoint is replaced, "warn" goes on.
        video_period: steps between films of the policy, ``videos/step-N.mp4`` in the run folder; 0 for none. They need
            the extra ``video`` and an environment that draws, and change none of the training's bits. Of runs in one
            process.
        columns: what to store beside each step, in the batches' extras: entries of gymnasium's info ("info.success", or
            with its value where it is absent, "info.success=False"), and the ids "episode", "environment" and "t". See
            docs/composing.md.
        evaluation_samples: whether evaluations act as in training, by samples of a stochastic policy and with
            exploration, and not by the policy to be judged by, which takes the mode.
        devices: JAX devices of the learner's process that share each batch, and with `on_device` the environments or
            the seeds; None for one, JAX's default device.
        init_from: folder of another run of the agent, whose training state this one begins with; None for a new one.
        init_checkpoint: which checkpoint of that run: "newest", "best" (see `callbacks.keep_best`), or a step.
        data: a file or folder for `datasets.read_episodes` that replay begins with; None for an empty replay. Of runs
            in one process.
        on_device: whether environments, policy and updates run in one compiled loop on JAX's device. The environment
            is one in JAX (``jax:cartpole``, or your own); see docs/on_device.md. Of runs in one process.
    """

    agent: Agent
    environment: Any
    num_steps: Count
    seed: Seed = 0
    replay: str | Callable[[Sequence[Table]], Replay] = "in_process"
    run_directory: str | pathlib.Path | None = None
    num_envs: Count | None = None
    workers: CountFromZero = 0
    ready: Count | None = None
    evaluation_period: CountFromZero | None = None
    evaluation_episodes: Count | None = None
    checkpoint_period: CountFromZero = 10_000
    keep_checkpoints: Count = 2
    log_seconds: NotNegative = 5.0
    tensorboard: bool = False
    loggers: Sequence[str | Logger | Callable[[RunInfo], Logger]] = ()
    progress: bool | None = None
    on_nan: OnNan = "stop"
    devices: Count | None = None
    step_timeout: NotNegative = 300.0
    environment_settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    wrappers: Sequence[Callable[[Any], Any]] = ()
    callbacks: Sequence[Callback] = ()
    video_period: CountFromZero = 0
    columns: Sequence[str] = ()
    evaluation_samples: bool = False
    init_from: str | pathlib.Path | None = None
    init_checkpoint: WhichCheckpoint = "newest"
    data: str | pathlib.Path | None = None
    evaluation_max_steps: Count | None = None
    on_device: bool = False

    def __post_init__(self) -> None:
        """Refuses impossible settings."""
        refuse_wrong_order(self.agent, self.environment)
        check_is_agent(self.agent)
        check_ranges(self)
        if self.run_directory is not None:
            check_path("run_directory", self.run_directory, "None records nothing.")
        if self.init_from is None and self.init_checkpoint != "newest":
            raise ConfigError(
                f"init_checkpoint={self.init_checkpoint!r} is of the run in init_from, found none. Give init_from, or "
                "leave init_checkpoint out."
            )
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, np.integer):  # Which is no JSON.
                object.__setattr__(self, field.name, int(value))
        if not callable(self.replay) and self.replay not in REPLAYS:
            raise unknown_name("replay", str(self.replay), (*REPLAYS, "a function of tables"))
        if self.on_nan not in get_args(OnNan):
            raise unknown_name("on_nan", str(self.on_nan), get_args(OnNan))
        given.check(self.environment, self.environment_settings)
        check_environment_settings(self)
        if (self.workers or self.ready is not None) and not self.on_device:  # Which goes with neither.
            check_workers(self.environment, self.num_envs, self.workers, self.ready)
        if self.evaluation_period is not None and self.evaluation_episodes is None:
            object.__setattr__(self, "evaluation_episodes", 10)
        object.__setattr__(self, "environment_settings", dict(self.environment_settings))
        object.__setattr__(self, "wrappers", tuple(self.wrappers))
        object.__setattr__(self, "columns", check_columns(self.columns))
        object.__setattr__(self, "callbacks", check_callbacks(self.callbacks))
        object.__setattr__(self, "loggers", check_loggers(self.loggers))
        object.__setattr__(self, "agent", self.agent.with_num_envs(self.num_envs or 1))
        for name in ("init_from", "data"):
            path = getattr(self, name)
            object.__setattr__(self, name, None if path is None else lasting_path(name, path))
        self._check_devices()

    def _check_devices(self) -> None:
        """Refuses a batch that the devices cannot share; on the device they share environments, or seeds."""
        if self.devices is None or self.on_device:
            return
        batch_size = self.agent.batch_plan.batch_size
        if self.devices < 1 or batch_size % self.devices:
            raise ConfigError(
                f"devices must be None, or at least 1 and divide the agent's batches of {batch_size} items, found "
                f"{self.devices}."
            )

    def __getstate__(self) -> dict[str, Any]:
        """Takes what `envs.register` was given along: another process would not know the environment's prefix."""
        factory = registered(self.environment) if isinstance(self.environment, str) else None
        return {"fields": dict(vars(self)), "factory": factory}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restores the state that `__getstate__` returned."""
        vars(self).update(state["fields"])
        if state["factory"] is not None and registered(str(self.environment)) is None:
            envs.register(str(self.environment).partition(":")[0], state["factory"])

    def make_environment(self, seed: int, num_envs: int | None = None, *, evaluation: bool = False) -> Any:
        """Makes the environment, or `num_envs` of them batched, ready for an agent.

        Args:
            seed: of the environment.
            num_envs: None for one, or for all of a vector environment that is handed in; an evaluation's is its first.
            evaluation: whether its returns are to be judged by: then it is without what is for training only, such as
                `RewardScale` and the clipped rewards of ``atari:``.

        Raises:
            ConfigError: it has wrappers inside that would show others observations than training showed.
        """
        wrappers = without_training_only(self.wrappers) if evaluation else self._training_wrappers()
        if isinstance(self.environment, str):
            settings: dict[str, Any] = {"wrappers": wrappers, "evaluation": evaluation, **self.environment_settings}
            return _checked(envs.make(self.environment, seed=seed, num_envs=num_envs, **settings))
        shared = self.evaluation_period != 0 or self.num_envs is not None
        made = given.make(
            self.environment, seed, self.environment_settings, wrappers=wrappers, num_envs=num_envs, shared=shared,
            single=evaluation and num_envs is None,
        )  # fmt: skip
        return _checked(made)

    def for_batch(self, environment: Any) -> ExperimentConfig:
        """Returns the experiment with the `num_envs` of its environment, where it was handed in and is a batch."""
        found: int | None = getattr(environment, "num_envs", None)
        if isinstance(self.environment, str) or found in (None, self.num_envs):
            return self
        return dataclasses.replace(self, num_envs=found)

    def make_training_environment(self, seed: int) -> Any:
        """Makes what an actor acts in: one environment or a batch of `num_envs`, in `workers` where that is asked."""
        if not self.workers and self.ready is None:
            return self.make_environment(seed, self.num_envs)
        settings: dict[str, Any] = dict(self.environment_settings)
        return envs.make(
            self.environment, seed, num_envs=self.num_envs, workers=self.workers, ready=self.ready,
            wrappers=self._training_wrappers(), **settings,
        )  # fmt: skip

    def _training_wrappers(self) -> Sequence[Callable[[Any], Any]]:
        """Returns the wrappers around each environment that is trained in; the innermost knows the columns."""
        if not self.columns:
            return self.wrappers
        return (functools.partial(ColumnSource, columns=self.columns), *self.wrappers)

    def describe(self) -> dict[str, Any]:
        """Returns the experiment as plain values (numbers, strings, lists, dicts), for ``config.json``."""
        elsewhere = (
            "agent", "environment", "environment_settings", "wrappers", "callbacks", "loggers", "run_directory"
        )  # fmt: skip
        return {
            **identity.describe_agent(self.agent, self.num_envs or 1),
            **identity.describe_environment(self.environment, self.environment_settings, self.wrappers),
            "loggers": identity.describe_loggers(self.loggers),
            **{
                field.name: encode(getattr(self, field.name))
                for field in dataclasses.fields(self)
                if field.name not in elsewhere
            },
            "callbacks": callback_record.describe(self.callbacks),
        }


def refuse_wrong_order(agent: Any, environment: Any) -> None:
    """Refuses an environment in the agent's place and an agent in the environment's.

    Raises:
        ConfigError: it says which comes first.
    """
    names = registry.names()

    def is_agent(value: Any) -> bool:
        return isinstance(value, Agent) or (isinstance(value, str) and value in names)

    if is_agent(environment) and not is_agent(agent):
        raise ConfigError(
            f"The agent comes first and the environment second; found the environment {given.name_of(agent)} first. "
            "Change their order."
        )


def _checked(environment: Any) -> Any:
    """Returns the environment, whose function may have put wrappers around it; closes one that is refused."""
    try:
        check_statistics(environment)
    except ConfigError:
        environment.close()
        raise
    return environment


_OWN_NAMES = frozenset({"seed", "num_envs", "workers", "ready", "wrappers", "raw", "evaluation"})
"""Arguments of `envs.make` that are no environment's."""


def check_setting_names(settings: Any, own: Set[str] = _OWN_NAMES) -> None:
    """Refuses what is no mapping of an environment's arguments by name.

    Args:
        settings: that were given.
        own: the names that are agentkit's; as they are here, where the environment is of one agent.

    Raises:
        ConfigError: saying so, or that a name is the seed's or agentkit's.
    """
    if not isinstance(settings, Mapping) or not all(isinstance(name, str) for name in settings):
        raise ConfigError(f"environment_settings: expected a mapping of arguments by name, found {settings!r}.")
    if taken := own & settings.keys():
        raise ConfigError(f"environment_settings: {sorted(taken)} are agentkit's own; leave them out.")


def check_environment_settings(config: Any) -> None:
    """Refuses arguments and wrappers that are of no use to an environment.

    Raises:
        ConfigError: `environment_settings` is no mapping of names, or has a name that is the seed's or agentkit's; or
            evaluations would have other observations.
    """
    settings, wrappers = config.environment_settings, config.wrappers
    check_setting_names(settings)
    if isinstance(wrappers, str) or not isinstance(wrappers, Sequence) or not all(map(callable, wrappers)):
        raise ConfigError(
            f"wrappers: expected functions environment -> environment, found {wrappers!r}. Write a list of them, "
            "such as [functools.partial(agentkit.wrappers.FrameStack, num_frames=4)]; names are for the command line."
        )
    check_order(wrappers)
    check_no_statistics(wrappers)
    name = config.environment
    is_atari = isinstance(name, str) and name.startswith("atari:") and registered(name) is None
    if is_atari and observes_rewards(wrappers) and settings.get("clip_reward", True):
        raise ConfigError(
            "wrappers: atari: clips rewards in training, inside of all wrappers, and observation_action_reward would "
            "show them to the agent, so that evaluations would have other observations. Give "
            "--env-set clip_reward=False and --wrapper clip_reward after --wrapper observation_action_reward; in "
            "Python environment_settings={'clip_reward': False} and ClipReward after ObservationActionReward."
        )


def check_loggers(found: Any) -> tuple[Any, ...]:
    """Returns the loggers that a config was given, as a tuple.

    Raises:
        ConfigError: one is neither a name, nor a `Logger`, nor a function of one argument; or they are no list.
        UnknownNameError: there is no logger of that name.
    """
    if not isinstance(found, Iterable | Logger) and not callable(found):
        raise ConfigError(f"loggers: expected a list, found {found!r:.80}. () is for CSV alone.")
    given = (found,) if isinstance(found, str | Logger) or callable(found) else tuple(found)
    for logger in given:
        if isinstance(logger, str):
            if logger not in LOGGERS:
                raise unknown_name("logger", logger, LOGGERS, "Or give a Logger of your own.")
        elif not isinstance(logger, Logger | identity.MissingLogger) and not _takes_one(logger):
            raise ConfigError(
                f"loggers: expected names ({', '.join(LOGGERS)}), Logger objects, or functions RunInfo -> "
                f"Logger, found {logger!r}."
            )
    return given


def _takes_one(make: Any) -> bool:
    try:
        inspect.signature(make).bind(None)
    except (TypeError, ValueError):
        return False
    return True
