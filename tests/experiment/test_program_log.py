"""The log of a whole program: its rows by hand here, and of real ones below."""

import csv
import types

import pytest

from agentkit.agents import dqn
from agentkit.experiment import ExperimentConfig
from agentkit.experiment.runs.logs import ProgramLog
from agentkit.loggers import read_csv, read_jsonl
from tests.loggers.test_program_table import make_node, make_status

pytestmark = pytest.mark.both_stacks

ROLES = ("replay", "learner", "actor", "evaluator")


def make_experiment(tmp_path, **settings):
    settings = {"log_seconds": 0.0, "run_directory": tmp_path, **settings}
    return ExperimentConfig(dqn.make_agent(), "agentkit:catch", 1_000, **settings)


def written(tmp_path):
    return read_csv(tmp_path / "logs" / "program.csv")


def test_columns_stay_those_of_the_first_row(tmp_path):
    """Also where a role's first node joins later, or something new is counted."""
    early = make_status(totals={}, nodes={"replay-0": make_node("replay", 0)})
    before = make_status(values={}, nodes={})
    with ProgramLog(make_experiment(tmp_path), ROLES) as log:
        log.write(before)
        assert not (tmp_path / "logs" / "program.csv").exists()  # The tables are not known yet.
        log.write(early)
        columns = written(tmp_path)[0]
        log.write(make_status(totals={"steps": 9, "updates": 4, "gradients": 1}))
    found, rows = written(tmp_path)
    assert found == columns and "gradients" not in columns and columns[0] == "seconds"
    assert [row["learner_running"] for row in rows] == ["0", "1"] and [row["steps"] for row in rows] == ["0", "9"]
    assert rows[1]["transitions_writers_wait"] == "1" and rows[1]["actor_restarts"] == "2"


def test_rows_come_every_log_seconds_and_at_the_end(tmp_path):
    log = ProgramLog(make_experiment(tmp_path, log_seconds=1_000.0), ROLES)
    for steps in (100, 200, 300):
        log.write(make_status(steps))
    assert [row["steps"] for row in written(tmp_path)[1]] == ["100"]
    log.close()
    log.close()
    assert [row["steps"] for row in written(tmp_path)[1]] == ["100", "300"]


def test_a_resumed_program_goes_on_in_the_same_file(tmp_path):
    experiment = make_experiment(tmp_path)
    with ProgramLog(experiment, ROLES) as log:
        for steps in (100, 200, 300):
            log.write(make_status(steps))
    with ProgramLog(experiment, ROLES, resume_step=200) as log:
        log.write(make_status(250))
    assert [row["steps"] for row in written(tmp_path)[1]] == ["100", "200", "250"]


def test_a_resumed_program_counts_its_seconds_on(tmp_path, monkeypatch):
    experiment = make_experiment(tmp_path)
    for resume_step, begun, rows in ((0, 50.0, {100: 60.0, 200: 70.0, 300: 80.0}), (200, 5.0, {250: 7.0})):
        now = iter((begun, *rows.values()))
        clock = types.SimpleNamespace(monotonic=lambda now=now: next(now))
        monkeypatch.setattr("agentkit.experiment.runs.logs.time", clock)
        with ProgramLog(experiment, ROLES, resume_step) as log:
            for steps in rows:
                log.write(make_status(steps))
    found = [(row["steps"], row["seconds"]) for row in written(tmp_path)[1]]
    assert found == [("100", "10.0"), ("200", "20.0"), ("250", "22.0")]


def test_the_share_of_time_that_the_learner_waits(tmp_path, monkeypatch):
    now = iter((0.0, 100.0, 110.0, 120.0, 130.0))
    # The name in that module, and not the function for all: threads of an earlier test may still ask for the time.
    monkeypatch.setattr("agentkit.experiment.runs.logs.time", types.SimpleNamespace(monotonic=lambda: next(now)))
    with ProgramLog(make_experiment(tmp_path), ROLES) as log:
        # It is restarted between the second and the third look, and told late of its last wait.
        for waited in (5.0, 8.0, 1.0, 31.0):
            status = make_status()
            status["nodes"]["learner-0"]["gauges"] = {"waited_for_data_seconds": waited}
            log.write(status)
        monkeypatch.undo()
    rows = written(tmp_path)[1]
    assert [row["learner_waiting"] for row in rows] == ["", "0.3", "0.2", "1.0"]
    assert [row["seconds"] for row in rows] == ["100.0", "110.0", "120.0", "130.0"]


