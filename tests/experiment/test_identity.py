"""A run knows what it is: it is rebuilt exactly from its folder, or refused with the reason, and never as another."""

import dataclasses
import functools
import importlib
import json
import pathlib
import pickle
import re
import sys
import textwrap
import warnings

import numpy as np
import pytest

from agentkit import checkpoint, envs
from agentkit.adders import Hindsight
from agentkit.agents import addons, dqn, registry
from agentkit.cli import main
from agentkit.envs.catch import Catch
from agentkit.envs.reach_goal import BitFlip
from agentkit.errors import CheckpointError, ConfigError
from agentkit.experiment import (
    ChangedCodeWarning,
    ExperimentConfig,
    UntrustedCodeError,
    evaluate,
    local,
    read_config,
    resume,
    run,
)
from agentkit.experiment.config.codes import parse
from agentkit.experiment.config.identity import difference, packages_of
from agentkit.experiment.config.recipes import encode
from agentkit.experiment.evaluation import record_episodes
from agentkit.experiment.runs.config_json import experiment_from_record, write_config
from agentkit.wrappers.step_limit import StepLimit
from tests.experiment import own_parts
from tests.experiment.own_parts import SMALL

EXTERNAL = importlib.import_module("agentkit.experiment.launching.external")
LAUNCHING = importlib.import_module("agentkit.experiment.launching.run")
RESTORING = importlib.import_module("agentkit.experiment.policies.restore_policy")


def make(agent=None, environment="agentkit:catch", **settings):
    return ExperimentConfig(agent or dqn.make_agent(SMALL), environment, 40, evaluation_period=0, **settings)


def _own(**parts):
    return dqn.make_agent(SMALL, **parts)


# What a user changes in a run.
NAMED = {
    "loss": lambda: make(_own(make_loss=own_parts.make_zero_loss)),
    "networks": lambda: make(_own(make_networks=own_parts.make_wide_networks)),
    "torso": lambda: make(_own(torso=own_parts.own_torso)),
    "torso of a class": lambda: make(_own(torso=own_parts.OwnModule)),
    "torso by name": lambda: make(_own(torso="flatten")),
    "torso of own networks": lambda: make(_own(torso=own_parts.own_torso, make_networks=own_parts.make_on_torso)),
    "partial": lambda: make(_own(make_loss=functools.partial(own_parts.make_zero_loss))),
    "config": lambda: make(_own_config()),
    "own add-on": lambda: make(own_parts.with_noise(dqn.make_agent(SMALL), 0.5)),
    "RND": lambda: make(addons.with_rnd(dqn.make_agent(SMALL))),
    "normalisation": lambda: make(addons.with_normalization(dqn.make_agent(SMALL), rewards=True)),
    "GAIL": lambda: make(addons.with_gail(dqn.make_agent(SMALL), pathlib.Path("expert.hdf5"))),
    "HER": lambda: make(
        addons.with_her(dqn.make_agent(SMALL), Hindsight(BitFlip.compute_reward, BitFlip.compute_terminated)),
        "agentkit:bit_flip",
    ),
    "RND of own loss and HER": lambda: make(
        addons.with_rnd(
            addons.with_her(
                _own(make_loss=own_parts.make_zero_loss), Hindsight(BitFlip.compute_reward, BitFlip.compute_terminated)
            )
        ),
        "agentkit:bit_flip",
    ),
    "environment function": lambda: make(None, own_parts.make_catch),
    "environment arguments": lambda: make(environment_settings={"rows": 6}),
    "arguments of a function": lambda: make(None, own_parts.make_catch, environment_settings={"rows": 6}),
    "wrappers": lambda: make(wrappers=[own_parts.Doubled, functools.partial(StepLimit, max_steps=3)]),
    "nothing": make,
}


def _own_config():
    agent = dqn.make_agent(own_parts.OwnConfig(hidden_sizes=(4,), temperature=0.5))
    return dataclasses.replace(agent, make_networks=own_parts.make_wide_networks)


