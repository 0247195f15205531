"""An experiment as a program of many processes, and the ways to run one.

`launch` runs it on an engine, supervised. Where another scheduler starts processes, `host_by_hand` is the
replay node with the run's board, and `run_node_by_hand` is any of the others.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import queue
import random
import secrets
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from agentkit import checkpoint
from agentkit.distributed import Board, BoardClient, Handle, NodeContext, Program, Role, Supervisor
from agentkit.distributed.board import WrongRunError
from agentkit.distributed.context import LOST_SECONDS, Where
from agentkit.distributed.processes import ProcessEngine
from agentkit.distributed.program import Node
from agentkit.distributed.supervisor import Engine, write_board_file
from agentkit.distributed.threads import ThreadEngine
from agentkit.distributed.worker import Launch, run_node
from agentkit.errors import CheckpointError, ConfigError, unknown_name
from agentkit.experiment import nodes
from agentkit.experiment.config import ExperimentConfig, experiment_from_record, read_config, write_config
from agentkit.experiment.local import ResumeError, check_same
from agentkit.experiment.transports import forget_parameters
from agentkit.replay import listening
from agentkit.replay.base import index_tables
from agentkit.specs import EnvironmentSpec

STOP_SECONDS = 120.0
"""How long nodes started by hand may take to save and leave."""

ENGINES = ("processes", "ray", "threads")
ROLES = ("replay", "learner", "actor", "evaluator")


@dataclasses.dataclass(frozen=True)
class LaunchConfig:
    """How an experiment is spread over processes.

    Attributes:
        num_actors: actor nodes, each with `ExperimentConfig.num_envs` environments.
        num_evaluators: evaluator nodes; they take turns.
        engine: "processes" (this machine), "ray", or "threads" (for a debugger).
        ray_address: of an existing Ray cluster; None starts a private one on this machine.
        listen: the network device that servers listen on: "lo" is this machine alone.
        transport: how parameters travel, see `transports.make_publisher`; None for the engine's own.
        max_parameter_age_seconds: actors wait where their parameters are older; None for no limit.
    """

    num_actors: int = 2
    num_evaluators: int = 1
    engine: str = "processes"
    ray_address: str | None = None
    listen: str = "lo"
    transport: str | None = None
    max_parameter_age_seconds: float | None = None

    def __post_init__(self) -> None:
        if self.engine not in ENGINES:
            raise unknown_name("engine", self.engine, ENGINES)
        if self.num_actors < 1:
            raise ConfigError(f"num_actors must be at least 1, found {self.num_actors}.")
        if self.num_evaluators < 0:
            raise ConfigError(f"num_evaluators must not be negative, found {self.num_evaluators}.")
        if self.ray_address is not None and self.engine != "ray":
            raise ConfigError(f"ray_address belongs to engine='ray', found engine={self.engine!r}.")


class LaunchResult(NamedTuple):
    """What a launched run ended with.

    Attributes:
        steps: environment steps of all actors, earlier runs of a resumed one included.
        updates: learner updates behind the newest parameters.
        evaluations: the newest record of each evaluation, as the evaluators published them.
        interrupted: True if it stopped before all steps were taken.
        reason: why it ended.
    """

    steps: int
    updates: int
    evaluations: list[dict[str, float]]
    interrupted: bool
    reason: str


def make_program(experiment: ExperimentConfig, config: LaunchConfig, spec: EnvironmentSpec | None = None) -> Program:
    """The program of an experiment: replay <- learner <- actors, evaluators.

    To build one of your own, take its parts: `nodes.replay_node` and the other three are its functions.

    Args:
        experiment: what to run.
        config: how many processes of which kind.
        spec: of the environment; None lets each node look at one.
    """
    program = Program(f"{experiment.describe()['agent'] or 'agent'} on {experiment.describe()['environment'] or 'own'}")
    transport = config.transport or ("ray" if config.engine == "ray" else "shared_memory")
    for role in make_roles(config.num_actors):
        program.add_role(role)
    replay = program.add_node("replay", nodes.replay_node, experiment, spec, listen=config.listen)
    learner = program.add_node(
        "learner", nodes.learner_node, experiment, spec, replay, transport=transport, listen=config.listen
    )
    for _ in range(config.num_actors):
        program.add_node(
            "actor", nodes.actor_node, experiment, spec, replay, learner,
            max_parameter_age_seconds=config.max_parameter_age_seconds,
        )  # fmt: skip
    for _ in range(config.num_evaluators if experiment.evaluation_period else 0):
        program.add_node(
            "evaluator", nodes.evaluator_node, experiment, spec, learner, num_evaluators=config.num_evaluators
        )
    return program


def make_roles(num_actors: int) -> list[Role]:
    """The roles of an experiment, in the order in which they stop: actors, learner, evaluators, replay.

    Processes that each take all cores slow each other many times over: all but the learner take one, and
    only the learner may see an accelerator.
    """
    cores = len(os.sched_getaffinity(0))
    light = {
        "JAX_PLATFORMS": "cpu",
        "NPROC": "1",  # jaxlib's name for its number of threads
        "OMP_NUM_THREADS": "1",
        "TF_NUM_INTRAOP_THREADS": "1",
        "TF_NUM_INTEROP_THREADS": "1",
    }
    learner = {"NPROC": str(max(1, cores - min(num_actors, cores // 2)))}
    reverb = ("agentkit.replay.reverb",)
    return [
        Role("actor", stop_order=0, stop_seconds=5.0, environment=light, preload=reverb),
        Role(
            "learner",
            stop_order=1,
            stop_seconds=120.0,
            start_seconds=300.0,
            idle_seconds=900.0,
            environment=learner,
            preload=(*reverb, "rlax"),
        ),
        Role("evaluator", stop_order=2, stop_seconds=300.0, idle_seconds=3600.0, environment=light),
        Role("replay", stop_order=3, stop_seconds=20.0, start_seconds=600.0, num_cpus=0.0, environment=light),
    ]


def launch(
    experiment: ExperimentConfig,
    *,
    num_actors: int = 2,
    num_evaluators: int = 1,
    engine: str = "processes",
    resume: bool = False,
    on_status: Callable[[dict[str, Any]], None] | None = None,
    **settings: Any,
) -> LaunchResult:
    """Trains in many processes until `experiment.num_steps` steps were taken by all actors together.

    Ctrl-C or SIGTERM stops and saves, a second one kills. Needs the extra ``reverb``.

    Args:
        experiment: what `agentkit.run` takes, unchanged.
        num_actors: actor processes.
        num_evaluators: evaluator processes.
        engine: "processes", "ray" or "threads".
        resume: go on from the newest checkpoint in the run folder.
        on_status: called twice a second with `Board.status`, e.g. to show it.
        **settings: other fields of `LaunchConfig`.

    Raises:
        ConfigError: impossible settings, or a run folder that has a run already.
        ResumeError: the newest checkpoint is another experiment's, or of `agentkit.run`.
        ProgramError: a node failed in a way that no restart mends, or too often.
    """
    config = LaunchConfig(num_actors=num_actors, num_evaluators=num_evaluators, engine=engine, **settings)
    experiment = dataclasses.replace(experiment, replay="reverb", progress=False)
    found = _prepare(experiment, resume, dataclasses.asdict(config))
    spec = nodes.find_spec(experiment)
    # What the nodes will make, so that a wrong setting is refused here and not by the first of them.
    experiment.agent.make_update(experiment.agent.make_networks(spec))
    index_tables(experiment.agent.make_tables(spec))[experiment.agent.batch_plan.table].check_batch(
        experiment.agent.batch_plan.batch_size
    )
    directory = None if experiment.run_directory is None else pathlib.Path(experiment.run_directory).absolute()
    program = make_program(experiment, config, spec)
    history: list[dict[str, float]] = []

    def on_tick(status: dict[str, Any]) -> None:
        record = status["values"].get("evaluation")
        if record is not None and record not in history:
            history.append(record)
        if on_status is not None:
            on_status(status)

    with Supervisor(program, _make_engine(config), run_directory=directory) as supervisor:
        if found is not None:
            supervisor.board.restore_totals(found.state["totals"])
        supervisor.board.put("num_steps", experiment.num_steps)
        try:
            reason = supervisor.run(on_tick)
        finally:
            supervisor.kill_all()
            forget_parameters(supervisor.run_id)
        status = supervisor.board.status()
    return _result(status, experiment, history, reason)


def relaunch(run_directory: str | pathlib.Path, **changes: Any) -> LaunchResult:
    """Goes on with the launched run in a folder; `changes` replace settings, e.g. ``num_actors=4``."""
    path = pathlib.Path(run_directory) / "config.json"
    of_launch = {field.name for field in dataclasses.fields(LaunchConfig)} | {"on_status"}
    of_experiment = {name: changes.pop(name) for name in list(changes) if name not in of_launch}
    experiment = read_config(run_directory, **of_experiment)
    saved = json.loads(path.read_text()).get("launch")
    if saved is None:
        raise ConfigError(
            f"The run {run_directory} was not launched. Go on with: agentkit train --resume {run_directory}"
        )
    return launch(experiment, resume=True, **{**saved, **changes})


def _prepare(experiment: ExperimentConfig, resume: bool, config: dict[str, Any]) -> checkpoint.Checkpoint | None:
    """Looks at the run folder before anything is started; the checkpoint to go on from, if any."""
    if experiment.run_directory is None:
        if resume:
            raise ConfigError("To resume, an experiment needs the run_directory it was saved in.")
        return None
    directory = pathlib.Path(experiment.run_directory)
    if (directory / "config.json").exists() and not resume:
        raise ConfigError(f"{directory} has a run in it already. Resume it, or choose another run_directory.")
    found = None
    if resume:
        _refuse_second_supervisor(directory)
        try:
            found = checkpoint.read_latest(directory / "checkpoints")
            if found is not None:
                check_same(experiment, found)
                if not found.state.get("launched"):
                    raise CheckpointError(f"{found.path} is of a run in one process: use agentkit train --resume.")
        except CheckpointError as error:
            raise ResumeError(str(error)) from error
    write_config(experiment, directory, launch=config)
    return found


def _refuse_second_supervisor(directory: pathlib.Path) -> None:
    """Two programs in one run folder would overwrite each other's checkpoints."""
    path = directory / "board.json"
    if not path.is_file():
        return
    record = json.loads(path.read_text())
    try:
        BoardClient(record["address"], record["run_id"], timeout=1.0).close()
    except WrongRunError:
        return  # Another run has that port now.
    except Exception:
        return  # Left behind by a program that was killed.
    raise ConfigError(f"A program runs in {directory} now (see: agentkit status {directory}). Stop it first.")


