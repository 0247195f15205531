"""The queue of trainings: docs/results holds what its records give, its commands can be run, and it goes on."""

import dataclasses
import json
import os
import pathlib
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import pytest

from agentkit.agents import registry
from agentkit.child import environment_of_child
from agentkit.cli.values.fields import parse_settings
from agentkit.cli.words.parser import parse
from agentkit.envs.prefixes import check_name
from agentkit.experiment.config import presets
from agentkit.experiment.runs.lock import run_lock
from benchmarks.evidence import __main__ as command
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


def test_a_page_and_its_pictures_are_written(tmp_path: pathlib.Path) -> None:
    offline = [record for record in RECORDS.values() if record.run.page == "offline"][:2]
    tables.write(offline, tmp_path)
    assert tables.MARK in (tmp_path / "offline.md").read_text()
    assert (tmp_path / tables.picture("offline", offline[0].run.task)).stat().st_size > 1_000


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


TRAINING = """
import pathlib, sys
words = sys.argv[1:]
print(*words, flush=True)
if words[0] == "export":
    pathlib.Path(words[words.index("--out") + 1]).touch()
    sys.exit()
folder = pathlib.Path(words[words.index("--resume" if "--resume" in words else "--run-directory") + 1])
(folder / "checkpoints" / "1").mkdir(parents=True, exist_ok=True)
(folder / "logs").mkdir(exist_ok=True)
(folder / "logs" / "evaluation.csv").write_text("steps,episode_return\\n2000,1.0\\n")
(folder / "config.json").write_text('{"versions": {}}')
"""
"""Stands for ``agentkit train``, ``offline`` and ``export``: what the queue does around them needs no training."""


