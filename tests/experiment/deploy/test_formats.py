"""Every format acts as the policy does, in the environment's own bounds and dtypes, for a batch of any size."""

import contextlib
import json
import os
import pathlib
import subprocess
import sys

import jax
import numpy as np
import pytest

import agentkit
from agentkit import specs
from agentkit.errors import ConfigError, MissingExtraError, SpecError, UnknownNameError
from agentkit.experiment import DifferentActionsError
from agentkit.experiment.policies.export import formats, stablehlo
from agentkit.experiment.policies.export.numpy_policy import Policy as NumpyPolicy
from agentkit.experiment.policies.export.pure_policy import acting_of, first_states
from tests.experiment.deploy.policies import COUNTED, IMAGES, MASKED, SMALL, WIDE, policy_of

POLICIES = {
    "dqn": lambda: policy_of("dqn", "agentkit:catch", **SMALL),
    "sac": lambda: policy_of("sac", WIDE, **SMALL),
    "td3": lambda: policy_of("td3", "gymnasium:Pendulum-v1", **SMALL),
    "ppo": lambda: policy_of("ppo", WIDE, **SMALL),
    "c51": lambda: policy_of("c51", "agentkit:catch", **SMALL),
    "masked": lambda: policy_of("dqn", MASKED, **SMALL),
    "counted": lambda: policy_of("ppo", COUNTED, **SMALL),
    "memory": lambda: policy_of("r2d2", "agentkit:memory_chain", core_size=8, **SMALL),
    "attention": lambda: policy_of("r2d2", "agentkit:memory_chain", core_size=8, core="gtrxl", **SMALL),
    "images": lambda: policy_of("dqn", IMAGES, **SMALL),
}


def run_onnx(path):
    runtime = pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return lambda arrays: dict(zip(names, session.run(None, arrays), strict=True))


def run_numpy(path):
    policy = NumpyPolicy(path)

    def step(arrays):
        state = {name: arrays[name] for name in policy.description["state"]}
        observation = {name: arrays[name] for name in policy.description["observations"]}
        action, state = policy(observation, state)
        action = action if isinstance(action, dict) else {"action": action}
        return action | {f"next_{name}": array for name, array in state.items()}

    return step


READERS = {"numpy": run_numpy, "onnx": run_onnx, "stablehlo": stablehlo.read_stablehlo}


def check(policy, step, dtypes=True):
    """Compares steps of a batch, with its memory, with what the loaded policy itself does."""
    acting, seen = acting_of(policy), []
    state, own_state = first_states(acting, 8), None
    for number in range(3):
        observations = {name: draw(spec, number) for name, spec in acting.observations.items()}
        found = step(observations | state)
        first = step({name: x[:1] for name, x in (observations | state).items()})
        nest = {name.partition("/")[2]: x for name, x in observations.items()}
        action, own_state = policy(nest if len(nest) > 1 else observations["observation"], own_state)
        seen.append(action)
        for rows, part in ((found, slice(None)), (first, slice(1))):
            assert not dtypes or np.asarray(rows["action"]).dtype == action.dtype
            np.testing.assert_allclose(rows["action"], action[part], rtol=1e-4, atol=1e-5)
        state = {name: np.asarray(found[f"next_{name}"]) for name in acting.state}
    if acting.state:  # What it remembers says more than an action of two.
        memory = [np.asarray(leaf) for leaf in jax.tree.leaves(own_state.policy.core)]
        assert max(np.ptp(leaf) for leaf in memory) > 0.1
        for name, expected in zip(acting.state, memory, strict=True):
            np.testing.assert_allclose(state[name], expected, rtol=1e-4, atol=1e-5)
    else:
        assert np.ptp(seen) > 0, "one action for all observations would show nothing"


