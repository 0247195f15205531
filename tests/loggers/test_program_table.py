import copy
import io

import pytest

from agentkit.errors import ConfigError
from agentkit.loggers.program_table import (
    ProgramTable,
    Speeds,
    as_line,
    as_table,
    as_text,
    events_between,
    picture,
    program_row,
)


def make_node(role, index, **changes):
    node = {
        "role": role, "index": index, "pid": 100 + index, "host": "here", "state": "ready", "restarts": 0,
        "incarnation": 0, "beat_age_seconds": 0.3, "idle_seconds": 0.0, "counts": {}, "gauges": {}, "last_error": None,
    }  # fmt: skip
    return node | changes


def make_status(steps=6_000, updates=3_000, **changes):
    """A program as `RunStore.status` gives it: one actor was restarted, the other's parameters are older."""
    half = steps // 2
    status = {
        "program": "dqn",
        "started": 0.0,
        "stop": None,
        "totals": {"steps": steps, "updates": updates, "episodes": steps // 10},
        "values": {
            "num_steps": 50_000,
            "evaluation": {"steps": 5_000, "episode_return": 180.04},
            "tables": {
                "transitions": {
                    "size": 5_990, "max_size": 100_000, "num_inserted": 6_010, "num_sampled": 48_000,
                    "samples_per_insert": 7.987, "samples_per_insert_target": 8.0, "waiting": "writers",
                }
            },
        },
        "nodes": {
            "evaluator-0": make_node("evaluator", 0, counts={"episodes": steps // 1000}),
            "replay-0": make_node("replay", 0),
            "actor-0": make_node("actor", 0, counts={"steps": half}, gauges={"parameter_age_seconds": 0.21}),
            "actor-1": make_node(
                "actor",
                1,
                counts={"steps": steps - half},
                gauges={"parameter_age_seconds": 0.84},
                restarts=2,
                last_error="actor-1 raised OSError: [Errno 5] [red]the disk[/red] is gone",
            ),
            "learner-0": make_node("learner", 0, counts={"updates": updates}),
        },
    }  # fmt: skip
    return status | changes


def speeds_of(*statuses, seconds=10.0):
    speeds = Speeds()
    for number, status in enumerate(statuses):
        speeds.add(status, 100.0 + seconds * number)
    return speeds


class _Clock:
    now = 100.0

    def __call__(self):
        return self.now


class _Terminal(io.StringIO):
    def isatty(self):
        return True


TEXT = """\
12% 6,000/50,000 steps | 100 steps/s | 7:20 left | 3,000 updates | evaluation return 180.0 at step 5,000

role       running  restarts           speed  parameters
replay         1/1         0
learner        1/1         0    50 updates/s
actor          2/2         2     100 steps/s   0.8 s old
evaluator      1/1         0  0.1 episodes/s

actor-1 raised OSError: [Errno 5] [red]the disk[/red] is gone

table                items  inserted  sampled  samples/insert  waiting
transitions  5,990/100,000     6,010   48,000      8.0 of 8.0  writers"""


def test_the_whole_text():
    status = make_status()
    assert as_text(status, speeds_of(make_status(5_000, 2_500), status)) == TEXT


def test_one_line_for_a_log():
    status = make_status()
    assert as_line(status, speeds_of(make_status(5_000, 2_500), status)) == (
        "12% 6,000/50,000 steps | 100 steps/s | 7:20 left | 3,000 updates | evaluation return 180.0 at step 5,000 | "
        "replay 1/1, learner 1/1, actor 2/2, evaluator 1/1 | 2 restarts | "
        "transitions: 5,990/100,000 items, 8.0 of 8.0 samples/insert, waiting: writers"
    )


def test_what_is_not_known_is_left_out():
    status = make_status(totals={}, values={}, nodes={})
    assert as_text(status) == as_line(status) == "0 steps"
    custom = make_status(totals={}, values={}, nodes={"watcher-0": make_node("watcher", 0)})
    assert picture(custom).roles.rows == [("watcher", "1/1", "0", "", "")]


def test_a_table_without_a_target_and_before_its_first_item():
    for nothing in (None, float("nan")):
        table = {"size": 0, "max_size": 10, "num_inserted": 0, "num_sampled": 0, "samples_per_insert": nothing}
        status = make_status(values={"tables": {"queue": table}})
        assert picture(status).tables.rows == [("queue", "0/10", "0", "0", "", "")]
        assert program_row(status)["queue_samples_per_insert"] is None


def test_states_other_than_ready_are_counted_and_named():
    status = make_status()
    status["nodes"]["actor-0"]["state"] = "restarting"
    status["nodes"]["actor-2"] = make_node("actor", 2, state="starting", beat_age_seconds=None)
    status["nodes"]["actor-3"] = make_node("actor", 3, state="starting", beat_age_seconds=None)
    assert picture(status).roles.rows[2][1] == "1/4 (1 restarting, 2 starting)"


def test_trouble_is_the_worst_that_is_known_of_each_role():
    status = make_status()
    assert picture(status).troubles == ["actor-1 raised OSError: [Errno 5] [red]the disk[/red] is gone"]
    status["nodes"]["actor-0"]["beat_age_seconds"] = 7.4
    assert picture(status).troubles == ["actor-0: silent for 7 s"]
    trace = "Traceback (most recent call last):\n  File x\nValueError: bad\n"
    status["nodes"]["actor-1"] |= {"state": "failed", "last_error": trace}
    status["nodes"]["learner-0"]["last_error"] = "learner-0 was killed by SIGKILL"
    assert picture(status).troubles == ["learner-0 was killed by SIGKILL", "actor-1: ValueError: bad"]
    # Silence of what has ended is no trouble.
    status["nodes"]["replay-0"] |= {"state": "done", "beat_age_seconds": 60.0}
    assert len(picture(status).troubles) == 2


def test_a_node_by_hand_that_died_unseen_does_not_run():
    status = make_status()
    status["nodes"]["actor-1"]["beat_age_seconds"] = 40.0
    assert program_row(status)["actor_running"] == 1


def test_a_long_error_is_cut():
    status = make_status()
    status["nodes"]["actor-1"]["last_error"] = "actor-1 " + "x" * 500
    (trouble,) = picture(status).troubles
    assert len(trouble) == 100 and trouble.endswith("...")


def test_speeds_survive_restarts_and_resumed_totals():
    first, second, third = make_status(), make_status(), make_status()
    for status, steps, total in ((first, 1_000, 50_000), (second, 0, 50_000), (third, 400, 50_400)):
        status["nodes"] = {"actor-0": make_node("actor", 0, counts={"steps": steps})}
        status["totals"] = {"steps": total}
    speeds = speeds_of(first, second, third)
    assert speeds.per_second("actor", "steps") == 20.0
    assert speeds.per_second("", "steps") == 20.0
    # Totals that a resumed run brings after the first look are not speed.
    assert speeds_of(make_status(totals={}), first).per_second("", "steps") == 0.0
    assert Speeds().per_second("", "steps") is None


def test_speeds_follow_the_recent_past():
    slow = [make_status(steps=10 * n) for n in range(10)]
    fast = [make_status(steps=100 + 1_000 * n) for n in range(10)]
    assert speeds_of(*slow, *fast).per_second("", "steps") == 100.0
    assert 30.0 <= speeds_of(*slow, *fast).seconds() <= 40.0


def test_no_time_left_while_starting_stopping_or_done():
    assert " left" not in as_line(make_status(), speeds_of(make_status(5_000), make_status(), seconds=4.0))
    done, stopped = make_status(steps=50_000), make_status(stop="stopped by SIGINT")
    assert " left" not in as_line(done, speeds_of(make_status(), done))
    line = as_line(stopped, speeds_of(make_status(5_000), stopped))
    assert " left" not in line and "stopping: stopped by SIGINT" in line


def test_a_row_for_logs():
    status = make_status()
    row = program_row(status, speeds_of(make_status(5_000, 2_500), status))
    assert row == {
        "steps": 6_000, "updates": 3_000, "episodes": 600, "steps_per_second": 100.0, "updates_per_second": 50.0,
        "parameter_age_seconds": 0.84, "actor_running": 2, "actor_restarts": 2, "evaluator_running": 1,
        "evaluator_restarts": 0, "learner_running": 1, "learner_restarts": 0, "learner_waiting": None,
        "replay_running": 1, "replay_restarts": 0, "transitions_size": 5_990, "transitions_num_inserted": 6_010,
        "transitions_num_sampled": 48_000, "transitions_samples_per_insert": 7.987,
        "transitions_samples_per_insert_target": 8.0, "transitions_writers_wait": 1, "transitions_samplers_wait": 0,
    }  # fmt: skip
    assert program_row(make_status(totals={}, values={}, nodes={}), roles=["actor"]) == {
        "steps": 0,
        "updates": 0,
        "episodes": None,
        "steps_per_second": None,
        "updates_per_second": None,
        "parameter_age_seconds": None,
        "actor_running": 0,
        "actor_restarts": 0,
    }


@pytest.mark.parametrize("shares", [[0.3], [0.3, 0.3, 0.3], [0.0, 0.5], [1.2, 1.2]])
def test_several_learners_wait_for_the_mean_of_their_shares(shares):
    def status(seconds):
        gauges = [{"waited_for_data_seconds": share * seconds} for share in shares]
        nodes = {f"learner-{i}": make_node("learner", i, gauges=gauge) for i, gauge in enumerate(gauges)}
        return make_status(nodes=nodes)

    row = program_row(status(10.0), speeds_of(status(0.0), status(10.0)))
    assert row["learner_waiting"] == pytest.approx(min(sum(shares) / len(shares), 1.0))


def test_events():
    before, after = make_status(), make_status()
    assert events_between(before, after) == []
    after["nodes"]["actor-0"] |= {"state": "restarting", "restarts": 1, "last_error": "actor-0 was killed by SIGKILL"}
    after["nodes"]["learner-0"] |= {"state": "failed", "last_error": "learner-0 raised ValueError: bad"}
    after["values"]["evaluation"] = {"steps": 10_000, "episode_return": 200.0}
    after["stop"] = "learner-0 raised ValueError: bad"
    after["nodes"]["actor-2"] = make_node("actor", 2)
    assert events_between(before, after) == [
        "actor-0 was killed by SIGKILL; restart 1",
        "learner-0 raised ValueError: bad; it has failed",
        "step 10,000: evaluation return 200.0",
        "Stopping: learner-0 raised ValueError: bad",
    ]
    assert events_between(after, after) == []
    # Who begins to watch is told of the newest evaluation and of past restarts, once.
    assert len(events_between(None, make_status())) == 2


def test_checkpoints_that_could_not_be_written_are_told_each_time():
    """As on a full disk: the run goes on, and what would be lost grows."""
    statuses = [make_status() for _ in range(3)]
    for failures, status in enumerate(statuses):
        if failures:
            status["nodes"]["learner-0"]["gauges"]["checkpoint_failures"] = failures
    ends = "nodes/learner-0.log says why, and training goes on"
    assert events_between(statuses[0], statuses[1]) == [f"learner-0 could not write 1 checkpoint; {ends}"]
    assert events_between(statuses[1], statuses[2]) == [f"learner-0 could not write 2 checkpoints; {ends}"]
    assert events_between(statuses[2], statuses[2]) == []
    assert "learner-0 could not write 2 checkpoints" in as_text(statuses[2])


def test_plain_lines_at_intervals_and_at_the_end():
    clock, stream = _Clock(), io.StringIO()
    with ProgramTable(interval_seconds=10, stream=stream, clock=clock) as table:
        for second in range(25):
            clock.now = 100.0 + second
            table.write(make_status(steps=100 * second, values={"num_steps": 50_000}))
        table.close()
    lines = stream.getvalue().splitlines()
    assert lines[0] == "actor-1 raised OSError: [Errno 5] [red]the disk[/red] is gone; restart 2"
    assert [line.split(" steps")[0] for line in lines[1:]] == [
        "0% 0/50,000", "2% 1,000/50,000", "4% 2,000/50,000", "5% 2,400/50,000",
    ]  # fmt: skip
    assert "100 steps/s" in lines[-1]


def test_a_program_that_never_gave_a_status_prints_nothing():
    stream = io.StringIO()
    ProgramTable(stream=stream).close()
    assert stream.getvalue() == ""


def test_a_terminal_gets_a_table_redrawn_and_the_cursor_back():
    stream, clock = _Terminal(), _Clock()
    with ProgramTable(stream=stream, clock=clock) as table:
        for step in (0, 500, 1000):
            clock.now += 1
            table.write(make_status(steps=step))
        table.message("[saved]")
    text = stream.getvalue()
    assert "\x1b[2K" in text and "1,000/50,000 steps" in text and "[saved]" in text
    assert text.rstrip().endswith("\x1b[?25h")


@pytest.mark.parametrize("width", [40, 80, 200])
def test_the_table_fits_and_takes_errors_literally(width):
    from rich.console import Console

    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    status = make_status()
    status["values"]["tables"]["[b]queue"] = status["values"]["tables"]["transitions"]
    console.print(as_table(status))
    text = console.file.getvalue()
    assert max(map(len, text.splitlines())) <= width
    if width == 200:
        assert "[red]the disk[/red]" in text and "[b]queue" in text


def test_nothing_is_changed_in_the_status():
    status = make_status()
    kept = copy.deepcopy(status)
    as_text(status, speeds_of(status, status)), as_table(status), program_row(status), events_between(None, status)
    assert status == kept


def test_an_impossible_interval():
    with pytest.raises(ConfigError, match="interval_seconds"):
        ProgramTable(interval_seconds=0)


def test_a_long_call_that_a_node_announced_is_shown():
    status = make_status()
    status["nodes"]["replay-0"]["state"] = "starting"
    status["values"]["busy/replay-0"] = {
        "incarnation": 0,
        "number": 1,
        "what": "restoring 96 MB of replay",
        "seconds": 9,
    }
    status["values"]["busy/learner-0"] = {"incarnation": 7, "number": 1, "what": "of one that died", "seconds": 9}
    assert "replay 0/1 (1 starting, restoring 96 MB of replay), learner 1/1, " in as_line(status)
