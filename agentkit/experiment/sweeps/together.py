"""Runs jobs on the device side by side: all in one compiled program, in this process.

It is used as `jobs.JobProcesses` is. Each run has its folder, logs, evaluations and checkpoints as if it were alone.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import traceback
from collections.abc import Collection, Sequence
from typing import Any, Self, final

import jax

from agentkit.errors import AgentkitError, ConfigError
from agentkit.experiment.checks.agent_fits import check_table
from agentkit.experiment.config.experiment_config import ExperimentConfig
from agentkit.experiment.on_device.build import DeviceParts, Run, build_run, find_parts, keys_of, open_watch
from agentkit.experiment.on_device.checks import check_devices, check_memory, check_settings
from agentkit.experiment.on_device.loop import DeviceLoop
from agentkit.experiment.on_device.members import Members
from agentkit.experiment.on_device.population import Member, Population, Settings
from agentkit.experiment.on_device.work import ActAndLearnOnDevice
from agentkit.experiment.policies.agent_parts import AgentParts
from agentkit.experiment.runs.lock import run_lock
from agentkit.experiment.runs.resume_checks import prepare
from agentkit.experiment.sweeps.job_process import failure, outcome_of
from agentkit.experiment.sweeps.jobs import OUTPUT_FILE, Job, Outcome, forget_outcome, write_outcome
from agentkit.experiment.sweeps.varied_settings import changed_config, check_traced, find_settings, with_settings
from agentkit.experiment.training.hooks import Hooks
from agentkit.experiment.training.signals import StopOnSignal
from agentkit.experiment.training.training_loop import Training
from agentkit.files import open_to_append
from agentkit.learning import Learner
from agentkit.loggers import Logger


@dataclasses.dataclass(eq=False)
class _Member:
    """A run of the population at hand, its place, and what closes it; `asked` to stop by others than a signal."""

    job: Job
    place: int
    stack: contextlib.ExitStack
    training: Training
    work: ActAndLearnOnDevice
    asked: bool = False
    has_ended: bool = False

    def goes_on(self, stop: StopOnSignal) -> bool:
        """Returns whether it is to take another step."""
        stops = self.asked or self.training.hooks.requested.is_set() or stop.requested
        return not self.has_ended and self.training.goes_on and not stops


@final
class JobsTogether:
    """Runs jobs as a population, or those that were started meanwhile as the next one. A context manager.

    One that fails does not stop the others. All begin and compile together, so start all before the first `poll`.
    """

    def __init__(self, stop: StopOnSignal, done: Collection[str] = ()):
        """Takes what says that a signal asks for the end, which evaluations do not wait for.

        Args:
            stop: see above.
            done: names of jobs that are started for their places in the program alone, and stay as they are.
        """
        self._stop = stop
        self._done = done
        self._waiting: list[Job] = []
        self._members: list[_Member] = []
        self._learners: list[Learner] = []  # By place; of a run that is done or could not be taken up, one that waits.
        self._population: Population | None = None
        self._stack = contextlib.ExitStack()

    @property
    def running(self) -> tuple[str, ...]:
        """Returns the names of the jobs that run."""
        return (
            *(member.job.name for member in self._members if not member.has_ended),
            *(job.name for job in self._waiting if job.name not in self._done),
        )

    def start(self, job: Job) -> None:
        """Has a run begin, or go on, with the next population; one that is done only has its place there."""
        if job.name not in self._done:
            job.directory.mkdir(parents=True, exist_ok=True)
            forget_outcome(job.directory)
        self._waiting.append(job)

    def poll(self) -> list[tuple[Job, Outcome]]:
        """Runs a chunk of all, and returns the jobs that have ended with it, each with its outcome.

        Raises:
            ConfigError: the jobs cannot share a program, or do not fit into the device's memory.
        """
        if not self._members:
            return self._begin() if self._waiting else []
        going = [member for member in self._members if member.goes_on(self._stop)]
        if going:
            assert self._population is not None, "it was made with its members"
            targets = [0] * len(self._learners)
            for member in going:
                targets[member.place] = member.work.target()
            self._population.run(self._learners, targets)
        ended = [(member.job, outcome) for member in self._members if (outcome := self._advance(member, going))]
        if all(member.has_ended for member in self._members):
            self._close()
        return ended

    def stop(self, name: str) -> None:
        """Asks a job to save and stop. May be called again, and for one that has ended."""
        self._waiting = [job for job in self._waiting if job.name != name]
        for member in self._members:
            member.asked |= member.job.name == name

    def stop_all(self) -> None:
        """Asks every job to save and stop."""
        for name in self.running:
            self.stop(name)

    def _advance(self, member: _Member, going: list[_Member]) -> Outcome | None:
        """Does what is due after a chunk; returns how the run ended, if it has now."""
        if member.has_ended:
            return None
        training, num_steps = member.training, member.job.experiment.num_steps
        try:
            if member in going:
                training.advance(self._stop)
            if member.goes_on(self._stop):
                return None
            training.finish()
            assert training.result is not None, "finish sets it"
            outcome = outcome_of(training.result, num_steps)
            member.stack.close()
            write_outcome(member.job.directory, outcome)
        except Exception as error:
            outcome = self._fail(member.job, member.stack, error)
        member.has_ended = True
        return outcome

    def _fail(self, job: Job, stack: contextlib.ExitStack, error: Exception) -> Outcome:
        """Writes down how a run has failed, where the disk has room, and closes what it has open."""
        with contextlib.suppress(OSError), open_to_append(job.directory / OUTPUT_FILE) as log:
            log.write("".join(traceback.format_exception(error)).encode())
        with contextlib.suppress(Exception):  # It has failed already.
            stack.close()
        outcome = failure(error, job.experiment.num_steps)
        with contextlib.suppress(OSError):  # A full disk, of which it died, ends no other run.
            write_outcome(job.directory, outcome)
        return outcome

    def _begin(self) -> list[tuple[Job, Outcome]]:
        """Builds the next population; returns the jobs that cannot be taken up, such as from a bad checkpoint."""
        failed, runs = [], []
        jobs, self._waiting = self._waiting, []
        for job in jobs:
            stack = self._stack.enter_context(contextlib.ExitStack())
            experiment = dataclasses.replace(
                job.experiment, progress=False, callbacks=copy.deepcopy(job.experiment.callbacks)
            )
            check_settings(experiment)
            try:
                runs.append((job, _open(job, experiment, stack, is_done=job.name in self._done)))
            except AgentkitError as error:
                failed.append((job, self._fail(job, stack, error)))
        if runs:
            failed += self._build(runs)
        for member in self._members:
            try:
                member.training.begin(self._stop)
            except Exception as error:
                failed.append((member.job, self._fail(member.job, member.stack, error)))
                member.has_ended = True
        if all(member.has_ended for member in self._members):
            self._close()
        return failed

    def _build(self, runs: list[tuple[Job, Run]]) -> list[tuple[Job, Outcome]]:
        """Makes the population; returns the jobs that cannot be taken up, whose places wait like those of done ones."""
        experiments = [run.experiment for _, run in runs]
        watch = self._stack.enter_context(open_watch(experiments[0]))
        parts = find_parts(experiments[0], max(0 if run.found is None else run.found.step for _, run in runs))
        population, settings, memory = make_population(parts, experiments)
        population.start()
        self._population = population
        first_training = jax.jit(lambda settings, key: _agent_parts(parts, settings).update.init(key))
        own_parts = parts._replace(devices=None)  # What is a member's alone is on the first.
        failed = []
        for i, (job, run) in enumerate(runs):
            networks = run.experiment.agent.make_networks(parts.spec) if settings else None
            learner_key = keys_of(run.experiment.seed)[0]
            if job.name in self._done:
                self._learners.append(_waiting_learner(parts, learner_key))
                continue
            try:
                training = build_run(run, own_parts, functools.partial(Member, population, i), watch, memory, networks)
            except Exception as error:
                failed.append((job, self._fail(job, run.stack, error)))
                self._learners.append(_waiting_learner(parts, learner_key))
                continue
            assert isinstance(training.work, ActAndLearnOnDevice), "build_run makes it"
            assert isinstance(training.learner, Learner), "build_run makes it, too"
            if settings and run.found is None and run.experiment.init_from is None:
                own = {name: values[i] for name, values in settings.items()}
                training.learner.begin_with(first_training(own, learner_key))
            self._members.append(_Member(job, i, run.stack, training, training.work))
            self._learners.append(training.learner)
        return failed

    def _close(self) -> None:
        self._members, self._learners, self._population = [], [], None
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._close()


def _waiting_learner(parts: DeviceParts, key: jax.Array) -> Learner:
    return Learner(parts.agent.compiled_update, iter(()), key)


def _open(job: Job, experiment: ExperimentConfig, stack: contextlib.ExitStack, is_done: bool) -> Run:
    """Takes a run's folder, and reads its checkpoint; leaves alone that of a run that is done."""
    if is_done:
        return Run(experiment, stack, None, Hooks(experiment), True)
    resume = (job.directory / "config.json").exists()
    stack.enter_context(run_lock(job.directory))
    return Run(experiment, stack, prepare(experiment, resume), Hooks(experiment), resume)