def draw(spec, seed):
    """Eight observations that differ a lot, so that actions do: of every sign, or dark and bright."""
    generator = np.random.default_rng(seed)
    if spec.dtype.kind == "b":
        return generator.random((8, *spec.shape)) < 0.6
    if spec.dtype.kind == "i":
        return generator.integers(spec.minimum, spec.maximum + 1, (8, *spec.shape)).astype(spec.dtype)
    if spec.dtype.kind == "u":
        brightness = generator.random((8, *spec.shape[:-1], 1)) * generator.random((8, *[1] * len(spec.shape)))
        return (255 * brightness * generator.random((8, *spec.shape))).astype(spec.dtype)
    return 2 * generator.normal(size=(8, *spec.shape)).astype(spec.dtype)


# All of the operations go through ONNX's and numpy's own words; StableHLO is JAX's.
CASES = [("onnx", name) for name in POLICIES] + [
    *(("numpy", name) for name in ("sac", "ppo", "c51", "masked", "counted", "memory", "attention", "images")),
    *(("stablehlo", name) for name in ("sac", "counted", "memory", "images")),
]


@pytest.mark.full
@pytest.mark.parametrize(("format", "name"), CASES)
def test_a_written_policy_acts_as_the_loaded_one(name, format, tmp_path):
    if format == "onnx":
        pytest.importorskip("onnx")
    policy = POLICIES[name]()
    path = tmp_path / f"policy{'.npz' if format == 'numpy' else '.' + format}"
    if (name, format) == ("images", "numpy"):
        with pytest.raises(ConfigError, match="no MLP: it computes conv_general_dilated"):
            policy.export(path, format)
        assert list(tmp_path.iterdir()) == []
        return
    files = policy.export(path, format)
    assert sorted(tmp_path.iterdir()) == sorted(files) and files[0] == path
    check(policy, READERS[format](path), dtypes=format != "stablehlo")  # JAX has no 64 bits.


@pytest.mark.tensorflow
@pytest.mark.reverb
@pytest.mark.full
@pytest.mark.parametrize("name", ["sac", "counted", "memory", "images"])
def test_a_savedmodel_acts_as_the_loaded_one(name, tmp_path):
    from agentkit.experiment.policies.export.savedmodel import read_savedmodel

    policy = POLICIES[name]()
    assert policy.export(tmp_path / "model", "savedmodel") == [tmp_path / "model"]
    check(policy, read_savedmodel(tmp_path / "model", acting_of(policy)), dtypes=False)
    with pytest.raises(ConfigError, match="exists already"):
        policy.export(tmp_path / "model", "savedmodel")


@pytest.mark.full
def test_numpy_alone_runs_it(tmp_path):
    """In a process that can import neither jax nor agentkit, with the files alone; one observation, and its memory."""
    policy = POLICIES["memory"]()
    policy.export(tmp_path / "policy.npz", "numpy")
    rows = np.random.default_rng(0).normal(size=(3, *policy.observation_spec.shape)).astype(np.float32)
    code = f"""
import json, sys
sys.path.insert(0, ".")
sys.modules["jax"] = sys.modules["agentkit"] = None
import numpy
from numpy_policy import Policy
policy, state, actions = Policy("policy.npz"), None, []
for row in {rows.tolist()}:
    action, state = policy(row, state)
    actions.append([int(action), action.dtype.name, sorted(state)])
print(json.dumps(actions))
"""
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    state, expected = None, []
    for row in rows:
        action, state = policy(row, state)
        expected.append([int(action), "int32", ["state/core/cell", "state/core/hidden"]])
    assert json.loads(done.stdout) == expected


ODD = {
    "a choice below": {"one": 2},
    "a choice above": {"several": [1, 3]},
    "a fraction": {"one": 3.5},
    "a whole float": {"one": 3.0},
    "beyond 32 bits": {"one": 2**40},
    "NaN": {"x": [np.nan, 0.0]},
    "infinity": {"x": [1e300, 0.0]},
    "text": {"x": ["a", "b"]},
    "another shape": {"x": [0.0]},
}


