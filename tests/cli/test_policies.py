"""``agentkit watch``, ``export-policy`` and ``push``, as words on the command line."""

import sys

import numpy as np
import pytest

import agentkit
from agentkit.agents import dqn
from agentkit.cli import main
from agentkit.cli.looking import watch


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "catch"
    agent = dqn.make_agent(dqn.Config(hidden_sizes=(8,), min_replay_size=20, batch_size=8))
    agentkit.run(
        agentkit.ExperimentConfig(agent, "agentkit:catch", num_steps=40, run_directory=folder, evaluation_period=0)
    )
    return folder


def test_without_a_display_a_file_is_written_and_named(run, monkeypatch, capsys):
    monkeypatch.setattr("agentkit.envs.rendering.has_display", lambda: False)
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    assert main(["watch", str(run), "--episodes", "1"]) == 0
    *_, line = capsys.readouterr().out.splitlines()
    assert line == f"There is no display to open a window on: wrote {run / 'watch.gif'}"
    assert (run / "watch.gif").read_bytes()[:3] == b"GIF"


@pytest.mark.parametrize("has_display", [False, True])
def test_watch_plays_the_checkpoint_that_is_asked_for(run, has_display, monkeypatch, capsys):
    monkeypatch.setattr("agentkit.envs.rendering.has_display", lambda: has_display)
    monkeypatch.setattr(watch.Window, "possible", staticmethod(lambda: True))
    assert main(["watch", str(run), "--checkpoint", "7"]) == 2
    assert "has no checkpoint of step 7. It has those of: 40" in capsys.readouterr().err


def test_a_film_may_be_asked_for_where_there_is_a_display(run, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("agentkit.envs.rendering.has_display", lambda: True)
    monkeypatch.setattr(watch.Window, "possible", staticmethod(lambda: True))
    assert main(["watch", str(run), "--episodes", "1", "--out", str(tmp_path / "a.gif")]) == 0
    assert (tmp_path / "a.gif").stat().st_size and capsys.readouterr().out.endswith(f"Wrote {tmp_path / 'a.gif'}\n")


def test_the_window_shows_what_the_environment_draws(run, monkeypatch, capsys):
    from matplotlib import pyplot

    shown = []
    monkeypatch.setattr("agentkit.envs.rendering.has_display", lambda: True)
    monkeypatch.setattr(watch.Window, "possible", staticmethod(lambda: True))
    monkeypatch.setattr(
        pyplot, "pause", lambda seconds: shown.append(pyplot.gcf().axes[0].images[0].get_array().copy())
    )
    assert main(["watch", str(run), "--episodes", "2", "--fps", "100"]) == 0
    assert "2 episodes" in capsys.readouterr().out
    assert len(shown) == 20 and shown[0].shape == (80, 40, 3) and not np.array_equal(shown[0], shown[1])
    monkeypatch.setattr(pyplot, "pause", lambda seconds: pyplot.close("all"))
    assert main(["watch", str(run)]) == 0
    assert capsys.readouterr().out == "", "closed before an episode ended"


def test_a_window_needs_a_backend_that_opens_one(monkeypatch):
    import matplotlib

    matplotlib.use("agg")
    assert not watch.Window.possible()


@pytest.mark.full
def test_an_export_lies_in_the_run_with_its_card(run, capsys):
    assert main(["export-policy", str(run), "--format", "stablehlo", "--episodes", "2"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert [line.split(" (")[0] for line in out] == [
        f"Wrote {run / 'policy' / 'policy.stablehlo'}",
        f"Wrote {run / 'policy' / 'policy.stablehlo.json'}",
        "Read it back: its actions are the policy's, on 4 steps of 64 episodes.",
        f"Wrote {run / 'policy' / 'README.md'}: the model card.",
    ]
    assert "Over 2 episodes at step 40" in (run / "policy" / "README.md").read_text()


@pytest.mark.full
def test_a_policy_file_is_exported_without_its_run(run, tmp_path, capsys):
    agentkit.load(run).save(tmp_path / "policy.npz")
    assert main(["export-policy", str(tmp_path / "policy.npz"), "-o", str(tmp_path / "p.stablehlo")]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["p.stablehlo", "p.stablehlo.json", "policy.npz"]
    for option in ("--out", "--output"):
        assert main(["export-policy", str(tmp_path / "policy.npz"), option, str(tmp_path / f"{option}.npz")]) == 0
        assert (tmp_path / f"{option}.npz").is_file()
    assert main(["export-policy", str(tmp_path / "policy.npz")]) == 2
    assert "say with -o FILE" in capsys.readouterr().err


def test_push_says_how_to_load_it(run, tmp_path, capsys):
    assert main(["push", str(run), str(tmp_path / "out")]) == 0
    *_, line = capsys.readouterr().out.splitlines()
    assert line == f'Load it with: agentkit.load("{tmp_path / "out" / "policy.npz"}")'


@pytest.mark.parametrize(
    ("words", "message"),
    [(["export-policy", "RUN", "--format", "tflite"], "Unknown format 'tflite'"),
     (["export-policy", "nowhere"], "not a run folder"),
     (["push", "RUN", "catch"], "Expected OWNER/NAME"),
     (["export-policy", "RUN", "-o", "/proc/x.npz"], "/proc/x.npz cannot be written: No such file or directory."),
     (["push", "RUN", "/proc/agentkit/x"], "/proc/agentkit/x cannot be written: "),
     (["evaluate", "RUN", "--video", "/proc/agentkit/a.gif"], "/proc/agentkit/a.gif cannot be written: "),
     (["watch", "RUN", "-o", "RUN/config.json/a.gif"], "config.json/a.gif cannot be written: "),
     (["evaluate", "RUN", "--fps", "10"], "--fps is of a film"),
     (["evaluate", "RUN", "--video", "a.gif", "--size", "2"], "size: expected 16"),
     (["watch", "nowhere"], "not a run folder")],
)  # fmt: skip
def test_bad_words_are_one_line_and_leave_nothing(run, words, message, capsys):
    before = sorted(run.rglob("*"))
    assert main([word.replace("RUN", str(run)) for word in words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("agentkit: ") and message in line
    assert sorted(run.rglob("*")) == before


def test_the_counter_counts_on_one_line(capsys):
    from agentkit.cli.looking.evaluate import _counter

    show = _counter(total=2)
    show(1), show(2)
    assert capsys.readouterr().err == "\rframe 1 of 2\rframe 2 of 2\n"
