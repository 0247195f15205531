"""Commands that are printed can be typed into a shell as they stand, whatever the run folder is called."""

import contextlib
import shlex
from types import SimpleNamespace

import pytest

from agentkit.cli.looking import status
from agentkit.cli.summary import finish
from agentkit.cli.training.seeds import _run
from agentkit.experiment.sweeps import seeds

FOLDER = "my runs/it's $HOME; 1"


def printed(text):
    """The words of each printed command, as a shell would read them."""
    return [shlex.split(line[line.index("agentkit ") :]) for line in text.splitlines() if "  agentkit " in line]


@pytest.mark.parametrize("interrupted", [True, False])
def test_after_a_training(capsys, tmp_path, interrupted):
    result = SimpleNamespace(interrupted=interrupted, stopped_by=None, steps=100, updates=9)
    run = tmp_path / FOLDER
    finish(result, run, "train", ["pack"])
    resume = ["agentkit", "train", "--resume", str(run), "--import", "pack"]
    again = [
        ["agentkit", "evaluate", str(run), "--import", "pack"],
        ["agentkit", "plot", str(run)],
        [*resume, "--steps", "200"],
    ]
    assert printed(capsys.readouterr().out) == ([resume] if interrupted else again)


@pytest.mark.parametrize("state", ["finished", "stopped", "failed"])
def test_after_several_seeds(capsys, monkeypatch, state):
    result = SimpleNamespace(seed=0, state=state, error="", is_finished=state == "finished")
    monkeypatch.setattr(seeds, "run_seeds", lambda *args, **kwargs: [result])
    monkeypatch.setattr(seeds, "all_finished", lambda results: state == "finished")
    _run(SimpleNamespace(run_directory=FOLDER), [0], 1, None)
    (words,) = printed(capsys.readouterr().out)
    assert words[-1] == (f"{FOLDER}/seed*" if state == "finished" else FOLDER)


def test_after_a_stop(capsys, monkeypatch):
    store = SimpleNamespace(command=lambda name, **arguments: None)
    monkeypatch.setattr(status, "connected", lambda run: contextlib.nullcontext(store))
    status.stop(SimpleNamespace(run=FOLDER))
    assert printed(capsys.readouterr().out) == [["agentkit", "launch", "--resume", FOLDER]]
