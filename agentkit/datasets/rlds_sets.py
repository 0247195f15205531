"""Reads RLDS's own files, as TFDS writes them. The one file that imports tensorflow_datasets.

TFDS knows each set's own features. The extra ``rlds`` contains ``reverb``, since both need TensorFlow.

Step t has o_t, a_t, and the reward and discount that followed a_t; in an episode's last step all but the observation
means nothing, and `is_terminal` says there whether the episode terminated (Ramos et al. 2021, 2111.02767).
"""

from __future__ import annotations

import importlib.util
import json
import os
import pathlib
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import tree

from agentkit.datasets.episodes import Episode
from agentkit.datasets.step_columns import split_steps
from agentkit.errors import ConfigError, SpecError, missing_extra
from agentkit.files import read_json
from agentkit.types import Nest

PREFIX = "rlds:"

_FILES = ("dataset_info.json", "features.json")
_COLUMNS = ("observation", "action", "reward", "discount", "is_first", "is_last", "is_terminal")
_ROWS = 4096
_LIBRARY = "tensorflow_datasets"
_CLASS_KEYS = ("pythonClassName", "python_class_name", "type")


def read_rlds(name: str) -> list[Episode]:
    """Reads a split of a data set into memory, in the order in which it is stored.

    Text in observations and actions is left out, and so is what else steps and episodes hold. An episode whose last
    step is not marked as such was cut off: it ends in its last observation, truncated.

    Args:
        name: the folder of one version of the data set, and after a ``#`` the split, in TFDS's words:
            ``sets/my_set/1.0.0#train[:100]``. Without one it is ``train``, or the only one.

    Raises:
        ConfigError: there is no such data set or split, or it cannot be read.
        SpecError: its episodes are none of RLDS's, or have discounts that files of episodes have no place for.
        MissingExtraError: tensorflow_datasets, or TensorFlow, is not installed.
    """
    folder, _, split = name.partition("#")
    check_is_set(name)
    tfds = _tfds()
    try:
        builder = tfds.builder_from_directory(folder)
        split = split or _only_split(name, sorted(builder.info.splits))
        in_order = tfds.ReadConfig(interleave_cycle_length=1, try_autocache=False)
        data = builder.as_dataset(split, shuffle_files=False, read_config=in_order)
        if "steps" not in data.element_spec:
            raise SpecError(f"{PREFIX}{name}: expected episodes of 'steps', found {sorted(data.element_spec)}.")
        columns = [_join(tfds.as_numpy(episode["steps"].batch(_ROWS))) for episode in data]
    except (ConfigError, SpecError):
        raise
    except Exception as error:  # TensorFlow's and TFDS's, of many kinds.
        raise ConfigError(f"{PREFIX}{name} cannot be read by tensorflow_datasets: {error}") from error
    found_in = [_split(f"{PREFIX}{name}, episode {i}", rows) for i, rows in enumerate(columns) if rows]
    _tell_of_last_rewards(name, [rows for rows in columns if rows])
    return [episode for episodes in found_in for episode in episodes]


def check_is_set(name: str) -> None:
    """Refuses a folder that has no data set of TFDS's, or one that would have TFDS import what nobody asked for.

    Args:
        name: as for `read_rlds`.

    Raises:
        ConfigError: saying what is missing, or which module has to be imported before.
    """
    folder, _, _ = name.partition("#")
    missing = [file for file in _FILES if not (pathlib.Path(folder) / file).is_file()]
    if missing:
        raise ConfigError(
            f"{PREFIX}{name}: expected the folder of one version of a data set of TFDS, such as {PREFIX}my_set/1.0.0, "
            f"and found no {' and no '.join(missing)} in {folder!r}."
        )
    try:
        names = sorted(set(_class_names(read_json(pathlib.Path(folder) / _FILES[1]))))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{PREFIX}{name}: {_FILES[1]} cannot be read as JSON: {error}.") from error
    modules = [class_name.rpartition(".")[0] for class_name in names]
    unknown = [module for module in modules if module not in sys.modules and module.split(".")[0] != _LIBRARY]
    if unknown:
        raise ConfigError(
            f"{PREFIX}{name}: {_FILES[1]} names features of {', '.join(unknown)}, which is not imported on a data "
            "set's word. If you trust it, import it before."
        )


