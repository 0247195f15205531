"""Makes every part of a run on the device, as `experiment.local` does of one on the host."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax

from agentkit import checkpoint
from agentkit.actors import CompiledPolicy
from agentkit.agents.common.experience import Segments, Sequences, Transitions
from agentkit.envs.jax.base import JaxEnvironment
from agentkit.experiment.checks import short_runs
from agentkit.experiment.checks.agent_fits import check_fit
from agentkit.experiment.checks.step_watch import StepWatch, environment_name
from agentkit.experiment.config.evaluation_plan import evaluation_plan
from agentkit.experiment.config.experiment_config import ExperimentConfig
from agentkit.experiment.evaluation.training_films import TrainingFilms, check_films, open_evaluations, open_films
from agentkit.experiment.on_device.checks import check_last_round, check_memory, find_environment, needed_experience
from agentkit.experiment.on_device.chunks import Chunks, OneRun
from agentkit.experiment.on_device.evaluation import DeviceEvaluator
from agentkit.experiment.on_device.loop import DeviceLoop, make_rounds
from agentkit.experiment.on_device.members import ALONE, Members
from agentkit.experiment.on_device.replay.store import ONLY
from agentkit.experiment.on_device.work import ActAndLearnOnDevice
from agentkit.experiment.policies.agent_parts import AgentParts, find_policy
from agentkit.experiment.policies.loading import Policies
from agentkit.experiment.runs.logs import RunLogs, learner_row
from agentkit.experiment.runs.resume_checks import begin
from agentkit.experiment.training.devices import FirstDevicePublisher, describe_devices, learner_devices, local_devices
from agentkit.experiment.training.hooks import Hooks
from agentkit.experiment.training.initial_state import InitialState, find_initial_state
from agentkit.experiment.training.training_loop import Judge, Training
from agentkit.learning import Learner, LearnerCallbacks
from agentkit.specs import EnvironmentSpec, make_environment_spec
from agentkit.variables import VariableClient, VariableStore


class Run(NamedTuple):
    """Holds what a run is built of.

    Attributes:
        experiment: with `on_device`, whose settings `checks.check_settings` has seen.
        stack: closes what there is to close.
        found: the checkpoint; None for a new run.
        hooks: the callbacks.
        resume: whether the run folder may have a run in it.
    """

    experiment: ExperimentConfig
    stack: contextlib.ExitStack
    found: checkpoint.Checkpoint | None
    hooks: Hooks
    resume: bool


class DeviceParts(NamedTuple):
    """Holds the parts of a compiled loop.

    Attributes:
        environment: in JAX.
        spec: its spec.
        agent: the agent's parts for it.
        experience: the agent's, see `checks.needed_experience`.
        num_envs: environments that step together.
        devices: that share the training; None for JAX's default device.
    """

    environment: JaxEnvironment
    spec: EnvironmentSpec
    agent: AgentParts
    experience: Segments | Transitions | Sequences
    num_envs: int
    devices: Sequence[jax.Device] | None

    def make_loop(self, members: Members = ALONE) -> DeviceLoop:
        """Returns the loop of one run, or of each member of a population, which has one device."""
        policy = self.agent.pure_policy
        assert policy is not None, "check_settings has refused others"
        rounds = make_rounds(self.environment, policy, self.agent.update, self.experience, self.num_envs, members)
        return DeviceLoop(rounds, members, None if members.are_many else self.devices)


def find_parts(experiment: ExperimentConfig, already: int = 0) -> DeviceParts:
    """Makes the parts of a run's compiled loop, and refuses what does not fit together.

    Args:
        experiment: see `Run`.
        already: steps of the checkpoint that it goes on from.
    """
    local_devices()  # Before an environment makes arrays.
    environment = find_environment(experiment)
    spec = make_environment_spec(environment)
    num_envs, devices = experiment.num_envs or 1, learner_devices(experiment.devices)
    experience = needed_experience(experiment.agent, max(experiment.num_steps, already) + num_envs)
    parts = DeviceParts(environment, spec, check_fit(experiment, spec), experience, num_envs, devices)
    check_last_round(experiment.num_steps, parts.make_loop().rows)
    return parts


def keys_of(seed: int) -> tuple[jax.Array, jax.Array]:
    """Returns the keys of a run's learner, and of its environments and policy."""
    learner_key, acting_key = jax.random.split(jax.random.PRNGKey(seed))
    return learner_key, acting_key


