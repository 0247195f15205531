"""Train from data alone: batches come out of a file of episodes, and nobody acts but to evaluate."""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast, final

import jax

from agentkit import checkpoint
from agentkit.agents.common.agent import Agent
from agentkit.agents.common.experience_wrappers import unwrapped
from agentkit.agents.common.ranges import Count, CountFromZero, NotNegative, check_ranges
from agentkit.callbacks import Callback
from agentkit.datasets.episode_files import EpisodeData, lasting_path, read_episodes
from agentkit.datasets.episodes import (
    Episode,
    add_episode,
    as_episodes,
    check_episode,
    find_reward_scale,
    fit_episodes,
    infer_spec,
    scale_rewards,
)
from agentkit.datasets.offline import ItemStore, TransitionsDataset
from agentkit.datasets.training_wrappers import as_in_training
from agentkit.errors import CheckpointError, ConfigError, OnNan, SaysWhatWasMeant, says_what_was_meant
from agentkit.experiment.checks.own_boxes import check_own_boxes
from agentkit.experiment.checks.user_tracebacks import shorten
from agentkit.experiment.config import callback_record
from agentkit.experiment.config.evaluation_plan import evaluation_plan
from agentkit.experiment.config.experiment_config import ExperimentConfig, Seed, WhichCheckpoint
from agentkit.experiment.evaluation.evaluate import Evaluator
from agentkit.experiment.policies.agent_parts import make_parts
from agentkit.experiment.policies.loading import Policies
from agentkit.experiment.policies.policy_file import encode_spec
from agentkit.experiment.policies.restore_policy import own_actions
from agentkit.experiment.policies.result import Result
from agentkit.experiment.runs.config_json import (
    check_run_directory,
    experiment_from_record,
    read_record,
    with_whole_path,
)
from agentkit.experiment.runs.lock import run_lock
from agentkit.experiment.runs.loggers import check_installed
from agentkit.experiment.runs.logs import RunLogs, learner_row
from agentkit.experiment.runs.resume_checks import ResumeError, begin, check_command, check_same, command_of
from agentkit.experiment.training.devices import (
    FirstDevicePublisher,
    choose_dispatch,
    describe_devices,
    learner_devices,
)
from agentkit.experiment.training.hooks import Hooks, with_callbacks
from agentkit.experiment.training.initial_state import InitialState, find_initial_state
from agentkit.experiment.training.own_learner import OwnLearner, make_learner
from agentkit.experiment.training.prior_data import warn_of_demonstrations, warn_of_own_bounds
from agentkit.experiment.training.signals import StopOnSignal
from agentkit.experiment.training.training_loop import Training
from agentkit.learning import Learner, LearnerCallbacks
from agentkit.loggers import Logger, RunInfo
from agentkit.replay import Uniform
from agentkit.specs import EnvironmentSpec, make_environment_spec
from agentkit.types import TableInfo
from agentkit.variables import VariableClient, VariableStore
from agentkit.wrappers.reward_scale import find_scale

if TYPE_CHECKING:
    from agentkit.replay import Replay


