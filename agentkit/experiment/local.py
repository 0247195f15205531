"""Trains in one process: environment and learner take turns by the replay table's own rate limit."""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, final

import jax
import numpy as np

from agentkit import checkpoint
from agentkit.actors import ActorIndex
from agentkit.callbacks import Callback
from agentkit.counting import Counter
from agentkit.datasets import ReplayDataset
from agentkit.environment_loop import ReadyEnvironmentLoop
from agentkit.errors import AgentkitError, CheckpointError, ConfigError, SpecError, says_what_was_meant
from agentkit.experiment.checks import short_runs
from agentkit.experiment.checks.agent_fits import check_fit, check_memory, check_table
from agentkit.experiment.checks.step_watch import StepWatch, environment_name
from agentkit.experiment.checks.user_tracebacks import shorten
from agentkit.experiment.config import callback_record
from agentkit.experiment.config.experiment_config import ExperimentConfig
from agentkit.experiment.evaluation.training_films import check_films, open_evaluations
from agentkit.experiment.multi_agent import on_device as several_on_device
from agentkit.experiment.multi_agent.build import build as build_multi_agent
from agentkit.experiment.multi_agent.config import MultiAgentConfig, is_of_several_agents, read_multi_agent_config
from agentkit.experiment.on_device.build import build as build_on_device
from agentkit.experiment.on_device.checks import check_devices, check_settings
from agentkit.experiment.policies.loading import Policies
from agentkit.experiment.policies.make_actor import (
    AnyActor,
    AnyLoop,
    make_actor,
    make_adder,
    make_loop,
    make_own_tables,
)
from agentkit.experiment.policies.restore_policy import own_actions
from agentkit.experiment.policies.result import Result
from agentkit.experiment.profiling.profile import Profile
from agentkit.experiment.profiling.table import write_table
from agentkit.experiment.runs.config_json import check_run_directory, read_config, read_record, with_whole_path
from agentkit.experiment.runs.lock import run_lock
from agentkit.experiment.runs.loggers import check_installed
from agentkit.experiment.runs.logs import RunLogs, drop_later_rows, learner_row
from agentkit.experiment.runs.resume_checks import ResumeError, begin, check_batch, prepare, refuse_launched
from agentkit.experiment.training.devices import (
    FirstDevicePublisher,
    choose_dispatch,
    describe_devices,
    learner_devices,
)
from agentkit.experiment.training.hooks import Hooks, with_callbacks
from agentkit.experiment.training.in_turns import check_turns, learn_what_is_due, make_replay_in_turns
from agentkit.experiment.training.initial_state import InitialState, find_initial_state
from agentkit.experiment.training.own_learner import OwnLearner, make_learner
from agentkit.experiment.training.prior_data import fill, read_fillings
from agentkit.experiment.training.signals import StopOnSignal
from agentkit.experiment.training.switched_state import as_of_one_process
from agentkit.experiment.training.switching import switched
from agentkit.experiment.training.training_loop import Training
from agentkit.learning import Learner, LearnerCallbacks
from agentkit.learning.learner import Publisher
from agentkit.replay import InProcessReplay, Replay, reverb
from agentkit.specs import EnvironmentSpec, make_environment_spec
from agentkit.types import TableInfo
from agentkit.variables import VariableClient, VariableStore


@says_what_was_meant
def run(
    experiment: ExperimentConfig | MultiAgentConfig,
    *,
    resume: bool = False,
    profile: Profile | None = None,
    callbacks: Iterable[Callback] = (),
) -> Result:
    """Trains until `experiment.num_steps` steps were taken; evaluates, logs and saves on the way.

    SIGINT (Ctrl-C), SIGTERM or SIGHUP stops after the current step and saves; a second SIGINT or SIGTERM stops at once.

    Args:
        experiment: what to run.
        resume: go on from the newest checkpoint in the run folder, or from the start if there is none.
        profile: a new one, which times this run and waits for each update; ``logs/profile.csv`` has its table.
        callbacks: called at the run's events beside those of the experiment, see `agentkit.callbacks`.

    Raises:
        ConfigError: the run folder has a run in it already and `resume` is False, or there is none; or another training
            runs in it now, or it cannot be written to; or there are too few devices for it; or a callback
            is of no use to the experiment.
        SpecError: the agent does not fit the environment.
        NonFiniteError: a number is NaN or infinite, see `ExperimentConfig.on_nan`; earlier checkpoints stay.
        StepTimeoutError: the environment hangs, see `ExperimentConfig.step_timeout`; nothing is saved.
        ResumeError: a `CheckpointError`: no checkpoint can be read, or it is another experiment's.
        CheckpointError: the last checkpoint could not be written; of an earlier one that is a `CheckpointWarning`.
        Exception: what a callback has raised, after a checkpoint.
    """
    if isinstance(experiment, MultiAgentConfig) and profile is not None:
        raise ConfigError("Runs of several agents take no profile yet. Leave that out.")
    if not isinstance(experiment, ExperimentConfig | MultiAgentConfig):
        raise ConfigError(
            f"Expected an ExperimentConfig, found a {type(experiment).__name__}. See also agentkit.train."
        )
    experiment = with_callbacks(experiment, callbacks)
    if profile is None:
        try:
            return _run(experiment, resume, None)
        except Exception as error:
            raise shorten(error)  # noqa: B904 (the same error)
    experiment = with_whole_path(experiment)
    profile.start()
    try:
        return _run(experiment, resume, profile)
    except Exception as error:
        raise shorten(error)  # noqa: B904 (the same error)
    finally:
        profile.stop()
        if (
            profile.num_steps
            and experiment.run_directory is not None
            and pathlib.Path(experiment.run_directory).is_dir()
        ):
            with contextlib.suppress(OSError):  # A full disk; the profile itself has all of it.
                write_table(profile, pathlib.Path(experiment.run_directory) / "logs" / "profile.csv")