class _RebuiltError(Exception):
    """Carries what a command has rebuilt out of it, before it goes on."""

    def __init__(self, experiment):
        super().__init__("rebuilt")
        self.experiment = experiment


def _stop(experiment, *rest, **named):
    raise _RebuiltError(experiment)


def _node(folder, monkeypatch):
    """What nodes of other machines rebuild is what the host has put into the run store, by way of JSON."""
    experiment = read_config(folder)
    posted = json.loads(json.dumps({**experiment.describe(), "run_directory": str(folder)}))

    class Store:
        def __init__(self, *rest, **named):
            pass

        def get(self, name, timeout):
            return posted

        def claim(self, node, life):
            return None  # The name is free.

        def close(self):
            pass

    monkeypatch.setattr(EXTERNAL, "RunStoreClient", Store)
    monkeypatch.setattr(EXTERNAL, "run_node", lambda node, *rest: _stop(node.args[0]))
    EXTERNAL.join_run("actor", connect="a:1", run_id="0" * 16)


def _commands():
    """The commands that rebuild a run, each up to where it has done so."""

    def resume_it(folder, monkeypatch):
        monkeypatch.setattr(local, "run", _stop)
        resume(folder)

    def evaluate_it(folder, monkeypatch):
        monkeypatch.setattr(RESTORING, "read_config", lambda *a, **k: _stop(read_config(*a, **k)))
        evaluate(folder)

    def export_it(folder, monkeypatch):
        monkeypatch.setattr(RESTORING, "read_config", lambda *a, **k: _stop(read_config(*a, **k)))
        record_episodes.record_episodes(folder, 1)

    def export_replay(folder, monkeypatch):
        monkeypatch.setattr(record_episodes, "read_config", lambda *a, **k: _stop(read_config(*a, **k)))
        record_episodes.read_replay(folder)

    def relaunch_it(folder, monkeypatch):
        monkeypatch.setattr(LAUNCHING, "launch", _stop)
        LAUNCHING.resume_launch(folder)

    return {
        "resume": resume_it,
        "evaluate": evaluate_it,
        "export": export_it,
        "export --replay": export_replay,
        "relaunch": relaunch_it,
        "node": _node,
    }


COMMANDS = _commands()


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("row", NAMED)
def test_each_command_rebuilds_exactly_the_run(row, command, tmp_path, monkeypatch):
    experiment = dataclasses.replace(NAMED[row](), run_directory=tmp_path)
    write_config(experiment, tmp_path, launch={})
    with pytest.raises(_RebuiltError) as caught:
        COMMANDS[command](tmp_path, monkeypatch)
    rebuilt = caught.value.experiment
    assert row == "partial" or rebuilt.agent == experiment.agent  # Python's own partials are never equal.
    assert rebuilt.describe() == experiment.describe()
    if row != "nothing":
        assert rebuilt.describe() != make().describe()
    observations = [e.make_environment(0).observation_spec() for e in (rebuilt, experiment)]
    assert observations[0] == observations[1]


@pytest.mark.parametrize("name", registry.names())
def test_a_registered_agent_is_written_by_its_name_alone(name):
    written = make(registry.make(name), num_envs=2).describe()
    assert written["agent"] == name and written["agent_parts"] == {}
    assert not list(parse([encode(part) for part in vars(registry.make(name)).values()]).unnamed("part"))


def _of_main(network, config):
    return own_parts.make_zero_loss(network, config)


_of_main.__module__ = "__main__"


def _closure(seed=0):
    def make_it(seed):
        return Catch(seed=seed)

    return make_it


class _Opaque:
    def __call__(self, network, config):
        return own_parts.make_zero_loss(network, config)