@dataclasses.dataclass(frozen=True)
class OfflineConfig(metaclass=SaysWhatWasMeant):
    """Describes an experiment for `agentkit.run_offline`.

    Attributes:
        agent: one that learns from transitions, e.g. ``agents.registry.make("iql")``.
        dataset: a file or folder for `datasets.read_episodes`, or episodes with the agent's own actions.
        num_updates: gradient updates; a resumed run goes on until this many in all.
        environment: to evaluate in, as in `ExperimentConfig`; it also says what observations and actions are.
            None evaluates never, and specs are inferred from the data.
        seed: every random choice follows from it.
        run_directory: where logs and checkpoints go; None records nothing.
        evaluation_period: updates between evaluations, as in `ExperimentConfig`.
        evaluation_episodes: episodes of each evaluation, as in `ExperimentConfig`.
        evaluation_max_steps: as in `ExperimentConfig`.
        checkpoint_period: updates between checkpoints; 0 saves at the end only.
        keep_checkpoints: as in `ExperimentConfig`.
        log_seconds: seconds between rows of the learner's log.
        tensorboard: as in `ExperimentConfig`.
        loggers: as in `ExperimentConfig`.
        progress: as in `ExperimentConfig`.
        environment_settings: arguments of the environment by name, as in `ExperimentConfig`.
        wrappers: around the environment, as in `ExperimentConfig`; those for training only change the data's rewards
            and ends instead, and are refused where they cannot.
        devices: as in `ExperimentConfig`.
        on_nan: as in `ExperimentConfig`.
        callbacks: as in `ExperimentConfig`.
        init_from: as in `ExperimentConfig`.
        init_checkpoint: as in `ExperimentConfig`.
    """

    agent: Agent
    dataset: str | pathlib.Path | Sequence[Episode]
    num_updates: Count
    environment: Any = None
    seed: Seed = 0
    run_directory: str | pathlib.Path | None = None
    evaluation_period: CountFromZero | None = None
    evaluation_episodes: Count | None = None
    checkpoint_period: CountFromZero = 10_000
    keep_checkpoints: Count = 2
    log_seconds: NotNegative = 5.0
    tensorboard: bool = False
    loggers: Sequence[str | Logger | Callable[[RunInfo], Logger]] = ()
    progress: bool | None = None
    devices: Count | None = None
    environment_settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    wrappers: Sequence[Callable[[Any], Any]] = ()
    on_nan: OnNan = "stop"
    callbacks: Sequence[Callback] = ()
    init_from: str | pathlib.Path | None = None
    init_checkpoint: WhichCheckpoint = "newest"
    evaluation_max_steps: Count | None = None

    def __post_init__(self) -> None:
        """Refuses impossible settings."""
        check_ranges(self)
        self.as_experiment()  # Which refuses the rest.

    def as_experiment(self) -> ExperimentConfig:
        """Returns the same for evaluation and logging: its steps are updates."""
        own = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        del own["dataset"], own["num_updates"]
        if self.environment is None:
            own |= {"environment": _no_environment, "evaluation_period": 0}
        return ExperimentConfig(num_steps=self.num_updates, **own)


def _no_environment(seed: int) -> Any:
    raise ConfigError(f"This run has no environment (asked for with seed {seed}). Give OfflineConfig one.")


@says_what_was_meant
def run_offline(config: OfflineConfig, *, resume: bool = False, callbacks: Iterable[Callback] = ()) -> Result:
    """Trains until `config.num_updates` updates were made; evaluates, logs and saves on the way.

    In logs, checkpoints and the result, steps are updates. Updates come in calls of the agent's `updates_per_call`;
    the last one is made whole. SIGINT (Ctrl-C), SIGTERM or SIGHUP stops after the current call and saves.

    Args:
        config: what to run.
        resume: go on from the newest checkpoint in the run folder, or from the start if there is none.
        callbacks: as of `agentkit.run`; nobody acts, so none is told of steps or training episodes.

    Raises:
        ConfigError: the data cannot be read, or the agent does not learn from transitions drawn uniformly; or the
            run folder has a run in it already and `resume` is False, or there is none, or another training runs there.
        SpecError: the data do not fit the environment, or the agent does not.
        ResumeError: a `CheckpointError`: no checkpoint can be read, or it is another run's, or of other data.
        MissingExtraError: the data are in HDF5 and h5py is not installed.
        Exception: what a callback has raised, after a checkpoint.
    """
    try:
        with started_offline(with_callbacks(config, callbacks), resume) as (training, stop):
            return training.train(stop)
    except Exception as error:
        raise shorten(error)  # noqa: B904 (the same error)


@contextlib.contextmanager
def started_offline(config: OfflineConfig, resume: bool) -> Iterator[tuple[Training, StopOnSignal]]:
    """Makes every part of a run, as `run_offline` does, and closes them in the end."""
    given, config = config, with_whole_path(config)
    experiment = config.as_experiment()
    hooks = Hooks(experiment)
    devices = learner_devices(config.devices)
    check_run_directory(given.as_experiment(), resume)
    check_installed(experiment)
    with contextlib.ExitStack() as stack:
        stack.enter_context(run_lock(config.run_directory))
        try:
            training = _build(config, stack, hooks, resume, devices)
        except CheckpointError as error:
            raise ResumeError(str(error)) from error
        with StopOnSignal(hooks.requested) as stop:
            yield training, stop


