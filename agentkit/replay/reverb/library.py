"""Reverb and the little of TensorFlow that it needs, and what every call of Reverb's needs: silence and a deadline.

The only file that imports them. Extra: ``reverb``.

``import reverb`` runs 1,600 modules of TensorFlow's: 3 s of a processor and 200 MB in each process of a program. Its
client, writer and server need 120 of them. So these are imported by name, without the packages' own files, which
run as ever when somebody imports ``reverb`` or ``tensorflow`` later. Both are pinned: what they need stays the same
(decision 96).
"""

from __future__ import annotations

import contextlib
import functools
import importlib.abc
import importlib.machinery
import importlib.util
import os
import queue
import sys
import threading
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from agentkit.errors import missing_extra

__all__ = [
    "BoundedCalls", "TensorShape", "TensorSpec", "pybind", "quiet_stderr", "reverb", "sampling", "tensorflow", "uint8",
]  # fmt: skip

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


@contextlib.contextmanager
def _without_the_rest(**contents: Any) -> Iterator[None]:
    """Lets modules of TensorFlow and Reverb be imported without what their packages import themselves.

    A package that is imported already stays as it is.

    Args:
        contents: what Reverb's modules ask TensorFlow's packages for while they are imported.
    """
    made: dict[str, Any] = {}
    for name in ("tensorflow", "reverb"):
        if name not in sys.modules:
            spec = importlib.util.find_spec(name)
            if spec is None:
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)
            made[name] = importlib.util.module_from_spec(spec)
    if "tensorflow" in made:
        for name in ("tensorflow.compat", "tensorflow.compat.v1"):
            made[name] = types.ModuleType(name)
        made["tensorflow.compat"].v1 = made["tensorflow.compat.v1"]
        for name in ("tensorflow", "tensorflow.compat.v1"):
            made[name].__dict__.update(contents)
        made["tensorflow"].compat = made["tensorflow.compat"]
        # What they ask for later.
        made["tensorflow.compat.v1"].__getattr__ = lambda name: getattr(
            importlib.import_module("tensorflow.compat.v1"), name
        )
    sys.modules.update(made)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for name in made:
            del sys.modules[name]


