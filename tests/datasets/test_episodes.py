"""Episodes: files that come back as they went, Minari's layout, columns of steps, and what is refused."""

import json
import pathlib
import shutil
import subprocess
import sys
from typing import Any

import dm_env
import h5py
import numpy as np
import pytest
import tree

from agentkit import envs, specs
from agentkit.datasets import Episode, EpisodeRecorder, describe_actions, read_episodes, split_steps, write_episodes
from agentkit.datasets.episodes import (
    add_episode,
    check_episode,
    fit_episode,
    fit_episodes,
    in_own_terms,
    infer_spec,
)
from agentkit.errors import ConfigError, SpecError
from tests.datasets.test_offline import EPISODES, SPEC, make_episode


def assert_same(found: Any, expected: Any) -> None:
    tree.assert_same_structure(found, expected)
    for x, y in zip(tree.flatten(found), tree.flatten(expected), strict=True):
        np.testing.assert_array_equal(x, y)
        assert np.asarray(x).dtype == np.asarray(y).dtype


def nested(episode: Episode) -> Episode:
    observations = {"place": {"x": episode.observations}, "pair": (episode.observations, episode.observations * 2)}
    return episode._replace(observations=observations)


def test_a_file_gives_back_what_was_written(tmp_path: pathlib.Path) -> None:
    episodes = [make_episode(3, True, seed) for seed in range(12)]  # episode_10 comes after episode_9
    space = describe_actions(SPEC.actions)
    path = write_episodes(tmp_path / "folder" / "data.hdf5", episodes, space)
    data = read_episodes(path)
    assert data.actions == space == {"type": "Discrete", "dtype": "int64", "start": 0, "n": 3}
    assert len(data.episodes) == 12
    for found, expected in zip(data.episodes, episodes, strict=True):
        assert_same(found, expected)
    assert list(path.parent.iterdir()) == [path]


def test_nested_observations_are_groups(tmp_path: pathlib.Path) -> None:
    path = write_episodes(tmp_path / "data.hdf5", [nested(EPISODES[0])])
    assert_same(read_episodes(path).episodes[0], nested(EPISODES[0]))
    with h5py.File(path) as file:
        assert set(file["episode_0/observations"]) == {"place", "pair"}
        assert set(file["episode_0/observations/pair"]) == {"_index_0", "_index_1"}


JOINT = {
    "turn": specs.DiscreteFrom(3, np.int32, "turn", -1),
    "arm": (specs.BoundedArray((2,), np.float32, -1.0, 1.0), {"grip": specs.DiscreteArray(2, np.int32)}),
}
"""Actions of several parts, one of them in a tuple and a dictionary, and one that counts from -1."""


def test_nested_actions_are_given_back_as_the_environment_has_them(tmp_path: pathlib.Path) -> None:
    spec = SPEC._replace(actions=JOINT)
    rng = np.random.default_rng(0)
    push, grip = rng.uniform(-1, 1, (4, 2)).astype(np.float32), np.int32([0, 1, 1, 0])
    played = make_episode(4, True)._replace(actions={"turn": np.int32([0, 2, 1, 0]), "arm": (push, {"grip": grip})})
    (own,) = in_own_terms([played], spec)
    assert own.actions["turn"].tolist() == [-1, 1, 0, -1]
    path = write_episodes(tmp_path / "data.hdf5", [own], describe_actions(JOINT))
    data = read_episodes(path)
    assert_same(data.episodes[0], own)
    assert data.actions == describe_actions(JOINT)
    (fitted,) = fit_episodes(data.episodes, spec, data.actions)
    assert_same(fitted.actions, played.actions)
    # Of a file whose environment has other bounds, and counts from elsewhere.
    bounds = {"type": "Box", "low": [0.0, 0.0], "high": [4.0, 4.0]}
    grips = {"type": "Dict", "subspaces": {"grip": {"type": "Discrete", "start": 5, "n": 2}}}
    space = {"type": "Dict", "subspaces": {"turn": None, "arm": {"type": "Tuple", "subspaces": [bounds, grips]}}}
    others = own._replace(actions={"turn": own.actions["turn"], "arm": (2 * push + 2, {"grip": grip + 5})})
    (mapped,) = fit_episodes([others], spec, space)
    np.testing.assert_allclose(mapped.actions["arm"][0], push, atol=1e-6)
    assert mapped.actions["arm"][1]["grip"].tolist() == grip.tolist()
    for wrong in (bounds, {"type": "Dict", "subspaces": {"turn": None}}, {"type": "Dict", "subspaces": None}):
        with pytest.raises(SpecError, match="action_space"):
            fit_episodes([own], spec, wrong)
    with pytest.raises(SpecError, match="expected a dictionary of turn, arm"):
        fit_episodes([make_episode(4, True)], spec, space)


