"""Runs ``agentkit sweep``: many trials of one experiment, a table of them, and the best one as a command."""

from __future__ import annotations

import argparse
import importlib.util
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agentkit.callbacks.base import check_evaluates_before_its_end
from agentkit.cli.interrupts import INTERRUPTED
from agentkit.cli.screen import command_line, say
from agentkit.cli.training.several import find_agents
from agentkit.cli.training.sweep_file import SweepFile, make_plan, read_sweep_file, text_of
from agentkit.cli.values.environments import import_packages
from agentkit.cli.words.parser import parse
from agentkit.counting import count_of
from agentkit.errors import AgentkitError, ConfigError, missing_extra, unknown_name

_MAX_ROWS = 20


def sweep(arguments: argparse.Namespace) -> int:
    """Runs the sweep of a file, or goes on with it; prints the trials and the best one.

    Returns:
        0; 130 if Ctrl-C stopped and saved it; 1 if no trial has finished.

    Raises:
        ConfigError: for a file that says what cannot be; nothing was started then.
        UnknownNameError: for a name in it that nothing has.
        MissingExtraError: if it asks for Optuna, which is not installed.
    """
    file = read_sweep_file(arguments.file)
    directory = Path("runs" if arguments.out is None else arguments.out) / f"sweep-{file.path.stem}"
    if arguments.status:
        return _status(file, directory, arguments)
    if file.sweep.get("method") == "tpe" and importlib.util.find_spec("optuna") is None:
        raise missing_extra("optuna", "sweep")
    import_packages(arguments.imports)
    imports = arguments.imports or []
    made = itertools.count()

    def make_experiment(parameters: Mapping[str, Any]) -> Any:
        from agentkit.cli.training.new_run import new_experiment
        from agentkit.cli.training.several import new_several

        named = [word for package in imports for word in ("--import", package)]
        trained = parse(["train", *file.words(parameters), *named])
        is_first = next(made) == 0  # Which is made to be checked; all trials have the same preset.
        if trained.policies is not None:
            return new_several(trained, "train", tells_preset=is_first)
        replay = "in_process" if trained.replay is None else trained.replay
        return new_experiment(trained, "train", replay=replay, tells_preset=is_first)

    plan = make_plan(file, make_experiment)
    _check_first(file, plan)
    from agentkit.experiment.sweeps import run_sweep

    print(f"Sweep folder: {directory}, {count_of(plan.total(), 'trial')}", flush=True)
    with _TableWatcher(directory) as watcher:
        result = run_sweep(plan, directory, arguments.jobs or file.jobs, watcher)
    say(_describe_best(file, result.trials, directory, arguments))
    if result.interrupted:
        say(f"Stopped and saved. Go on with:\n  {_again(arguments)}")
        return INTERRUPTED
    if not result.ended:
        say(f"Other processes still work on some trials. See:\n  {_again(arguments)} --status")
    return 0 if result.best is not None else 1


def _check_first(file: SweepFile, plan: Any) -> None:
    """Builds one experiment of the sweep, so that what no trial could do is refused before there is a folder."""
    try:
        experiment = plan.make_experiment(plan.first_values())
        check_evaluates_before_its_end(experiment, "agentkit sweep")
        if hasattr(experiment, "policies"):
            agents = {agent_id for agent_ids in find_agents(experiment).values() for agent_id in agent_ids}
            if plan.return_of is not None and plan.return_of not in agents:
                raise unknown_name("agent in return_of", plan.return_of, agents)
        elif plan.return_of is not None:
            raise ConfigError(f"sweep.return_of = {plan.return_of!r} is of several agents (policies). Leave it out.")
    except AgentkitError as error:
        raise type(error)(f"{file.path}: {error}") from error


def _again(arguments: argparse.Namespace) -> str:
    """Returns the command that goes on with this sweep: in its folder, with the packages that it needs."""
    words = [word for name in ("out", "jobs") for word in _given(arguments, name)]
    return command_line("sweep", arguments.file, *words, imports=arguments.imports)


def _given(arguments: argparse.Namespace, name: str) -> list[Any]:
    value = getattr(arguments, name)
    return [] if value is None else [f"--{name}", value]


def _status(file: SweepFile, directory: Path, arguments: argparse.Namespace) -> int:
    from agentkit.experiment.sweeps.trials import BEGUN, SweepFolder

    if not directory.is_dir():
        raise ConfigError(f"{directory} has no sweep yet. Begin it with: {_again(arguments)}")
    from agentkit.loggers.live import as_text

    folder = SweepFolder(directory)
    records = folder.records()
    running = [record.number for record in records if record.state == BEGUN and folder.is_held(record.number)]
    if records:
        print(as_text(_grid(records, running, directory).table()))
    say(_describe_best(file, records, directory, arguments))
    return 0


def _describe_best(file: SweepFile, records: Sequence[Any], directory: Path, arguments: argparse.Namespace) -> str:
    from agentkit.experiment.sweeps.run import best_of

    states = [record.state for record in records]
    counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    trials = f"{count_of(len(records), 'trial')} ({counts})"
    best = best_of(records)
    if best is None:
        return f"{trials}; none has finished." if records else "No trial has begun."
    words = [*file.words(best.parameters), *_given(arguments, "out")]
    command = command_line("train", *words, imports=arguments.imports)
    return (
        f"{trials}. All: {directory}/results.csv\n"
        f"Best: trial {best.number} with {file.sweep.get('metric', 'last')} return {best.value:.1f}\n  {command}"
    )


def _grid(records: Sequence[Any], running: Sequence[int], directory: Path) -> Any:
    """Returns the table of trials: those that run, and the best of the others, where there are many."""
    from agentkit.experiment.sweeps.run import best_of
    from agentkit.experiment.sweeps.trials import SweepFolder
    from agentkit.loggers.live import Grid

    names = list(dict.fromkeys(name for record in records for name in record.parameters))
    best = best_of(records)
    ranked = sorted(
        records, key=lambda record: (record.number not in running, record.value is None, -(record.value or 0))
    )
    shown = {record.number for record in ranked[:_MAX_ROWS]}
    rows = []
    for record in records:
        if record.number not in shown:
            continue
        begun = "running" if record.number in running else "stopped"
        state = begun if record.state == "begun" else record.state
        mark = " *" if best is not None and record.number == best.number else ""
        value = "" if record.value is None else f"{record.value:.1f}"
        steps = _steps(SweepFolder(directory).trial_path(record.number))
        rows.append(
            (f"{record.number}{mark}", state, steps, value, *(_short(record.parameters.get(name)) for name in names))
        )
    return Grid(("trial", "state", "steps", "return", *(name.rpartition(".")[2] for name in names)), rows)


def _steps(trial: Path) -> str:
    """Returns the steps of all seeds of a trial so far."""
    from agentkit.experiment.sweeps.jobs import read_progress

    return f"{sum(read_progress(run).steps for run in trial.glob('seed*')):,}"


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else "" if value is None else text_of(value)


class _TableWatcher:
    """Shows a sweep as it runs: a `Watcher`."""

    def __init__(self, directory: Path) -> None:
        from agentkit.loggers.live import RunsTable

        self._directory = directory
        self._table = RunsTable()

    def message(self, text: str) -> None:
        self._table.message(text)

    def show(self, trials: Sequence[Any], running: Sequence[int]) -> None:
        if trials:
            self._table.write(_grid(trials, running, self._directory))

    def __enter__(self) -> _TableWatcher:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._table.close()