def _run(experiment: ExperimentConfig | MultiAgentConfig, resume: bool, profile: Profile | None) -> Result:
    with started(experiment, resume, profile) as (training, stop):
        return training.train(stop) if profile is None else profile.train(training, stop)


@contextlib.contextmanager
def started(experiment: Any, resume: bool, profile: Profile | None = None) -> Iterator[tuple[Training, StopOnSignal]]:
    """Makes every part of a run, as `run` does, and closes them in the end."""
    given, experiment = experiment, with_whole_path(experiment)
    if experiment.replay == "served":
        if resume and experiment.run_directory is not None:
            refuse_launched(pathlib.Path(experiment.run_directory))
        raise ConfigError(
            "replay: 'served' is the server of a program of many processes, agentkit.launch (agentkit launch). In one "
            "process the same tables are replay='in_process'."
        )
    if experiment.on_device and isinstance(experiment, MultiAgentConfig):
        several_on_device.check_settings(experiment)
    elif experiment.on_device:
        check_settings(experiment, is_profiled=profile is not None)
        check_devices(experiment.devices, experiment.num_envs or 1, "environments")
    hooks = Hooks(experiment)
    devices = learner_devices(experiment.devices)
    check_run_directory(given, resume)
    check_installed(experiment)
    if not resume and experiment.replay == "reverb":
        reverb.check_installed()
    with contextlib.ExitStack() as stack:
        stack.enter_context(run_lock(experiment.run_directory))
        try:
            found = prepare(given, resume)  # Whose messages have the folder as it was given.
            if isinstance(experiment, MultiAgentConfig):
                build_several = several_on_device.build if experiment.on_device else build_multi_agent
                training = build_several(experiment, stack, found, hooks, resume=resume)
            elif experiment.on_device:
                training = build_on_device(experiment, stack, found, hooks, resume=resume)
            else:
                training = _build(experiment, stack, found, hooks, resume=resume, devices=devices, profile=profile)
        except CheckpointError as error:
            raise ResumeError(str(error)) from error
        with StopOnSignal(hooks.requested) as stop:
            yield training, stop


@says_what_was_meant
def resume(
    run_directory: str | pathlib.Path,
    *,
    profile: Profile | None = None,
    callbacks: Iterable[Callback] | None = None,
    **changes: Any,
) -> Result:
    """Resumes the run in a folder; with ``replay="in_process"`` also a launched one, which goes on in one process.

    Args:
        run_directory: the folder.
        profile: see `run`.
        callbacks: instead of the run's own, which are made again where this is None.
        **changes: see `read_config`: `imports`, or fields to replace, e.g. ``num_steps=200_000``. The agent's settings
            stay.
    """
    with switched(run_directory, "train", changes.get("replay")):
        several = is_of_several_agents(run_directory)
        read = read_multi_agent_config if several else read_config
        experiment: ExperimentConfig | MultiAgentConfig = read(run_directory, **changes)
        if callbacks is None:
            callbacks = callback_record.rebuild(read_record(run_directory), run_directory, changes.get("imports", ()))
        return run(experiment, resume=True, profile=profile, callbacks=callbacks)


