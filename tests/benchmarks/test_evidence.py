"""The queue of trainings: docs/results holds what its records give, its commands can be run, and it goes on."""

import dataclasses
import pathlib
import signal
import threading
import time

import pytest

from agentkit.agents import registry
from agentkit.cli.values.fields import parse_settings
from agentkit.cli.words.parser import parse
from agentkit.envs.prefixes import check_name
from agentkit.experiment.config import presets
from benchmarks.evidence import queue, tables
from benchmarks.evidence.plan import DOCS, Record, Run, read_published, read_records, read_runs

RUNS, RECORDS = read_runs(), read_records()
COMMANDS = list(dict.fromkeys(dataclasses.replace(run, seed=0) for run in RUNS))


def test_pages_hold_what_the_records_give() -> None:
    pages = tables.groups_by_page(RECORDS.values())
    assert {"mujoco", "cartpole", "offline"} <= pages.keys()
    for page, groups in pages.items():
        written = (DOCS / f"{page}.md").read_text().partition(tables.MARK)
        assert written[1] + written[2] == tables.text(page, groups), (
            f"Run: python -m benchmarks.evidence tables ({page})"
        )
        assert all((DOCS / tables.picture(page, group[0].run.task)).exists() for group in groups)


@pytest.mark.parametrize("run", COMMANDS, ids=lambda run: f"{run.name} {run.page}")
def test_each_command_can_be_parsed(run: Run) -> None:
    """Unmarked, though it imports all agents: a setting that was renamed would end a run in the night."""
    arguments = parse(run.words("folder"))
    check_name(arguments.env)
    config = registry.config_class(arguments.agent)
    settings = parse_settings(arguments.set or [], config, arguments.agent)
    preset = presets.choose(run.agent, run.environment, run.preset) if run.data is None else None
    config(**({} if preset is None else preset.settings_for(run.steps)) | settings)
    assert run.data is None or registry.about(run.agent).data == "offline"


def test_records_were_made_as_the_plan_says() -> None:
    """Runs are known by name alone: changed settings of a run that is recorded would else never be noticed."""
    planned = {run.name: run for run in RUNS}
    made = {name: record.run for name, record in RECORDS.items() if record.commit is not None}
    assert {name: run for name, run in made.items() if name in planned and run != planned[name]} == {}
    assert all(record.evaluations[-1][0] >= record.run.steps for record in RECORDS.values())


def test_published_returns_stand_beside_agents_that_there_are() -> None:
    assert {agent for agent, _ in read_published()} <= set(registry.names())


RUN = Run("page", "dqn", "agentkit:catch", 2_000, 0, settings=("hidden_sizes=8",))


def _record(run: Run, last: float, commit: str | None = "abc") -> Record:
    return Record(run, [[1_000, 0.0], [2_000, last]], 0.5, {"python": "3.11"}, commit)


def test_a_record_is_read_as_it_was_written_and_a_later_one_counts(tmp_path: pathlib.Path) -> None:
    other = dataclasses.replace(RUN, variant="small", num_envs=4)
    lines = [_record(RUN, 1.0, None), _record(other, 2.0), _record(RUN, 3.0)]
    path = tmp_path / "records.jsonl"
    path.write_text("".join(record.line() for record in lines))
    assert read_records(path) == {RUN.name: lines[2], other.name: lines[1]}
    path.write_text(lines[0].line() + lines[1].line())
    assert queue.missing([other, RUN], path) == [RUN]  # A record without a commit is repeated.


def test_a_row_has_the_mean_of_the_seeds_and_the_share_of_what_is_published() -> None:
    run = Run("page", "sac", "gymnasium:Hopper-v5", 2_000, 0)
    group = [_record(dataclasses.replace(run, seed=seed), last) for seed, last in enumerate((1.0, 3.0, 5.0))]
    row = tables._row(group, {("sac", "Hopper"): (6.0, 2_000)})
    beside = "1 to 5", "3.0", "6.0 at 2,000", "0.50", "0.5"
    assert row == ("Hopper", "sac", "2,000", "3", "3.0 (1.0, 3.0, 5.0)", *beside)


@pytest.mark.full
def test_a_queue_that_was_stopped_goes_on_and_records_what_there_is_to_know(tmp_path: pathlib.Path) -> None:
    records = tmp_path / "records.jsonl"
    records.touch()
    bad = dataclasses.replace(RUN, settings=("hidden_sizes=-8",), variant="bad")
    stopped, log = queue.Queue(tmp_path, [bad, RUN], records), tmp_path / "runs" / f"{RUN.file_name}.log"

    def stop_in_the_middle() -> None:
        while not list(tmp_path.glob("runs/*/checkpoints/*")):
            time.sleep(0.05)
        stopped.stop(signal.SIGTERM, None)

    threading.Thread(target=stop_in_the_middle).start()
    assert stopped.work() == 1 and read_records(records) == {}, log.read_text()
    assert "Stopped at step" in log.read_text()

    assert queue.Queue(tmp_path, [RUN], records).work() == 0
    (record,) = read_records(records).values()
    assert record.run == RUN and record.processor_hours > 0 and record.commit is not None
    assert [step for step, _ in record.evaluations] == list(range(100, 2_001, 100))
    parts = (tmp_path / "runs" / f"{RUN.file_name}.parts.jsonl").read_text().splitlines()
    assert len(parts) == 2 and not (tmp_path / "runs" / RUN.file_name / "checkpoints").exists()
    assert queue.missing([RUN], records) == []
