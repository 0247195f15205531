"""The command line end to end, on an environment that is solved in seconds."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest

import agentkit
from agentkit.cli import _short_warnings, main, summary
from agentkit.cli.screen import say
from agentkit.errors import ConfigError
from agentkit.experiment.runs.new_folder import make_folder, make_this_folder
from agentkit.loggers import read_csv

ROOT = Path(__file__).resolve().parents[2]
CATCH = ["train", "dqn", "--env", "agentkit:catch"]
SMALL = ["--set", "hidden_sizes=16", "--set", "min_replay_size=32", "--set", "batch_size=8"]


def _start(code, cwd):
    environment = os.environ | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    return subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=cwd,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _run_folder(output):
    return re.search(r"^Run folder: (.*)$", output, re.MULTILINE)[1]


@pytest.mark.full
def test_train_evaluate_plot_resume(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = [*CATCH, *SMALL, "--steps", "2e2", "--seed", "3", "--eval-episodes", "2", "--tensorboard"]
    assert main(words) == 0
    output = capsys.readouterr()
    run = Path(_run_folder(output.out))
    assert run == Path("runs/dqn-agentkit_catch-seed3")
    assert "200/200 steps" in output.err and "updates/s" in output.err
    assert f"Saved {run}. Next:\n" in output.out and f"\n  agentkit plot {run}\n" in output.out
    assert f"\n  agentkit train --resume {run} --steps 400\n" in output.out
    config = json.loads((run / "config.json").read_text())
    assert config["agent_config"]["hidden_sizes"] == [16] and config["seed"] == 3
    assert "jax" in config["versions"]
    _, rows = read_csv(run / "logs" / "evaluation.csv")
    assert [row["steps"] for row in rows] == [str(20 * number) for number in range(1, 11)]
    assert f"Evaluation return: {float(rows[-1]['episode_return']):.1f} at step 200, the last" in output.out
    assert list((run / "logs" / "tensorboard").glob("events*"))

    assert main(["evaluate", str(run), "--episodes", "3"]) == 0
    assert "(3 episodes)" in capsys.readouterr().out
    assert main(["plot", str(run)]) == 0
    assert Path("returns.png").stat().st_size > 10_000

    assert main(["train", "--resume", str(run), "--steps", "240"]) == 0
    assert "240/240 steps" in capsys.readouterr().err
    _, rows = read_csv(run / "logs" / "evaluation.csv")
    assert [row["steps"] for row in rows][-1] == "240"


def _interrupt(words, tmp_path, log):
    """Sends Ctrl-C once the run has written to one of its logs: its folder, and what it printed."""
    process = _start(f"import sys; from agentkit.cli import main; sys.exit(main({words!r}))", tmp_path)
    try:
        folder = _run_folder(next(line for line in process.stdout if line.startswith("Run folder")))
        path = tmp_path / folder / "logs" / log
        deadline = time.monotonic() + 120
        while not (path.exists() and path.stat().st_size) and time.monotonic() < deadline:
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130, err
    return folder, out, err


@pytest.mark.full
def test_ctrl_c_saves_and_the_run_goes_on(tmp_path):
    words = [*CATCH, *SMALL, "--steps", "10_000_000", "--eval-every", "0"]
    folder, out, err = _interrupt(words, tmp_path, "learner.csv")
    assert "Traceback" not in err and "Stopped" not in err  # It is said once.
    step = int(re.search(r"Stopped at step ([\d,]+) and saved", out)[1].replace(",", ""))
    assert step > 0
    resumed = ["train", "--resume", str(tmp_path / folder), "--steps", str(step + 50)]
    assert main(resumed) == 0


@pytest.mark.full
def test_a_profile_is_printed_at_the_end_and_with_resume(tmp_path, capsys):
    words = [*CATCH, *SMALL, "--steps", "120", "--eval-episodes", "1", "--out", str(tmp_path), "--profile"]
    assert main(words) == 0
    output = capsys.readouterr().out
    run = _run_folder(output)
    assert "Where the time of 120 steps" in output and "ottleneck: " in output and "JAX's trace" not in output
    assert output.index("ottleneck") < output.index("Saved ")
    header, *rows = (Path(run) / "logs" / "profile.csv").read_text().splitlines()
    assert header.startswith("part,calls,seconds,") and len(rows) == 14

    trace = tmp_path / "trace"
    assert main(["train", "--resume", run, "--steps", "200", "--jax-trace", str(trace)]) == 0
    output = capsys.readouterr().out
    assert "Where the time of 80 steps" in output and str(trace) in output
    assert list(trace.rglob("*.xplane.pb"))


@pytest.mark.full
def test_ctrl_c_prints_the_profile(tmp_path):
    words = [*CATCH, *SMALL, "--steps", "10_000_000", "--eval-every", "0", "--profile"]
    _, out, _ = _interrupt(words, tmp_path, "train.csv")
    assert "Where the time of" in out and "ottleneck: " in out and "Stopped at step" in out


@pytest.mark.one_case
@pytest.mark.parametrize("debug", [False, True])
def test_an_error_in_the_users_code_has_its_own_frames_and_all_with_debug(tmp_path, debug):
    code = """