@pytest.fixture
def records(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """Returns a file of records, with one of another run, for queues whose trainings take no time."""
    (tmp_path / "training.py").write_text(TRAINING)
    monkeypatch.setattr(queue, "AGENTKIT", [sys.executable, str(tmp_path / "training.py")])
    path = tmp_path / "records.jsonl"
    path.write_text(_record(dataclasses.replace(RUN, variant="other"), 1.0).line())
    return path


def _beside(records: pathlib.Path, suffix: str, run: Run = RUN) -> pathlib.Path:
    return records.parent / "runs" / f"{run.file_name}{suffix}"


def _work(records: pathlib.Path, *runs: Run) -> int:
    return queue.Queue(records.parent, list(runs or [RUN]), records).work()


def _leave_half_done(records: pathlib.Path, monkeypatch: pytest.MonkeyPatch, run: Run = RUN) -> None:
    """Leaves what a kill -9 in the middle of a training leaves."""

    def die(self: queue.Queue, run: Run, words: list[str]) -> tuple[int, float]:
        _beside(records, "/checkpoints/1", run).mkdir(parents=True)
        _beside(records, "/config.json", run).touch()
        raise SystemExit

    with monkeypatch.context() as patch, pytest.raises(SystemExit):
        patch.setattr(queue.Queue, "_execute", die)
        _work(records, run)


def test_a_last_line_that_was_cut_off_is_written_over(records: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the landing tier, as all of the queue: it works for days, and nobody watches."""
    _leave_half_done(records, monkeypatch)
    for path in (records, _beside(records, ".parts.jsonl")):
        with open(path, "a") as file:
            file.write('{"page":"mujo')
    assert len(read_records(records)) == 1
    assert _work(records) == 0 and RUN.name in read_records(records)
    assert len([json.loads(line) for line in records.read_text().splitlines()]) == 2


def test_a_disk_that_is_full_ends_the_queue_and_the_records_stay_whole(records: pathlib.Path) -> None:
    large = dataclasses.replace(_record(dataclasses.replace(RUN, variant="large"), 1.0), commit="x" * 2**20)
    records.write_text(large.line())  # So that only this file meets the limit.
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (records.stat().st_size + 40, limits[1]))
    try:
        with pytest.raises(OSError) as found:
            _work(records)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert len(records.read_text()) == len(large.line()) and "records.jsonl" in str(found.value)
    assert _work(records) == 0 and RUN.name in read_records(records)


@pytest.mark.parametrize("error", [OSError(28, "No space left on device", "records.jsonl"), None], ids=["disk", "lock"])
def test_what_ends_the_queue_is_one_line(
    error: OSError | None, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work(self: queue.Queue) -> int:
        assert error is not None
        raise error

    monkeypatch.setattr(queue.Queue, "work", work)
    monkeypatch.setenv(command.FOLDER, str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["evidence", "run"])
    for name in ("nice", "sched_setaffinity"):
        monkeypatch.setattr(os, name, lambda *_: 0)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    expected = "runs in" if error is None else r"No space left on device: 'records.jsonl'. Mend that"
    with run_lock(tmp_path if error is None else None), pytest.raises(SystemExit, match=expected):
        command.main()


def test_a_record_names_the_commits_that_trained(records: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "commit", lambda: "killed")
    _leave_half_done(records, monkeypatch)
    log = _beside(records, "/logs")
    monkeypatch.setattr(queue, "commit", lambda: "pulled meanwhile" if log.exists() else "resumed")
    assert _work(records) == 0
    assert read_records(records)[RUN.name].commit == "killed+resumed"
    assert "--resume" in _beside(records, ".log").read_text()


def test_without_git_nothing_is_trained(records: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = queue.Queue(records.parent, [RUN], records)
    monkeypatch.setattr(queue, "ROOT", records.parent)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(records.parent.parent))
    with pytest.raises(OSError, match="not a git repository"):
        jobs.work()
    assert not _beside(records, "").exists()


def test_a_half_done_run_whose_settings_were_edited_is_not_resumed(
    records: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _leave_half_done(records, monkeypatch)
    edited = dataclasses.replace(RUN, settings=("hidden_sizes=16",), page="another")
    assert _work(records, edited) == 1
    said = capsys.readouterr().out
    assert "evidence.toml has --set hidden_sizes=16, and" in said and "was begun with --set hidden_sizes=8." in said
    assert not _beside(records, ".log").exists()
    _beside(records, "/checkpoints/1").rmdir()
    assert _work(records, edited) == 0 and read_records(records)[RUN.name].run == edited


def test_episodes_that_this_folder_lacks_are_made_again(records: pathlib.Path) -> None:
    learner = Run("offline", "bc", "agentkit:catch", 2_000, 0, data=RUN.name)
    records.write_text(_record(RUN, 1.0).line())  # On another machine.
    assert _work(records, RUN, learner) == 0
    assert {RUN.name, learner.name} == read_records(records).keys()
    before = records.read_text()
    assert _work(records, RUN, learner) == 0 and records.read_text() == before


def test_checkpoints_of_recorded_runs_are_removed_and_of_no_others(
    records: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = dataclasses.replace(RUN, variant="old")
    for run in (RUN, old):
        _leave_half_done(records, monkeypatch, run)
    records.write_text(_record(RUN, 1.0).line() + _record(old, 1.0, None).line())
    stopped = queue.Queue(records.parent, [RUN, old], records)
    stopped.stopping = True
    assert stopped.work() == 0
    assert not _beside(records, "/checkpoints").exists() and _beside(records, "/checkpoints", old).exists()


def test_a_run_without_checkpoints_is_recorded(records: pathlib.Path) -> None:
    training = records.parent / "training.py"
    training.write_text(TRAINING + "import shutil\nshutil.rmtree(folder / 'checkpoints')\n")
    assert _work(records) == 0 and RUN.name in read_records(records)


@pytest.mark.full
@pytest.mark.parametrize("tell", [os.killpg, os.kill], ids=["the whole group", "the queue alone"])
def test_a_signal_lets_a_training_save_undisturbed(tell: Callable[[int, int], None], tmp_path: pathlib.Path) -> None:
    training = """
import os, time
from agentkit.experiment.training.signals import StopOnSignal
with StopOnSignal() as stop:
    print("begun in the group of", os.getpgid(0), flush=True)
    while not stop.requested:
        time.sleep(0.02)
    time.sleep(1.0)  # Saves.
    print("saved", flush=True)
"""
    program = f"""
import pathlib, sys, time
from benchmarks.evidence import queue
stop = queue.Queue.stop
queue.Queue.stop = lambda *given: (time.sleep(0.3), stop(*given))  # The training has heard it before.
queue.AGENTKIT = [sys.executable, "-c", {training!r}]
queue.read_runs = lambda: [queue.{RUN!r}]
sys.exit(queue.run(pathlib.Path({str(tmp_path)!r})))
"""
    nohup = f"import os, signal, sys; signal.signal(signal.SIGHUP, signal.SIG_IGN); exec({program!r})"
    log = tmp_path / "runs" / f"{RUN.file_name}.log"
    with subprocess.Popen([sys.executable, "-c", nohup], start_new_session=True, env=environment_of_child()) as process:
        try:
            while not (log.exists() and "begun" in log.read_text()):
                assert process.poll() is None
                time.sleep(0.05)
            tell(process.pid, signal.SIGTERM)
            assert process.wait() == 0
        finally:
            process.kill()
    assert log.read_text() == f"begun in the group of {process.pid}\nsaved\n"  # Which pauses all of it.


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
    assert [list(json.loads(part)) for part in parts] == 2 * [["commit", "options"], ["processor_seconds"]]
    assert not (tmp_path / "runs" / RUN.file_name / "checkpoints").exists()
    assert queue.missing([RUN], records) == []
