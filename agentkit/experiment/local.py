"""Train in one process: environment and learner take turns by the replay table's own rate limit."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import pathlib
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from agentkit import checkpoint
from agentkit.actors import BatchedPolicyActor, PolicyActor
from agentkit.counting import Counter
from agentkit.datasets import ReplayDataset
from agentkit.environment_loop import BatchedEnvironmentLoop, EnvironmentLoop
from agentkit.errors import CheckpointError
from agentkit.experiment.acting import make_actor, make_adder, make_loop
from agentkit.experiment.config import ExperimentConfig, read_config
from agentkit.experiment.evaluate import Evaluator
from agentkit.experiment.logs import RunLogs, learner_row
from agentkit.experiment.profile import Profile
from agentkit.experiment.profile_table import write_table
from agentkit.experiment.resuming import ResumeError, prepare
from agentkit.experiment.signals import StopOnSignal
from agentkit.learning import Learner, LearnerCallbacks, Update
from agentkit.replay import InProcessReplay, Replay
from agentkit.specs import EnvironmentSpec, make_environment_spec, validate
from agentkit.variables import VariableClient, VariableStore


class Result(NamedTuple):
    """What a run ended with.

    Attributes:
        steps: environment steps in all, earlier runs of a resumed one included.
        updates: learner updates in all.
        evaluations: the record of each evaluation of this run (``steps``, ``episode_return``, ...).
        interrupted: True if a signal stopped it before `num_steps`.
    """

    steps: int
    updates: int
    evaluations: list[dict[str, float]]
    interrupted: bool


Watch = Callable[[str, Any], Any]
"""``(kind, part) -> part``, called with each part of a run as it is made; see `Profile.watch`."""


def run(experiment: ExperimentConfig, *, resume: bool = False, profile: Profile | None = None) -> Result:
    """Trains until `experiment.num_steps` steps were taken; evaluates, logs and saves on the way.

    SIGINT (Ctrl-C) or SIGTERM stops after the current step and saves; a second one stops at once.

    Args:
        experiment: what to run.
        resume: go on from the newest checkpoint in the run folder, or from the start if there is none.
        profile: a new one, which times this run and waits for each update; ``logs/profile.csv`` has its table.

    Raises:
        ConfigError: the run folder has a run in it already and `resume` is False, or there is none.
        ResumeError: a `CheckpointError`: no checkpoint can be read, or it is another experiment's.
        CheckpointError: a checkpoint could not be written.
    """
    if profile is None:
        return _run(experiment, resume, _leave_as_it_is)
    profile.start()
    try:
        return _run(experiment, resume, profile.watch)
    finally:
        profile.stop()
        if profile.num_steps and experiment.run_directory is not None:
            write_table(profile, pathlib.Path(experiment.run_directory) / "logs" / "profile.csv")


def _run(experiment: ExperimentConfig, resume: bool, watch: Watch) -> Result:
    with contextlib.ExitStack() as stack:
        try:
            found = prepare(experiment, resume)
            parts = _build(experiment, stack, watch, resume, found)
            if found is not None:
                parts.restore(found)
        except CheckpointError as error:
            raise ResumeError(str(error)) from error
        with StopOnSignal() as stop:
            return parts.train(stop)


def resume(run_directory: str | pathlib.Path, *, profile: Profile | None = None, **changes: Any) -> Result:
    """Goes on with the run in a folder; `changes` replace fields of its config, e.g. ``num_steps=200_000``."""
    return run(read_config(run_directory, **changes), resume=True, profile=profile)


def _leave_as_it_is(kind: str, part: Any) -> Any:
    del kind
    return part


@dataclasses.dataclass
class _Run:
    """All parts of a run in one process."""

    experiment: ExperimentConfig
    replay: Replay
    dataset: ReplayDataset
    learner: Learner
    actor: PolicyActor | BatchedPolicyActor
    loop: EnvironmentLoop | BatchedEnvironmentLoop
    counter: Counter
    evaluator: Evaluator | None
    logs: RunLogs
    spec: EnvironmentSpec
    evaluations: list[dict[str, float]] = dataclasses.field(default_factory=list)
    saved_step: int = -1

    def train(self, stop: StopOnSignal) -> Result:
        experiment, loop = self.experiment, self.loop
        next_evaluation = next_multiple(loop.num_steps, experiment.evaluation_period)
        next_checkpoint = next_multiple(loop.num_steps, experiment.checkpoint_period)
        while loop.num_steps < experiment.num_steps and not stop.requested:
            self._take_turn()
            if loop.num_steps >= next_evaluation:
                self._evaluate()
                next_evaluation = next_multiple(loop.num_steps, experiment.evaluation_period)
            if loop.num_steps >= next_checkpoint:
                self.save()
                next_checkpoint = next_multiple(loop.num_steps, experiment.checkpoint_period)
            if self.logs.progress_due():
                self._show_progress()
        interrupted = loop.num_steps < experiment.num_steps
        if loop.num_steps != self.saved_step:
            self.save()
        self._show_progress()  # Due or not: the last line says where it ended.
        if interrupted:
            self.logs.say(f"Stopped by a signal at step {loop.num_steps:,}; saved. Use --resume to go on.")
        return Result(loop.num_steps, self.learner.num_updates_done, self.evaluations, interrupted)

    def _take_turn(self) -> None:
        """One environment step if replay has room for it, then all the learning that is due."""
        if self.replay.can_insert(self.experiment.agent.batch_plan.table):
            try:
                self.loop.step()
            except Exception:
                self._check_observation()
                raise
        else:
            self.learner.step()
        while self.dataset.ready():
            self.learner.step()
        self.actor.update()

    def _check_observation(self) -> None:
        """After a failure: raises a SpecError that names the leaf, if the newest observation breaks its spec."""
        if isinstance(self.loop, EnvironmentLoop) and self.loop.timestep is not None:
            validate(self.loop.timestep.observation, self.spec.observations, "The environment's observation")

    def _show_progress(self) -> None:
        table = self.replay.info(self.experiment.agent.batch_plan.table)
        self.logs.show_progress(self.loop.num_steps, self.learner.num_updates_done, table)

    def _evaluate(self) -> None:
        assert self.evaluator is not None
        steps = self.loop.num_steps
        record = {
            "steps": steps,
            "updates": self.learner.num_updates_done,
            **self.evaluator.run(self.experiment.evaluation_episodes, number=steps),
        }
        self.evaluations.append(record)
        self.logs.evaluation.write(record)
        self.logs.say(
            f"step {steps:,}: evaluation return {record['episode_return']:.1f} "
            f"({record['episode_return_min']:.1f} to {record['episode_return_max']:.1f}, "
            f"{self.experiment.evaluation_episodes} episodes)"
        )

    def save(self) -> None:
        """Writes a checkpoint, where there is a run folder."""
        self.saved_step = self.loop.num_steps
        if self.experiment.run_directory is None:
            return
        state: dict[str, Any] = {
            "experiment": self.experiment.describe(),
            "learner": self.learner.save(),
            "counter": self.counter.save(),
            "num_steps": self.loop.num_steps,
        }
        mid_episode = self.replay.resumable and self.loop.resumable
        state["mid_episode"] = mid_episode
        state["actor"] = self.actor.save(mid_episode)
        if self.loop.resumable:
            state["loop"] = self.loop.save()
        directory = pathlib.Path(self.experiment.run_directory) / "checkpoints"
        checkpoint.write(directory, self.loop.num_steps, state, {"replay": self.replay.save})

    def restore(self, found: checkpoint.Checkpoint) -> None:
        """Takes back a checkpoint: bit for bit with in-process replay and a resumable environment.

        Otherwise the unfinished episode is dropped and a new one begins.
        """
        state = found.state
        self.learner.restore(state["learner"])
        self.counter.restore(state["counter"])
        self.actor.restore(state["actor"])
        if "loop" in state:
            self.loop.restore(state["loop"], state["mid_episode"])
        self.loop.num_steps = int(state["num_steps"])
        self.actor.update()
        self.saved_step = found.step


def _build(
    experiment: ExperimentConfig,
    stack: contextlib.ExitStack,
    watch: Watch,
    resume: bool,
    found: checkpoint.Checkpoint | None,
) -> _Run:
    """Makes every part; the stack closes them in the order writer, iterator, server, logs, environment."""
    agent = experiment.agent
    environment = stack.enter_context(
        contextlib.closing(experiment.make_environment(experiment.seed, experiment.num_envs))
    )
    watch("environment", environment)
    spec = make_environment_spec(environment)
    networks = agent.make_networks(spec)
    update = agent.make_update(networks)
    choose_dispatch(update)
    start = found.step if found is not None else 0
    logs = watch("logs", RunLogs(experiment, stack, resume_step=start if resume else None))
    replay = watch("replay", stack.enter_context(_make_replay(experiment, spec)))
    if found is not None:
        replay.restore(found.path / "replay")
    dataset = watch("dataset", stack.enter_context(contextlib.closing(ReplayDataset(replay, agent.batch_plan))))
    learner_key, actor_key = jax.random.split(jax.random.PRNGKey(experiment.seed))
    store, counter = VariableStore(), Counter()
    policy, client = agent.make_policy(networks), VariableClient(store)
    adder = watch("adder", make_adder(environment, spec, [(agent, replay)]))
    actor = watch("actor", make_actor(environment, policy, actor_key, client, adder))
    stack.enter_context(contextlib.closing(actor))
    loop = make_loop(environment, actor, counter, logs.write_episode)
    table = agent.batch_plan.table
    callbacks = LearnerCallbacks(
        publisher=store,
        write_priorities=lambda keys, priorities: replay.update_priorities(table, keys, priorities),
        log=lambda metrics: logs.learner.write(learner_row(metrics, loop.num_steps, replay.info(table))),
        log_seconds=experiment.log_seconds,
    )
    learner = Learner(
        update,
        dataset,
        learner_key,
        num_updates=agent.batch_plan.num_updates,
        callbacks=callbacks,
    )
    watch("learner", learner)
    evaluator = None
    if experiment.evaluation_period:
        evaluator = stack.enter_context(Evaluator(experiment, networks, store))
    return watch("run", _Run(experiment, replay, dataset, learner, actor, loop, counter, evaluator, logs, spec))


_SMALL_STATE = 100_000


def choose_dispatch(update: Update) -> None:
    """Lets JAX run small updates on a CPU in the thread that asks for them; must precede its first use.

    Waking another thread costs about 50 us, as much as acting with a small network, and the next action
    needs the result at once. Measured a step of DQN, 64x64 units: 360 us instead of 410; with
    updates_per_call=8, 240 instead of 340. A SAC of 256x256 units gains 10 % by the opposite: there the
    environment steps while the update runs. Without effect where the process has used JAX before.
    """
    state = jax.eval_shape(update.init, jax.ShapeDtypeStruct((2,), np.uint32))
    size = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(state))
    jax.config.update("jax_cpu_enable_async_dispatch", size > _SMALL_STATE)


def _make_replay(experiment: ExperimentConfig, spec: EnvironmentSpec) -> Replay:
    tables = experiment.agent.make_tables(spec)
    if experiment.replay == "in_process":
        return InProcessReplay(tables, seed=experiment.seed)
    from agentkit.replay.reverb.single_process import (
        SingleProcessReverbReplay,  # Loads TensorFlow: only when asked for.
    )

    return SingleProcessReverbReplay(tables)


def next_multiple(step: int, period: int) -> float:
    """The least multiple of `period` above `step`; infinite where the period is 0."""
    return (step // period + 1) * period if period else float("inf")
