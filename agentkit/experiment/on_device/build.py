"""Makes every part of a run on the device, as `experiment.local` does of one on the host."""

from __future__ import annotations

import contextlib
from typing import Any

import jax

from agentkit import checkpoint
from agentkit.experiment.checks import short_runs
from agentkit.experiment.checks.agent_fits import check_fit
from agentkit.experiment.checks.step_watch import StepWatch, environment_name
from agentkit.experiment.config.experiment_config import ExperimentConfig
from agentkit.experiment.evaluation.training_films import check_films, open_evaluations
from agentkit.experiment.on_device.checks import check_memory, find_environment, needed_experience
from agentkit.experiment.on_device.loop import DeviceLoop
from agentkit.experiment.on_device.work import ActAndLearnOnDevice
from agentkit.experiment.policies.loading import Policies
from agentkit.experiment.runs.logs import RunLogs, learner_row
from agentkit.experiment.runs.resume_checks import begin
from agentkit.experiment.training.devices import describe_devices
from agentkit.experiment.training.hooks import Hooks
from agentkit.experiment.training.initial_state import InitialState, find_initial_state
from agentkit.experiment.training.training_loop import Training
from agentkit.learning import Learner, LearnerCallbacks
from agentkit.specs import make_environment_spec
from agentkit.variables import VariableClient, VariableStore


def build(
    experiment: ExperimentConfig,
    stack: contextlib.ExitStack,
    found: checkpoint.Checkpoint | None,
    hooks: Hooks,
    *,
    resume: bool,
) -> Training:
    """Makes every part of a run on the device and takes a checkpoint back; the stack closes what there is to close.

    Args:
        experiment: with `on_device`, whose settings `checks.check_settings` has seen.
        stack: see above.
        found: the checkpoint; None for a new run.
        hooks: the callbacks.
        resume: whether the run folder may have a run in it.
    """
    watch = stack.enter_context(StepWatch(environment_name(experiment), experiment.step_timeout, beside=True))
    environment = find_environment(experiment)
    spec = make_environment_spec(environment)
    parts = check_fit(experiment, spec)
    check_films(experiment)
    policy = parts.pure_policy
    assert policy is not None, "check_settings has refused others"
    experience = needed_experience(experiment, already=0 if found is None else found.step)
    loop = DeviceLoop(environment, policy, parts.update, experience, experiment.num_envs or 1)
    memory = check_memory(loop)
    initial = InitialState(experiment) if found is not None else find_initial_state(experiment, parts)
    experiment = initial.experiment
    lacking = begin(experiment)
    logs = RunLogs(experiment, stack, resume_step=(0 if found is None else found.step) if resume else None)
    about = f"Device: {describe_devices(None)}, with the environments; the first chunk is compiled, for a while."
    for message in filter(None, (about, memory, lacking, initial.message, *short_runs.warnings_of(experiment))):
        logs.message(message)
    learner_key, acting_key = jax.random.split(jax.random.PRNGKey(experiment.seed))
    store = VariableStore()
    callbacks = LearnerCallbacks(
        publisher=store,
        log=lambda row: hooks.log_learner(logs.learner, learner_row(row, work.num_steps, work.table())),
        log_seconds=experiment.log_seconds,
    )
    nothing: Any = iter(())  # The loop brings its own data.
    learner = Learner(parts.compiled_update, nothing, learner_key, callbacks=callbacks, on_nan=experiment.on_nan)
    if initial.training is not None:
        learner.begin_with(initial.training)
    work = ActAndLearnOnDevice(experiment, loop, learner, acting_key, logs)
    evaluator, films = open_evaluations(experiment, parts.networks, store, watch, hooks.evaluation_observers(), stack)
    policies = Policies(experiment, spec, parts.networks, store)
    training = Training(experiment, work, learner, evaluator, logs, hooks, policies, work.contents, films=films)
    hooks.watch(lambda: work.num_steps, lambda: learner.num_updates_done, lambda: VariableClient(store).params)
    if found is not None:
        work.restore_replay(found.path / "replay")
        training.restore(found)
    hooks.emit("on_start", None)
    return training
