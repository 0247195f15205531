import importlib.util
import json
import os

import pytest

from agentkit.agents import dqn
from agentkit.cli import main
from agentkit.cli.training.node import find_meeting
from agentkit.cli.words.parser import parse
from agentkit.distributed import RunStore
from agentkit.errors import ConfigError
from agentkit.experiment import ExperimentConfig
from agentkit.experiment.runs.config_json import write_config

pytestmark = pytest.mark.both_stacks

SECRET = "0123456789abcdef0123456789abcdef"
OTHER = "fedcba9876543210fedcba9876543210"
OF_A_NEW_RUN = (
    "--env agentkit:catch", "--seed 5", "--set learning_rate=1e-4", "--eval-every 100", "--log tensorboard",
    "--replay served", "--checkpoint-every 9", "--num-envs 2", "--tensorboard", "--evaluate-samples",
)  # fmt: skip


@pytest.fixture(autouse=True)
def _keep_environment():
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


def _meeting(words, role="actor"):
    return find_meeting(parse(["node", role, *words]))


def test_the_secret_comes_from_a_file_an_option_or_the_environment(tmp_path, monkeypatch):
    secret = tmp_path / "run_id"
    secret.write_text(f"{SECRET}\n")
    assert _meeting(["--connect", "a:1", "--run-id-file", str(secret)]) == ("a:1", SECRET)
    assert _meeting(["--connect", "a:1", "--run-id", OTHER]) == ("a:1", OTHER)
    assert _meeting(["--connect", "a:1"]) == ("a:1", None)
    monkeypatch.setenv("AGENTKIT_RUN_ID", OTHER)
    assert _meeting(["--connect", "a:1"]) == ("a:1", OTHER)
    assert _meeting(["--connect", "a:1", "--run-id-file", str(secret)]) == ("a:1", SECRET)
    assert _meeting(["--run-id-file", str(secret)], role="replay") == (None, SECRET)


def test_a_board_file_has_the_address_too(tmp_path):
    board = tmp_path / "board.json"
    board.write_text(json.dumps({"address": "a:1", "run_id": SECRET}))
    assert _meeting(["--run-id-file", str(board)]) == ("a:1", SECRET)
    assert _meeting(["--run-id-file", str(board), "--connect", "b:2"]) == ("b:2", SECRET)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "run id alone"),
        ("two words", "run id alone"),
        ('{"address": "a:1"}', "no board.json"),
        ("short", "at least 22"),
        ("a" * 32, "8 of them different"),
    ],
)
def test_files_without_a_secret(text, message, tmp_path):
    (tmp_path / "run_id").write_text(text)
    with pytest.raises(ConfigError, match=message):
        _meeting(["--connect", "a:1", "--run-id-file", str(tmp_path / "run_id")])


def test_a_run_that_has_not_begun_may_be_tried_again(tmp_path, capsys):
    assert main(["node", "actor", "--run-id-file", str(tmp_path / "board.json")]) == 1
    error = capsys.readouterr().err
    assert "has not begun, or has ended" in error and error.count("\n") == 1


def test_all_but_the_learner_take_one_core_unless_told_otherwise(tmp_path, monkeypatch):
    missing = ["--run-id-file", str(tmp_path / "board.json")]
    monkeypatch.delenv("NPROC", raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert main(["node", "learner", *missing]) == 1
    assert "NPROC" not in os.environ
    assert main(["node", "actor", *missing]) == 1
    assert (os.environ["NPROC"], os.environ["OMP_NUM_THREADS"]) == ("1", "3")


def test_what_is_missing_cannot_be_mended_by_a_restart(tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("AGENTKIT_RUN_ID", raising=False)
    assert main(["node", "learner", "--run-id", SECRET]) == 2
    assert "--connect is missing" in capsys.readouterr().err
    assert main(["node", "learner", "--connect", "a:1"]) == 2
    assert "AGENTKIT_RUN_ID" in capsys.readouterr().err


def test_another_run_s_board_cannot_be_mended_by_a_restart(capsys):
    with RunStore(OTHER) as board:
        assert main(["node", "actor", "--connect", board.address, "--run-id", SECRET]) == 2
    error = capsys.readouterr().err
    assert error.startswith("agentkit: ") and error.count("\n") == 1


def test_a_port_or_a_device_that_cannot_be_is_refused_at_once(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    host = ["node", "replay", "dqn", "--env", "agentkit:catch", "--steps", "9", "--run", "RUN"]
    assert main(["node", "actor", "--connect", "127.0.0.1:99999", "--run-id", SECRET]) == 2
    assert "port from 1 to 65535, found '127.0.0.1:99999'" in capsys.readouterr().err
    for address in ("tcp://host:7700", "http://h:7700", "my host:7700"):
        assert main(["node", "actor", "--connect", address, "--run-id", SECRET]) == 2
        error = capsys.readouterr().err
        assert "--connect: expected HOST:PORT, a name" in error and repr(address) in error and error.count("\n") == 1
    for words in (["node", "learner", "--connect", "a:1", "--run-id", SECRET], host):
        assert main([*words, "--listen", "nodev0"]) == 2
        assert "'nodev0' has no IPv4 address here" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_no_board_may_be_tried_again(capsys, monkeypatch):
    from agentkit.experiment.launching import external

    run = external.join_run
    monkeypatch.setattr(external, "join_run", lambda role, **words: run(role, **words, timeout=0.3))
    assert main(["node", "actor", "--connect", "127.0.0.1:9", "--run-id", SECRET]) == 1
    error = capsys.readouterr().err
    assert "127.0.0.1:9" in error and error.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["dqn", "--env", "agentkit:catch"], "--steps is missing. Example: agentkit node replay"),
        (["--run", "RUN"], "AGENT is missing"),
        (["dqn", "--env", "agentkit:catch", "--steps", "9", "--run", "RUN", "--out", "runs"], "give one of them"),
        (["dqn", "--env", "agentkit:point_mass", "--steps", "9", "--run", "RUN"], "discrete"),
    ],
)
def test_mistakes_of_a_host(words, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["node", "replay", *words]) == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("given", OF_A_NEW_RUN)
def test_options_of_a_new_run_are_refused_of_one_that_goes_on(given, tmp_path, capsys):
    words = given.split()
    (tmp_path / "config.json").write_text('{"agent": "dqn", "agent_config": {}, "environment": "agentkit:catch"}')
    assert main(["node", "replay", "--run", str(tmp_path), "--steps", "60", "--workers", "2", *words]) == 2
    error = capsys.readouterr().err
    assert f"--run {tmp_path} without AGENT goes on with the run's own settings; leave out {words[0]}. " in error
    assert "Of a new run's options only --steps" in error  # The node's own, as --listen, may be given.
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]


def test_a_run_that_goes_on_is_asked_for_its_replays_package(tmp_path, monkeypatch, capsys):
    experiment = ExperimentConfig(dqn.make_agent(), "agentkit:catch", 60, replay="reverb", run_directory=tmp_path)
    write_config(experiment, tmp_path)
    find_spec = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "reverb" else find_spec(name))
    assert main(["node", "replay", "--run", str(tmp_path)]) == 2
    output = capsys.readouterr()
    assert "agentkit-rl[reverb]" in output.err and "Run folder" not in output.out


def test_a_device_that_is_not_there_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = [
        "dqn",
        "--env",
        "agentkit:catch",
        "--steps",
        "9",
        "--run",
        "RUN",
        "--listen",
        "wg9",
        "--board-port",
        "47123",
    ]
    assert main(["node", "replay", *words]) == 2
    error = capsys.readouterr().err
    assert "wg9" in error and error.count("\n") == 1
