"""Runs an experiment as a program of many processes, on an engine, supervised.

Where another scheduler starts the processes, see `external`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import pathlib
from collections.abc import Callable, Iterable, Mapping
from shlex import quote
from typing import Any, final

from agentkit import checkpoint
from agentkit.callbacks import Callback
from agentkit.distributed import Program, ProgramError, Supervisor
from agentkit.distributed.address_file import read_address_file
from agentkit.distributed.engine import Engine
from agentkit.distributed.processes import ProcessEngine
from agentkit.distributed.threads import ThreadEngine
from agentkit.errors import AgentkitError, CheckpointError, ConfigError, says_what_was_meant
from agentkit.experiment.checks.agent_fits import check_fit
from agentkit.experiment.config import callback_record
from agentkit.experiment.config.experiment_config import ExperimentConfig
from agentkit.experiment.config.run_config import RunConfig
from agentkit.experiment.launching.multi_agent import make_multi_agent_program, prepare_multi_agent
from agentkit.experiment.launching.nodes.evaluator import newest_evaluations
from agentkit.experiment.launching.nodes.replay import backend_of
from agentkit.experiment.launching.program import LaunchConfig, make_program
from agentkit.experiment.launching.sharing.callbacks import restored_states, stopped_by
from agentkit.experiment.launching.sharing.common import find_spec, start_values
from agentkit.experiment.launching.sharing.exploring import restored_values
from agentkit.experiment.launching.sharing.transports import forget_parameters
from agentkit.experiment.multi_agent.build import check_policies
from agentkit.experiment.multi_agent.config import (
    MultiAgentConfig,
    is_of_several_agents,
    read_multi_agent_config,
)
from agentkit.experiment.multi_agent.parts import NoPolicy
from agentkit.experiment.policies.loading import Policies
from agentkit.experiment.policies.result import Result
from agentkit.experiment.runs.config_json import check_run_directory, read_config, read_record, write_config
from agentkit.experiment.runs.lock import run_lock
from agentkit.experiment.runs.loggers import check_for_processes, check_installed
from agentkit.experiment.runs.logs import ProgramLog, drop_later_rows
from agentkit.experiment.runs.resume_checks import (
    ResumeError,
    check_code,
    check_command,
    check_same,
    command_of,
    other_way,
)
from agentkit.experiment.training.hooks import Hooks, with_callbacks
from agentkit.experiment.training.initial_state import find_initial_state
from agentkit.experiment.training.prior_data import refuse_prior_data
from agentkit.experiment.training.switched_state import as_launched
from agentkit.experiment.training.switching import refuse_second_supervisor, switched

_LOGGER = logging.getLogger(__name__)


@final
@dataclasses.dataclass(frozen=True, repr=False)
class LaunchResult(Result):
    """Holds how a launched run ended: what `Result` does, of all actors together, and why.

    Attributes:
        reason: why it ended: "done", "reached 5,000 steps", "stopped by SIGINT", ...
    """

    reason: str = dataclasses.field(kw_only=True)


@says_what_was_meant
def launch(
    experiment: ExperimentConfig | MultiAgentConfig,
    *,
    num_actors: int = 2,
    num_evaluators: int = 1,
    engine: str = "processes",
    resume: bool = False,
    callbacks: Iterable[Callback] = (),
    on_status: Callable[[dict[str, Any]], None] | None = None,
    **settings: Any,
) -> LaunchResult:
    """Trains in many processes until `experiment.num_steps` steps were taken by all actors together.

    Ctrl-C, SIGTERM or SIGHUP stops and saves, a second one kills.

    Args:
        experiment: what `agentkit.run` takes, unchanged. Its `replay` may be "served" (the default) or
            "reverb", or a function of tables, whose `InProcessReplay` is served. Of several agents each policy that
            learns has a learner and a replay.
        num_actors: actor processes.
        num_evaluators: evaluator processes.
        engine: "processes", "ray" or "threads".
        resume: go on from the newest checkpoint in the run folder.
        callbacks: called at the run's events beside those of the experiment, each on the node that the event is of, to
            which it is sent.
        on_status: called twice a second with `RunStore.status`, e.g. to show it.
        **settings: other fields of `LaunchConfig`.

    Raises:
        ConfigError: impossible settings, or a run folder that has a run already, in which another program runs now,
            or that cannot be written to.
        ResumeError: the newest checkpoint is another experiment's, or of `agentkit.run`.
        ProgramError: a node failed in a way that no restart mends, or too often; or the last checkpoint could
            not be written; or a callback failed.
    """
    config = LaunchConfig(num_actors=num_actors, num_evaluators=num_evaluators, engine=engine, **settings)
    if isinstance(experiment, MultiAgentConfig):
        experiment = with_callbacks(experiment, callbacks)
        experiment = dataclasses.replace(experiment, progress=False, replay=backend_of(experiment))
        return _launch_several(experiment, config, resume, on_status)
    experiment = dataclasses.replace(with_callbacks(experiment, callbacks), progress=False)
    if not callable(experiment.replay):
        experiment = dataclasses.replace(experiment, replay=backend_of(experiment))
    Hooks(experiment)  # Refuses callbacks of no use.
    check_run_directory(experiment, resume)
    check_for_processes(experiment)
    check_installed(experiment)
    with run_lock(experiment.run_directory):
        return _launch(experiment, config, resume, on_status)


def _launch(
    experiment: ExperimentConfig,
    config: LaunchConfig,
    resume: bool,
    on_status: Callable[[dict[str, Any]], None] | None,
) -> LaunchResult:
    spec = find_spec(experiment, beside=True)
    parts = check_fit(experiment, spec)
    if not resume:
        experiment = find_initial_state(experiment, parts, checks_alone=True).experiment
    found = prepare_launch(experiment, resume, dataclasses.asdict(config))
    program = make_program(experiment, config, spec)
    if experiment.run_directory is not None:  # Also of nodes that this program has no more.
        drop_later_rows(pathlib.Path(experiment.run_directory), 0 if found is None else found.step)
    state = None if found is None else found.state
    return _supervise(experiment, config, program, state, Policies(experiment, spec), on_status)


def _launch_several(
    config: MultiAgentConfig,
    how: LaunchConfig,
    resume: bool,
    on_status: Callable[[dict[str, Any]], None] | None,
) -> LaunchResult:
    _refuse_on_device(config)
    Hooks(config)  # Refuses callbacks of no use.
    directory = check_run_directory(config, resume)
    check_for_processes(config)
    check_installed(config)
    with run_lock(directory):
        if resume and directory is not None:
            refuse_second_supervisor(directory, how.ray_address is not None)
        _, trained, players = check_policies(config)
        state = prepare_multi_agent(config, how, resume, trained, players)
        program = make_multi_agent_program(config, how, trained)
        return _supervise(config, how, program, state, NoPolicy(), on_status)


def _supervise(
    experiment: RunConfig,
    config: LaunchConfig,
    program: Program,
    state: Mapping[str, Any] | None,
    policies: Any,
    on_status: Callable[[dict[str, Any]], None] | None,
) -> LaunchResult:
    """Runs the program of an experiment from a checkpoint's state on, None from the beginning; returns how it ended."""
    directory = None if experiment.run_directory is None else pathlib.Path(experiment.run_directory).absolute()
    if directory is not None:
        forget_killed(directory, program)
    evaluations: dict[tuple[str, int], dict[str, float]] = {}

    def on_tick(status: dict[str, Any]) -> None:
        evaluations.update(newest_evaluations(status["values"]))
        log.write(status)
        if on_status is not None:
            on_status(status)

    start = 0 if state is None else int(state["num_steps"])
    with ProgramLog(experiment, list(program.roles), start) as log:
        status = run_program(
            program,
            engine=_make_engine(config),
            run_directory=directory,
            totals={} if state is None else state["totals"],
            values={"num_steps": experiment.num_steps, **run_store_values(state)},
            on_status=on_tick,
        )
    if directory is not None:
        check_saved(status)
    history = sorted(evaluations.values(), key=lambda record: record["steps"])
    return _result(status, experiment.num_steps, history, policies)