@pytest.mark.parametrize("names", [{"a/b": 1}, {3: 1}, {"..": 1}, {"": 1}, {"_index_0": 1}, {"x": {}}, ()])
def test_names_that_a_file_would_not_give_back_are_refused_before_it_is_there(names: Any, tmp_path: Any) -> None:
    column = np.zeros((3, 1), np.float32)
    nest = {"good": column, "inner": tree.map_structure(lambda _: column, names)}
    with pytest.raises(SpecError, match=r"episode 0, actions/inner.*(expected names|found an empty)"):
        write_episodes(tmp_path / "data.hdf5", [make_episode(3, True)._replace(actions=nest)])
    assert list(tmp_path.iterdir()) == []


def test_minaris_folder_is_read(tmp_path: pathlib.Path) -> None:
    """As Minari writes it: infos, other attributes, and the action space as JSON in metadata.json."""
    (tmp_path / "data").mkdir()
    episode = make_episode(5, False)
    with h5py.File(tmp_path / "data" / "main_data.hdf5", "w") as file:
        group = file.create_group("episode_0")
        group.attrs["seed"] = 3
        for name, value in episode._asdict().items():
            group.create_dataset(name, data=value, chunks=True, maxshape=(None, *np.shape(value)[1:]))
        group.create_dataset("infos", data=["{}"] * 5)
    space = {"type": "Box", "dtype": "float32", "shape": [1], "low": [-2.0], "high": [2.0]}
    (tmp_path / "data" / "metadata.json").write_text(json.dumps({"action_space": json.dumps(space)}))
    for path in (tmp_path, tmp_path / "data", tmp_path / "data" / "main_data.hdf5"):
        data = read_episodes(path)
        assert data.actions == space
        assert_same(data.episodes[0], episode)


def test_what_minari_itself_wrote_is_read() -> None:
    """A data set of minari.DataCollector (0.5.4, hdf5), with infos: one episode terminated, one truncated.

    Its observations are ``Dict(a=Box(2), pair=Tuple(Discrete(3), Box(4, 4, 3, uint8)))``, its rewards the actions.
    """
    data = read_episodes(pathlib.Path(__file__).parent / "written_by_minari")
    assert data.actions == {"type": "Box", "dtype": "float32", "shape": [1], "low": [-2.0], "high": [3.0]}
    first, second = data.episodes
    assert [len(e.rewards) for e in data.episodes] == [4, 5]
    np.testing.assert_array_equal(first.observations["pair"][0], [2, 0, 0, 0, 1])
    np.testing.assert_array_equal(second.observations["pair"][0], [1, 0, 1, 2, 0, 0])
    assert second.observations["pair"][1].shape == (6, 4, 4, 3)
    assert second.observations["pair"][1].dtype == np.uint8
    for episode in data.episodes:
        np.testing.assert_allclose(episode.rewards, episode.actions[:, 0], rtol=1e-6)
    np.testing.assert_allclose(first.rewards, [0.55910814, 2.75231838, -1.27920198, 2.74324727], rtol=1e-6)
    np.testing.assert_array_equal(first.terminations, [False, False, False, True])
    assert not first.truncations.any()
    assert not second.terminations.any()
    np.testing.assert_array_equal(second.truncations, [False, False, False, False, True])


def test_minaris_arrow_storage_is_refused_by_name(tmp_path: pathlib.Path) -> None:
    (tmp_path / "data" / "0").mkdir(parents=True)
    (tmp_path / "data" / "metadata.json").write_text(json.dumps({"data_format": "arrow"}))
    for path in (tmp_path, tmp_path / "data"):
        with pytest.raises(ConfigError, match="expected a Minari data set stored as hdf5, found 'arrow'"):
            read_episodes(path)