@says_what_was_meant
def resume_offline(
    run_directory: str | pathlib.Path, *, callbacks: Iterable[Callback] | None = None, **changes: Any
) -> Result:
    """Resumes the run in a folder.

    Args:
        run_directory: the folder.
        callbacks: instead of the run's own, which are made again where this is None.
        **changes: see `read_offline_config`, e.g. ``num_updates=200_000``.
    """
    config = read_offline_config(run_directory, **changes)
    if callbacks is None:
        callbacks = callback_record.rebuild(read_record(run_directory), run_directory, changes.get("imports", ()))
    return run_offline(config, resume=True, callbacks=callbacks)


def read_offline_config(
    run_directory: str | pathlib.Path, *, imports: Sequence[str] = (), **changes: Any
) -> OfflineConfig:
    """Returns the `OfflineConfig` that a run folder's ``config.json`` describes, made again.

    Args:
        run_directory: the run folder.
        imports: packages outside of agentkit whose functions the folder may name; see `read_config`.
        **changes: fields to replace.

    Raises:
        ConfigError: no such run; or its data were in no file, or a part of it was a lambda, a closure or of
            ``__main__``: such a run is resumed by the code that made it, with ``run_offline(config, resume=True)``.
        UntrustedCodeError: it names code that is neither loaded nor in `imports`.
    """
    record = read_record(run_directory)
    offline = record.get("offline")
    if offline is None:
        raise ConfigError(
            f"The run {run_directory} is none from data alone. Use agentkit {command_of(record)} --resume."
        )
    if offline["dataset"] is None and "dataset" not in changes:
        raise ConfigError(
            f"The run {run_directory} was made with data of your own code, which config.json cannot rebuild. Call "
            "agentkit.run_offline(config, resume=True) from that code."
        )
    parts = {name: changes[name] for name in ("agent", "environment") if name in changes}
    if not offline["evaluates"] and parts.get("environment") is None:
        parts["environment"] = _no_environment
    plain = experiment_from_record(record, run_directory, imports=imports, **parts)
    names = {field.name for field in dataclasses.fields(OfflineConfig)} & vars(plain).keys()
    settings = {name: getattr(plain, name) for name in names} | {
        "environment": None if plain.environment is _no_environment else plain.environment,
        "dataset": offline["dataset"],
        "num_updates": plain.num_steps,
    }
    return OfflineConfig(**(settings | changes))


def load_dataset(config: OfflineConfig, spec: EnvironmentSpec, data: EpisodeData) -> tuple[TransitionsDataset, float]:
    """Loads the transitions that the agent's own adder makes of episodes, as batches.

    Wrappers for training only change the episodes as they would change the environment's. IQL's rewards are then
    scaled, as its weights are made for.

    Returns:
        The batches, and by how much rewards were multiplied.

    Raises:
        ConfigError: the agent learns from something else, or draws by priority; or a wrapper cannot be applied.
        SpecError: an episode does not fit `spec`.
    """
    agent = config.agent
    (table, *others) = agent.make_tables(spec)
    if others or not isinstance(table.sampler, Uniform):
        raise ConfigError(
            f"Data are drawn uniformly from one table; the agent asks for {[table.sampler, *others]}. Use an agent "
            "that learns from transitions, with prioritized=False."
        )
    store = ItemStore(table)
    adder = agent.make_adder(cast("Replay", store), spec)  # All that an adder asks of a replay is a writer.
    episodes = as_in_training(fit_episodes(data.episodes, spec, data.actions), spec, config.wrappers)
    scale = find_reward_scale(episodes) if getattr(unwrapped(agent.experience), "scale_rewards", False) else 1.0
    for episode in scale_rewards(episodes, scale):
        add_episode(adder, episode)
    adder.close()
    return TransitionsDataset(store, agent.batch_plan, config.seed), scale * (find_scale(config.wrappers) or 1.0)


def _read(config: OfflineConfig) -> EpisodeData:
    if isinstance(config.dataset, str | pathlib.Path):
        return read_episodes(config.dataset)
    episodes = as_episodes(config.dataset, "dataset")
    for number, episode in enumerate(episodes):
        check_episode(episode, f"episode {number}")
    return EpisodeData(episodes, None)


def _make_spec(experiment: ExperimentConfig, config: OfflineConfig, data: EpisodeData) -> EnvironmentSpec:
    if config.environment is None:
        return infer_spec(data.episodes, data.actions)
    with contextlib.closing(experiment.make_environment(config.seed)) as environment:
        is_file = isinstance(config.dataset, str | pathlib.Path)
        own = own_actions(environment)
        warn_of_own_bounds(data, own, str(config.dataset) if is_file else "the program")
        warn_of_demonstrations(config.agent, own)
        return make_environment_spec(environment)