@pytest.mark.full
def test_loaded_and_exported_policies_refuse_what_is_no_observation(tmp_path):
    """With one table for both readers: the one for numpy alone has a check of its own."""
    observations = COUNTED[0] | {"x": specs.Array((2,), np.float32, "x")}
    policy = policy_of("ppo", (observations, COUNTED[1]), **SMALL)
    policy.export(tmp_path / "policy.npz", "numpy")
    alone, right = NumpyPolicy(tmp_path / "policy.npz"), {"one": 3, "several": [3, -2], "x": [0, 1]}
    for rows in (right, {name: np.stack([value] * 3) for name, value in right.items()}):
        actions = [policy(rows)[0], alone({f"observation/{name}": value for name, value in rows.items()})[0]]
        np.testing.assert_array_equal(*actions)
        assert (actions[0] >= [5, -3]).all() and (actions[0] <= [7, 3]).all() and actions[0].dtype == actions[1].dtype
    for name, changes in ODD.items():
        for rows in (right | changes, {key: np.stack([value] * 3) for key, value in (right | changes).items()}):
            with pytest.raises(SpecError, match=f"^Unexpected observation/{next(iter(changes))}.*expected"):
                policy(rows)
            with pytest.raises(ValueError, match=f"^observation/{next(iter(changes))}: expected"):
                alone({f"observation/{key}": value for key, value in rows.items()})
                raise AssertionError(name)


def test_numpy_alone_says_by_which_names_it_takes_several_observations(tmp_path):
    policy_of("dqn", (COUNTED[0], specs.DiscreteArray(3)), **SMALL).export(tmp_path / "policy.npz", "numpy")
    alone = NumpyPolicy(tmp_path / "policy.npz")
    for observation, found in (({"one": 3, "several": [3, -2]}, r"\['one', 'several'\]"), ([3, -2], r"\['list'\]")):
        with pytest.raises(ValueError, match=f"a dict with observation/one, observation/several, found {found}"):
            alone(observation)


def test_one_file_is_for_numpy_and_for_agentkit(tmp_path):
    policy = POLICIES["sac"]()
    policy.export(tmp_path / "policy.npz", "numpy")
    found = agentkit.load(tmp_path / "policy.npz")
    jax.tree.map(np.testing.assert_array_equal, found.arrays, policy.arrays)
    plain = policy.export(tmp_path / "plain.npz")[0].stat().st_size
    assert (tmp_path / "policy.npz").stat().st_size < plain + 12_000, "parameters are in the file once"


@pytest.mark.full
def test_the_reader_for_numpy_refuses_what_it_cannot_run(tmp_path):
    policy = POLICIES["dqn"]()
    policy.export(tmp_path / "policy.npz")
    with pytest.raises(ValueError, match="no program for numpy"):
        NumpyPolicy(tmp_path / "policy.npz")
    policy.export(tmp_path / "policy.npz", "numpy")
    with pytest.raises(ValueError, match=r"observation: expected shape \[10, 5\]"):
        NumpyPolicy(tmp_path / "policy.npz")(np.zeros((10, 4)))


def test_a_json_beside_stablehlo_says_bounds_and_dtypes(tmp_path):
    _, description = POLICIES["sac"]().export(tmp_path / "policy.stablehlo")
    found = json.loads(description.read_text())
    assert found["actions"]["action"] == {
        "shape": [2], "dtype": "float64", "minimum": [-3.0, 0.0], "maximum": [1.0, 10.0],
    }  # fmt: skip
    assert found["observations"]["observation"]["shape"] == [4] and found["state"] == {}


def test_actions_reach_the_environments_bounds_and_no_further(tmp_path):
    policy = POLICIES["td3"]()
    policy.export(tmp_path / "policy.npz", "numpy")
    actions, _ = NumpyPolicy(tmp_path / "policy.npz")(100 * np.random.default_rng(0).normal(size=(64, 3)))
    assert actions.max() == 2.0 and actions.min() >= -2.0


def test_the_reader_for_numpy_gives_the_action_alone_of_a_policy_without_a_memory(tmp_path):
    POLICIES["td3"]().export(tmp_path / "policy.npz", "numpy")
    policy, observation = NumpyPolicy(tmp_path / "policy.npz"), np.ones(3)
    np.testing.assert_array_equal(policy.select_action(observation), policy(observation)[0])
    policy.description["state"]["state/core"] = {}
    with pytest.raises(ValueError, match="has a memory"):
        policy.select_action(observation)


