"""Files of episodes: HDF5 in Minari's layout, written and read; columns of D4RL's or RLDS's in HDF5 and .npz, read.

The layout (Farama's Minari, storage "hdf5"):

    episode_0/observations     [T + 1, ...], or a group of them (``_index_0``, ``_index_1``, ... for a tuple)
    episode_0/actions          [T, ...], likewise
    episode_0/rewards          [T]
    episode_0/terminations     bool [T]
    episode_0/truncations      bool [T]
    episode_1/...

with ``action_space`` as JSON in an attribute of the file or in ``metadata.json`` beside it. What else is there
(``infos``) is passed over.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import zipfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tree

from agentkit.datasets import minari_sets, rlds_sets
from agentkit.datasets.episodes import ActionSpace, Episode, as_episodes, check_episode, find_num_choices, read_flags
from agentkit.datasets.step_columns import STEP_COLUMNS, split_steps
from agentkit.datasets.transition_columns import TRANSITION_COLUMNS, are_transitions, split_transitions
from agentkit.errors import AgentkitError, ConfigError, SpecError, missing_extra
from agentkit.files import ArrayLimit, check_path, read_json, read_npz, refusing_unwritable
from agentkit.types import Nest

_MAIN = "main_data.hdf5"
_SUFFIXES = (".hdf5", ".h5")
_INDEX = "_index_"
_GROUP_BYTES = 1024
_HEADER_BYTES = 768  # Of an array in a file: 520 were measured, more in nested groups.
_DEEPEST = 32


class EpisodeData(NamedTuple):
    """Holds the contents of a file.

    Attributes:
        episodes: in order.
        actions: their action space, None where the file does not say.
    """

    episodes: list[Episode]
    actions: ActionSpace | None


def write_episodes(
    path: str | pathlib.Path, episodes: Sequence[Episode], actions: ActionSpace | None = None
) -> pathlib.Path:
    """Writes a new HDF5 file; it is there when it is whole.

    Args:
        path: of the file, which must not exist, and ends in ``.hdf5`` or ``.h5``.
        episodes: at least one.
        actions: their action space, such as `describe_actions` gives.

    Raises:
        ConfigError: the file exists, has another suffix, or cannot be written; or there are no episodes.
        SpecError: an episode's parts do not go together, or have names that HDF5 has no place for; or `actions` is no
            action space.
        MissingExtraError: h5py is not installed.
    """
    path = check_new_file(path)
    episodes = as_episodes(episodes, str(path))
    space = None if actions is None else _write_action_space(actions)
    for number, episode in enumerate(episodes):
        check_episode(episode, f"episode {number}")
        for name in ("observations", "actions"):
            _check_names(getattr(episode, name), f"episode {number}, {name}")
    _h5py()
    partial = path.with_name(f".{path.name}.partial-{os.getpid()}")
    try:
        with refusing_unwritable(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            _reserve(partial, episodes)
            _fill(partial, episodes, space)
            os.replace(partial, path)
    finally:
        with contextlib.suppress(OSError):
            partial.unlink()
    return path


def _reserve(path: pathlib.Path, episodes: Sequence[Episode]) -> None:
    """Finds out whether the disk has place for a file of episodes: where it is full, HDF5 ends the process.

    Raises:
        OSError: it has not.
    """
    if not hasattr(os, "posix_fallocate"):  # macOS, Windows.
        return
    leaves = [np.asarray(leaf).nbytes for episode in episodes for leaf in tree.flatten(episode)]
    with open(path, "wb") as file:
        os.posix_fallocate(file.fileno(), 0, sum(leaves) + _HEADER_BYTES * len(leaves))


def _fill(path: pathlib.Path, episodes: Sequence[Episode], space: str | None) -> None:
    with _h5py().File(path, "w", track_order=True) as file:
        file.attrs["total_episodes"] = len(episodes)
        file.attrs["total_steps"] = sum(len(episode.rewards) for episode in episodes)
        if space is not None:
            file.attrs["action_space"] = space
        for number, episode in enumerate(episodes):
            group = file.create_group(f"episode_{number}")
            group.attrs["id"] = number
            group.attrs["total_steps"] = len(episode.rewards)
            for name, nest in episode._asdict().items():
                _write(group, name, nest)


def _write_action_space(space: Any) -> str:
    """Returns an action space as JSON; arrays become lists."""
    try:
        if not isinstance(space, Mapping) or "type" not in space:
            raise TypeError
        return json.dumps(dict(space), default=lambda array: np.asarray(array).tolist())
    except (TypeError, ValueError) as error:
        raise SpecError(
            "actions: expected an action space such as {'type': 'Box', 'low': [-2.0], 'high': [2.0]} or {'type': "
            f"'Discrete', 'n': 3}}, found {space!r:.80}."
        ) from error


def check_new_file(path: str | pathlib.Path) -> pathlib.Path:
    """Returns the path of a file that `write_episodes` may write.

    Raises:
        ConfigError: it exists, or its name says that it is no HDF5.
    """
    path = pathlib.Path(path)
    if path.suffix not in _SUFFIXES:
        raise ConfigError(f"Episodes are written as HDF5: expected a name ending in .hdf5 or .h5, found {path.name}.")
    if path.exists():
        raise ConfigError(f"{path} exists. Choose another file, or delete it first.")
    return path


def _check_names(nest: Nest, what: str) -> None:
    """Refuses a nest that a file would not give back: of a part without leaves, or a name that HDF5 reads otherwise."""
    if not isinstance(nest, Mapping | tuple | list):
        return
    if not nest:
        raise SpecError(f"{what}: expected arrays, found an empty {type(nest).__name__}. Leave it out.")
    for key, child in nest.items() if isinstance(nest, Mapping) else enumerate(nest):
        bad = isinstance(nest, Mapping) and (not isinstance(key, str) or key.strip(".") == "" or "/" in key)
        if bad or str(key).startswith(_INDEX):
            raise SpecError(
                f"{what}: expected names without a slash, and none that begins with {_INDEX}, found {key!r}. Rename it."
            )
        _check_names(child, f"{what}/{key}")


def _write(group: Any, name: str, nest: Nest) -> None:
    if isinstance(nest, dict):
        children = nest
    elif isinstance(nest, tuple | list):
        children = {f"{_INDEX}{i}": child for i, child in enumerate(nest)}
    else:
        group.create_dataset(name, data=np.asarray(nest))
        return
    inner = group.create_group(name)
    for key, child in children.items():
        _write(inner, key, child)


def read_episodes(path: str | pathlib.Path) -> EpisodeData:
    """Reads a file, or a Minari data set, into memory.

    Args:
        path: an HDF5 file in Minari's layout, or a folder that has one as ``main_data.hdf5`` or as
            ``data/main_data.hdf5``; ``minari:ID``, for a data set by its name; or columns in HDF5 or ``.npz``: those
            that `split_transitions` takes (D4RL's), or `split_steps` (RLDS's, ``.npz`` alone), with a leaf of a
            nested observation as ``observations/position``; or ``rlds:FOLDER``, for RLDS's own files (see
            `agentkit.datasets.rlds_sets.read_rlds`).

    Raises:
        ConfigError: no such file, one of another kind or layout, or one that is damaged; or Minari has no such set.
        SpecError: an episode's parts do not go together.
        MissingExtraError: h5py, minari for a download, or tensorflow_datasets for RLDS's files, is not installed.
    """
    try:
        data = _read_any(str(path))
        for number, episode in enumerate(data.episodes):
            check_episode(episode, f"{path}, episode {number}")
    except AgentkitError:
        raise
    except Exception as error:  # Of h5py, zipfile, numpy and tree, of whatever a damaged file says.
        raise ConfigError(
            f"{path} cannot be read as episodes ({type(error).__name__}: {error!s:.300}). Expected HDF5 in Minari's "
            "layout, or columns in HDF5 or .npz. Get the file anew, or write it again."
        ) from error
    return data


def _read_any(name: str) -> EpisodeData:
    if name.startswith(rlds_sets.PREFIX):
        return EpisodeData(rlds_sets.read_rlds(name.removeprefix(rlds_sets.PREFIX)), None)
    is_minari = name.startswith(minari_sets.PREFIX)
    path = minari_sets.find_minari(name.removeprefix(minari_sets.PREFIX)) if is_minari else pathlib.Path(name)
    if path.is_dir():
        path = _in_folder(path)
    if not path.is_file():
        raise ConfigError(f"There is no file {path}. Expected HDF5 in Minari's layout or D4RL's, or .npz.")
    return EpisodeData(_read_npz(path), None) if path.suffix == ".npz" else _read_hdf5(path)


def lasting_path(name: str, path: Any) -> str:
    """Returns a path that names the same wherever it is used later: absolute, or a data set of Minari's.

    Args:
        name: of the setting, for errors.
        path: a string or a path.

    Raises:
        ConfigError: it is something else, or empty.
    """
    check_path(name, path, "datasets.write_episodes makes a file of episodes.")
    if str(path).startswith(minari_sets.PREFIX):
        return str(path)
    if str(path).startswith(rlds_sets.PREFIX):
        return rlds_sets.PREFIX + rlds_sets.lasting_name(str(path).removeprefix(rlds_sets.PREFIX))
    return str(pathlib.Path(path).absolute())


def _in_folder(folder: pathlib.Path) -> pathlib.Path:
    """Returns the file of a Minari data set: its HDF5, whether that is there or not."""
    for inner in (folder, folder / "data"):
        if (inner / _MAIN).is_file():
            return inner / _MAIN
        stored = _metadata(inner).get("data_format", "hdf5")
        if stored != "hdf5":
            raise ConfigError(
                f"{folder}: expected a Minari data set stored as hdf5, found {stored!r}. Load it with minari, "
                "and write its episodes with `agentkit.datasets.write_episodes` (a `datasets.Episode` of each one's "
                "arrays)."
            )
    return folder / _MAIN


def _metadata(folder: pathlib.Path) -> dict[str, Any]:
    """Returns what Minari says of a data set, beside its file; nothing where it does not."""
    path = folder / "metadata.json"
    if not path.is_file():
        return {}
    try:
        found = read_json(path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read as JSON: {error}. Restore it, or delete it to do without.") from error
    if not isinstance(found, dict):
        raise ConfigError(f"{path}: expected a JSON object, found {str(found)[:80]!r}.")
    return found


def _read_hdf5(path: pathlib.Path) -> EpisodeData:
    with _h5py().File(path, "r") as file:
        limit = ArrayLimit(path)
        if are_transitions(file):
            columns = {name: _read(file, name, limit) for name in TRANSITION_COLUMNS if name in file}
            return EpisodeData(_split(path, split_transitions, columns), None)
        names = sorted((n for n in file if n.startswith("episode_")), key=lambda n: int(n.rpartition("_")[2]))
        if not names:
            raise ConfigError(
                f"{path}: expected groups episode_0, episode_1, ... (Minari's layout), or the columns "
                f"{list(TRANSITION_COLUMNS[:4])} (D4RL's), found {sorted(file)[:8]}."
            )
        episodes = [_read_group(file[name], f"{path}, {name}", limit) for name in names]
        return EpisodeData(episodes, _read_action_space(path, file.attrs.get("action_space")))


def _read_group(group: Any, name: str, limit: ArrayLimit) -> Episode:
    if not hasattr(group, "keys"):
        raise ConfigError(f"{name}: expected a group of {list(Episode._fields)}, found an array.")
    missing = [field for field in Episode._fields if field not in group]
    if missing:
        raise ConfigError(f"{name}: expected {list(Episode._fields)}, found {sorted(group)}: {missing} are missing.")
    observations, actions, rewards, *ended = (_read(group, field, limit) for field in Episode._fields)
    flags = (read_flags(x, f"{name}, {field}") for x, field in zip(ended, ("terminations", "truncations"), strict=True))
    return Episode(observations, actions, np.asarray(rewards), *flags)


def _read(group: Any, name: str, limit: ArrayLimit) -> Nest:
    """Returns an array of a group, or all that is in a group of it."""
    node = group.get(name)  # None for a link to nothing.
    is_group = hasattr(node, "keys")
    if not is_group and getattr(node, "shape", None) is None:  # A dataset without a value has none, nor has a datatype.
        found = "nothing" if node is None else f"an empty {type(node).__name__.lower()}"
        raise ConfigError(
            f"{group.file.filename}, {group.name.lstrip('/')}: expected an array {name!r}, or a group of arrays, found "
            f"{found}. Get the file anew, or write it again."
        )
    if not is_group:
        limit.take(node.size * node.dtype.itemsize)
        return node[()]
    limit.take(_GROUP_BYTES)  # Of a file's links: a group may be inside of itself.
    keys = list(node)
    if keys and all(key.startswith(_INDEX) for key in keys):
        return tuple(_read(node, f"{_INDEX}{i}", limit) for i in range(len(keys)))
    return {key: _read(node, key, limit) for key in keys}


def _read_action_space(path: pathlib.Path, attribute: Any) -> ActionSpace | None:
    if attribute is None:
        attribute = _metadata(path.parent).get("action_space")
    if attribute is None:
        return None
    space = json.loads(attribute) if isinstance(attribute, str | bytes) else attribute
    if not isinstance(space, dict) or "type" not in space:
        raise ConfigError(f"{path}: expected an action_space such as {{'type': 'Box', ...}}, found {space!r}.")
    try:
        find_num_choices(space)
    except SpecError as error:
        raise ConfigError(f"{path}, {error} Mend the file's action_space, or leave it out.") from error
    return space


def _read_npz(path: pathlib.Path) -> list[Episode]:
    if not zipfile.is_zipfile(path):
        raise ConfigError(f"{path} cannot be read as a .npz file: it is none, or was cut short.")
    columns: dict[str, Any] = {}
    for name, column in read_npz(path).items():
        *parents, last = name.split("/")
        place: Any = columns
        for parent in parents[:_DEEPEST]:
            place = place.setdefault(parent, {}) if isinstance(place, dict) else None
        if not isinstance(place, dict) or last in place or len(parents) > _DEEPEST:
            raise ConfigError(
                f"{path}: expected columns by name, such as observation or observation/position but not both, and at "
                f"most {_DEEPEST} names inside of one another; found {name!s:.80}."
            )
        place[last] = column
    if not are_transitions(columns) and "observation" not in columns:
        raise SpecError(
            f"{path}: expected the columns {list(TRANSITION_COLUMNS)} (D4RL's; the last two where they are known), or "
            f"{list(STEP_COLUMNS)} (RLDS's), found {sorted(columns)}. Rename yours."
        )
    return _split(path, split_transitions if are_transitions(columns) else split_steps, columns)


def _split(
    path: pathlib.Path, split: Callable[[Mapping[str, Any]], list[Episode]], columns: Mapping[str, Any]
) -> list[Episode]:
    try:
        return split(columns)
    except SpecError as error:
        raise SpecError(f"{path}: {error}") from error


def _h5py() -> Any:
    try:
        import h5py
    except ImportError as error:
        raise missing_extra("h5py", "offline") from error
    return h5py
