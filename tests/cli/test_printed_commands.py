"""Commands that are printed can be typed into a shell as they stand, whatever the run folder is called."""

import contextlib
import shlex
from types import SimpleNamespace

import pytest

from agentkit.agents import dqn, ppo
from agentkit.cli import main
from agentkit.cli.looking import status
from agentkit.cli.summary import finish
from agentkit.cli.training import launch, node
from agentkit.cli.training.seeds import _run
from agentkit.cli.values.presets import choose_preset
from agentkit.cli.words.parser import parse
from agentkit.distributed import ProgramError
from agentkit.errors import ConfigError
from agentkit.experiment import ExperimentConfig, sweeps
from agentkit.experiment.launching import external
from agentkit.experiment.runs.config_json import write_config
from agentkit.experiment.sweeps import seeds
from agentkit.learning import Linear

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


def test_after_a_callback_has_stopped_a_training(capsys, tmp_path):
    """It goes on to its own total, and to a larger one only where it has taken all its steps."""
    plan = ExperimentConfig(dqn.make_agent(), "agentkit:catch", 60, run_directory=tmp_path)
    write_config(plan, tmp_path)
    for steps, more in ((6, []), (60, ["--steps", "120"])):
        finish(SimpleNamespace(interrupted=False, stopped_by="enough", steps=steps, updates=9), tmp_path, "train")
        assert printed(capsys.readouterr().out)[-1] == ["agentkit", "train", "--resume", str(tmp_path), *more]


@pytest.mark.parametrize(("steps", "resumes"), [(60, True), (100, False)])
def test_after_a_training_whose_step_size_has_fallen_to_0(capsys, tmp_path, steps, resumes):
    """To take more steps would teach it nothing; to take those that are left does."""
    agent = ppo.make_agent(ppo.Config(learning_rate=Linear(1e-3, 0.0, 100)))
    write_config(ExperimentConfig(agent, "agentkit:catch", 100, run_directory=tmp_path), tmp_path)
    finish(SimpleNamespace(interrupted=False, stopped_by="enough", steps=steps, updates=9), tmp_path, "train")
    resume = ["agentkit", "train", "--resume", str(tmp_path)]
    others = [["agentkit", "evaluate", str(tmp_path)], ["agentkit", "plot", str(tmp_path)]]
    assert printed(capsys.readouterr().out) == [*others, *([resume] if resumes else [])]


@pytest.mark.parametrize("state", ["finished", "stopped", "failed"])
def test_after_several_seeds(capsys, monkeypatch, state):
    result = SimpleNamespace(seed=0, state=state, error="", is_finished=state == "finished")
    monkeypatch.setattr(seeds, "run_seeds", lambda *args, **kwargs: [result])
    monkeypatch.setattr(seeds, "all_finished", lambda results: state == "finished")
    _run(SimpleNamespace(run_directory=FOLDER), [0], 1, None)
    said = capsys.readouterr().out
    (words,) = printed(said)
    assert "1 run" in said and "1 runs" not in said
    assert words[-1] == (f"{FOLDER}/seed*" if state == "finished" else FOLDER)


def test_after_a_stop(capsys, monkeypatch):
    store = SimpleNamespace(command=lambda name, **arguments: None)
    monkeypatch.setattr(status, "connected", lambda run: contextlib.nullcontext(store))
    status.stop(SimpleNamespace(run=FOLDER))
    assert printed(capsys.readouterr().out) == [["agentkit", "launch", "--resume", FOLDER]]


SWEEP = """
agent = "dqn"
env = "agentkit:catch"
steps = 100
eval_every = 50

[sweep]
method = "grid"

[search.set]
learning_rate = [1e-3]
"""


@pytest.mark.parametrize("given", [[], ["--out", FOLDER, "--jobs", "2", "--import", "json"]])
def test_after_a_sweep(capsys, monkeypatch, tmp_path, given):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / f"{FOLDER}.toml"
    file.parent.mkdir()
    file.write_text(SWEEP)
    command = ["agentkit", "sweep", str(file), *given]
    assert main(["sweep", str(file), "--status", *given]) == 2
    said = capsys.readouterr().err
    assert shlex.split(said[said.index("agentkit sweep ") :]) == command
    trial = SimpleNamespace(number=0, state="complete", parameters={"set.hidden_sizes": FOLDER}, value=1.0)
    for stopped in (True, False):
        result = SimpleNamespace(trials=[trial], best=trial, interrupted=stopped, ended=False)
        monkeypatch.setattr(sweeps, "run_sweep", lambda *args, result=result: result)
        assert main(["sweep", str(file), *given]) == (130 if stopped else 0)
        said = capsys.readouterr().out
        assert said.count(" 1 trial\n") == said.count("1 trial (1 complete)") == 1
        best, again = printed(said)
        assert again == command + ([] if stopped else ["--status"])
        assert best[:4] == ["agentkit", "train", "dqn", "--env"] and f"hidden_sizes={FOLDER}" in best
        trained = parse(best[1:])
        assert (trained.out, trained.imports) == ((FOLDER, ["json"]) if given else (None, None))


def test_where_steps_are_missing():
    arguments = SimpleNamespace(agent="dqn", env="gymnasium:my/It's Mine-v1", preset=None, steps=None)
    with pytest.raises(ConfigError) as caught:
        choose_preset(arguments, "node replay")
    said = str(caught.value)
    words = shlex.split(said[said.index("agentkit ") : said.index(". It may be left out")])
    assert words == ["agentkit", "node", "replay", "dqn", "--env", arguments.env, "--steps", "100k"]


def test_after_a_node_of_a_program_has_failed(capsys, monkeypatch):
    def run(**settings):
        raise ProgramError("actor-0 failed.")

    assert launch._show(run, FOLDER, SimpleNamespace(listen="eth 0", ray_address=None, imports=["pack"])) == 1
    words = ["agentkit", "launch", "--resume", FOLDER, "--listen", "eth 0", "--import", "pack"]
    assert printed(capsys.readouterr().err) == [words]


@pytest.mark.parametrize(("listen", "address"), [(None, "127.0.0.1:7000"), ("wg0", "10.8.0.1:7000")])
def test_by_which_others_join(listen, address, capsys, monkeypatch):
    """The device's own address: the host's name usually means another one, from which the port drops all."""

    def host_run(plan, *, on_start, **settings):
        on_start(address, "a secret")
        return "done"

    monkeypatch.setattr(external, "host_run", host_run)
    monkeypatch.setattr(node, "_plan", lambda arguments: SimpleNamespace(run_directory=FOLDER, describe=lambda: {}))
    arguments = SimpleNamespace(listen=listen, board_port=None, port=None)
    assert node._host(arguments, SimpleNamespace(run_id="a secret")) == 0
    said = capsys.readouterr().out.splitlines()[0]
    words = shlex.split(said[said.index("agentkit ") :])
    assert words[3:] == ["--connect", address, "--run-id-file", f"{FOLDER}/run_id"]