@pytest.mark.parametrize(
    ("text", "found"), [('{"data_format": ', "cannot be read as JSON"), ("[1]", "expected a JSON object, found")]
)
def test_broken_metadata_of_a_folder_are_named(tmp_path: pathlib.Path, text: str, found: str) -> None:
    (tmp_path / "metadata.json").write_text(text)
    with pytest.raises(ConfigError, match=f"metadata.json.*{found}"):
        read_episodes(tmp_path)


def test_a_data_set_without_its_file_is_missed_whatever_its_metadata_leave_out(tmp_path: pathlib.Path) -> None:
    """Minari's metadata name no format before 0.5: what is missing then is the file."""
    (tmp_path / "metadata.json").write_text(json.dumps({"total_episodes": 1}))
    with pytest.raises(ConfigError, match=r"There is no file .*main_data\.hdf5"):
        read_episodes(tmp_path)


def _damage(path: pathlib.Path, change: Any) -> pathlib.Path:
    write_episodes(path, EPISODES)
    with h5py.File(path, "r+") as file:
        change(file)
    return path


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda file: file.__delitem__("episode_0/rewards"), r"episode_0.*\['rewards'\] are missing"),
        (lambda file: [file.__delitem__(name) for name in list(file)], "expected groups episode_0"),
        (lambda file: file.attrs.__setitem__("action_space", "[1]"), "expected an action_space"),
        (lambda file: file.attrs.__setitem__("action_space", "{"), "cannot be read"),
        (lambda file: file.move("episode_0", "episode_one"), "cannot be read"),
    ],
)
def test_a_bad_file_is_refused(tmp_path: pathlib.Path, change: Any, message: str) -> None:
    path = _damage(tmp_path / "data.hdf5", change)
    with pytest.raises(ConfigError, match=message) as caught:
        read_episodes(path)
    assert str(path) in str(caught.value)


def test_an_episode_that_lacks_an_observation_is_refused_by_name(tmp_path: pathlib.Path) -> None:
    def shorten(file: Any) -> None:
        observations = file["episode_2/observations"][:-1]
        del file["episode_2/observations"]
        file["episode_2/observations"] = observations

    path = _damage(tmp_path / "data.hdf5", shorten)
    with pytest.raises(SpecError, match="episode 2: expected 7 observations beside 6 rewards"):
        read_episodes(path)


