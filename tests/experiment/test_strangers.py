"""A run folder or a policy file of a stranger runs nothing, whatever names are in it."""

import copy
import dataclasses
import functools
import importlib
import json
import os
import pathlib
import random
import re
import shutil
import sys
import types
from typing import Any, NamedTuple

import numpy as np
import pytest

import agentkit
from agentkit import nests
from agentkit.agents import dqn
from agentkit.cli import main
from agentkit.datasets import read_episodes
from agentkit.envs.catch import Catch
from agentkit.envs.prefixes import GYMNASIUM_PREFIXES, OF_SEVERAL_AGENTS, SIMULATORS
from agentkit.errors import AgentkitError, ConfigError, SpecError
from agentkit.experiment import (
    ExperimentConfig,
    Frozen,
    MultiAgentConfig,
    Pool,
    evaluate,
    read_config,
    read_multi_agent_config,
    read_record,
    resume,
)
from agentkit.experiment.config import identity, recipes
from agentkit.experiment.config.codes import in_short
from agentkit.experiment.config.recipes import decode, encode
from agentkit.experiment.config.trust import UntrustedCodeError, check_gymnasium_name
from agentkit.experiment.launching.run import resume_launch
from agentkit.experiment.policies.policy_file import PolicyFile, write_policy
from agentkit.experiment.runs.config_json import write_config
from agentkit.experiment.sweeps.trials import SweepFolder, TrialRecord
from agentkit.specs import make_environment_spec
from agentkit.wrappers.video import VideoRecorder
from tests.experiment import own_parts
from tests.experiment.own_parts import SMALL

EVIL = "runs.x.evil:f"
CLASS = {"type": "runs.x.evil:X", "fields": {}}
OWN = {"function": "agentkit.networks.mlp:mlp"}
NAMED = {"pythonClassName": "runs.x.evil.X"}
# Where a name may be that a check looks past.
FORMS = {
    "list": {"list": {"function": EVIL}},
    "two forms": {"function": "agentkit.networks.mlp:mlp", **CLASS},
    "two forms, no fields": {"partial": OWN, "args": [], "keywords": {}, "function": EVIL},
    "args": {"partial": OWN, "args": {"function": EVIL}, "keywords": {}},
    "dict": {"dict": {"function": EVIL}},
    "dict of codes": {"dict": [{"function": EVIL}]},
    "keywords": {"partial": OWN, "args": [], "keywords": CLASS},
    "fields": {"type": "agentkit.types:LossOutput", "fields": {"loss": {"list": CLASS}, "metrics": {"dict": []}}},
    "an unknown key": {"path": "a", "then": {"function": EVIL}},
    "plain": {"function": EVIL},
    "a class": CLASS,
}
NAMES = ("plain", "a class")  # A logger of such a name is left out, and the run goes on without it.
PLACES = {
    "agent_config": lambda record, code: record["agent_config"].update(hidden_sizes=code),
    "agent_parts": lambda record, code: record["agent_parts"].update(make_networks=code),
    "own agent": lambda record, code: record.update(agent=None, agent_parts={"agent": code}),
    "agent_code": lambda record, code: record.update(agent_code=code),
    "environment_function": lambda record, code: record.update(environment=None, environment_function=code),
    "environment_settings": lambda record, code: record["environment_settings"].update(rows=code),
    "environment_factory": lambda record, code: record.update(environment="theirs:catch", environment_factory=code),
    "wrappers": lambda record, code: record["wrappers"].append(code),
    "loggers": lambda record, code: record["loggers"].append(code),
    "callbacks": lambda record, code: record["callbacks"].append({**code, "changes_training": False}),
}


def _in_a_policy(place):
    return lambda record, code: PLACES[place](record["policies"]["row"], code)


OF_AN_AGENT = ("agent_config", "agent_parts", "own agent", "agent_code")
PLACES_OF_SEVERAL = {
    **{f"policies, {place}": _in_a_policy(place) for place in OF_AN_AGENT},
    **{place: put for place, put in PLACES.items() if place not in OF_AN_AGENT},
    "policy_of": lambda record, code: record.update(policy_of=code),
    "policy_of an agent": lambda record, code: record.update(policy_of={"dict": [["row", code], ["column", "column"]]}),
}


def _of_several(column="random"):
    """An agent that learns, and another policy."""
    policies = {"row": dqn.make_agent(SMALL), "column": column}
    return MultiAgentConfig(policies, "agentkit:matrix_game", 40, {"row": "row", "column": "column"})