UNNAMED = {
    "lambda loss": (lambda: make(_own(make_loss=lambda n, c: own_parts.make_zero_loss(n, c))), "a lambda"),
    "loss of __main__": (lambda: make(_own(make_loss=_of_main)), "script that was started"),
    "loss of a class": (lambda: make(_own(make_loss=_Opaque())), "a value of type .*_Opaque"),
    "lambda torso": (lambda: make(_own(torso=lambda o: o)), r"make_networks\.torso is a lambda"),
    "torso of an object": (lambda: make(_own(torso=_Opaque())), "torso is a value of type .*_Opaque"),
    "closure": (lambda: make(None, _closure()), "made inside of a function"),
    "lambda environment": (lambda: make(None, lambda seed: Catch(seed=seed)), "environment is a lambda"),
    "lambda wrapper": (lambda: make(wrappers=[lambda e: e]), r"wrappers\[0\] is a lambda"),
    "argument": (lambda: make(None, own_parts.make_catch, environment_settings={"rows": object()}), "type .*object"),
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("row", UNNAMED)
def test_each_command_refuses_with_the_reason(row, command, tmp_path, monkeypatch):
    build, reason = UNNAMED[row]
    write_config(dataclasses.replace(build(), run_directory=tmp_path), tmp_path, launch={})
    with pytest.raises(ConfigError, match=rf"(?s){reason}.*agentkit.run\(experiment, resume=True\)"):
        COMMANDS[command](tmp_path, monkeypatch)


def test_a_host_refuses_what_the_other_nodes_could_not_make(tmp_path):
    build, reason = UNNAMED["lambda loss"]
    with pytest.raises(ConfigError, match=reason):
        EXTERNAL.host_run(dataclasses.replace(build(), run_directory=tmp_path), store_port=1)


def test_what_cannot_be_rebuilt_may_be_given(tmp_path):
    build, _ = UNNAMED["lambda environment"]
    write_config(dataclasses.replace(build(), run_directory=tmp_path), tmp_path)
    assert read_config(tmp_path, environment="agentkit:catch").environment == "agentkit:catch"


# --- a whole run, of a module that a program has or has not loaded -----------------------------------

_MODULE = """
    import pathlib
    import jax.numpy as jnp
    from agentkit.envs.catch import Catch
    from agentkit.types import LossOutput
    from agentkit.wrappers.step_limit import StepLimit

    pathlib.Path(__file__).with_name("imported").write_text("")
    SCALE = 0.0

    def scaled(x):
        return SCALE * x  # A comment.

    def make_loss(network, config):
        def loss(params, state, batch, key):
            return LossOutput(scaled(jnp.sum(network.apply(params, batch.data.observation))), {})
        return loss

    def make_catch(seed, rows=10, most=99):
        return StepLimit(Catch(rows=rows, seed=seed), most)

    def limit(environment, steps=4):
        return StepLimit(environment, steps)
"""


@pytest.fixture(name="strange")
def _strange(tmp_path, monkeypatch):
    """A module that leaves a file where it is imported; found, and not loaded."""
    (tmp_path / "strange_parts.py").write_text(textwrap.dedent(_MODULE))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    yield _Strange(tmp_path)
    sys.modules.pop("strange_parts", None)


class _Strange:
    def __init__(self, folder: pathlib.Path):
        self.file, self.run = folder / "strange_parts.py", folder / "run"
        self.mark = folder / "imported"

    def load(self):
        return importlib.import_module("strange_parts")

    def forget(self):
        sys.modules.pop("strange_parts", None)
        self.mark.unlink(missing_ok=True)
        importlib.invalidate_caches()

    def change(self, old, new):
        text = self.file.read_text()
        assert old in text
        self.file.write_text(text.replace(old, new))
        self.forget()

    def experiment(self):
        parts = self.load()
        settings = {"environment_settings": {"rows": 7}, "wrappers": [functools.partial(parts.limit, steps=5)]}
        return make(_own(make_loss=parts.make_loss), parts.make_catch, run_directory=self.run, **settings)

    def write(self):
        write_config(self.experiment(), self.run)


def _params(folder):
    state = checkpoint.read_latest(folder / "checkpoints").state["learner"]["state"]
    return {name: leaf for name, leaf in state.items() if "params" in name}


def _same(one, other):
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


@pytest.mark.full
def test_a_run_of_own_parts_is_trained_resumed_evaluated_and_exported_from_its_folder(strange, capsys):
    pytest.importorskip("h5py")
    run(strange.experiment())
    before = _params(strange.run)
    strange.forget()

    assert main(["evaluate", str(strange.run), "--episodes", "2"]) == 2
    error = capsys.readouterr().err
    assert not strange.mark.exists() and "strange_parts" not in sys.modules
    assert f"Run:\n  agentkit evaluate {strange.run} --episodes 2 --import strange_parts" in error

    named = ["--import", "strange_parts"]
    assert main(["train", "--resume", str(strange.run), "--steps", "80", *named]) == 0
    assert f"agentkit evaluate {strange.run} --import strange_parts" in capsys.readouterr().out
    assert before and _same(before, _params(strange.run)), "the stock loss has changed the parameters"
    strange.forget()
    assert main(["evaluate", str(strange.run), "--episodes", "2", *named]) == 0
    assert [int(length) for length in evaluate(strange.run, 2)["episode_length"]] == [5, 5], "the wrapper's limit"
    assert evaluate(strange.run, 1, environment_settings={"most": 2})["episode_length"] == [2]
    strange.forget()
    assert main(["export", str(strange.run), "--out", "a.hdf5", "--episodes", "2", *named]) == 0
    assert "Wrote a.hdf5: 10 steps." in capsys.readouterr().out


def test_a_module_is_not_imported_on_a_folders_word(strange):
    strange.write()
    strange.forget()
    with pytest.raises(UntrustedCodeError, match=r"--import strange_parts.*imports=\('strange_parts',\)"):
        read_config(strange.run)
    assert not strange.mark.exists()
    strange.load()  # By the program itself.
    assert read_config(strange.run).environment is strange.load().make_catch
    strange.forget()
    assert read_config(strange.run, imports=["strange_parts"]).environment is strange.load().make_catch
    assert packages_of(strange.experiment().describe()) == ["strange_parts"]


def test_gymnasium_imports_no_module_on_a_folders_word(strange):
    write_config(make(run_directory=strange.run), strange.run)
    path = strange.run / "config.json"
    path.write_text(path.read_text().replace("agentkit:catch", "gymnasium:strange_parts:Env-v0"))
    with pytest.raises(UntrustedCodeError, match="--import strange_parts"):
        read_config(strange.run)
    assert not strange.mark.exists()
    assert read_config(strange.run, imports=["strange_parts"]).environment == "gymnasium:strange_parts:Env-v0"
    assert strange.mark.exists()


def test_gymnasiums_door_to_old_gym_is_closed_too(tmp_path):
    named = make(None, "gymnasium:GymV26Environment-v0", environment_settings={"env_id": "strange_parts:A"})
    with pytest.raises(UntrustedCodeError, match="--import shimmy"):
        experiment_from_record(named.describe(), tmp_path)


@pytest.mark.parametrize(
    "code",
    [
        {"partial": {"function": "subprocess:call"}, "args": [["touch", "harm"]], "keywords": {}},
        {"function": "builtins:eval"},
        {"partial": {"function": "agentkit.envs.registry:make"}, "args": ["gymnasium:strange_parts:A"], "keywords": {}},
        {"function": "agentkit.cli:main"},
        {"function": "numpy:save"},
    ],
    ids=lambda code: str(code)[:60],
)
def test_a_folder_cannot_name_code_of_libraries(code, tmp_path):
    written = {**make().describe(), "environment": None, "environment_function": code}
    with pytest.raises(UntrustedCodeError, match="not imported on a folder's word"):
        experiment_from_record(json.loads(json.dumps(written)), tmp_path)
    assert not (tmp_path / "harm").exists()


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ({"function": "tests.experiment.own_parts:jnp.save"}, "no function or class 'jnp.save' of its own"),
        ({"function": "tests.experiment.own_parts:dqn"}, "no function or class 'dqn'"),
        ({"function": "tests.experiment.own_parts:gone"}, "renamed or moved"),
        ({"type": "tests.experiment.own_parts:make_catch", "fields": {}}, "Expected a frozen dataclass"),
        ({"type": "tests.experiment.own_parts:Noisy", "fields": {"x": 1}}, "cannot be made again"),
        ({"function": 3}, "expected the name of a function or class as MODULE:NAME, found 3"),
        ({"what": 1}, "environment_function: expected a value as agentkit writes it"),
    ],
    ids=str,
)
def test_damaged_names_are_refused(code, message, tmp_path):
    written = {**make().describe(), "environment": None, "environment_function": code}
    with pytest.raises(ConfigError, match=message):
        experiment_from_record(json.loads(json.dumps(written)), tmp_path)


