"""Says which words the commands that train take: train, sweep, offline and export."""

from __future__ import annotations

from agentkit.cli.words.options import (
    Commands,
    Parser,
    add_command,
    add_experiment,
    add_import,
    add_policies,
    add_resume,
    add_run,
    natural,
    positive,
)


def add_train(commands: Commands[Parser]) -> None:
    """Adds `train`."""
    train = add_command(
        commands,
        "train",
        "train an agent in this process, or go on with a run",
        "Trains an agent on an environment; a run folder keeps config, logs and checkpoints. "
        "Ctrl-C saves and stops. Numbers may be written 100_000, 100k, 2M or 1e5.",
    )
    add_experiment(train)
    add_policies(train)
    train.add_argument(
        "--seeds",
        metavar="SEEDS",
        help="a run for each, such as 0:5 or 0,3,7, in processes and folders of their own; with --on-device in one",
    )
    train.add_argument("--jobs", type=positive, metavar="N", help="with --seeds: runs at a time; default: 1")
    train.add_argument("--replay", choices=("in_process", "reverb"), help="default: in_process")
    train.add_argument(
        "--on-device",
        action="store_true",
        default=None,
        help="environments, policy and updates in one compiled loop; for environments in JAX, such as jax:cartpole",
    )
    train.add_argument(
        "--video-every",
        type=natural,
        metavar="STEPS",
        help="film the policy into the run's videos/step-N.mp4; needs the extra 'video'; default: 0, never",
    )
    train.add_argument(
        "--profile", action="store_true", help="say at the end where a step's time went; waits for each update"
    )
    train.add_argument(
        "--jax-trace", metavar="FOLDER", help="also write a trace of some steps there; implies --profile"
    )
    add_resume(
        train,
        "with it you may give --steps, the new total, and how to run it (--devices, --keep-best, ...); "
        "--replay in_process lets a launched run go on in one process",
    )


def add_sweep(commands: Commands[Parser]) -> None:
    """Adds `sweep`."""
    sweep = add_command(
        commands,
        "sweep",
        "try many settings, as a file says, or go on with that",
        "Trains with many settings: a grid, random ones, or those that Optuna proposes. The file has the options of "
        "'agentkit train' and what to search; see docs/sweeps.md. The same command goes on after a kill.",
    )
    sweep.add_argument("file", metavar="FILE.toml", help="what to try")
    sweep.add_argument("--jobs", type=positive, metavar="N", help="runs at a time; default: the file's, or 1")
    sweep.add_argument("--out", metavar="FOLDER", help="where the sweep's folder is made; default: runs")
    sweep.add_argument("--status", action="store_true", help="only show the trials so far and the best one")
    add_import(sweep)


def add_offline(commands: Commands[Parser]) -> None:
    """Adds `offline` and `export`."""
    offline = add_command(
        commands,
        "offline",
        "train an agent from a file of episodes, or go on with such a run",
        "Trains an agent from data alone; the environment is for evaluation. A run folder keeps config, logs and "
        "checkpoints; their steps are updates. Needs the extra 'offline' for HDF5.",
    )
    add_run(offline, "UPDATES", "--updates")
    offline.add_argument(
        "--data",
        metavar="FILE",
        help="HDF5 in Minari's layout, as 'agentkit export' writes it, D4RL's, .npz, minari:ID, rlds:FOLDER; see docs",
    )
    offline.add_argument("--updates", type=positive, metavar="N", help="gradient updates in all")
    add_resume(
        offline,
        "with it you may give --updates, the new total, --data where they were moved, and what to keep "
        "(--keep-best, ...)",
    )
    export = add_command(
        commands,
        "export",
        "write episodes of a run to a file, to learn from",
        "Plays episodes with a run's policy, or takes those that its replay holds, and writes them as HDF5 in Minari's "
        "layout. Needs the extra 'offline'.",
    )
    export.add_argument("run", metavar="RUN", help="a run folder, as 'agentkit train' names it at the end")
    add_import(export)
    export.add_argument(
        "-o", "--out", required=True, metavar="FILE.hdf5", help="the file to write, which must not exist"
    )
    export.add_argument("--episodes", type=positive, metavar="N", help="how many to play; default: 100")
    export.add_argument(
        "--max-steps", type=positive, metavar="N", help="cut an episode off after N steps; default: the run's own limit"
    )
    export.add_argument("--explore", action="store_true", help="play with the policy that explores")
    export.add_argument("--seed", type=natural, metavar="N", help="of the episodes played; default: 0")
    export.add_argument("--replay", action="store_true", help="play nothing: write the episodes in the run's replay")