def make_population(
    parts: DeviceParts, experiments: Sequence[ExperimentConfig]
) -> tuple[Population, Settings, str | None]:
    """Returns the population of some experiments, in what settings they differ, and a sentence on what replay takes.

    Args:
        parts: of the first experiment.
        experiments: of all members; nothing is computed for them yet.

    Raises:
        ConfigError: they differ in what one program cannot, or the device has less memory.
    """
    settings = find_settings(experiments)

    def make_loop(settings: Settings) -> DeviceLoop:
        experience: Any = copy.copy(parts.experience)
        object.__setattr__(experience, "config", changed_config(experience.config, settings))
        own = parts._replace(agent=_agent_parts(parts, settings), experience=experience)
        return own.make_loop(Members(are_many=True))

    devices = _shared_devices(parts.devices, len(experiments))
    population = Population(make_loop, settings, [keys_of(each.seed)[1] for each in experiments], devices)
    check_traced(settings, population.trace)
    return population, settings, check_memory(population.held(), len(experiments), len(devices or [0]))


def _shared_devices(devices: Sequence[jax.Device] | None, num_runs: int) -> Sequence[jax.Device] | None:
    """Returns as many devices as divide the runs: some may have ended, or failed, when the others go on."""
    if devices is None:
        return None
    return devices[: max(number for number in range(1, len(devices) + 1) if num_runs % number == 0)]