@final
@dataclasses.dataclass
class ActAndLearn:
    """Acts and learns in turns, as the replay table's rate limit lets it: the work of a run in one process.

    Attributes:
        table_name: the table that the learner draws from.
        replay: holds it.
        dataset: the learner's batches.
        learner: updates.
        actor: acts, and writes to replay.
        loop: in which the actor meets the environment.
        counter: of steps and episodes.
        spec: the environment's.
        launched: of a run that was launched before, for when it is launched again: where its actors stood, and how many
            steps of the run are not this actor's.
    """

    table_name: str
    replay: Replay
    dataset: ReplayDataset
    learner: Learner | OwnLearner
    actor: AnyActor
    loop: AnyLoop
    counter: Counter
    spec: EnvironmentSpec
    launched: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def num_steps(self) -> int:
        """Returns the environment steps so far."""
        return self.loop.num_steps

    @property
    def num_episodes(self) -> int | None:
        """Returns the episodes that have ended so far; None of a run that was launched, where nobody counts them."""
        return None if self.launched else self.counter.get("episodes")

    def step(self) -> None:
        """Takes an environment step if replay has room for it, then does all the learning that is due."""
        if self.replay.can_insert(self.table_name):
            try:
                self.loop.step()
            except AgentkitError:
                raise
            except Exception:
                self.learner.check_finite()  # An environment may fail at an action that is NaN: say why it was.
                raise
        else:
            self.learner.step()
        learn_what_is_due(self.learner, self.dataset)
        self.actor.update()

    def table(self) -> TableInfo:
        """Returns the table's counters."""
        return self.replay.info(self.table_name)

    def save(self) -> dict[str, Any]:
        """Returns the state of counter, actor and loop; replay writes files of its own."""
        mid_episode = self.replay.resumable and self.loop.resumable
        state = {"counter": self.counter.save(), "mid_episode": mid_episode, "actor": self.actor.save(mid_episode)}
        state |= self.launched
        if isinstance(self.loop, ReadyEnvironmentLoop) or not self.loop.resumable:
            return state
        return {**state, "loop": self.loop.save()}

    def restore(self, state: dict[str, Any]) -> None:
        """Takes back a checkpoint: bit for bit with in-process replay and a resumable environment.

        Otherwise the unfinished episode is dropped and a new one begins.
        """
        self.counter.restore(state["counter"])
        self.launched = {name: state[name] for name in ("explored", "steps_of_others") if name in state}
        if "actor" in state:  # Else it is of a launched run, whose actors are others.
            self.actor.restore(state["actor"])
        if "loop" in state and not isinstance(self.loop, ReadyEnvironmentLoop):
            self.loop.restore(state["loop"], state["mid_episode"])
        else:  # Episodes that had not ended are dropped; their steps are not.
            self.counter.increment(steps=max(int(state["num_steps"]) - self.counter.get("steps"), 0))
        self.loop.num_steps = int(state["num_steps"])
        self.actor.update()


def _build(
    experiment: ExperimentConfig,
    stack: contextlib.ExitStack,
    found: checkpoint.Checkpoint | None,
    hooks: Hooks,
    *,
    resume: bool,
    devices: list[jax.Device] | None,
    profile: Profile | None,
) -> Training:
    """Makes every part and takes a checkpoint back; the stack closes writer, iterator, server, logs, environment."""
    found, (seed, explored) = as_of_one_process(found, experiment.seed, hooks)
    environment, watch = _open_environment(experiment, stack, hooks, seed)
    experiment = experiment.for_batch(environment)
    check_batch(experiment, found)
    agent, plan = experiment.agent, experiment.agent.batch_plan
    spec = make_environment_spec(environment)
    parts = check_fit(experiment, spec)
    check_turns(check_table(agent, spec))
    check_memory(experiment, spec)
    check_films(experiment)
    initial = InitialState(experiment) if found is not None else find_initial_state(experiment, parts)
    experiment = initial.experiment
    policy = parts.policy()
    own = own_actions(getattr(environment, "environment", environment))  # Inside of what is watched.
    fillings = [] if found is not None else read_fillings(experiment, spec, parts.pure_policy, own)
    choose_dispatch(parts.state)
    lacking = begin(experiment)
    logs = _open_logs(experiment, stack, found, environment, resume)
    replay = _open_replay(experiment, stack, spec, environment, found)
    contents = {"replay": replay.save}
    short = short_runs.warnings_of(experiment)
    for message in filter(None, (lacking, initial.message, *fill(replay, fillings), *short)):
        logs.message(message)
    dataset = stack.enter_context(contextlib.closing(ReplayDataset(replay, plan)))
    learner_key, actor_key = jax.random.split(jax.random.PRNGKey(seed))
    store, counter = VariableStore(), Counter()
    client = VariableClient(store)
    acts_in = environment
    if profile is not None:  # The one place that knows of timers: without a profile, nothing asks at a step for one.
        environment, replay, dataset, logs = profile.time_parts(environment, replay, dataset, logs)
    publisher: Publisher = store if devices is None else FirstDevicePublisher(store)
    learner = make_learner(  # Before actor and loop: a user's own actor may read parameters where it is made.
        parts, dataset, learner_key, devices=devices, on_nan=experiment.on_nan, training=initial.training,
        callbacks=_make_callbacks(experiment, publisher, replay, lambda: loop.num_steps, logs, hooks),
    )  # fmt: skip
    stack.enter_context(contextlib.closing(learner))
    adder = make_adder(acts_in, spec, [(agent, replay)])
    actor = make_actor(acts_in, policy, actor_key, client, adder, ActorIndex(num_steps=explored))
    stack.enter_context(contextlib.closing(actor))
    if profile is not None:
        actor = profile.time_actor(actor, acts_in)
    loop = make_loop(environment, actor, counter, logs.write_episode, experiment.on_nan, hooks.observers())
    if profile is not None:
        learner = profile.time_learner(learner, loop)
    evaluator, films = open_evaluations(experiment, parts.networks, store, watch, hooks.evaluation_observers(), stack)
    work = ActAndLearn(plan.table, replay, dataset, learner, actor, loop, counter, spec)
    policies = Policies(experiment, spec, parts.networks, store)
    training = Training(experiment, work, learner, evaluator, logs, hooks, policies, contents, films=films)
    hooks.watch(lambda: loop.num_steps, lambda: learner.num_updates_done, lambda: VariableClient(store).params)
    if found is not None:
        training.restore(found)
    hooks.emit("on_start", environment)
    return training