def run_program(
    program: Program,
    *,
    engine: Engine | None = None,
    run_directory: pathlib.Path | None = None,
    totals: Mapping[str, int] | None = None,
    values: Mapping[str, Any] | None = None,
    on_status: Callable[[dict[str, Any]], None] | None = None,
) -> dict[str, Any]:
    """Runs a program, of `make_program` or your own, to its end, and frees the memory that its nodes shared.

    Ctrl-C or SIGTERM stops it in order, a second one kills it. No process of it is left behind.

    Args:
        program: what to run.
        engine: where; None for processes of this machine.
        run_directory: for the nodes' logs, and the checkpoints of those that write any; None for neither.
        totals: counts to begin with, e.g. a checkpoint's.
        values: to put into the run store before any node starts.
        on_status: called twice a second with `RunStore.status`.

    Returns:
        `RunStore.status` at the end; ``["stop"]`` is why it ended: "done" if every node was.

    Raises:
        ProgramError: a node failed in a way that no restart mends, or too often.
    """
    with Supervisor(program, engine or ProcessEngine(), run_directory=run_directory) as supervisor:
        supervisor.store.restore_counts(totals or {})
        for name, value in (values or {}).items():
            supervisor.store.put(name, value)
        try:
            reason = supervisor.run(on_status)
        finally:
            supervisor.kill_all()
            forget_parameters(supervisor.run_id, program.nodes)
        status = {**supervisor.store.status(), "stop": reason}
    for name, node in status["nodes"].items():
        role = program.roles.get(node["role"])  # None for nodes that another scheduler has started.
        if node["state"] == "failed" and role is not None and role.finishes:
            _LOGGER.warning("%s lost its work for the end, such as a last evaluation: %s", name, node["last_error"])
    return status


