"""Says which words the commands of programs of many processes take: launch, node, status, scale, stop."""

from __future__ import annotations

from agentkit.cli.words.options import (
    Commands,
    Parser,
    add_command,
    add_experiment,
    add_import,
    add_policies,
    add_resume,
    amount,
    natural,
    port,
    positive,
    seconds,
)

ENGINES = ("processes", "ray", "threads")


NODE_ROLES = ("replay", "learner", "actor", "evaluator")


def add_launch(commands: Commands[Parser]) -> None:
    """Adds `launch`."""
    launch = add_command(
        commands,
        "launch",
        "train with many processes, on this machine or on Ray",
        "Trains an agent with a replay server, a learner, actors and evaluators, and restarts what dies. "
        "Ctrl-C saves and stops, a second one kills.",
    )
    add_experiment(launch)
    add_policies(launch)
    _add_replay(launch)
    launch.add_argument("--actors", type=positive, metavar="N", help="actor processes; default: 2")
    launch.add_argument("--evaluators", type=natural, metavar="N", help="evaluator processes; default: 1")
    launch.add_argument(
        "--inference",
        type=natural,
        metavar="N",
        help="processes that choose the actions of all actors, for large networks; default: 0, each actor itself",
    )
    launch.add_argument("--engine", choices=ENGINES, help="what runs the nodes; default: processes")
    launch.add_argument("--ray-address", metavar="HOST:PORT", help="the Ray cluster's, for --engine ray")
    launch.add_argument(
        "--listen",
        metavar="DEVICE",
        help="the network device that servers answer on, where a cluster's machines share one; default: lo",
    )
    launch.add_argument(
        "--max-parameter-age",
        type=seconds,
        metavar="SECONDS",
        help="actors wait where their parameters are older; default: no limit",
    )
    launch.add_argument(
        "--max-restarts",
        type=natural,
        metavar="N",
        help="of one node within ten minutes; one more stops the program; default: 20",
    )
    launch.add_argument(
        "--learner-gpus",
        type=amount,
        metavar="N",
        help="with --engine ray: GPUs to reserve for the learner, 0.5 for half of one; default: 0, it sees those there "
        "are without reserving any, as on the other engines",
    )
    add_resume(
        launch,
        "with it you may give --steps, the new total, and how to run it (--actors, --engine, ...); --replay served "
        "lets a run in one process go on launched",
    )


def add_node(commands: Commands[Parser]) -> None:
    """Adds `node` and its roles."""
    node = add_command(
        commands,
        "node",
        "run one node of a program, for a scheduler or a shell",
        "Runs one node. 'replay' hosts a run; the others join it from any machine, and may be started, killed "
        "and started again at any time. Exit codes: 0 the run is over, 1 start it again, 2 do not.",
    )
    roles = node.add_subparsers(dest="role", required=True, metavar="ROLE")
    _add_host(add_command(roles, "replay", "host a run: its replay server and its run store", _HOST_DESCRIPTION))
    for role, meaning in (
        ("learner", "updates and publishes the parameters, and saves checkpoints"),
        ("actor", "plays and fills the replay"),
        ("evaluator", "plays with the evaluation policy and logs the returns"),
    ):
        one = add_command(roles, role, meaning, f"Joins a run as its {role}: {meaning}. {_RUN_ID_NOTE}")
        one.add_argument("--connect", metavar="HOST:PORT", help="the run store, as 'agentkit node replay' prints it")
        _add_run_id(one)
        add_import(one)
        if role == "learner":  # A run has one.
            one.add_argument(
                "--listen",
                metavar="DEVICE",
                help="the network device on which nodes of other machines get the parameters, such as wg0 or eth0, or "
                "'all'; default: lo, this machine alone",
            )
        else:
            default = "a random one" if role == "actor" else "0"
            one.add_argument(
                "--index", type=natural, metavar="I", help=f"tells each {role} from the others; default: {default}"
            )


_RUN_ID_NOTE = (
    "The run id is a secret: who knows it may join and stop the run. Give it in the variable AGENTKIT_RUN_ID or in "
    "a file; --run-id shows it to everyone who can list this machine's processes."
)


_HOST_DESCRIPTION = (
    "Hosts a run: the run store, at which its nodes meet, and the replay server. Prints what the other nodes need. "
    f"{_RUN_ID_NOTE}"
)


def _add_host(host: Parser) -> None:
    add_experiment(host, is_host=True)
    _add_replay(host)
    host.set_defaults(run_directory=None)
    host.add_argument(
        "--run",
        "--run-directory",
        dest="run",
        metavar="RUN",
        help="instead of --out: this very run folder, made if there is none; the run in it goes on. For schedulers, "
        "which start the same command again",
    )
    host.add_argument("--board-port", type=port, metavar="P", help="of the run store, where nodes meet; default: 7700")
    host.add_argument("--port", type=port, metavar="P", help="of the replay server; default: a free one")
    host.add_argument(
        "--listen",
        metavar="DEVICE",
        help="the network device that both answer on, such as wg0 or eth0, or 'all'; default: lo, this machine alone",
    )
    _add_run_id(host)


def _add_replay(parser: Parser) -> None:
    parser.add_argument(
        "--replay",
        choices=("served", "reverb"),
        help="what holds the experience: agentkit's own server (the default) or Reverb's",
    )


def _add_run_id(parser: Parser) -> None:
    given = parser.add_mutually_exclusive_group()
    given.add_argument("--run-id", metavar="ID", help="the run's secret; better in AGENTKIT_RUN_ID or a file")
    given.add_argument(
        "--run-id-file", metavar="FILE", help="a file with the run id, or RUN/board.json, which has the address too"
    )


def add_watching(commands: Commands[Parser]) -> None:
    """Adds `status`, `scale` and `stop`."""
    status = add_command(
        commands,
        "status",
        "what a launched program is doing",
        "Shows a running program's nodes and tables. Exit code 2 if nothing runs there.",
    )
    status.add_argument("--watch", action="store_true", help="go on showing it until it ends or Ctrl-C")
    scale = add_command(
        commands,
        "scale",
        "change how many actors a running program has",
        "Starts or stops actors of a running program.",
    )
    scale.add_argument("--actors", type=natural, required=True, metavar="N", help="how many there are to be")
    stop = add_command(commands, "stop", "save and stop a running program", "Asks a running program to save and stop.")
    for parser in (status, scale, stop):
        parser.add_argument("run", metavar="RUN", help="the run folder of 'agentkit launch' or 'agentkit node replay'")