# --- code that has changed since -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("rows=rows, seed", "rows=rows + 1, seed", "strange_parts:make_catch"),
        ("return SCALE * x", "return SCALE - x", "strange_parts:make_loss"),
        ("SCALE = 0.0", "SCALE = 1.0", "strange_parts:make_loss"),
        ("steps=4", "steps=3", "strange_parts:limit"),
    ],
)
def test_changed_code_is_named(old, new, named, strange, capsys):
    strange.write()
    strange.change(old, new)
    with pytest.warns(ChangedCodeWarning) as caught:
        read_config(strange.run, imports=["strange_parts"])
    (message,) = {str(warning.message) for warning in caught}
    assert message.startswith(f"{named}, ") and str(strange.file) in message
    assert main(["evaluate", str(strange.run), "--import", "strange_parts"]) == 2  # There is no checkpoint.
    lines = [line for line in capsys.readouterr().err.splitlines() if "warning" in line]
    assert lines == [f"agentkit: warning: {message}"]


def test_comments_and_docstrings_are_no_change(strange):
    strange.write()
    strange.change("# A comment.", "# Another.\n")
    strange.change("rows=10, most=99):", 'rows=10, most=99):\n    """Makes Catch."""')
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read_config(strange.run, imports=["strange_parts"])


def test_code_that_has_gone_is_refused(strange):
    strange.write()
    strange.change("def make_loss", "def make_another_loss")
    with pytest.raises(ConfigError, match=r"no function or class 'make_loss' of its own\. Was it renamed"):
        read_config(strange.run, imports=["strange_parts"])