def _agent_parts(parts: DeviceParts, settings: Settings) -> AgentParts:
    """Returns the agent's parts with settings that may be traced."""
    return AgentParts(with_settings(parts.agent.agent, settings), parts.spec) if settings else parts.agent


def check_together(experiments: Sequence[ExperimentConfig], jobs: int) -> None:
    """Refuses, before there is a folder, experiments that cannot train together on the device.

    Raises:
        ConfigError: it says why.
    """
    experiment = experiments[0]
    if jobs != 1:
        raise ConfigError(
            f"jobs={jobs} (--jobs) with on_device (--on-device): all runs train together in one compiled program, in "
            "one process. Leave jobs out."
        )
    _check_loggers(experiment)
    of_each_agent = {id(each.agent): each for each in experiments}.values()  # Seeds share theirs.
    for each in of_each_agent:
        check_settings(each)
    check_devices(experiment.devices, len(experiments), "runs")
    parts = find_parts(experiment)
    for each in of_each_agent:
        check_table(each.agent, parts.spec)
    make_population(parts, experiments)


def _check_loggers(experiment: ExperimentConfig) -> None:
    for logger in experiment.loggers:
        if logger == "wandb":
            raise ConfigError(
                "loggers: W&B has one run in a process, and seeds on the device share one. Leave wandb out, or train "
                "each seed by itself."
            )
        if isinstance(logger, Logger):
            raise ConfigError(
                f"loggers: seeds on the device share a process, and each makes its own; found an object, {logger!r}. "
                "Give a function RunInfo -> Logger, such as the class itself."
            )
