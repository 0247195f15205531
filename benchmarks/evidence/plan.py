"""Reads `evidence.toml`, which says what is trained, and the records of what the trainings reached."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import re
import shlex
import tomllib
from collections.abc import Iterable
from typing import Any

from agentkit.loggers.csv import replacing
from agentkit.loggers.jsonl import read_jsonl

ROOT = pathlib.Path(__file__).resolve().parents[2]
PLAN = ROOT / "benchmarks" / "evidence.toml"
DOCS = ROOT / "docs" / "results"
RECORDS = DOCS / "records.jsonl"
NUM_EVALUATIONS, NUM_EPISODES = 20, 10


@dataclasses.dataclass(frozen=True)
class Run:
    """Is one training.

    Attributes:
        page: of docs/results, where its returns are shown.
        agent: as `agentkit train` calls it.
        environment: as above.
        steps: of the environment; updates, where it learns from `data`.
        seed: one of the group's.
        num_envs: None leaves it to the preset.
        preset: as above.
        settings: words such as ``tau=0.01``.
        data: the name of the run whose policy makes the episodes that this one learns from; None where it acts itself.
        variant: tells runs of other settings apart from those that have the agent's name alone.
    """

    page: str
    agent: str
    environment: str
    steps: int
    seed: int
    num_envs: int | None = None
    preset: str = "auto"
    settings: tuple[str, ...] = ()
    data: str | None = None
    variant: str = ""

    @property
    def label(self) -> str:
        """Returns the agent with its variant, as tables and plots call it."""
        return f"{self.agent} {self.variant}".strip()

    @property
    def name(self) -> str:
        """Returns what tells this run from all others: ``sac/gymnasium:Hopper-v5/1000000/0``."""
        return f"{self.label}/{self.environment}/{self.steps}/{self.seed}"

    @property
    def file_name(self) -> str:
        """Returns the name as files and folders have it."""
        return re.sub(r"[^A-Za-z0-9._-]+", "_", self.name)

    @property
    def task(self) -> str:
        """Returns the environment without simulator and version: ``Hopper``."""
        return re.sub(r"-v\d+$", "", self.environment.partition(":")[2])

    def words(self, folder: str, data: str | None = None) -> list[str]:
        """Returns the command that trains it, without ``agentkit``.

        Args:
            folder: its run folder.
            data: the file of its episodes, if it has `data`.
        """
        place = ["--env", self.environment, "--seed", str(self.seed), "--run-directory", folder]
        if self.data is None:
            words = ["train", self.agent, "--preset", self.preset, "--steps", str(self.steps), *place]
        else:
            words = ["offline", self.agent, "--data", data or "DATA", "--updates", str(self.steps), *place]
        words += ["--eval-every", str(self.steps // NUM_EVALUATIONS), "--eval-episodes", str(NUM_EPISODES)]
        words += [] if self.num_envs is None else ["--num-envs", str(self.num_envs)]
        return words + [word for setting in self.settings for word in ("--set", setting)]

    def options(self) -> list[str]:
        """Returns the options that it is trained with, wherever its folder and its data lie."""
        words = self.words("FOLDER", self.data)
        return [" ".join(pair) for pair in zip(words[2::2], words[3::2], strict=True)]

    def command(self) -> str:
        """Returns the command that a user types for any environment and seed that it was run with."""
        words = dataclasses.replace(self, environment="ENVIRONMENT").words("FOLDER")
        words[words.index("--seed") + 1] = "SEED"
        return "agentkit " + shlex.join(words)


@dataclasses.dataclass(frozen=True)
class Record:
    """Is what a run reached.

    Attributes:
        run: what was trained.
        evaluations: pairs of a step and the mean return of `NUM_EPISODES` episodes there, in order.
        processor_hours: of one core, evaluations included, but without the parts that a kill -9 has ended.
        versions: of Python and the packages.
        commit: of agentkit; None for runs from before the queue, which it repeats.
    """

    run: Run
    evaluations: list[list[float]]
    processor_hours: float
    versions: dict[str, str]
    commit: str | None

    def line(self) -> str:
        """Returns it as a line of the records; what is as `Run` has it by default is left out."""
        defaults = {field.name: field.default for field in dataclasses.fields(Run)}
        run = {key: value for key, value in dataclasses.asdict(self.run).items() if value != defaults[key]}
        own = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)[1:]}
        return json.dumps(run | own, separators=(",", ":")) + "\n"


def read_records(path: pathlib.Path = RECORDS) -> dict[str, Record]:
    """Returns the records by their runs' names, of two of one name the later one; a last line cut off is left out."""
    fields = {field.name for field in dataclasses.fields(Run)}
    found = {}
    for values in read_jsonl(path):
        run = {key: values.pop(key) for key in list(values) if key in fields}
        run["settings"] = tuple(run.get("settings", ()))
        found[Run(**run).name] = Record(Run(**run), **values)
    return found


def append(path: pathlib.Path, line: str) -> None:
    """Appends a line, whole or not at all, in the place of a last one that was cut off.

    Raises:
        OSError: there is no room for it; the file is as it was.
    """
    before = path.read_bytes() if path.exists() else b""
    try:
        with replacing(path) as file:
            file.write(before[: before.rfind(b"\n") + 1].decode() + line)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def read_runs(path: pathlib.Path = PLAN) -> list[Run]:
    """Returns all runs in the order in which they are to be done: the groups', and in a group that of the seeds.

    Raises:
        ValueError: two have one name, or the data of one are of no run before it.
    """
    runs = [run for group in tomllib.loads(path.read_text())["runs"] for run in _runs_of(**group)]
    seen: set[str] = set()
    for run in runs:
        if run.name in seen:
            raise ValueError(f"{path}: expected each run once, found {run.name} twice. Give one a variant.")
        if run.data is not None and run.data not in seen:
            raise ValueError(f"{path}: {run.name} has the data of {run.data}, which is no run before it.")
        seen.add(run.name)
    return runs


def _runs_of(
    agents: Iterable[str], environments: Iterable[str], seeds: Iterable[int], settings: Iterable[str] = (), **same: Any
) -> Iterable[Run]:
    for seed in seeds:
        for environment in environments:
            for agent in agents:
                yield Run(agent=agent, environment=environment, seed=seed, settings=tuple(settings), **same)


def read_published(path: pathlib.Path = PLAN) -> dict[tuple[str, str], tuple[float, int]]:
    """Returns published returns, and the steps that they took, by agent and task."""
    found = {}
    for table in tomllib.loads(path.read_text())["published"]:
        for agent, returns in table["returns"].items():
            for task, value in zip(table["tasks"], returns, strict=True):
                found[agent, task] = value, table["steps"]
    return found