def test_an_agent_whose_file_has_changed_is_named(tmp_path):
    write_config(make(run_directory=tmp_path), tmp_path)
    path = tmp_path / "config.json"
    saved = json.loads(path.read_text())
    saved["agent_code"]["digest"] = "0" * 16
    path.write_text(json.dumps(saved))
    with pytest.warns(ChangedCodeWarning, match=r"agentkit\.agents\.dqn:make_agent, .*dqn\.py"):
        read_config(tmp_path)


# --- going on from code ----------------------------------------------------------------------------------


@pytest.mark.full
def test_a_checkpoint_is_of_its_own_parts_alone(tmp_path):
    run(make(_own(make_loss=own_parts.make_zero_loss), run_directory=tmp_path))
    before = (tmp_path / "config.json").read_bytes()
    for other in (make(), NAMED["own add-on"](), NAMED["wrappers"](), NAMED["environment arguments"]()):
        with pytest.raises(CheckpointError, match=r"made with (agent_parts|environment_settings|wrappers)[.\w]*="):
            run(dataclasses.replace(other, run_directory=tmp_path), resume=True)
    assert before == (tmp_path / "config.json").read_bytes()


def test_the_field_that_differs_is_named_alone():
    config = {"learning_rate": {"type": "a.b:Linear", "fields": {"start": 1e-3, "end": 0.0}}, "batch_size": 8}
    other = {"learning_rate": {"type": "a.b:Linear", "fields": {"start": 1e-3, "end": 1e-5}}, "batch_size": 8}
    saved = {"agent": "dqn", "agent_config": config}
    assert difference(saved, saved | {"agent_config": other}) == ("agent_config.learning_rate.fields.end", 0.0, 1e-5)
    both = saved | {"agent_config": other | {"batch_size": 9}}
    assert difference(saved, both) == ("agent_config", config, both["agent_config"])