@says_what_was_meant
def resume_launch(
    run_directory: str | pathlib.Path, *, callbacks: Iterable[Callback] | None = None, **changes: Any
) -> LaunchResult:
    """Goes on with the launched run in a folder; with ``replay="served"`` also with one in one process.

    Args:
        run_directory: the folder. Of a run in one process, each actor has as many environments as that.
        callbacks: instead of the run's own, which are made again where this is None.
        **changes: fields of `LaunchConfig` or `ExperimentConfig` to replace, e.g. ``num_actors=4``; and `imports`, see
            `read_config`. The folder may be a stranger's: a `ray_address`, and a `listen` other than "lo", must be
            given again.
    """
    of_launch = {field.name for field in dataclasses.fields(LaunchConfig)} | {"on_status"}
    of_experiment = {name: changes.pop(name) for name in list(changes) if name not in of_launch}
    with switched(run_directory, "launch", of_experiment.get("replay")):
        return _resume_launch(run_directory, callbacks, of_experiment, changes)


def _resume_launch(
    run_directory: str | pathlib.Path,
    callbacks: Iterable[Callback] | None,
    of_experiment: dict[str, Any],
    changes: dict[str, Any],
) -> LaunchResult:
    record = read_record(run_directory)
    saved = record.get("launch")
    if saved is None:
        raise ConfigError(
            f"The run {run_directory} was not launched. Go on with: agentkit {command_of(record)} --resume "
            f"{quote(str(run_directory))}.{other_way('launch', record)}"
        )
    several = is_of_several_agents(run_directory)
    read = read_multi_agent_config if several else read_config
    experiment = read(run_directory, **of_experiment)
    saved.pop("transport", None)  # Of earlier versions: it follows from `listen`.
    if unknown := saved.keys() - {field.name for field in dataclasses.fields(LaunchConfig)}:
        raise ConfigError(f"The run {run_directory} was launched with {sorted(unknown)}, unknown to this version.")
    if saved.get("ray_address") is not None and "ray_address" not in changes:  # Its machines send pickles.
        raise ConfigError(
            f"The run {run_directory} was launched on Ray's cluster at {saved['ray_address']!r}, and no cluster is "
            "connected to on a folder's word. If you trust it, name it: --ray-address on the command line, "
            "ray_address= in Python."
        )
    if saved.get("listen", "lo") != "lo" and "listen" not in changes:
        raise ConfigError(
            f"The run {run_directory} was launched with servers on the network device {saved['listen']!r}, and no port "
            f"is opened to a network on a folder's word. If you trust it, name the device: --listen "
            f"{quote(str(saved['listen']))} on the command line, listen= in Python; or lo, for this machine alone."
        )
    if callbacks is None:
        callbacks = callback_record.rebuild(record, run_directory, of_experiment.get("imports", ()))
    return launch(experiment, resume=True, callbacks=callbacks, **{**saved, **changes})


