"""Commands that cannot be done: one line that says why, its exit code, and no folder left. See `bad_words`."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from agentkit import envs
from agentkit.cli import main
from tests.cli import bad_words
from tests.envs import odd

ROOT = Path(__file__).resolve().parents[2]
SMALL = ["--set", "hidden_sizes=4", "--set", "min_replay_size=8", "--set", "batch_size=4"]


@pytest.fixture(autouse=True)
def _keep_environment(monkeypatch):
    monkeypatch.delenv("AGENTKIT_RUN_ID", raising=False)
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run that all tests of damage copy."""
    out = tmp_path_factory.mktemp("trained")
    assert main([*bad_words.DQN, *SMALL, "--out", str(out)]) == 0
    (run,) = out.iterdir()
    return run


@pytest.fixture
def run(trained, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(trained, tmp_path / "run")
    return tmp_path / "run"


def contents(folder):
    """Every path, and the bytes of files."""
    return {path: path.read_bytes() if path.is_file() else None for path in Path(folder).rglob("*")}


def check_refused(words, message, capsys, code=2):
    before = contents(".")
    found = main(words)
    error = capsys.readouterr().err
    assert found == code, error
    assert error.startswith("agentkit: ") and error.count("\n") == 1 and len(error) < 1000, error
    assert re.search(message, error), error
    assert contents(".") == before


@pytest.mark.parametrize(("command", "setting", "message"), bad_words.SETTINGS)
def test_a_setting_is_refused(command, setting, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    check_refused([*command, "--set", setting], message, capsys)


@pytest.mark.parametrize(
    ("words", "message"), bad_words.WORDS, ids=lambda value: " ".join(value)[-60:] if isinstance(value, list) else ""
)
def test_a_command_is_refused(words, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    check_refused(words, message, capsys)


@pytest.mark.parametrize("num_envs", [(), ("--num-envs", "2")])
@pytest.mark.parametrize("name", odd.BAD_SPECS)
def test_an_environment_is_refused(name, num_envs, tmp_path, monkeypatch, capsys):
    cls, message = odd.BAD_SPECS[name]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(envs.prefixes._registered, "odd", lambda name, seed: cls())
    check_refused(["train", "dqn", "--env", "odd:one", *bad_words.NEW, *num_envs], message, capsys)


READING = {
    "train": ["train", "--resume", "run", "--steps", "200"],
    "evaluate": ["evaluate", "run"],
    "export": ["export", "run", "--out", "a.hdf5"],
    "plot": ["plot", "run"],
    "offline": ["offline", "--resume", "run"],
    "launch": ["launch", "--resume", "run"],
}


@pytest.mark.parametrize("command", READING)
@pytest.mark.parametrize("what", bad_words.NOT_JSON)
def test_a_config_that_is_none_is_refused(what, command, run, capsys):
    (run / "config.json").write_bytes(bad_words.NOT_JSON[what])
    check_refused(READING[command], "config.json is damaged", capsys)


@pytest.mark.parametrize("command", ["train", "evaluate"])
@pytest.mark.parametrize(("part", "value"), bad_words.WRONG_PARTS)
def test_a_config_with_a_wrong_part_is_refused(part, value, command, run, capsys):
    record = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps(record | {part: value}))
    words = [word for word in READING[command] if word not in ("--steps", "200")]
    check_refused(
        words,
        f"{part}|config.json is damaged|Unknown|with your own code|does not know|must be|as agentkit writes it",
        capsys,
    )


@pytest.mark.parametrize("what", [*bad_words.NOT_JSON, *bad_words.BOARDS])
@pytest.mark.parametrize(
    "command", [["status", "run"], ["stop", "run"], ["scale", "run", "--actors", "2"]], ids=" ".join
)
def test_a_board_that_is_none_is_refused(what, command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("run").mkdir()
    Path("run/board.json").write_bytes((bad_words.NOT_JSON | bad_words.BOARDS)[what])
    address = "Expected the run store's address as host:port, of a name or an IPv4 address and port 1 to 65535, "
    address += "found '127.0.0.1"
    others = {"deep": "board.json has lists .* too deep", "an address without a port": address, "no port": address}
    damaged = "Nothing answers for run: run/board.json is damaged: .* go on with: agentkit launch --resume run$"
    check_refused(command, others.get(what, damaged), capsys)


@pytest.mark.parametrize("what", bad_words.LOGS)
def test_a_log_that_is_none_is_refused(what, run, capsys):
    (run / "logs" / "train.csv").write_bytes(bad_words.LOGS[what])
    check_refused(["plot", "run"], "is damaged|holds no returns yet", capsys)


@pytest.mark.parametrize("what", ["bytes", "no numbers"])
def test_a_damaged_log_is_not_gone_on_with(what, run, capsys):
    (run / "logs" / "learner.csv").write_bytes(bad_words.LOGS[what])
    assert main(READING["train"]) == 2
    assert re.search(r"^agentkit: The log .*learner.csv is damaged: .*move it away", capsys.readouterr().err, re.M)


@pytest.mark.parametrize("name", bad_words.DATA)
def test_data_that_are_none_are_refused(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path(name).write_bytes(bad_words.DATA[name])
    check_refused([*bad_words.OFFLINE, "--data", name], name, capsys)


@pytest.mark.parametrize("name", ["state.json", "arrays.npz", "manifest.json"])
@pytest.mark.parametrize("command", ["train", "evaluate", "export"])
@pytest.mark.filterwarnings("ignore:Passing over a damaged checkpoint")
def test_checkpoints_that_are_none_are_refused(name, command, run, capsys):
    for path in run.glob(f"checkpoints/*/{name}"):
        path.write_bytes(b"[]")
    check_refused(READING[command], "No checkpoint can be read", capsys)


@pytest.mark.parametrize("name", ["a gym tuple", "doubles", "NaN", "a discount of 2"])
def test_a_step_that_breaks_its_promise_ends_training_in_a_line(name, tmp_path, monkeypatch, capsys):
    cls, message = odd.BAD_STEPS[name]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(envs.prefixes._registered, "odd", lambda name, seed: cls())
    assert main(["train", "dqn", "--env", "odd:one", *bad_words.NEW, *SMALL]) == 1
    (said,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("agentkit: ")]
    assert re.search(message, said)


@pytest.mark.one_case
@pytest.mark.parametrize(
    "words",
    [bad_words.SETTINGS[0], (["train", "dqn", "--env", "gymnasium:nomodule:X", *bad_words.NEW], None, "nomodule")],
)
def test_a_process_says_the_same(words, tmp_path):
    command, setting, message = words
    done = subprocess.run(
        [sys.executable, "-m", "agentkit.cli", *command, *(["--set", setting] if setting else [])],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 2 and re.search(message, done.stderr) and done.stderr.count("\n") == 1, done.stderr
    assert list(tmp_path.iterdir()) == []