import sys
from agentkit import envs
from agentkit.cli import main
from agentkit.envs.catch import Catch

class Breaks(Catch):
    num_steps = 0
    def step(self, action):
        self.num_steps += 1
        if self.num_steps == 20:
            raise RuntimeError("the simulator broke")
        return super().step(action)

envs.register("broken", lambda name, seed: Breaks(seed=seed))
sys.exit(main(["train", "dqn", "--env", "broken:catch", "--steps", "1000", *WORDS]))
"""
    process = _start(code.replace("WORDS", repr(["--debug"] if debug else [])), tmp_path)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "RuntimeError: the simulator broke" in err and ", in step\n" in err
    assert ("Traceback" in err) == ("environment_loop.py" in err) == debug
    assert ("agentkit: an error in your code:" in err and "To see all: AGENTKIT_DEBUG=1" in err) == (not debug)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train", "dqm", "--env", "agentkit:catch", "--steps", "9"], "Did you mean 'dqn'"),
        (["train", "dqn", "--env", "agentkit:cacth", "--steps", "9"], "Did you mean 'agentkit:catch'"),
        (["train", "dqn", "--env", "gymnasiun:CartPole-v1", "--steps", "9"], "Did you mean 'gymnasium'"),
        (["train", "dqn", "--env", "agentkit:point_mass", "--steps", "9"], "discrete"),
        ([*CATCH, "--steps", "9", "--set", "learning_rat=1"], "Did you mean 'learning_rate'"),
        ([*CATCH, "--steps", "9", "--set", "learning_rate=abc"], "expected a number, found 'abc'"),
        ([*CATCH, "--steps", "9", "--set", "discount=7"], "discount"),
        ([*CATCH, "--steps", "9", "--sede", "1"], "Did you mean '--seed'"),
        ([*CATCH, "--steps", "9", "--out", "/dev/null/runs"], "cannot be made"),
        (CATCH, "--steps is missing"),
        (["train", "--steps", "9"], "AGENT is missing"),
        (["train", "--resume", "nowhere"], "not a run folder: there is no such folder"),
        (["train", "sac", "--resume", "nowhere", "--seed", "0"], "leave out AGENT, --seed"),
        (["evaluate", "."], "not a run folder: it has no config.json"),
        (["evaluate", ".", "--video", "a.avi"], "ends in .mp4 or .gif"),
        (["evaluate", ".", "--episodes", "0"], "at least 1"),
        (["polt"], "Did you mean 'plot'"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(words, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1 and error.startswith("agentkit: ")
    assert list(tmp_path.iterdir()) == []


def test_a_run_without_a_checkpoint_cannot_be_evaluated(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main([*CATCH, *SMALL, "--steps", "20", "--eval-every", "0"]) == 0
    run = tmp_path / _run_folder(capsys.readouterr().out)
    for path in sorted((run / "checkpoints").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    assert main(["evaluate", str(run)]) == 2
    assert "no checkpoint" in capsys.readouterr().err


def test_a_missing_simulator_names_its_extra(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "envpool", None)
    monkeypatch.delitem(sys.modules, "agentkit.envs.envpool", raising=False)
    assert main(["train", "sac", "--env", "envpool:Pendulum-v1", "--steps", "9"]) == 2
    assert "agentkit-rl[envpool]" in capsys.readouterr().err


def test_run_folders_are_never_shared(tmp_path):
    first = make_folder(tmp_path, "sac", "dm_control:cheetah/run", "seed0").path
    assert first.name == "sac-dm_control_cheetah_run-seed0"
    assert make_folder(tmp_path, "sac", "dm_control:cheetah/run", "seed0").path.name == f"{first.name}-2"
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be made"):
        make_folder(tmp_path / "file", "sac", "x", "seed0")
    (first / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match=f"has a run in it already. Go on with it by --resume {first}"):
        make_this_folder(first)
    for place in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(ConfigError, match=r"--run-directory: .* cannot be made"):
            make_this_folder(place)


def test_what_was_made_for_a_refused_run_goes_and_what_was_there_stays(tmp_path):
    (tmp_path / "mine").mkdir()
    for folder in (make_this_folder(tmp_path / "mine"), make_this_folder(tmp_path / "a" / "b" / "run")):
        with pytest.raises(ConfigError, match="refused"), folder.removed_if_refused():
            raise ConfigError("refused")
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_no_folder_is_said_of_a_run_that_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data.npz").write_bytes(b"")
    offline = ["offline", "bc", *CATCH[2:], *SMALL, "--updates", "9", "--data", "data.npz"]
    train = [*CATCH, *SMALL, "--steps", "9"]
    for words, message in (
        ([*train, "--on-device"], "not written in JAX"),
        ([*train, "--on-device", "--seeds", "0:2"], "not written in JAX"),
        ([*train, "--devices", "2"], "Expected at least devices=2"),
        ([*train, "--data", "data.npz"], "data.npz"),
        (offline, "data.npz"),
    ):
        assert main(words) == 2
        said = capsys.readouterr()
        assert message in said.err and "folder: " not in said.out
    with pytest.raises(ConfigError, match="not written in JAX"):
        agentkit.train("dqn", "agentkit:catch", 9, on_device=True)
    assert "folder: " not in capsys.readouterr().out and [path.name for path in tmp_path.iterdir()] == ["data.npz"]


def test_a_run_has_the_name_that_it_is_given(tmp_path, capsys):
    run = tmp_path / "deep" / "mine"
    assert main([*CATCH, *SMALL, "--steps", "20", "--eval-every", "0", "--run-directory", str(run)]) == 0
    assert (run / "config.json").is_file() and f"Run folder: {run}" in capsys.readouterr().out
    assert main([*CATCH, *SMALL, "--steps", "20", "--run-directory", str(run)]) == 2
    assert main([*CATCH, *SMALL, "--steps", "20", "--run-directory", str(run), "--out", "x"]) == 2
    assert main(["train", "--resume", str(run), "--run-directory", "x"]) == 2
    said = capsys.readouterr().err
    assert f"--resume {run}" in said and "--out where a new one is made" in said and "leave out --run-directory" in said


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["--num-steps", "5"], "Give: --steps"),
        (["--run_directory", "x"], "Give: --run-directory"),
        (["--log-dir", "x"], "Give: --run-directory"),
        (["--evaluation-period", "5"], "Give: --eval-every"),
        (["--environment-settings", "5"], "Give: --env-set"),
    ],
)
def test_pythons_words_are_answered_with_the_commands(words, hint, capsys):
    assert main([*CATCH, *words]) == 2
    assert hint in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("words", [["train", "dqn"], ["launch", "dqn"]])
def test_an_environment_without_its_prefix_is_said_before_the_steps_that_are_missing(words, capsys):
    assert main([*words, "--env", "CartPole-v1"]) == 2
    assert "Did you mean 'gymnasium:CartPole-v1'" in capsys.readouterr().err


def test_sentences_are_broken_at_words_and_commands_are_not(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "40")
    text = "A sentence that is longer than its only line.\n  agentkit train --resume a/folder/with/a/long/name"
    say(text)
    assert capsys.readouterr().out == f"{text}\n"  # No terminal.
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    say(text)
    first, second, command = capsys.readouterr().out.splitlines()
    assert (first, second) == ("A sentence that is longer than its only", "  line.") and command == text.splitlines()[1]


def test_ctrl_c_before_training(monkeypatch, capsys):
    monkeypatch.setattr("agentkit.cli._command", lambda name: (_ for _ in ()).throw(KeyboardInterrupt))
    assert main(["list"]) == 130
    assert "stopped" in capsys.readouterr().err


@pytest.mark.one_case
@pytest.mark.parametrize("module", ["agentkit", "agentkit.cli"])
def test_no_file_of_the_working_directory_is_imported(tmp_path, module):
    """It may be a stranger's run folder: `cd RUN; python -m agentkit.cli evaluate .`"""
    for name in ("numpy.py", "jax.py", "gymnasium.py"):
        (tmp_path / name).write_text("open('ran', 'w')")
    (tmp_path / "config.json").write_text('{"environment": "gymnasium:CartPole-v1"}')
    command = [sys.executable, "-m", module, "evaluate", "."]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, timeout=60, check=False)
    assert not (tmp_path / "ran").exists()


