"""Data in: D4RL's columns in HDF5 and .npz, and Minari's data sets by name; each gives the episodes that went in."""

import pathlib
import shutil
import sys
import types
from typing import Any

import h5py
import numpy as np
import pytest
import tree

from agentkit.datasets import Episode, read_episodes, split_transitions
from agentkit.datasets.episodes import check_episode
from agentkit.errors import ConfigError, MissingExtraError, SpecError

WRITTEN = pathlib.Path(__file__).parent / "written_by_minari"


def make_episode(num_steps: int, terminated: bool, first: float) -> Episode:
    ends = np.zeros((2, num_steps), bool)
    ends[0 if terminated else 1, -1] = True
    observations = {"x": first + np.arange(num_steps + 1.0, dtype=np.float32)[:, None], "n": np.arange(num_steps + 1)}
    return Episode(observations, first + np.arange(num_steps), np.arange(num_steps) / 2, *ends)


EPISODES = [make_episode(3, True, 10.0), make_episode(1, True, 20.0), make_episode(4, False, 30.0)]


def columns_of(episodes: list[Episode], with_next: bool) -> dict[str, Any]:
    """The rows of episodes as D4RL has them."""

    def joined(name: str, rows: slice = slice(None)) -> Any:
        return tree.map_structure(
            lambda *x: np.concatenate([leaf[rows] for leaf in x]), *(getattr(e, name) for e in episodes)
        )

    columns = {
        "observations": joined("observations", slice(-1)),
        "actions": joined("actions"),
        "rewards": joined("rewards"),
    }
    columns |= {"terminals": joined("terminations"), "timeouts": joined("truncations")}
    return columns | ({"next_observations": joined("observations", slice(1, None))} if with_next else {})


def write_hdf5(path: pathlib.Path, columns: dict[str, Any]) -> None:
    with h5py.File(path, "w") as file:
        for name, column in columns.items():
            for key, leaf in column.items() if isinstance(column, dict) else ((None, column),):
                file[name if key is None else f"{name}/{key}"] = leaf
        file["metadata/algorithm"] = "SAC"  # As some of D4RL's files have.


def write_npz(path: pathlib.Path, columns: dict[str, Any]) -> None:
    flat = {}
    for name, column in columns.items():
        flat |= {f"{name}/{key}": x for key, x in column.items()} if isinstance(column, dict) else {name: column}
    np.savez(path, **flat)


def assert_same(found: Any, expected: Any) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        tree.assert_same_structure(one, other)
        for x, y in zip(tree.flatten(one), tree.flatten(other), strict=True):
            np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize(("name", "write"), [("d.hdf5", write_hdf5), ("d.npz", write_npz)])
def test_d4rls_columns_give_back_the_episodes(tmp_path: pathlib.Path, name: str, write: Any) -> None:
    write(tmp_path / name, columns_of(EPISODES, with_next=True))
    found = read_episodes(tmp_path / name)
    assert_same(found.episodes, EPISODES)
    assert found.actions is None


def test_without_next_observations_nothing_is_made_up(tmp_path: pathlib.Path) -> None:
    """A termination needs no last observation; of a truncated episode the last known one is where it ends."""
    found = split_transitions(columns_of(EPISODES, with_next=False))
    for number, episode in enumerate(found):
        check_episode(episode, f"{number}")
    assert [len(episode.rewards) for episode in found] == [3, 1, 3]
    for episode, whole in zip(found, EPISODES, strict=True):
        num_steps = len(episode.rewards)
        np.testing.assert_array_equal(episode.rewards, whole.rewards[:num_steps])
        np.testing.assert_array_equal(episode.observations["x"][:num_steps], whole.observations["x"][:num_steps])
        assert episode.terminations[-1] == whole.terminations[-1] != episode.truncations[-1]
    np.testing.assert_array_equal(found[2].observations["x"], EPISODES[2].observations["x"][:-1])


def test_columns_may_stop_in_mid_episode_and_know_no_timeouts() -> None:
    columns = columns_of(EPISODES, with_next=True)
    del columns["timeouts"]
    assert_same(split_transitions(columns), EPISODES)
    cut = tree.map_structure(lambda x: x[:-3], columns)
    assert_same(split_transitions(cut)[:2], EPISODES[:2])
    (last,) = split_transitions(cut)[2:]
    assert len(last.rewards) == 1 and last.truncations[-1] and last.observations["x"][1] == 31.0


def test_an_end_that_nothing_tells_of_is_where_next_observations_break_the_chain() -> None:
    """Unmarked ends are found, whatever the leaf in which they show, and said; a step across a reset is never made."""
    whole = [make_episode(3, False, 10.0), make_episode(1, False, 20.0), make_episode(4, True, 30.0)]
    columns = columns_of(whole, with_next=True)
    del columns["timeouts"]
    with pytest.warns(UserWarning, match=r"^2 of 8 rows have no terminal and no timeout, and the next row's"):
        assert_same(split_transitions(columns), whole)
    columns["next_observations"]["x"] = columns["next_observations"]["x"].astype(np.float64)  # As some files have it.
    with pytest.warns(UserWarning, match=r"^2 of 8 rows"):
        assert len(split_transitions(columns)) == 3


