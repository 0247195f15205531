"""status, scale and stop against real programs: their nodes are threads of this process."""

import contextlib
import json
import re
import threading
import time

import pytest

from agentkit.cli import main
from agentkit.distributed import Program, Role, Supervisor
from agentkit.distributed.address_file import write_address_file
from agentkit.distributed.threads import ThreadEngine

pytestmark = pytest.mark.both_stacks


def _serve(context):
    context.ready()
    while not context.wait(0.05):
        context.store.put("num_steps", 1_000_000)


def _act(context):
    context.ready()
    steps = 0
    while not context.wait(0.01):
        steps += 5
        context.heartbeat(steps=steps)
        context.gauge(parameter_age_seconds=0.5)


@contextlib.contextmanager
def running(directory, num_actors=2):
    program = Program("counting")
    program.add_role(Role("replay", stop_order=1))
    program.add_role(Role("actor"))
    program.add_node("replay", _serve)
    for _ in range(num_actors):
        program.add_node("actor", _act)
    with Supervisor(program, ThreadEngine(), run_directory=directory) as supervisor:
        ended = []
        thread = threading.Thread(target=lambda: ended.append(supervisor.run()), daemon=True)
        thread.start()
        deadline = time.monotonic() + 20
        while not _all_ready(supervisor.store.status()) and time.monotonic() < deadline:
            time.sleep(0.05)
        try:
            yield ended
        finally:
            supervisor.store.stop("the test is over")
            thread.join(20)
            assert not thread.is_alive()


def _all_ready(status):
    return all(node["state"] == "ready" for node in status["nodes"].values())


def test_status_prints_the_table(tmp_path, capsys):
    with running(tmp_path):
        time.sleep(0.6)  # Counts reach the run store every half second.
        assert main(["status", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert re.search(r"^0% [\d,]+/1,000,000 steps \| [\d,]+ steps/s$", out, re.MULTILINE)
    assert re.search(r"^actor +2/2 +0 +[\d,]+ steps/s +0.5 s old$", out, re.MULTILINE)
    assert re.search(r"^replay +1/1 +0$", out, re.MULTILINE)


def test_scale_waits_until_it_is_so(tmp_path, capsys):
    with running(tmp_path):
        assert main(["scale", str(tmp_path), "--actors", "3"]) == 0
        assert capsys.readouterr().out == f"{tmp_path} has 3 actors.\n"
        assert main(["scale", str(tmp_path), "--actors", "1"]) == 0
        assert main(["status", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert " has 1 actor.\n" in out and re.search(r"^actor +1/1", out, re.MULTILINE)


def test_scale_says_when_nothing_obeys(tmp_path, capsys, monkeypatch):
    from agentkit.distributed import RunStore

    monkeypatch.setattr("agentkit.cli.looking.status._SCALE_SECONDS", 0.3)
    with RunStore("0123456789abcdef0123456789abcdef") as board:
        write_address_file(tmp_path, board.address, "0123456789abcdef0123456789abcdef")
        assert main(["scale", str(tmp_path), "--actors", "3"]) == 2
    assert "asked for 3 actors and has 0 after 0.3 s" in capsys.readouterr().err


def test_scale_is_refused_at_once_where_others_start_the_actors(tmp_path, capsys):
    from agentkit.distributed import RunStore

    with RunStore("0123456789abcdef0123456789abcdef") as board:
        board.put("by_hand", True)
        write_address_file(tmp_path, board.address, "0123456789abcdef0123456789abcdef")
        assert main(["scale", str(tmp_path), "--actors", "3"]) == 2
        assert board.commands.empty()  # It did not ask, so there was nothing to wait for.
    error = capsys.readouterr().err
    assert "agentkit node actor" in error and error.count("\n") == 1


def test_stop_ends_the_program_and_says_who_asked(tmp_path, capsys):
    with running(tmp_path) as ended:
        assert main(["stop", str(tmp_path)]) == 0
        deadline = time.monotonic() + 20
        while not ended and time.monotonic() < deadline:
            time.sleep(0.05)
    assert ended == ["asked by 'agentkit stop'"]
    assert f"agentkit launch --resume {tmp_path}" in capsys.readouterr().out


def test_watching_ends_with_the_program(tmp_path, capsys):
    with running(tmp_path):
        codes, shown = [], ""
        watcher = threading.Thread(target=lambda: codes.append(main(["status", str(tmp_path), "--watch"])))
        watcher.start()
        deadline = time.monotonic() + 20
        while "actor 2/2" not in shown and time.monotonic() < deadline:
            time.sleep(0.1)
            shown += capsys.readouterr().err
    watcher.join(30)  # The board is gone: its client gives up after its own timeout.
    assert codes == [0]
    shown += capsys.readouterr().err
    assert "actor 2/2" in shown and "The program has ended" in shown


@pytest.mark.parametrize("command", [["status"], ["stop"], ["scale", "--actors", "2"]])
@pytest.mark.parametrize(
    ("board", "message"),
    [
        (None, "it has no board.json"),
        ({"launch": {"num_actors": 2}}, "it has ended, or has not begun. Go on with: agentkit launch --resume"),
        ({"launch": {}}, "it has ended, or has not begun. Go on with: 'agentkit node replay'"),
        ({"address": "127.0.0.1:9", "run_id": "0123456789abcdef0123456789abcdef"}, "Nothing answers for"),
        ({"address": "127.0.0.1:9"}, "Nothing answers for"),
        ("{half a fi", "Nothing answers for"),
    ],
)
def test_nothing_runs_there(command, board, message, tmp_path, capsys, monkeypatch):
    from agentkit.distributed import address_file

    connect = address_file.connect_to_run
    monkeypatch.setattr("agentkit.distributed.connect_to_run", lambda run: connect(run, timeout=0.5))
    if board is not None:
        name = "config.json" if "launch" in board else "board.json"
        (tmp_path / name).write_text(board if isinstance(board, str) else json.dumps(board))
    assert main([command[0], str(tmp_path), *command[1:]]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_another_run_s_board_is_refused(tmp_path, capsys):
    from agentkit.distributed import RunStore

    with RunStore("0123456789abcdef0123456789abcdef") as board:
        write_address_file(tmp_path, board.address, "fedcba9876543210")
        assert main(["status", str(tmp_path)]) == 2
    assert "run" in capsys.readouterr().err