def test_python_runs_the_package_as_the_command():
    done = subprocess.run([sys.executable, "-m", "agentkit", "--version"], capture_output=True, text=True, cwd=ROOT)
    assert (done.returncode, done.stdout.split()[0]) == (0, "agentkit")


@pytest.mark.parametrize(("closed", "said"), [(">&-", True), (">&- 2>&-", False)])
def test_closed_output_changes_nothing_else(closed, said):
    words = f"{sys.executable} -m agentkit.cli train dqn --env agentkit:catch --steps 10 --set nonsense=1 {closed}"
    done = subprocess.run(["sh", "-c", words], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and ("nonsense" in done.stderr) == said


def test_no_file_gets_the_number_of_a_closed_output_and_any_text_is_printed(tmp_path):
    code = (
        "import os, sys\nfrom agentkit.cli.output import prepare_output\nprepare_output()\n"
        "assert open('file', 'w').fileno() > 2 and os.get_inheritable(2)\nprint('r/\\xfc \\udcc3')"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "ascii"}
    words = ["sh", "-c", f'{sys.executable} -c "$0" 2>&-', code]
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "r/\\xfc \\udcc3\n")


def test_a_warning_of_agentkits_own_is_one_line_and_anothers_is_as_pythons(capsys):
    with warnings.catch_warnings(record=True) as others:
        warnings.simplefilter("always")
        with _short_warnings():
            warnings.warn_explicit("2 episodes were cut off", RuntimeWarning, summary.__file__, 1)
            warnings.warn_explicit("of another", RuntimeWarning, __file__, 1)
    assert capsys.readouterr().err == "agentkit: warning: 2 episodes were cut off\n"
    assert [str(other.message) for other in others] == ["of another"]