class _Mark:
    def __init__(self, folder: pathlib.Path):
        self.run, self.file = folder / "runs" / "x", folder / "imported"

    def is_whole(self):
        return not self.file.exists() and not any(name.partition(".")[0] == "runs" for name in sys.modules)


@pytest.fixture(name="mark")
def _mark(tmp_path, monkeypatch):
    """A run folder with a module in it, which can be imported and leaves a file where it is."""
    mark = _Mark(tmp_path)
    mark.run.mkdir(parents=True)
    (mark.run / "evil.py").write_text(
        "import pathlib, typing\npathlib.Path(__file__).parents[2].joinpath('imported').touch()\n"
        "def f(*rest, **named): pass\nclass X(typing.NamedTuple): pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    yield mark
    for name in [name for name in sys.modules if name.partition(".")[0] == "runs"]:
        del sys.modules[name]


def _write(run, change, experiment=None):
    experiment = experiment or ExperimentConfig(dqn.make_agent(SMALL), "agentkit:catch", 40)
    write_config(dataclasses.replace(experiment, run_directory=run), run)
    record = json.loads((run / "config.json").read_text())
    change(record)
    (run / "config.json").write_text(json.dumps(record))


@pytest.mark.parametrize("place", PLACES)
def test_a_run_folder_imports_nothing_on_its_word(place, mark):
    _write(mark.run, lambda record: None)
    written = (mark.run / "config.json").read_text()
    for form, code in FORMS.items():
        record = json.loads(written)
        PLACES[place](record, copy.deepcopy(code))
        (mark.run / "config.json").write_text(json.dumps(record))
        commands = [agentkit.load, evaluate]
        if place != "loggers" or form not in NAMES:
            commands.append(resume)
        for command in commands:
            with pytest.raises(AgentkitError):
                command(mark.run)
            assert mark.is_whole(), (command, form)
        for words in (["watch", mark.run, "--out", "film.gif"], ["export-policy", mark.run, "--out", "policy.npz"]):
            assert main([str(word) for word in words]) == 2
            assert mark.is_whole(), (words, form)


@pytest.mark.parametrize("place", PLACES_OF_SEVERAL)
def test_a_run_folder_of_several_agents_imports_nothing_on_its_word(place, mark):
    _write(mark.run, lambda record: None, _of_several())
    written = json.loads((mark.run / "config.json").read_text())
    for form, code in FORMS.items():
        record = copy.deepcopy(written)
        PLACES_OF_SEVERAL[place](record, copy.deepcopy(code))
        commands = [functools.partial(agentkit.load, policy="row"), agentkit.evaluate_multi_agent]
        if place != "loggers" or form not in NAMES:
            commands += [resume, resume_launch]
        for command in commands:
            launched = {"launch": {}} if command is resume_launch else {}
            (mark.run / "config.json").write_text(json.dumps(record | launched))
            with pytest.raises(AgentkitError):
                command(mark.run)
            assert mark.is_whole(), (command, form)
        words = ["--policy", "row", "--out"]
        for line in (["watch", mark.run, "--out", "f.gif"], ["export-policy", mark.run, *words, "policy.npz"]):
            assert main([str(word) for word in line]) == 2
            assert mark.is_whole(), (line, form)


@pytest.mark.parametrize("several", [False, True])
def test_a_group_imports_nothing_on_its_word(several, mark):
    _write(mark.run, lambda record: None, _of_several() if several else None)
    written = json.loads((mark.run / "config.json").read_text())
    (mark.run / "config.json").unlink()
    for place, put in (PLACES_OF_SEVERAL if several else PLACES).items():
        for code in [FORMS[form] for form in NAMES if place != "loggers"]:
            record = copy.deepcopy(written)
            put(record, copy.deepcopy(code))
            (mark.run / "group.json").write_text(json.dumps({"seeds": [0], "jobs": 1, "experiment": record}))
            assert main(["train", "--resume", str(mark.run)]) == 2
            assert mark.is_whole(), (place, code)


@pytest.mark.parametrize("several", [False, True])
def test_the_run_of_a_frozen_policy_imports_nothing_on_its_word(several, mark, tmp_path):
    _write(mark.run, lambda record: None, _of_several(Frozen(tmp_path / "theirs")))
    for place in OF_AN_AGENT:
        put = PLACES_OF_SEVERAL[f"policies, {place}"] if several else PLACES[place]
        _write(tmp_path / "theirs", functools.partial(put, code={"function": EVIL}), _of_several() if several else None)
        with pytest.raises(UntrustedCodeError):
            resume(mark.run)
        assert mark.is_whole(), place


@pytest.mark.parametrize("place", OF_AN_AGENT)
def test_a_policy_file_imports_nothing_on_its_word(place, mark):
    spec = make_environment_spec(Catch())
    for form, code in FORMS.items():
        record = identity.describe_agent(dqn.make_agent(SMALL), 1)
        PLACES[place](record, code)
        write_policy("policy.npz", PolicyFile(record, spec, spec.actions), {})
        with pytest.raises(ConfigError):
            agentkit.load("policy.npz")
        assert mark.is_whole(), form


@pytest.mark.parametrize(
    "name",
    ["runs.x.evil:Env-v0", "gymnasium:GymV26Environment-v0", "GymV21Environment-v0", "a/GymV21Environment-v0"],
)
def test_gymnasium_imports_nothing_on_a_folders_word(name, mark):
    pytest.importorskip("gymnasium")
    for prefix in GYMNASIUM_PREFIXES:
        with pytest.raises(ConfigError, match="not imported on a folder's word"):
            check_gymnasium_name(f"{prefix}:{name}", (), mark.run)


# Of simulators that are not installed here the name is refused all the same, or is none of theirs.
@pytest.mark.parametrize("prefix", sorted({*SIMULATORS, *OF_SEVERAL_AGENTS}))
def test_no_prefix_imports_a_module_of_the_folder(prefix, mark):
    for name in ("runs.x.evil:Env-v0", "runs.x.evil", "runs.x.evil/f", "runs/x/evil", "../../runs.x.evil"):
        _write(mark.run, lambda record, name=name: record.update(environment=f"{prefix}:{name}"))
        with pytest.raises(AgentkitError):
            resume(mark.run)
        assert mark.is_whole(), name


@pytest.mark.parametrize(
    "code",
    [
        {"type": "dataclasses:Field", "fields": {}},
        {"type": "optax:ScaleByAdamState", "fields": {"count": 0, "mu": 0, "nu": 0}},
        {"type": "agentkit.wrappers.film:Film", "fields": {"path": "film.mp4"}},
        {"function": "agentkit.actors.remote:RemoteActor"},
        {"function": "agentkit.checkpoint:write"},
        {"function": "__main__:main"},
    ],
    ids=str,
)
def test_what_may_be_made_are_agentkits_parts_and_the_users_own(code):
    with pytest.raises(ConfigError, match="not imported on a folder's word"):
        decode(code)


def test_a_class_that_is_no_value_is_not_made():
    with pytest.raises(ConfigError, match="Expected a frozen dataclass or NamedTuple"):
        decode({"type": "agentkit.callbacks.stopping:StopAt", "fields": {}})


# --- random codes ------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Value:
    """Holds anything."""

    one: Any = None
    other: Any = None


class Pair(NamedTuple):
    """Holds anything twice."""

    one: Any
    other: Any


def _valid_codes() -> list[Any]:
    values = [
        Value((1, [2.5, "a"]), {"k": (None,), 3: [True]}),
        Pair(own_parts.make_catch, pathlib.PurePosixPath("a/b")),
        functools.partial(own_parts.make_catch, 1, rows=Value([own_parts.Doubled])),
        np.arange(6, dtype=np.int32).reshape(2, 3),
        dqn.Config(hidden_sizes=(8,)),
        lambda: 0,
    ]
    evil = [{"function": EVIL}, CLASS, {"function": "subprocess:call"}, {"type": "numpy:ndarray", "fields": {}}]
    return [*(json.loads(json.dumps(encode(value))) for value in values), *evil]


_WORDS = ("list", "dict", "function", "type", "fields", "partial", "args", "keywords", "path", "array", "dtype",
          "same_as", "unnamed", "name", "digest")  # fmt: skip


def _mutated(code: Any, codes: list[Any], draw: random.Random) -> Any:
    """Changes one place of a code: another code, a key more or less, or another container around it."""
    if isinstance(code, dict | list) and code and draw.random() < 0.75:
        key = draw.choice(list(code)) if isinstance(code, dict) else draw.randrange(len(code))
        code[key] = _mutated(code[key], codes, draw)
        return code
    other = copy.deepcopy(draw.choice(codes))
    kind = draw.randrange(6)
    if kind == 0 and isinstance(code, dict) and code:
        del code[draw.choice(list(code))]
        return code
    if kind == 1 and isinstance(code, dict):
        return code | {draw.choice(_WORDS): other}
    if kind == 2 and isinstance(code, dict) and isinstance(other, dict):
        return code | other
    if kind == 3:
        return {draw.choice(_WORDS): draw.choice([code, [code], [[code, other]], {"a": code}])}
    return [code, other] if kind == 4 else other


class _Refusing:
    """Finds no module, and fails the test for being asked."""

    def find_spec(self, name, path=None, target=None):
        raise AssertionError(f"{name} was about to be imported")


@pytest.mark.full
def test_random_codes_import_only_names_that_were_checked(monkeypatch):
    codes, draw = _valid_codes(), random.Random(0)
    checked: set[str] = set()
    real_check, real_import = recipes.check_trusted, importlib.import_module

    def check(modules, imports, run):
        modules = list(modules)
        real_check(modules, imports, run)
        checked.update(modules)

    def import_module(name, package=None):
        assert name in checked and name.startswith(("agentkit.", "tests.")), name
        return real_import(name, package)

    monkeypatch.setattr(recipes, "check_trusted", check)
    monkeypatch.setattr(importlib, "import_module", import_module)
    monkeypatch.setattr(sys, "meta_path", [_Refusing()])
    made = refused = 0
    for _ in range(10_000):
        code = copy.deepcopy(draw.choice(codes))
        for _ in range(draw.randrange(4)):
            code = _mutated(code, codes, draw)
        checked.clear()
        try:
            decode(code)
        except ConfigError:
            refused += 1
        else:
            made += 1
    assert made > 1_000 and refused > 1_000
    assert not {"runs", "runs.x.evil"} & sys.modules.keys()


@pytest.mark.parametrize(
    "code",
    [
        {"list": 3},
        {"dict": [[1]]},
        {"dict": [[[{"list": []}], 1]]},
        {"type": f"{__name__}:Value", "fields": [1]},
        {"type": f"{__name__}:Value", "fields": {}, "digest": 3},
        {"function": f"{__name__}:Value.__init__.a b"},
        {"function": ".relative:f"},
        {"partial": 3, "args": [], "keywords": {}},
        {"path": 3},
        {"array": [[1], [2, 3]], "dtype": "int32"},
        {"array": ["a"], "dtype": "int32"},
        {"array": [1], "dtype": "object"},
        {"array": [1], "dtype": "float32,float32"},
        {"array": [0] * 10_001, "dtype": "int8"},
        {"same_as": "record"},
        functools.reduce(lambda code, _: [code], range(1000), 1),
    ],
    ids=lambda code: in_short(code)[:50],
)
def test_what_is_nearly_a_code_is_refused_in_a_line(code):
    with pytest.raises(ConfigError) as caught:
        decode(code)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 500


# --- what is nearly a run ----------------------------------------------------------------------------------------


def test_a_config_of_300_mb_is_not_read(mark):
    _write(mark.run, lambda record: None)
    os.truncate(mark.run / "config.json", 300_000_000)
    with pytest.raises(ConfigError, match=r"config\.json has 286\.1 MiB, and at most 16\.0 MiB are read"):
        read_record(mark.run)


def test_lists_inside_of_lists_are_no_recursion_error(mark):
    (mark.run / "config.json").write_text("[" * 100_000)
    with pytest.raises(ConfigError, match="too deep inside of one another"):
        read_record(mark.run)


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({"loggers": 5}, "loggers is 5, expected list"),
        ({"versions": None}, "versions is None, expected dict"),
        ({"wrappers": {"list": []}}, r"wrappers is {'list': ..\}, expected list"),
        ({"num_setps": 5, "z": 1}, "num_setps, z is unknown to agentkit"),
        ({"callbacks": 3}, "callbacks is 3, expected list"),
        ({"callbacks": [1]}, r"callbacks\[0\]: expected a callback as agentkit writes it, found 1"),
        ({"loggers": [{"function": "a"}]}, r"loggers\[0\]: expected the name of a function or class as MODULE:NAME"),
    ],
    ids=str,
)
def test_a_config_that_is_nearly_right_is_refused_in_a_line(entry, said, mark, capsys):
    _write(mark.run, lambda record: record.update(entry))
    assert main(["train", "--resume", str(mark.run)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert re.search(said, line) and str(mark.run) in line


LEARNS = {"agent": None, "agent_config": {}}


@pytest.mark.parametrize(
    ("lacking", "entry", "said"),
    [
        ("loggers", {}, "expected an object with .*num_steps, policy_of, loggers, found one without loggers"),
        ("num_steps", {}, "found one without num_steps"),
        ("policy_of", {}, "found one without policy_of"),
        (None, {"workers": 3}, "workers is unknown to agentkit .* in a run of several agents, which is said to be of"),
        (None, {"offline": {}}, "offline is unknown"),
        (None, {"loggers": 5}, "loggers is 5, expected list"),
        (None, {"policies": {}}, "policies is {}, expected one at least"),
        (None, {"policies": {"a": 3}}, r"policies\['a'\]: expected an object with agent, agent_config, found 3"),
        (None, {"policies": {"a": {**LEARNS, "foo": 1}}}, r"policies\['a'\]: foo is unknown to .* in an agent"),
        (None, {"policies": {"a": {**LEARNS, "agent_parts": 1}}}, r"policies\['a'\]: agent_parts is 1, expected dict"),
        (
            None,
            {"policies": {"a": {"frozen": {"run": "r", "foo": 1}}}},
            r"policies\['a'\]: foo is unknown .* in a Frozen",
        ),
        (None, {"policies": {"a": {"frozen": {}, **LEARNS}}}, r"policies\['a'\]: agent, agent_config is unknown"),
        (None, {"opponents": {"sise": 3}}, "opponents: sise is unknown to .* in a Pool"),
    ],
    ids=str,
)
@pytest.mark.parametrize("file", ["config.json", "group.json"])
def test_a_config_of_several_agents_that_is_nearly_right_is_refused_likewise(lacking, entry, said, file, mark, capsys):
    _write(mark.run, lambda record: (record.pop(lacking, None), record.update(entry)), _of_several())
    if file == "group.json":
        record = json.loads((mark.run / "config.json").read_text())
        (mark.run / file).write_text(json.dumps({"seeds": [0], "jobs": 1, "experiment": record}))
        (mark.run / "config.json").unlink()
    assert main(["train", "--resume", str(mark.run)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert re.search(f"{mark.run / file} is damaged: .*{said}", line)


def test_what_is_of_several_agents_is_unknown_in_a_run_of_one(mark):
    _write(mark.run, lambda record: record.update(policy_of="shared"))
    with pytest.raises(ConfigError, match=r"policy_of is unknown to agentkit .* in a run of one agent"):
        read_record(mark.run)


def test_all_that_a_run_of_several_agents_writes_is_known(mark):
    plan = dataclasses.replace(_of_several(Frozen("runs/other")), opponents=Pool())
    _write(mark.run, lambda record: None, plan)
    assert read_multi_agent_config(mark.run).describe() == plan.describe()


# --- what else names code, or a place ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "features",
    [
        {"pythonClassName": "tensorflow_datasets.core.features.Dict", "featuresDict": {"features": {"a": NAMED}}},
        {"type": "runs.x.evil.X", "content": {}},
        {"json_feature": {"json": json.dumps({"feature": {"type": "runs.x.evil.X"}})}},
    ],
    ids=["proto", "legacy", "text"],
)
def test_tfds_imports_nothing_on_a_data_sets_word(features, mark):
    (mark.run / "dataset_info.json").write_text("{}")
    (mark.run / "features.json").write_text(json.dumps(features))
    with pytest.raises(ConfigError, match=r"names features of runs\.x\.evil, which is not imported"):
        read_episodes(f"rlds:{mark.run}")
    assert mark.is_whole()


def test_a_trial_is_in_its_own_folder(tmp_path):
    folder = SweepFolder(tmp_path)
    folder.write(TrialRecord(3, {}))
    assert [record.number for record in folder.records()] == [3]
    file = folder.trial_path(3) / "trial.json"
    file.write_text(file.read_text().replace("3", '"x/../../users"'))
    with pytest.raises(ConfigError, match="its folder trial-0003"):
        folder.records()


def test_a_nest_asks_no_module_to_load_more(monkeypatch):
    monkeypatch.setitem(sys.modules, "lazy", lazy := types.ModuleType("lazy"))
    lazy.__getattr__ = lambda name: pytest.fail(f"{name} was about to be loaded")
    with pytest.raises(SpecError, match="not known here"):
        nests.build({"namedtuple": ["lazy", "X"], "fields": {}}, dict)


@pytest.mark.parametrize(
    ("launched", "said"),
    [
        ({"engine": "ray", "ray_address": "theirs:6379"}, "no cluster is connected to on a folder's word"),
        ({"listen": "eth0"}, r"no port is opened to a network on a folder's word.*--listen eth0.* or lo"),
        ({"on_status": 1}, "was launched with .'on_status'., unknown to this version"),
    ],
)
def test_a_launched_run_connects_to_no_cluster_and_opens_no_port_on_its_word(launched, said, mark, monkeypatch):
    launching = importlib.import_module("agentkit.experiment.launching.run")
    monkeypatch.setattr(launching, "launch", lambda *rest, **named: named)
    _write(mark.run, lambda record: record.update(launch=launched))
    with pytest.raises(ConfigError, match=said):
        launching.resume_launch(mark.run)
    for name, own in (("ray_address", "mine:6379"), ("listen", "lo"), ("listen", "eth0")):
        if name in launched:
            assert launching.resume_launch(mark.run, **{name: own})[name] == own
    _write(
        mark.run, lambda record: record.update(launch={"listen": "lo", "transport": None})
    )  # As of an earlier version.
    assert launching.resume_launch(mark.run)["listen"] == "lo"


def test_a_run_writes_no_videos_where_its_folder_says(mark, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    video = functools.partial(VideoRecorder, directory=str(elsewhere))
    _write(mark.run, lambda record: record["wrappers"].append(encode(video)))
    for use in (agentkit.load, evaluate, functools.partial(agentkit.sample, num_steps=1), resume):
        with pytest.raises(UntrustedCodeError, match=r"--import agentkit\.wrappers\.video"):
            use(mark.run)
    for words in (["watch", mark.run, "--out", "film.gif"], ["export-policy", mark.run, "--out", "policy.npz"]):
        assert main([str(word) for word in words]) == 2
    assert not elsewhere.exists()


def test_a_run_sends_nothing_from_the_users_account_where_its_folder_says(mark, monkeypatch, capsys):
    """Nothing else notices it."""
    reached = []
    monkeypatch.setattr("agentkit.experiment.local.run_lock", reached.append)  # Past the refusal.
    monkeypatch.setattr("agentkit.loggers.check_login", lambda: None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    for name in ("wandb", "mlflow"):
        _write(mark.run, lambda record, name=name: record.update(loggers=["jsonl", name]))
        module, record = f"agentkit.loggers.{name}", read_record(mark.run)
        with pytest.raises(UntrustedCodeError, match=rf"sent from your account.*--import {module}.*imports=") as error:
            resume(mark.run)
        assert error.value.packages == (module,) and not reached
        assert main(["train", "--resume", str(mark.run)]) == 2
        assert f"train --resume {mark.run} --import {module}\n" in capsys.readouterr().err
        assert read_config(mark.run).describe()["loggers"] == ["jsonl", name]  # To look at such a run needs no word.
        assert read_config(mark.run, imports=(module,)).loggers == ("jsonl", name)
        assert identity.packages_of(record) == [module]
        (mark.run / "group.json").write_text(json.dumps({"seeds": [0], "jobs": 1, "experiment": record}))
        assert main(["train", "--resume", str(mark.run)]) == 2
        assert "sent from your account" in capsys.readouterr().err
        (mark.run / "group.json").unlink()
        for words in ({"imports": (module,)}, {"loggers": name}):
            with pytest.raises(TypeError, match="context manager"):
                resume(mark.run, **words)
            assert reached.pop()


@pytest.mark.full
def test_videos_are_written_where_the_user_allows_it_and_the_next_command_says_how(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["--steps", "30", "--eval-every", "0", "--run-directory", "run", "--set", "hidden_sizes=4"]
    assert main(["train", "dqn", "--env", "agentkit:catch", *words, "--wrapper", "video(directory='films')"]) == 0
    assert "agentkit evaluate run --import agentkit.wrappers.video" in capsys.readouterr().out
    shutil.rmtree("films")
    assert len(evaluate("run", 1, wrappers=[])["episode_return"]) == 1
    assert not pathlib.Path("films").exists()
    evaluate("run", 1, imports=["agentkit.wrappers.video"])
    assert pathlib.Path("films/episode_000000.gif").is_file()