class _PackageFirst:
    """Runs TensorFlow's package before another module of it is imported, as Python would have done.

    Their imports go in circles that only the package's own order gets through. Where the package is not to be imported
    (`agentkit.losses.library`), neither are its modules.
    """

    @staticmethod
    def find_spec(name: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if not name.startswith("tensorflow.") or sys.modules.get("tensorflow") is not None:
            return None
        importlib.import_module("tensorflow")
        module = sys.modules.get(name)
        if module is None:
            return None
        # Python takes the specification of a module that is there by now, and would run it again.
        module.__spec__ = found = importlib.machinery.ModuleSpec(name, _Imported(module))
        return found


class _Imported(importlib.abc.Loader):
    """Gives a module that is there already."""

    def __init__(self, module: types.ModuleType):
        self._module, self._spec = module, module.__spec__

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return self._module

    def exec_module(self, module: types.ModuleType) -> None:
        module.__spec__ = self._spec


try:
    with _without_the_rest():
        from tensorflow.python.framework.dtypes import double, int32, int64, uint8, uint64
        from tensorflow.python.framework.tensor import Tensor, TensorSpec
        from tensorflow.python.framework.tensor_shape import TensorShape
        from tensorflow.python.framework.versions import VERSION
    _contents = {each.__name__: each for each in (Tensor, TensorShape, TensorSpec)}
    _contents |= {"double": double, "int32": int32, "int64": int64, "uint64": uint64, "__version__": VERSION}
    with _without_the_rest(**_contents):
        from reverb import client, errors, item_selectors, pybind, rate_limiters, server
        from reverb.platform.default import checkpointers
except ImportError as import_error:
    raise missing_extra("dm-reverb", "reverb") from import_error
sys.meta_path.insert(0, _PackageFirst)

reverb: Any = types.SimpleNamespace(
    Client=client.Client,
    Server=server.Server,
    Table=server.Table,
    checkpointers=checkpointers,
    errors=errors,
    rate_limiters=rate_limiters,
    selectors=item_selectors,
)
"""Reverb, by the names that ``import reverb`` gives."""


@functools.cache
def sampling() -> types.SimpleNamespace:
    """Imports what samples from Reverb, 1 s and 60 MB more: ``TrajectoryDataset`` and TensorFlow's ``Options``.

    To be called while no other thread may import TensorFlow, so not by a thread of agentkit's own.
    """
    with _without_the_rest():
        from tensorflow.python.compat.v2_compat import enable_v2_behavior
        from tensorflow.python.data.ops import batch_op, dataset_ops, options, prefetch_op, repeat_op  # noqa: F401
        from tensorflow.python.framework.load_library import load_op_library
        from tensorflow.python.ops.math_ops import to_float
        from tensorflow.python.platform import resource_loader
    enable_v2_behavior()  # As TensorFlow's package does.
    data = types.SimpleNamespace(Dataset=dataset_ops.DatasetV1)
    more = {"data": data, "load_op_library": load_op_library, "resource_loader": resource_loader, "to_float": to_float}
    with _without_the_rest(**_contents, **more):
        from reverb.trajectory_dataset import TrajectoryDataset
    return types.SimpleNamespace(TrajectoryDataset=TrajectoryDataset, Options=options.Options)


def tensorflow() -> Any:
    """Imports the whole of TensorFlow."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import tensorflow as tf
    return tf


_T = TypeVar("_T")


class BoundedCalls:
    """Runs calls in a daemon thread, to stop waiting for one that never returns."""

    def __init__(self) -> None:
        self._tasks: queue.SimpleQueue[tuple[Callable[[], Any], list, threading.Event] | None] | None = None

    def __call__(self, function: Callable[[], _T], seconds: float) -> _T:
        """Returns or raises what `function` does; TimeoutError after `seconds`."""
        if self._tasks is None:
            self._tasks = queue.SimpleQueue()
            threading.Thread(target=self._run, args=(self._tasks,), name="reverb-calls", daemon=True).start()
        outcome: list[Any] = []
        done = threading.Event()
        self._tasks.put((function, outcome, done))
        if not done.wait(seconds):
            self._tasks = None  # That thread is stuck; the next call gets another one.
            raise TimeoutError
        value, error = outcome
        if error is not None:
            raise error
        return value

    def close(self) -> None:
        """Ends the thread, when its call is over."""
        if self._tasks is not None:
            self._tasks.put(None)
            self._tasks = None

    @staticmethod
    def _run(tasks: queue.SimpleQueue[Any]) -> None:
        while (task := tasks.get()) is not None:
            function, outcome, done = task
            try:
                outcome.extend([function(), None])
            except BaseException as error:  # handed to the caller
                outcome.extend([None, error])
            done.set()


class _Silence:
    """File descriptor 2, sent nowhere while at least one thread wants it so."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._depth = 0
        self._kept: int | None = None

    def enter(self) -> None:
        with self._lock:
            self._depth += 1
            if self._depth > 1:
                return
            sys.stderr.flush()
            try:
                self._kept = os.dup(2)
            except OSError:  # closed
                return
            with open(os.devnull, "w", encoding="utf-8") as nowhere:
                os.dup2(nowhere.fileno(), 2)

    def leave(self) -> None:
        with self._lock:
            self._depth -= 1
            if self._depth == 0 and self._kept is not None:
                os.dup2(self._kept, 2)
                os.close(self._kept)
                self._kept = None


_SILENCE = _Silence()


@contextlib.contextmanager
def quiet_stderr() -> Iterator[None]:
    """Sends file descriptor 2 nowhere for a moment: Reverb's C++ announces known facts there."""
    _SILENCE.enter()
    try:
        yield
    finally:
        _SILENCE.leave()