def _refuse_on_device(experiment: ExperimentConfig | MultiAgentConfig) -> None:
    if experiment.on_device:
        raise ConfigError(
            "on_device: the compiled loop is one process. Use agentkit.run (agentkit train --on-device), or leave it "
            "out."
        )


def check_launchable(experiment: ExperimentConfig) -> None:
    """Refuses what only a run in one process has.

    Raises:
        ConfigError: it films itself, is on the device or begins with data.
    """
    if experiment.video_period:
        raise ConfigError(
            "video_period: only a run in one process films itself, since the evaluator of a program may be on another "
            "machine than the run folder. Set it to 0, and film from another shell, while it goes on or afterwards: "
            "agentkit evaluate RUN --video run.mp4."
        )
    _refuse_on_device(experiment)
    refuse_prior_data(experiment)


def prepare_launch(experiment: ExperimentConfig, resume: bool, config: dict[str, Any]) -> checkpoint.Checkpoint | None:
    """Looks at the run folder before anything is started; the checkpoint to go on from, if any."""
    check_launchable(experiment)
    directory = check_run_directory(experiment, resume)
    if directory is None:
        return None
    found = None
    if resume:
        refuse_second_supervisor(directory, config.get("ray_address") is not None)
        try:
            check_command("launch", directory)
            found = checkpoint.read_latest(directory / "checkpoints")
            check_same(experiment, found)
            if found is not None:
                found = found._replace(state=as_launched(found.state))
        except CheckpointError as error:
            raise ResumeError(str(error)) from error
    check_code(experiment, directory)
    write_config(experiment, directory, launch=config)
    return found


def check_saved(status: dict[str, Any]) -> None:
    """Raises ProgramError where the learner could not write the last checkpoint as it stopped."""
    for node in status["nodes"].values():
        # One that had died is killed, or not started, where the program stops before it is ready again.
        if node["role"] == "learner" and (node["state"] == "failed" or node["unsaved"]):
            raise ProgramError(f"The run has stopped, and its last checkpoint was not written: {node['last_error']}")


def forget_killed(directory: pathlib.Path, program: Program) -> None:
    """Frees the shared memory of the run's last program, whose ``board.json`` is there if it was killed."""
    with contextlib.suppress(OSError, ValueError, AgentkitError):
        if (found := read_address_file(directory)) is not None:
            forget_parameters(found[1], program.nodes)


def _make_engine(config: LaunchConfig) -> Engine:
    if config.engine == "processes":
        return ProcessEngine()
    if config.engine == "threads":
        return ThreadEngine()
    from agentkit.distributed.ray import RayEngine

    engine = RayEngine(address=config.ray_address)
    if not engine.confined:
        _LOGGER.warning(
            "Ray's own ports listen on every network device of its machines, with nothing but its token before them: "
            "set a firewall (launch/README.md). Without --ray-address, Ray listens on this machine alone."
        )
    return engine


def run_store_values(state: Mapping[str, Any] | None) -> dict[str, Any]:
    """Returns what the run store has of where a program goes on: the step, counters and states of a checkpoint's state.

    None is for a new run.
    """
    if state is None:
        return start_values(0)
    return {**restored_values(state), **restored_states(state), **start_values(int(state["num_steps"]))}


def _result(status: dict[str, Any], num_steps: int, history: list[dict[str, float]], policies: Any) -> LaunchResult:
    stopped = stopped_by(status)
    steps = status["totals"].get("steps", 0)
    gauges = [node["gauges"] for node in status["nodes"].values() if node["role"] == "learner"]
    updates = sum(int(gauge.get("updates", 0)) for gauge in gauges)
    interrupted = steps < num_steps and stopped is None
    return LaunchResult(steps, updates, history, interrupted, stopped, policies, reason=status["stop"])