def _make_engine(config: LaunchConfig) -> Engine:
    if config.engine == "processes":
        return ProcessEngine()
    if config.engine == "threads":
        return ThreadEngine()
    from agentkit.distributed.ray import RayEngine

    return RayEngine(address=config.ray_address)


def _result(
    status: dict[str, Any], experiment: ExperimentConfig, history: list[dict[str, float]], reason: str
) -> LaunchResult:
    steps = status["totals"].get("steps", 0)
    gauges = [node["gauges"] for node in status["nodes"].values() if node["role"] == "learner"]
    updates = max((int(gauge.get("updates", 0)) for gauge in gauges), default=0)
    return LaunchResult(steps, updates, history, steps < experiment.num_steps, reason)


# --- any scheduler -------------------------------------------------------------------------------


def host_by_hand(
    experiment: ExperimentConfig,
    *,
    board_port: int,
    port: int | None = None,
    listen: str = "lo",
    run_id: str | None = None,
    on_start: Callable[[str, str], None] | None = None,
) -> str:
    """The replay node and the board of a run whose other nodes another scheduler starts.

    Started again after a kill (with the same ports and run id), it goes on from the newest checkpoint,
    and the others find it by themselves.

    Args:
        experiment: by name, so that the others can make it too.
        board_port: of the board: the one port that others are told.
        port: of replay; None finds a free one.
        listen: the network device for both.
        run_id: the secret; None makes one, or takes that of the run folder.
        on_start: called with the board's address and the run id.

    Returns:
        Why it ended.
    """
    experiment = dataclasses.replace(experiment, replay="reverb", progress=False)
    record = experiment.describe()
    if record["agent"] is None or record["environment"] is None:
        raise ConfigError("Nodes by hand need an agent and an environment by name: others cannot make your own code's.")
    if experiment.run_directory is None:
        raise ConfigError("Nodes by hand need a run_directory: it is where they go on from after a restart.")
    directory = pathlib.Path(experiment.run_directory).absolute()
    known = directory / "run_id"
    run_id = run_id or (known.read_text().strip() if known.is_file() else secrets.token_hex(16))
    found = _prepare(experiment, (directory / "config.json").exists(), {})
    _write_secret(known, run_id)
    host = "127.0.0.1" if listen == "lo" else "0.0.0.0"
    with Board(run_id, host=host, port=board_port, program=f"{record['agent']} on {record['environment']}") as board:
        if listen not in ("lo", "all") and not listening.bind_to_device(board_port, listen):
            raise ConfigError(f"The board could not be confined to network device {listen!r}. Is there one?")
        if found is not None:
            board.restore_totals(found.state["totals"])
        board.put("experiment", {**record, "run_directory": str(directory)})
        address = f"127.0.0.1:{board.address.rpartition(':')[2]}"
        write_board_file(directory, address, run_id)
        asked, stop = threading.Event(), threading.Event()
        board.node("replay-0", supervised=True, state="ready")
        with contextlib.closing(BoardClient(address, run_id, node="replay-0")) as client, _stop_on_signal(asked):
            context = NodeContext(Where("replay-0", "replay", 0, 0, directory), client, stop=stop)
            threading.Thread(target=_obey, args=(board, asked, stop), name="commands", daemon=True).start()
            if on_start is not None:
                on_start(f"{listening.device_address(listen)}:{board_port}".replace("localhost", "127.0.0.1"), run_id)
            try:
                nodes.replay_node(context, experiment, listen=listen, port=port)
            finally:
                context.close()
        reason = board.stop_reason or "stopped by a signal"
    forget_parameters(run_id)
    (directory / "board.json").unlink(missing_ok=True)
    return reason