@pytest.mark.parametrize(("name", "content"), [("a.hdf5", b"not HDF5"), ("a.npz", b"not a zip"), ("b.npz", b"")])
def test_another_kind_of_file_is_refused(tmp_path: pathlib.Path, name: str, content: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_episodes(path)
    with pytest.raises(ConfigError, match="There is no file"):
        read_episodes(tmp_path / "absent.hdf5")


def test_a_full_disk_is_told_in_a_line(tmp_path: pathlib.Path) -> None:
    """In a process of its own, which HDF5 would end with SIGSEGV, after a traceback for each array."""
    code = """
import resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
from agentkit.datasets import write_episodes
from agentkit.errors import ConfigError
from tests.datasets.test_offline import EPISODES
try:
    write_episodes(sys.argv[1], EPISODES * 100)
except ConfigError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "data.hdf5")], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "data.hdf5 cannot be written: File too large. Free some space" in done.stdout
    assert not list(tmp_path.iterdir())


def test_a_file_is_not_written_over(tmp_path: pathlib.Path) -> None:
    path = write_episodes(tmp_path / "data.hdf5", EPISODES)
    with pytest.raises(ConfigError, match="exists"):
        write_episodes(path, EPISODES)
    with pytest.raises(ConfigError, match=r"ending in \.hdf5 or \.h5, found data\.npz"):
        write_episodes(tmp_path / "data.npz", EPISODES)
    shutil.copy(path, tmp_path / "data.npz")
    with pytest.raises(ConfigError, match=r"cannot be read as a \.npz file: it is none"):
        read_episodes(tmp_path / "data.npz")
    with pytest.raises(ConfigError, match="at least 1 episode"):
        write_episodes(tmp_path / "other.hdf5", [])
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written"):
        write_episodes(tmp_path / "file" / "data.hdf5", EPISODES)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"actions": np.zeros(3, np.int32)}, "expected 4 actions beside 4 rewards"),
        ({"rewards": np.zeros(0)}, "no steps"),
        ({"rewards": np.float64([0, 0, np.nan, 0])}, r"rewards of step 2: expected float32\[\], found float64 nan"),
        ({"rewards": np.float64([0, 1e39, 0, 0])}, r"rewards of step 1: expected float32\[\], found float64 1e\+39"),
        ({"truncations": np.zeros(3, bool)}, r"truncations of shape \[4\]"),
        ({"truncations": np.bool_([False, True, False, False])}, "ends at step 2 and has 4"),
        ({"observations": {}}, "episode 0: expected observations, found an empty dict"),
        ({"rewards": [[1.0], [1.0, 2.0]]}, "episode 0, rewards: expected an array"),
    ],
)
def test_parts_that_do_not_go_together(changes: Any, message: str) -> None:
    check_episode(EPISODES[0], "episode 0")
    with pytest.raises(SpecError, match=message):
        check_episode(EPISODES[0]._replace(**changes), "episode 0")


BOX = specs.BoundedArray((2,), np.float32, -1.0, 1.0, "action")


def _fit(actions: Any, action_spec: Any, space: Any) -> Any:
    length = len(actions)
    episode = make_episode(length, True)._replace(actions=np.asarray(actions))
    return fit_episode(episode, SPEC._replace(actions=action_spec), space, "episode 0").actions


def test_actions_are_mapped_onto_the_agents_bounds() -> None:
    space = {"type": "Box", "low": [-2.0, 0.0], "high": [2.0, 4.0]}
    fitted = _fit([[-2.0, 4.0], [1.0, 1.0]], BOX, space)
    np.testing.assert_allclose(fitted, [[-1.0, 1.0], [0.5, -0.5]])
    assert fitted.dtype == np.float32
    np.testing.assert_array_equal(_fit([[-0.5, 1.0]], BOX, None), [[-0.5, 1.0]])
    for largest in (np.inf, float(np.finfo(np.float32).max)):  # Which many environments write where there is no bound.
        endless = {"type": "Box", "dtype": "float32", "low": [-largest] * 2, "high": [largest] * 2}
        np.testing.assert_array_equal(_fit([[-0.5, 1.0]], BOX, endless), [[-0.5, 1.0]])
    discrete = _fit(np.int64([3, 5]), SPEC.actions, {"type": "Discrete", "n": 3, "start": 3})
    np.testing.assert_array_equal(discrete, [0, 2])
    assert discrete.dtype == np.int32


def test_choices_may_be_a_column() -> None:
    """As d3rlpy has them, with an environment and without one."""
    column = np.int64([[1], [0], [1]])
    np.testing.assert_array_equal(_fit(column, SPEC.actions, None), [1, 0, 1])
    np.testing.assert_array_equal(_fit(column + 3, SPEC.actions, {"type": "Discrete", "n": 3, "start": 3}), [1, 0, 1])
    inferred = infer_spec([make_episode(3, True)._replace(actions=column)], None).actions
    assert (inferred.shape, inferred.num_values) == ((), 2)


@pytest.mark.parametrize("space", [3, {"n": 3}, {"type": "Discrete", "n": object()}, specs.Array((), np.int32)])
def test_what_is_no_action_space_is_not_written(tmp_path: pathlib.Path, space: Any) -> None:
    with pytest.raises(SpecError, match="actions: expected an action space such as"):
        write_episodes(tmp_path / "data.hdf5", EPISODES, space)
    assert not list(tmp_path.iterdir())


def test_an_action_space_may_have_arrays(tmp_path: pathlib.Path) -> None:
    given = {"type": "Box", "low": np.float32([-2.0]), "high": np.float32([2.0]), "shape": (np.int64(1),)}
    found = read_episodes(write_episodes(tmp_path / "data.hdf5", EPISODES, given)).actions
    assert found == {"type": "Box", "low": [-2.0], "high": [2.0], "shape": [1]}


@pytest.mark.parametrize(
    ("actions", "spec", "message"),
    [
        ([[-2.0, 0.0]], BOX, r"actions of step 0: .* from -1 to 1, found float64 -2\.0 at \[0\]"),
        (np.int64([3]), SPEC.actions, "actions of step 0: .* from 0 to 2, found int64 3"),
        ([[0.0]], BOX, r"expected float32\[2\] at each step, found float64\[1\]"),
        ([0.5], SPEC.actions, r"expected int32\[\] at each step, found float64\[\].* whole numbers for choices"),
    ],
)
def test_actions_that_do_not_fit_are_refused(actions: Any, spec: Any, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        _fit(actions, spec, None)


CHOICES = specs.EnvironmentSpec(
    specs.DiscreteFrom(3, start=1),
    specs.BoundedFrom((2,), np.int32, 0, [2, 2], "action", [1, -4]),
    specs.Array((), np.float32),
    specs.Array((), np.float32),
)


@pytest.mark.parametrize(
    "space", [None, {"type": "MultiDiscrete", "nvec": [3, 3], "start": [1, -4]}, describe_actions(CHOICES.actions)]
)
def test_choices_of_data_count_as_the_environment_does_and_are_taken_from_zero(space: Any) -> None:
    ends = np.zeros((2, 2), bool)
    episode = Episode(np.int32([1, 2, 3]), np.int32([[1, -4], [3, -2]]), np.zeros(2), *ends)
    fitted = fit_episode(episode, CHOICES, space, "episode 0")
    assert fitted.observations.tolist() == [0, 1, 2] and fitted.actions.tolist() == [[0, 0], [2, 2]]
    assert fitted.observations.dtype == fitted.actions.dtype == np.int32
    assert_same(in_own_terms([fitted], CHOICES), [episode])


def test_an_action_space_says_what_actions_count_from() -> None:
    """Whatever the environment counts from: a file of an older agentkit has them from 0."""
    one = specs.DiscreteFrom(3, start=5)
    for space, actions in [
        ({"type": "Discrete", "n": 3, "start": 0}, [0, 2]),
        ({"type": "Discrete", "n": 3}, [5, 7]),
        (describe_actions(one), [5, 7]),
    ]:
        assert _fit(np.int64(actions), one, space).tolist() == [0, 2]
    assert _fit(np.int64([[0, 2]]), CHOICES.actions, {"type": "Box", "low": [0, 0]}).tolist() == [[0, 2]]


WHOLE = specs.BoundedArray((1,), np.int32, -(2**31), 2**31 - 1)


@pytest.mark.parametrize(
    ("observations", "spec", "message"),
    [
        (np.array([[0], [2**40]]), WHOLE, r"of step 1: .* found int64 1099511627776 at \[0\]"),
        (np.array([[0.0], [0.5]]), WHOLE, r"expected int32\[1\] at each step, found float64\[1\], such as 0\.5"),
        (np.array([[np.nan], [0.0]]), specs.Array((1,), np.float32), "of step 0: .* found float64 nan"),
        (np.array([[0.0], [1e300]]), specs.Array((1,), np.float32), r"found float64 1e\+300"),
        (np.array([7, -2]), specs.DiscreteArray(3), "found int64 7 and 1 more such of 2 numbers"),
        (np.array([0, 1]), specs.DiscreteFrom(3, start=1), "from 1 to 3, found int64 0"),
        (np.array([[b"a"], [b"b"]]), WHOLE, "found ndarray"),
    ],
)
def test_observations_that_do_not_fit_are_refused_as_online(observations: Any, spec: Any, message: str) -> None:
    episode = Episode(observations, np.int32([0]), np.zeros(1), *np.zeros((2, 1), bool))
    with pytest.raises(SpecError, match=f"^episode 3, observations.*{message}") as caught:
        fit_episode(episode, SPEC._replace(observations=spec), None, "episode 3")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("actions", "spec", "space", "message"),
    [
        ([[np.nan, 0.0]], BOX, None, r"actions of step 0: .* found float64 nan at \[0\]"),
        ([[np.nan, 0.0]], BOX, {"type": "Box", "low": [-2.0, 0.0], "high": [2.0, 4.0]}, "found float64 nan"),
        ([[0.0, 0.0]], BOX, {"type": "Box", "low": [-2.0] * 3, "high": [2.0] * 3}, "is not of these actions"),
        ([[0.0, 0.0]], BOX, {"type": "Box"}, "is not of these actions: KeyError"),
        ([-1], SPEC.actions, None, "found int64 -1"),
        (["left"], SPEC.actions, {"type": "Discrete", "n": 3, "start": 0}, r"expected int64\[\] at each step, found"),
    ],
)
def test_actions_that_are_no_values_of_their_space_are_refused(
    actions: Any, spec: Any, space: Any, message: str
) -> None:
    with pytest.raises(SpecError, match=message) as caught:
        _fit(actions, spec, space)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["rewards", "terminations", "truncations"])
def test_text_in_the_place_of_numbers_is_refused_by_file_and_episode(tmp_path: pathlib.Path, name: str) -> None:
    def write_text(file: Any) -> None:
        length = len(file[f"episode_1/{name}"])
        del file[f"episode_1/{name}"]
        file[f"episode_1/{name}"] = ["1.5"] * length

    path = _damage(tmp_path / "data.hdf5", write_text)
    with pytest.raises(SpecError, match=f"data.hdf5, episode.1, {name}: expected .* found .*1.5") as caught:
        read_episodes(path)
    assert "\n" not in str(caught.value)


def test_observations_of_another_environment_are_refused() -> None:
    spec = SPEC._replace(observations={"x": SPEC.observations})
    with pytest.raises(SpecError, match=r"observations: expected a dictionary of x, found float32"):
        fit_episode(EPISODES[0], spec, None, "episode 0")


def test_specs_are_inferred() -> None:
    spec = infer_spec([episode._replace(observations=np.float64(episode.observations)) for episode in EPISODES], None)
    assert spec.observations == specs.Array((2,), np.float32) and spec.actions.num_values == 3
    assert infer_spec(EPISODES, {"type": "Discrete", "n": 7}).actions.num_values == 7
    continuous = infer_spec([EPISODES[0]._replace(actions=np.zeros((4, 5)))], None)
    assert continuous.actions.shape == (5,) and continuous.actions.minimum == -1.0
    with pytest.raises(SpecError, match="observations: expected numbers, found"):
        infer_spec([EPISODES[0]._replace(observations=np.array([b"a"] * 5))], None)


@pytest.mark.parametrize("count", ["x", None, 0, -1, 2.5, 2**40])
def test_an_action_space_without_a_number_of_choices_is_refused_by_its_file(tmp_path: pathlib.Path, count: Any) -> None:
    space = {"type": "Discrete", "n": count}
    path = write_episodes(tmp_path / "data.hdf5", EPISODES, space)
    with pytest.raises(ConfigError, match=r"data\.hdf5, action_space: expected n to be the number of choices"):
        read_episodes(path)
    with pytest.raises(SpecError, match="action_space: expected n"):
        infer_spec(EPISODES, space)


def test_the_number_of_choices_may_be_gymnasiums() -> None:
    for space in ({"type": "Discrete", "n": np.int64(7)}, {"n": 7}):
        assert infer_spec(EPISODES, space).actions.num_values == 7


def test_choices_that_no_action_can_be_are_refused() -> None:
    with pytest.raises(SpecError, match="found action 1,099,511,627,776"):
        infer_spec([EPISODES[0]._replace(actions=np.full(4, 2**40))], None)


def test_rewards_and_ends_may_be_lists() -> None:
    """As somebody writes them by hand."""
    by_hand = EPISODES[0]._replace(**{name: getattr(EPISODES[0], name).tolist() for name in Episode._fields[2:]})
    recorders = [EpisodeRecorder(), EpisodeRecorder()]
    for recorder, episode in zip(recorders, (by_hand, EPISODES[0]), strict=True):
        (fitted,) = fit_episodes([episode], SPEC, None)
        add_episode(recorder, fitted)
    assert_same(recorders[0].episodes, recorders[1].episodes)


@pytest.mark.parametrize("name", ["catch", "point_mass"])
def test_what_is_recorded_is_what_an_adder_is_given_again(name: str) -> None:
    """A terminated and a truncated kind of episode, through arrays and back to time steps."""
    environment, first, second = envs.make(f"agentkit:{name}", seed=0), EpisodeRecorder(), EpisodeRecorder()
    rng = np.random.default_rng(0)
    for _ in range(3):
        timestep = environment.reset()
        first.add_first(timestep)
        while not timestep.last():
            action = np.int32(rng.integers(3)) if name == "catch" else rng.uniform(-1, 1, 2).astype(np.float32)
            timestep = environment.step(action)
            first.add(action, timestep)
    for episode in first.episodes:
        check_episode(episode, name)
        assert episode.terminations[-1] == (name == "catch") and episode.truncations[-1] != episode.terminations[-1]
        add_episode(second, episode)
    assert_same(second.episodes, first.episodes)


def test_a_recorder_with_a_limit_cuts_episodes_off_and_goes_on() -> None:
    """As in a batch, which is not reset there: the observation at the cut ends one episode and begins the next."""
    recorder = EpisodeRecorder(max_steps=3)
    for length in (7, 3):
        recorder.add_first(dm_env.restart(np.zeros(1)))
        for t in range(1, length + 1):
            end = dm_env.termination if t == length else dm_env.transition
            recorder.add(np.int32(t), end(float(t), np.full(1, float(t))))
    assert [episode.observations.ravel().tolist() for episode in recorder.episodes] == [
        [0, 1, 2, 3], [3, 4, 5, 6], [6, 7], [0, 1, 2, 3],
    ]  # fmt: skip
    assert [bool(episode.truncations[-1]) for episode in recorder.episodes] == [True, True, False, False]
    assert [bool(episode.terminations[-1]) for episode in recorder.episodes] == [False, False, True, True]
    for episode in recorder.episodes:
        check_episode(episode, "recorded")


def test_discounts_between_0_and_1_are_not_recorded() -> None:
    recorder = EpisodeRecorder()
    recorder.add_first(dm_env.restart(np.zeros(2)))
    with pytest.raises(SpecError, match=r"discount 0\.5"):
        recorder.add(np.int32(0), dm_env.transition(1.0, np.zeros(2), 0.5))


def _columns() -> dict[str, Any]:
    """Two episodes in RLDS's terms: of 2 steps, terminated, and of 1 step, truncated."""
    return {
        "observation": {"x": np.arange(5.0)},
        "action": np.int32([1, 2, 0, 1, 0]),
        "reward": np.float32([1, 2, 0, 5, 0]),
        "is_first": np.bool_([1, 0, 0, 1, 0]),
        "is_last": np.bool_([0, 0, 1, 0, 1]),
        "is_terminal": np.bool_([0, 0, 1, 0, 0]),
    }


def test_columns_of_steps_are_split_into_episodes(tmp_path: pathlib.Path) -> None:
    columns = _columns()
    np.savez(tmp_path / "steps.npz", **{"observation/x": columns.pop("observation")["x"], **columns})
    for first, second in (split_steps(_columns()), read_episodes(tmp_path / "steps.npz").episodes):
        np.testing.assert_array_equal(first.observations["x"], [0, 1, 2])
        np.testing.assert_array_equal(first.actions, [1, 2])
        np.testing.assert_array_equal(first.rewards, [1, 2])
        assert first.terminations.tolist() == [False, True] and not first.truncations.any()
        np.testing.assert_array_equal(second.observations["x"], [3, 4])
        assert second.truncations.tolist() == [True] and not second.terminations.any()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"is_terminal": None}, r"\['is_terminal'\] are missing"),
        ({"reward": np.zeros(4)}, "one length"),
        ({"is_last": np.bool_([0, 0, 1, 0, 0])}, "is_first right after an is_last"),
        ({"is_first": np.bool_([1, 0, 0, 0, 0]), "is_last": np.zeros(5, bool)}, "is_first right after an is_last"),
        ({"is_first": np.bool_([1, 0, 0, 0, 0])}, "is_first right after an is_last"),
        ({"observation": {"a": np.arange(9.0), "b": np.arange(5.0)}}, r"one length.*'observation': \[\(5,\), \(9,\)\]"),
        ({"action": (np.zeros(6), np.zeros(5))}, "one length"),
        ({"reward": np.float32(0)}, "one length"),
        ({"reward": {"x": np.zeros(5)}}, r"reward: expected a column of one number a row, found several, \['x'\]"),
        ({"is_last": np.zeros((5, 2), bool)}, r"is_last: expected a column .* found shape \[5, 2\]"),
    ],
)
def test_columns_that_are_no_episodes(change: Any, message: str) -> None:
    columns = {name: value for name, value in (_columns() | change).items() if value is not None}
    with pytest.raises(SpecError, match=message):
        split_steps(columns)