def test_what_has_no_name_goes_on_from_code_with_a_warning_where_it_differs(tmp_path):
    def make_it(rows):
        return Catch(rows=rows)

    def experiment(environment):
        return make(None, environment, run_directory=tmp_path, num_envs=None)

    run(experiment(lambda seed: Catch(seed=seed)))
    assert local.prepare(experiment(_closure()), resume=True) is not None
    with pytest.warns(ChangedCodeWarning, match="cannot be compared"):
        local.begin(experiment(_closure()))
    with pytest.raises(CheckpointError, match="environment"):
        local.prepare(experiment("agentkit:catch"), resume=True)


# --- environments by a registered prefix ------------------------------------------------------------------


@pytest.fixture(name="prefix")
def _prefix(monkeypatch):
    monkeypatch.setattr("agentkit.envs.prefixes._registered", {})
    envs.register("own", make_registered)
    return "own:catch"


def make_registered(name, seed, **settings):
    return Catch(seed=seed, **settings)


def make_another(name, seed):
    return Catch(seed=seed)


def test_a_registered_prefix_is_registered_again(prefix, tmp_path, monkeypatch):
    write_config(make(None, prefix, environment_settings={"rows": 5}, run_directory=tmp_path), tmp_path)
    message = pickle.dumps(make(None, prefix))
    monkeypatch.setattr("agentkit.envs.prefixes._registered", {})
    assert read_config(tmp_path).make_environment(0).observation_spec().shape == (5, 5)
    monkeypatch.setattr("agentkit.envs.prefixes._registered", {})
    assert pickle.loads(message).make_environment(0).observation_spec().shape == (10, 5), "as a node gets it"
    monkeypatch.setattr("agentkit.envs.prefixes._registered", {"own": make_another})
    with pytest.raises(ConfigError, match=r"'own' was registered for .*make_registered, .* here for .*make_another"):
        read_config(tmp_path)


def test_wrappers_stay_inside_of_the_resumable_layer():
    inside = make(None, lambda seed: envs.make("agentkit:catch", seed=seed), wrappers=[own_parts.Doubled])
    with pytest.raises(ConfigError, match="resumable layer"):
        inside.make_environment(0)
    assert make(None, own_parts.make_catch, wrappers=[own_parts.Doubled]).make_environment(0).resumable


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"environment_settings": {"seed": 1}}, "'seed'.*agentkit's own"),
        ({"environment_settings": [1]}, "expected a mapping"),
        ({"wrappers": "frame_stack"}, "expected functions"),
        ({"wrappers": [3]}, "expected functions"),
    ],
)
def test_impossible_environments_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        make(**settings)


# --- many processes ------------------------------------------------------------------------------------------


@pytest.mark.reverb
@pytest.mark.full
def test_a_launched_run_of_own_parts_goes_on_from_its_folder(strange):
    experiment = strange.experiment()
    LAUNCHING.launch(experiment, num_actors=1, num_evaluators=0)
    before = _params(strange.run)
    strange.forget()
    with pytest.raises(UntrustedCodeError, match=re.escape("--import strange_parts")):
        LAUNCHING.resume_launch(strange.run, num_steps=80)
    result = LAUNCHING.resume_launch(strange.run, num_steps=80, imports=["strange_parts"])
    assert result.steps >= 80 and before and _same(before, _params(strange.run))
