"""Whatever a file of episodes says, reading it gives episodes or an error that names the file."""

import io
import json
import pathlib
import random
import re
from typing import Any

import h5py
import numpy as np
import pytest

from agentkit.datasets import read_episodes, write_episodes
from agentkit.errors import ConfigError, SpecError
from tests.datasets.test_offline import EPISODES


def link_to_nothing(group: Any, name: str) -> None:
    group[name] = h5py.SoftLink("/nowhere")


def link_to_itself(group: Any, name: str) -> None:
    group[name] = h5py.SoftLink(f"{group.name}/{name}")


def link_to_another_file(group: Any, name: str) -> None:
    group[name] = h5py.ExternalLink("no_such_file.hdf5", "/x")


def make_gap(group: Any, name: str) -> None:
    for index in (0, 2):
        group[f"{name}/_index_{index}"] = np.zeros((5, 2), np.float32)


def make_null(group: Any, name: str) -> None:
    group[name] = h5py.Empty("f4")


def make_datatype(group: Any, name: str) -> None:
    group[name] = np.dtype("f4")


def make_empty_group(group: Any, name: str) -> None:
    group.create_group(name)


def make_group_inside_itself(group: Any, name: str) -> None:
    group.create_group(name)["again"] = h5py.SoftLink(f"{group.name}/{name}")


def make_scalar(group: Any, name: str) -> None:
    group[name] = 1.0


def make_text(group: Any, name: str) -> None:
    group[name] = ["a", "b", "c", "d", "e"]


def make_rows_of_several_lengths(group: Any, name: str) -> None:
    group.create_dataset(name, (5,), dtype=h5py.vlen_dtype(np.float32))[0] = [1.0, 2.0]


def make_records(group: Any, name: str) -> None:
    group[name] = np.zeros(5, [("a", np.float32), ("b", np.int32)])


def make_references(group: Any, name: str) -> None:
    group[name] = group.parent.ref


KINDS = [
    link_to_nothing, link_to_itself, link_to_another_file, make_gap, make_null, make_datatype, make_empty_group,
    make_group_inside_itself, make_scalar, make_text, make_rows_of_several_lengths, make_records, make_references,
]  # fmt: skip


def refuses(path: pathlib.Path) -> str | None:
    """The message of the refusal, which names the file; None where it is taken."""
    try:
        read_episodes(path)
    except (ConfigError, SpecError) as error:
        assert path.name in str(error) and "\n" not in str(error)
        return str(error)
    return None


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (link_to_nothing, "episode_1: expected an array 'observations', or a group of arrays, found nothing"),
        (make_null, "episode_1: expected an array 'observations', .* found an empty dataset"),
        (make_datatype, "found an empty datatype"),
        (make_empty_group, "expected observations, found an empty dict"),
        (make_gap, "episode_1/observations: expected an array '_index_1', .* found nothing"),
        (make_group_inside_itself, "cannot be read as episodes"),
    ],
)
def test_what_is_no_array_is_named(tmp_path: pathlib.Path, kind: Any, message: str) -> None:
    path = write_episodes(tmp_path / "data.hdf5", EPISODES)
    with h5py.File(path, "r+") as file:
        del file["episode_1/observations"]
        kind(file["episode_1"], "observations")
    with pytest.raises((ConfigError, SpecError), match=f"data.hdf5.*{message}"):
        read_episodes(path)


@pytest.mark.parametrize("kind", KINDS)
def test_no_part_of_an_hdf5_file_can_be_anything_else(tmp_path: pathlib.Path, kind: Any) -> None:
    """Each part in turn: an episode, each of its columns, and each of D4RL's."""
    path = tmp_path / "data.hdf5"
    for name in ("episode_1", *(f"episode_1/{field}" for field in EPISODES[0]._fields)):
        write_episodes(path, EPISODES)
        with h5py.File(path, "r+") as file:
            del file[name]
            parent, _, last = name.rpartition("/")
            kind(file[parent] if parent else file, last)
        assert refuses(path), name
        path.unlink()
    columns = {
        "observations": np.zeros((5, 1)),
        "actions": np.zeros(5),
        "rewards": np.zeros(5),
        "terminals": np.ones(5),
    }
    for name in columns:
        with h5py.File(path, "w") as file:
            for other, column in columns.items():
                if other != name:
                    file[other] = column
            kind(file, name)
        refuses(path)


STEPS = {
    "observation/x": np.arange(5.0),
    "action": np.int32([1, 2, 0, 1, 0]),
    "reward": np.float32([1, 2, 0, 5, 0]),
    "is_first": np.bool_([1, 0, 0, 1, 0]),
    "is_last": np.bool_([0, 0, 1, 0, 1]),
    "is_terminal": np.bool_([0, 0, 1, 0, 0]),
}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"observation": np.arange(5.0)}, "observation or observation/position but not both.* found observation"),
        ({"reward": np.float32(0)}, "one length"),
        ({"reward": None, "reward/x": np.zeros(5)}, "reward: expected a column of one number a row"),
        ({f"observation{'/a' * 5_000}": np.arange(5.0)}, "at most 32 names inside of one another"),
        ({"observation/y": np.arange(9.0)}, "one length"),
        ({"action": np.zeros(5, [("a", np.float32)])}, None),
    ],
)
@pytest.mark.parametrize("last", [False, True])
def test_columns_of_npz_that_do_not_go_together(
    tmp_path: pathlib.Path, changes: dict[str, Any], message: str | None, last: bool
) -> None:
    path = tmp_path / "data.npz"
    kept = {name: column for name, column in STEPS.items() if name not in changes}
    new = {name: column for name, column in changes.items() if column is not None}
    np.savez(path, **(kept | new if last else new | kept))
    found = refuses(path)
    assert message is None or (found is not None and re.search(message, found))


def test_an_npz_file_of_other_bytes_is_refused_or_read(tmp_path: pathlib.Path) -> None:
    """Bytes of a good file, changed, cut and doubled at random, of headers above all."""
    rng, whole = random.Random(0), io.BytesIO()
    np.savez(whole, **STEPS)
    path, refused = tmp_path / "data.npz", 0
    for _ in range(300):
        changed = bytearray(whole.getvalue())
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(len(changed))
            match rng.randrange(3):
                case 0:
                    changed[at] = rng.randrange(256)
                case 1:
                    del changed[at : at + rng.randint(1, 40)]
                case _:
                    changed[at:at] = changed[at : at + rng.randint(1, 40)]
        path.write_bytes(changed)
        refused += refuses(path) is not None
    assert refused > 100


def test_whatever_an_action_space_says_is_refused_or_read(tmp_path: pathlib.Path) -> None:
    deep: Any = "[" * 5_000 + "]" * 5_000
    values = [b"\xff", "", "{", "null", "[]", "3", '"Box"', "{}", deep, 3.0, np.zeros(3), h5py.Empty("S1")]
    values += [json.dumps({"type": kind, "n": 3}) for kind in (None, 3, [], {}, "Box")]
    for number, value in enumerate(values):
        path = write_episodes(tmp_path / f"data{number}.hdf5", EPISODES)
        with h5py.File(path, "r+") as file:
            file.attrs["action_space"] = value
        refuses(path)