def _obey(board: Board, asked: threading.Event, stop: threading.Event) -> None:
    """Waits until the run is to stop; replay itself stops when the others, which may save, have left."""
    while board.stop_reason is None:
        if asked.is_set():
            board.stop("stopped by a signal")
        with contextlib.suppress(queue.Empty):
            name, arguments = board.commands.get(timeout=0.2)
            if name == "stop":
                board.stop(str(arguments.get("reason") or "asked to stop"))
    deadline = time.monotonic() + STOP_SECONDS
    while time.monotonic() < deadline:
        others = [node for name, node in board.status()["nodes"].items() if name != "replay-0"]
        if not any(node["state"] != "done" and (node["beat_age_seconds"] or 0.0) < LOST_SECONDS for node in others):
            break
        time.sleep(0.1)
    stop.set()


def _write_secret(path: pathlib.Path, text: str) -> None:
    path.unlink(missing_ok=True)
    path.touch(mode=0o600, exist_ok=False)
    path.write_text(text + "\n")


@contextlib.contextmanager
def _stop_on_signal(stop: threading.Event) -> Any:
    import signal

    def handle(number: int, frame: Any) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    previous = {n: signal.signal(n, handle) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def run_node_by_hand(
    role: str, *, connect: str, run_id: str, index: int | None = None, transport: str = "shared_memory",
    listen: str = "lo", timeout: float = 120.0,
) -> int:  # fmt: skip
    """Runs a learner, actor or evaluator of a run whose board is at an address, until it is told to stop.

    Args:
        role: "learner", "actor" or "evaluator".
        connect: "host:port" of the board that the replay node printed.
        run_id: the run's secret.
        index: tells nodes of a role apart; None draws one.
        transport: for a learner, see `transports.make_publisher`.
        listen: for a learner, the network device of its own server.
        timeout: seconds to wait for the board.

    Returns:
        The exit code: 0 done; 1 an error that starting it again may mend; 2 one that it cannot.
    """
    if role not in ROLES[1:]:
        raise unknown_name("role", role, ROLES[1:])
    with contextlib.closing(BoardClient(connect, run_id, timeout=timeout)) as client:
        record = dict(client.get("experiment", timeout=timeout))
    directory = pathlib.Path(record.pop("run_directory"))
    experiment = experiment_from_record(record, run_directory=directory)
    number = index if index is not None else (0 if role == "learner" else random.SystemRandom().randrange(10**6))
    replay, learner = Handle("replay-0"), Handle("learner-0")
    if role == "learner":
        target: Any = nodes.learner_node
        arguments: tuple[Any, ...] = (experiment, None, replay)
        settings: dict[str, Any] = {"transport": transport, "listen": listen}
    elif role == "actor":
        target, arguments, settings = nodes.actor_node, (experiment, None, replay, learner), {}
    else:
        target, arguments, settings = nodes.evaluator_node, (experiment, None, learner), {}
    node = Node(f"{role}-{number}", role, number, target, arguments, settings)
    stop = threading.Event()
    with _stop_on_signal(stop):
        return run_node(node, Launch(connect, run_id, str(directory)), stop)