@pytest.mark.full
def test_a_search_is_refused_by_formats_without_loops(tmp_path):
    policy = policy_of("gumbel_muzero", "agentkit:bandit", num_simulations=2)
    for format, message in (("numpy", "no MLP"), ("onnx", "which the writer for ONNX has not")):
        if format == "onnx":
            pytest.importorskip("onnx")
        with pytest.raises(ConfigError, match=message):
            policy.export(tmp_path / ("policy.npz" if format == "numpy" else "policy.onnx"), format)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.full
def test_a_search_is_held_by_stablehlo(tmp_path):
    policy = policy_of("gumbel_muzero", "agentkit:catch", num_simulations=2)
    policy.export(tmp_path / "policy.stablehlo")
    check(policy, stablehlo.read_stablehlo(tmp_path / "policy.stablehlo"))


@pytest.mark.one_case
@pytest.mark.parametrize(
    ("settings", "explore"), [({"epsilon_evaluation": 0.01}, False), ({}, True)], ids=["evaluation", "exploring"]
)
def test_chance_is_refused(settings, explore, tmp_path):
    policy = policy_of("dqn", "agentkit:catch", explore, **settings, **SMALL)
    (tmp_path / "policy.stablehlo").write_text("an earlier one")
    with pytest.raises(ConfigError, match="chooses at random"):
        policy.export(tmp_path / "policy.stablehlo")
    assert contents(tmp_path) == {"policy.stablehlo": b"an earlier one"}
    policy.export(tmp_path / "policy.npz")  # Which has the agent's own random numbers.


def test_what_acts_otherwise_is_not_left_on_disk(tmp_path, monkeypatch):
    policy, read = POLICIES["td3"](), stablehlo.read_stablehlo

    def wrong(path):
        step = read(path)
        return lambda arrays: {name: x + 0.01 for name, x in step(arrays).items()}

    monkeypatch.setattr(stablehlo, "read_stablehlo", wrong)
    with pytest.raises(DifferentActionsError, match=r"differs by up to 0\.0100"):
        policy.export(tmp_path / "policy.stablehlo")
    assert list(tmp_path.iterdir()) == []


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.one_case
@pytest.mark.parametrize("format", ["numpy", "onnx", "stablehlo"])
def test_a_refused_export_leaves_what_was_there(format, tmp_path, monkeypatch):
    """Whoever refuses it: the comparison, the disk, or Ctrl-C in the middle."""
    if format == "onnx":
        pytest.importorskip("onnx")
    file = tmp_path / f"policy{formats.SUFFIXES[format]}"
    for path in (file, tmp_path / "policy.stablehlo.json", tmp_path / "numpy_policy.py"):
        path.write_text("an earlier one")
    before, policy = contents(tmp_path), POLICIES["td3"]()
    monkeypatch.setattr(formats, "_compare_with", lambda *_: None)  # What it costs is paid by other tests.
    for error in (DifferentActionsError("other"), KeyboardInterrupt(), OSError("a library's own")):
        monkeypatch.setattr(formats, "compare", raising(error))
        with pytest.raises(type(error)):
            policy.export(file, format)
        assert contents(tmp_path) == before
    monkeypatch.setattr(formats, "compare", lambda *_: None)
    with monkeypatch.context() as full:
        full.setattr(os, "replace", raising(OSError(28, "No space left")))
        with pytest.raises(ConfigError, match="cannot be written: No space left"):
            policy.export(file, format)
    assert contents(tmp_path) == before
    files = policy.export(file, format)
    assert all(path.read_bytes() != b"an earlier one" for path in files) and contents(tmp_path).keys() == before.keys()


def raising(error):
    def fail(*_):
        raise error

    return fail