def _class_names(node: Any) -> Iterator[str]:
    """Yields the classes that a description of features names, and that TFDS imports the modules of."""
    if isinstance(node, list):
        for child in node:
            yield from _class_names(child)
    if isinstance(node, dict):
        for key, child in node.items():
            if isinstance(child, str):
                if key in _CLASS_KEYS and "." in child:
                    yield child
                elif key == "json" and child.lstrip()[:1] in ("{", "["):
                    yield from _class_names(json.loads(child))
            else:
                yield from _class_names(child)


def lasting_name(name: str) -> str:
    """Returns the same name with an absolute path."""
    folder, mark, split = name.partition("#")
    return f"{pathlib.Path(folder).absolute()}{mark}{split}"


def _tfds() -> Any:
    # What fills a GPU is JAX: TensorFlow, where it is one for GPUs, takes no more than it needs.
    os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if importlib.util.find_spec("tensorflow") is None:  # tensorflow_datasets loads it when it is first needed.
        raise missing_extra("tensorflow", "rlds")
    try:
        import tensorflow_datasets
    except ImportError as error:
        raise missing_extra("tensorflow-datasets", "rlds") from error
    return tensorflow_datasets


def _only_split(name: str, splits: list[str]) -> str:
    if "train" in splits:
        return "train"
    if len(splits) == 1:
        return splits[0]
    raise ConfigError(
        f"{PREFIX}{name}: expected a split behind a #, one of {splits}, as in {PREFIX}{name}#{splits[0]}."
    )


def _join(batches: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the columns of an episode's steps; none of an episode without steps."""
    parts = [{name: _without_text(batch[name]) for name in _COLUMNS if name in batch} for batch in batches]
    return tree.map_structure(lambda *leaves: np.concatenate(leaves), *parts) if parts else {}


def _without_text(nest: Nest) -> Nest:
    """Returns a nest without those leaves of dictionaries that are text."""
    if not isinstance(nest, dict):
        return nest
    return {key: _without_text(x) for key, x in nest.items() if isinstance(x, dict) or np.asarray(x).dtype != object}


def _split(what: str, rows: dict[str, Any]) -> list[Episode]:
    """Returns the episode of some steps (several where they begin anew), without those that have no action."""
    if "is_last" in rows and not rows["is_last"][-1]:
        rows = {**rows, "is_last": np.append(rows["is_last"][:-1], True)}
    try:
        episodes = split_steps(rows)
    except SpecError as error:
        raise SpecError(f"{what}: {error}") from error
    if "discount" in rows:
        terminates = np.append((rows["is_last"] & rows["is_terminal"])[1:], False)
        fits = rows["is_last"] | (rows["discount"] == 1) | (terminates & (rows["discount"] == 0))
        if not np.all(fits):
            t = int(np.argmin(fits))
            raise SpecError(
                f"{what}: expected discounts of 1, or 0 at the step into a last one that is_terminal, found "
                f"{rows['discount'][t]} at step {t}. Episodes have no place for others: gamma is a setting of "
                "the agent."
            )
    return [episode for episode in episodes if len(episode.rewards)]


def _tell_of_last_rewards(name: str, columns: list[dict[str, Any]]) -> None:
    """Warns of rewards where RLDS has none, which some data sets give there for the success of the whole."""
    given = sum(bool(np.any(np.nan_to_num(rows["reward"])[rows["is_last"]])) for rows in columns)
    if given:
        warnings.warn(
            f"{PREFIX}{name}: {given} of {len(columns)} episodes have a reward in their last step, which in RLDS means "
            "nothing: it is left out. Where the action before earned it, write it into that one's step.",
            stacklevel=3,
        )