def test_rows_wait_for_the_tables_of_every_server(tmp_path):
    status = make_status()
    status["nodes"]["replay-1"] = make_node("replay", 1, state="starting")
    with ProgramLog(make_experiment(tmp_path), ROLES) as log:
        log.write(status)
        assert not (tmp_path / "logs" / "program.csv").exists()
        status["values"]["tables/replay-1"] = status["values"]["tables"]
        log.write(status)
    (row,) = written(tmp_path)[1]
    assert row["replay-1/transitions_size"] == row["transitions_size"] == "5990"


def test_without_a_run_folder_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with ProgramLog(make_experiment(None, run_directory=None), ROLES) as log:
        log.write(make_status())
    assert list(tmp_path.iterdir()) == []


def test_tensorboard_has_the_same_numbers(tmp_path):
    event_pb2 = pytest.importorskip("tensorboardX.proto.event_pb2")
    with ProgramLog(make_experiment(tmp_path, tensorboard=True), ROLES) as log:
        log.write(make_status(1_000))
    (path,) = (tmp_path / "logs" / "tensorboard").glob("events*.program")
    assert "program/transitions_size" in tags(event_pb2, path)


def tags(event_pb2, path):
    """The names of all scalars in an event file: records of length, checksum, event, checksum."""
    data, found = path.read_bytes(), set()
    while data:
        length = int.from_bytes(data[:8], "little")
        event = event_pb2.Event.FromString(data[12 : 12 + length])
        found |= {value.tag for value in event.summary.value}
        data = data[16 + length :]
    return found


@pytest.mark.reverb
@pytest.mark.full
@pytest.mark.parametrize("engine", ["processes", pytest.param("ray", marks=pytest.mark.ray)])
def test_a_launched_program_logs_itself_and_goes_on_after_a_resume(tmp_path, engine):
    from tests.experiment.launched import Launched

    words = ("--engine", engine, "--actors", "1", "--eval-every", "0")
    with Launched(tmp_path, 1_500, *words, "--log", "tensorboard,jsonl") as program:
        assert program.end(500.0) == 0, program.output()
        run = program.directory
    with open(run / "logs" / "program.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    last = rows[-1]
    assert len(rows) >= 2 and int(last["steps"]) >= 1_500 and int(last["updates"]) > 50, rows
    assert last["actor_running"] == "0"  # It is the end.
    assert float(last["transitions_samples_per_insert_target"]) == pytest.approx(0.1 * 128)
    assert int(last["transitions_num_inserted"]) >= int(last["steps"])
    assert any(float(row["parameter_age_seconds"] or 0) > 0 for row in rows), rows
    assert all(0 <= float(row["learner_waiting"]) <= 1 for row in rows if row["learner_waiting"])
    assert any(row["learner_waiting"] for row in rows), rows
    assert list((run / "logs" / "tensorboard").glob("events*.program"))
    for log in ("train", "program"):  # The learner may be done before its first row is due.
        found = [line["steps"] for line in read_jsonl(run / "logs" / f"{log}.jsonl")]
        assert found and found == [int(row["steps"]) for row in read_csv(run / "logs" / f"{log}.csv")[1]]

    with Launched(tmp_path, 2_500, "--actors", "2", "--engine", engine, resume=run) as program:
        assert program.end(500.0) == 0, program.output()
    with open(run / "logs" / "program.csv", newline="") as file:
        more = list(csv.DictReader(file))
    assert more[0] == rows[0] and more[0].keys() == more[-1].keys()
    steps = [int(row["steps"]) for row in more]
    assert steps == sorted(steps) and steps[-1] >= 2_500 and len(more) > len(rows)
    for row in (last, more[-1]):  # Those of catch have 9 steps; of each actor's last one some are left.
        assert int(row["steps"]) - 30 <= 9 * int(row["episodes"]) <= int(row["steps"])