@final
@dataclasses.dataclass
class LearnFromData:
    """Learns, and nobody acts: the work of a run from data alone, whose steps are updates.

    Attributes:
        dataset: the learner's batches.
        learner: updates.
        reward_scale: by how much the data's rewards were multiplied.
    """

    dataset: TransitionsDataset
    learner: Learner | OwnLearner
    reward_scale: float = 1.0

    @property
    def num_steps(self) -> int:
        """Returns the updates so far."""
        return self.learner.num_updates_done

    @property
    def num_episodes(self) -> None:
        """Returns None: nobody acts."""

    def step(self) -> None:
        """Makes the updates of one call of the learner."""
        self.learner.step()

    def table(self) -> TableInfo:
        """Returns the data as a table that was filled at the start: samples per insert are passes over the data."""
        size = len(self.dataset)
        return TableInfo("data", size, size, size, self.dataset.num_sampled)

    def save(self) -> dict[str, Any]:
        """Returns the state of the drawing; not the data."""
        return {"offline": True, "dataset": self.dataset.save(), "reward_scale": self.reward_scale}

    def restore(self, state: dict[str, Any]) -> None:
        """Restores the state that `save` returned."""
        self.dataset.restore(state["dataset"])


def _build(
    config: OfflineConfig, stack: contextlib.ExitStack, hooks: Hooks, resume: bool, devices: list[jax.Device] | None
) -> Training:
    """Makes every part, and takes a checkpoint back."""
    experiment, agent = config.as_experiment(), config.agent
    directory = check_run_directory(experiment, resume)
    if resume and directory is not None:
        check_command("offline", directory)
    data = _read(config)
    is_file = isinstance(config.dataset, str | pathlib.Path)
    path = lasting_path("dataset", config.dataset) if is_file and directory is not None else None
    spec = _make_spec(experiment, config, data)
    dataset, reward_scale = load_dataset(config, spec, data)
    parts = make_parts(agent, spec)
    check_own_boxes(experiment)
    if agent.make_learner is None:
        parts.make_update()
    found = checkpoint.read_latest(directory / "checkpoints") if resume and directory is not None else None
    if resume:
        check_same(experiment, found)
    if found is not None:
        dataset.check_same_data(found.state["dataset"])  # Before config.json names these.
    initial = InitialState(experiment) if found is not None else find_initial_state(experiment, parts)
    experiment = initial.experiment
    record: dict[str, Any] = {"dataset": path, "evaluates": config.environment is not None}
    if config.environment is None:
        record["specs"] = encode_spec(spec)  # Nobody else can say what the policy observes.
    choose_dispatch(parts.state)
    lacking = begin(experiment, record)
    logs = RunLogs(experiment, stack, found, resume, unit="update")
    for message in filter(None, (f"Device: {describe_devices(config.devices)}", lacking, initial.message)):
        logs.message(message)
    store = VariableStore()
    callbacks = LearnerCallbacks(
        publisher=store if devices is None else FirstDevicePublisher(store),
        log=lambda row: hooks.log_learner(logs.learner, learner_row(row, learner.num_updates_done, work.table())),
        log_seconds=config.log_seconds,
        count_steps=lambda: work.num_steps,
    )
    # The same key as of `agentkit.run`: before the first update, the same parameters.
    key, _ = jax.random.split(jax.random.PRNGKey(config.seed))
    learner = make_learner(
        parts, dataset, key, callbacks=callbacks, devices=devices, on_nan=config.on_nan, training=initial.training
    )
    stack.enter_context(contextlib.closing(learner))
    work = LearnFromData(dataset, learner, reward_scale)
    evaluator = None
    if evaluation_plan(experiment).period:
        observers = hooks.evaluation_observers()
        evaluator = stack.enter_context(Evaluator(experiment, parts.networks, store, observers=observers))
    policies = Policies(experiment, spec, parts.networks, store, acts=config.environment is not None)
    training = Training(experiment, work, learner, evaluator, logs, hooks, policies, unit="update")
    hooks.watch(lambda: work.num_steps, lambda: learner.num_updates_done, lambda: VariableClient(store).params)
    if found is not None:
        training.restore(found)
    hooks.emit("on_start", None)
    return training