def _open_environment(
    experiment: ExperimentConfig, stack: contextlib.ExitStack, hooks: Hooks, seed: int
) -> tuple[Any, StepWatch]:
    watch = stack.enter_context(StepWatch(environment_name(experiment), experiment.step_timeout, beside=True))
    environment = watch.make(lambda: hooks.wrap(experiment).make_training_environment(seed))
    stack.enter_context(contextlib.closing(environment))
    return environment, watch


def _open_replay(
    experiment: ExperimentConfig,
    stack: contextlib.ExitStack,
    spec: EnvironmentSpec,
    environment: Any,
    found: checkpoint.Checkpoint | None,
) -> Replay:
    replay = stack.enter_context(_make_replay(experiment, spec, environment))
    if found is not None:
        replay.restore(found.path / "replay")
    return replay


def _open_logs(
    experiment: ExperimentConfig,
    stack: contextlib.ExitStack,
    found: checkpoint.Checkpoint | None,
    environment: Any,
    resume: bool,
) -> RunLogs:
    if found is not None and found.state.get("launched"):
        drop_later_rows(found.path.parents[1], found.step)
    logs = RunLogs(experiment, stack, found, resume)
    if found is not None and not getattr(environment, "resumable", False):
        why = "The environment cannot be saved" if experiment.ready is None else "Asynchronous (--ready)"
        logs.message(
            f"{why}: every environment begins a new episode, and the run is not equal to an uninterrupted one."
        )
    logs.message(f"Device: {describe_devices(experiment.devices)}")
    return logs


def _make_callbacks(
    experiment: ExperimentConfig,
    publisher: Publisher,
    replay: Replay,
    count_steps: Callable[[], int],
    logs: RunLogs,
    hooks: Hooks,
) -> LearnerCallbacks:
    plan = experiment.agent.batch_plan
    table = plan.table

    def write_priorities(keys: np.ndarray, priorities: np.ndarray) -> None:
        replay.update_priorities(table, keys, priorities)

    return LearnerCallbacks(
        publisher=publisher,
        write_priorities=None if plan.num_prior else write_priorities,
        log=lambda row: hooks.log_learner(logs.learner, learner_row(row, count_steps(), replay.info(table))),
        log_seconds=experiment.log_seconds,
        count_steps=count_steps,
    )


def _make_replay(experiment: ExperimentConfig, spec: EnvironmentSpec, environment: Any) -> Replay:
    tables = make_own_tables(experiment, spec, environment)
    if callable(experiment.replay):
        made = experiment.replay(tables)
        if not isinstance(made, Replay):
            raise SpecError(f"replay: expected a replay.Replay of the function, found {made!r:.80}.")
        if isinstance(made, InProcessReplay):
            made.in_turns = True  # One thread writes and draws here, whoever made it.
        return made
    return make_replay_in_turns(experiment.replay, tables, experiment.seed)