def open_watch(experiment: ExperimentConfig) -> StepWatch:
    """Returns what ends evaluations in which the environment hangs; a context manager."""
    return StepWatch(environment_name(experiment), experiment.step_timeout, beside=True)


def build(
    experiment: ExperimentConfig,
    stack: contextlib.ExitStack,
    found: checkpoint.Checkpoint | None,
    hooks: Hooks,
    *,
    resume: bool,
) -> Training:
    """Makes every part of a run on the device and takes a checkpoint back; see `Run`."""
    watch = stack.enter_context(open_watch(experiment))
    parts = find_parts(experiment, 0 if found is None else found.step)
    loop = parts.make_loop()
    acting_key = keys_of(experiment.seed)[1]
    memory = check_memory(loop.held(acting_key), num_devices=len(parts.devices or [0]))
    run = Run(experiment, stack, found, hooks, resume)
    return build_run(run, parts, lambda: OneRun(loop, acting_key), watch, memory)


def build_run(
    run: Run,
    device: DeviceParts,
    make_chunks: Callable[[], Chunks],
    watch: StepWatch,
    memory: str | None,
    networks: Any = None,
) -> Training:
    """Makes all of a run but its compiled loop, and takes its checkpoint back.

    Args:
        run: see there.
        device: the parts of its loop.
        make_chunks: makes what runs its chunks, once all is known to fit.
        watch: of its evaluations.
        memory: a sentence on what its replay takes; None for no replay.
        networks: for its evaluations, where its settings are not those of `device`; None for that agent's.
    """
    experiment, stack, found, hooks, resume = run
    agent = device.agent
    networks = agent.networks if networks is None else networks
    check_films(experiment)
    initial = InitialState(experiment) if found is not None else find_initial_state(experiment, agent)
    experiment = initial.experiment
    lacking = begin(experiment)
    logs = RunLogs(experiment, stack, found, resume)
    where = describe_devices(experiment.devices)
    about = f"Device: {where}, with the environments; the first chunk is compiled, for a while."
    for message in filter(None, (about, memory, lacking, initial.message, *short_runs.warnings_of(experiment))):
        logs.message(message)
    store = VariableStore()
    callbacks = LearnerCallbacks(
        publisher=store if device.devices is None else FirstDevicePublisher(store),
        log=lambda row: hooks.log_learner(logs.learner, learner_row(row, work.num_steps, work.table())),
        log_seconds=experiment.log_seconds,
    )
    nothing: Any = iter(())  # The loop brings its own data.
    learner_key = keys_of(experiment.seed)[0]
    learner = Learner(
        agent.compiled_update,
        nothing,
        learner_key,
        callbacks=callbacks,
        devices=device.devices,
        on_nan=experiment.on_nan,
    )
    if initial.training is not None:
        learner.begin_with(initial.training)
    work = ActAndLearnOnDevice(experiment, make_chunks(), learner, logs, {ONLY: experiment.agent.batch_plan})
    evaluator, films = _open_evaluations(run, device, networks, store, watch)
    policies = Policies(experiment, device.spec, networks, store)
    training = Training(experiment, work, learner, evaluator, logs, hooks, policies, work.contents, films=films)
    hooks.watch(lambda: work.num_steps, lambda: learner.num_updates_done, lambda: VariableClient(store).params)
    if found is not None:
        work.restore_replay(found.path)
        training.restore(found)
    hooks.emit("on_start", None)
    return training


def _open_evaluations(
    run: Run, device: DeviceParts, networks: Any, store: VariableStore, watch: StepWatch
) -> tuple[Judge | None, TrainingFilms | None]:
    """Returns what evaluates, in a compiled loop where nothing of Python's looks on, and what films."""
    experiment, observers = run.experiment, run.hooks.evaluation_observers()
    if observers or experiment.evaluation_samples or not evaluation_plan(experiment).period:
        return open_evaluations(experiment, networks, store, watch, observers, run.stack)
    shared = networks is device.agent.networks
    policy = device.agent.policy(evaluation=True) if shared else find_policy(experiment.agent, networks, True)
    assert isinstance(policy, CompiledPolicy), "check_settings has refused others"
    evaluator = DeviceEvaluator(experiment, device.environment, policy, store)
    return evaluator, open_films(experiment, networks, store, watch, run.stack)