def test_shuffled_transitions_are_the_files_own_pairs() -> None:
    columns = columns_of(EPISODES, with_next=True)
    order = np.random.default_rng(1).permutation(8)
    mixed = tree.map_structure(lambda x: x[order], columns)
    with pytest.warns(UserWarning, match="seem to be shuffled"):
        found = split_transitions(mixed)
    pairs = [
        (e.observations["x"][t, 0], e.actions[t], e.rewards[t], e.observations["x"][t + 1, 0], bool(e.terminations[t]))
        for e in found
        for t in range(len(e.rewards))
    ]
    rows = zip(
        mixed["observations"]["x"][:, 0], mixed["actions"], mixed["rewards"], mixed["next_observations"]["x"][:, 0],
        mixed["terminals"], strict=True,
    )  # fmt: skip
    assert pairs == list(rows)


def test_columns_that_know_of_no_cut_say_so() -> None:
    columns = columns_of(EPISODES, with_next=False)
    del columns["timeouts"]
    with pytest.warns(UserWarning, match="neither timeouts nor next_observations.* and 2 terminals are all"):
        split_transitions(columns)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"next_observations": np.zeros((8, 2))},
            r"next_observations in the structure .*x: \[1\].* found value: \[2\]",
        ),
        ({"rewards": np.array([b"1.5"] * 8)}, r"rewards: expected float32\[\] at each step, found"),
        ({"terminals": np.array(["False"] * 8)}, "terminals: expected booleans, found"),
        ({"timeouts": np.full(8, np.nan)}, "timeouts: expected booleans, found float64"),
        ({"rewards": None}, r"\['rewards'\] are missing"),
        ({"rewards": np.zeros(5)}, "Expected columns of one length"),
        ({"actions": np.zeros(())}, "Expected columns of one length"),
    ],
)
def test_bad_columns_are_named(tmp_path: pathlib.Path, changes: dict[str, Any], message: str) -> None:
    columns = {**columns_of(EPISODES, with_next=True), **changes}
    columns = {name: column for name, column in columns.items() if column is not None}
    write_npz(tmp_path / "d.npz", columns)
    with pytest.raises(SpecError, match=f"d.npz: .*{message}"):
        read_episodes(tmp_path / "d.npz")


def test_columns_of_other_names_are_told_both_kinds(tmp_path: pathlib.Path) -> None:
    columns = columns_of(EPISODES, with_next=True)
    columns["dones"] = columns.pop("terminals")
    write_npz(tmp_path / "d.npz", columns)
    with pytest.raises(
        SpecError, match=r"d.npz: expected the columns .*'terminals'.*'is_last'.*found .*'dones'.*Rename"
    ):
        read_episodes(tmp_path / "d.npz")


def test_columns_without_a_whole_step_are_refused() -> None:
    columns = tree.map_structure(lambda x: x[:0], columns_of(EPISODES, with_next=True))
    with pytest.raises(SpecError, match="found 0 rows"):
        split_transitions(columns)


def test_a_data_set_of_minaris_is_found_by_name(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is there needs no package; what is not is downloaded by it."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "minari", None)
    with pytest.raises(MissingExtraError, match=r"agentkit-rl\[minari\]"):
        read_episodes("minari:group/set-v0")
    shutil.copytree(WRITTEN, tmp_path / "group" / "set-v0" / "data")
    found, expected = read_episodes("minari:group/set-v0"), read_episodes(WRITTEN)
    assert_same(found.episodes, expected.episodes)
    assert found.actions == expected.actions != None  # noqa: E711 (that there is one is part of it)
    shutil.rmtree(tmp_path / "group")

    def download_dataset(name: str) -> None:
        if name != "group/set-v0":
            raise ValueError(f"no {name} anywhere")
        shutil.copytree(WRITTEN, tmp_path / name / "data")

    monkeypatch.setitem(sys.modules, "minari", types.SimpleNamespace(download_dataset=download_dataset))
    assert_same(read_episodes("minari:group/set-v0").episodes, expected.episodes)
    with pytest.raises(ConfigError, match=r"minari:group/other-v0 is not in .*no group/other-v0 anywhere"):
        read_episodes("minari:group/other-v0")
    for name in ("", "../etc", "/etc/passwd", "hf://group/set-v0"):
        with pytest.raises(ConfigError, match="expected a data set's name"):
            read_episodes(f"minari:{name}")


@pytest.mark.parametrize("package", ["tensorflow_datasets", "tensorflow"])
def test_what_rlds_files_need_is_named_with_its_extra(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    for name in ("dataset_info.json", "features.json"):
        (tmp_path / name).write_text("{}")
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=r"agentkit-rl\[rlds\]"):
        read_episodes(f"rlds:{tmp_path}")