def test_only_what_the_disk_refuses_is_called_unwritable(tmp_path, monkeypatch):
    """A library that cannot be loaded, or a file that is not read back, is no fault of the place's."""
    policy = POLICIES["td3"]()
    for name in ("acting_of", "_load_format", "_compare_file"):
        with monkeypatch.context() as broken, pytest.raises(OSError, match="no such library"):
            broken.setattr(formats, name, raising(OSError("no such library")))
            policy.export(tmp_path / "policy.npz", "policy" if name == "_compare_file" else "numpy")
    with monkeypatch.context() as full, pytest.raises(ConfigError, match="cannot be written: No space left"):
        full.setattr(type(policy), "save", raising(OSError(28, "No space left")))
        policy.export(tmp_path / "policy.npz")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("differs", [False, True])
def test_a_temporary_folder_that_stays_is_not_the_outcome(tmp_path, monkeypatch, differs):
    """As where a network's file system keeps a file that is still open."""
    policy = POLICIES["td3"]()
    if differs:
        monkeypatch.setattr(formats, "_compare_file", raising(DifferentActionsError("other")))
    with pytest.raises(DifferentActionsError) if differs else contextlib.nullcontext(), monkeypatch.context() as busy:
        busy.setattr(os, "rmdir", lambda *_, **__: raising(OSError(39, "Directory not empty"))())
        policy.export(tmp_path / "policy.npz")
    assert (tmp_path / "policy.npz").is_file() is not differs


def test_a_policy_file_that_differs_leaves_the_earlier_one(tmp_path, monkeypatch):
    (tmp_path / "policy.npz").write_text("an earlier one")
    policy = POLICIES["td3"]()
    other, save = policy_of("td3", "gymnasium:Pendulum-v1", hidden_sizes=(4,)), type(policy).save
    monkeypatch.setattr(type(policy), "save", lambda self, path: save(other, path))
    with pytest.raises(DifferentActionsError, match=r"policy\.npz does not hold"):
        policy.export(tmp_path / "policy.npz")
    assert contents(tmp_path) == {"policy.npz": b"an earlier one"}


def test_a_folder_in_the_place_of_a_file_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(formats, "compare", lambda *_: None)
    monkeypatch.setattr(formats, "_compare_with", lambda *_: None)
    (tmp_path / "numpy_policy.py").mkdir()
    with pytest.raises(ConfigError, match=r"numpy_policy\.py is a folder"):
        POLICIES["td3"]().export(tmp_path / "policy.npz", "numpy")
    assert [path.name for path in tmp_path.iterdir()] == ["numpy_policy.py"]


@pytest.mark.both_stacks
@pytest.mark.parametrize("format", ["onnx", "savedmodel"])
def test_a_missing_package_is_an_error_that_names_its_extra(format, tmp_path, monkeypatch):
    module, package, extra = {
        "onnx": ("agentkit.experiment.policies.export.onnx_file", "onnx", "onnx"),
        "savedmodel": ("agentkit.replay.reverb.library", "reverb", "reverb"),
    }[format]
    monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=rf"agentkit-rl\[{extra}\]"):
        POLICIES["dqn"]().export(tmp_path / "policy.onnx", format)
    assert list(tmp_path.iterdir()) == []


def test_names_and_formats_that_do_not_fit_are_refused(tmp_path):
    policy = POLICIES["dqn"]()
    with pytest.raises(ConfigError, match=r"format onnx to end in \.onnx"):
        policy.export(tmp_path / "policy.npz", "onnx")
    with pytest.raises(ConfigError, match="or a format, found"):
        policy.export(tmp_path / "policy.bin")
    with pytest.raises(UnknownNameError, match="Did you mean 'onnx'"):
        policy.export(tmp_path / "policy.onnx", "onnxx")
    with pytest.raises(ConfigError, match="is no folder"):
        policy.export(tmp_path / "nowhere" / "policy.npz")
    (tmp_path / "bad.stablehlo").write_bytes(b"nothing")
    with pytest.raises(ConfigError, match=r"no StableHLO of jax\.export"):
        stablehlo.read_stablehlo(pathlib.Path(tmp_path / "bad.stablehlo"))
