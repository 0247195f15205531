"""Kills processes that write checkpoints and looks at what they leave. Run by test_checkpoint.py.

A program of its own, since it forks: in the test session, JAX's threads would be forked too.
"""

import json
import os
import pathlib
import random
import resource
import shutil
import signal
import sys
import time
import warnings
from collections.abc import Callable

import numpy as np

from agentkit import checkpoint, errors

KILLED = 9


def _state(step: int, size: int = 20_000) -> dict:
    return {"step": step, "array": np.full(size, step, np.int64), "nest": {"name": f"step {step}", "none": None}}


def _write(directory: pathlib.Path, step: int, **kwargs) -> None:
    def write_replay(folder: pathlib.Path) -> None:
        (folder / "deep").mkdir()
        (folder / "deep" / "data.bin").write_bytes(bytes([step % 256]) * 50_000)

    checkpoint.write(directory, step, _state(step), {"replay": write_replay}, **kwargs)


def _read(directory: pathlib.Path) -> int:
    """The newest checkpoint's step, -1 for none; fails if any part of it is another's, or on a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = checkpoint.read_latest(directory)
    if found is None:
        return -1
    step = found.step
    assert found.state["step"] == step and found.state["nest"] == {"name": f"step {step}", "none": None}
    np.testing.assert_array_equal(found.state["array"], _state(step)["array"])
    assert (found.path / "replay" / "deep" / "data.bin").read_bytes() == bytes([step % 256]) * 50_000
    return step


def _fork(function: Callable[..., None], *arguments: object) -> int:
    child = os.fork()
    if child == 0:
        try:
            function(*arguments)
        finally:
            os._exit(0)
    return child


def _write_for_ever(directory: pathlib.Path, begun: int) -> None:
    """Goes on from what is there, and tells the file descriptor `begun` each step before it is written."""
    step = _read(directory)
    while True:
        step += 1
        os.write(begun, step.to_bytes(8, "big"))
        _write(directory, step)


def _write_and_die(directory: pathlib.Path, step: int, max_to_keep: int, number: int) -> None:
    """Dies at file operation `number`, at once and without cleaning up."""
    count = 0

    def hook(event: str, args: tuple) -> None:
        nonlocal count
        if event == "open" or event.startswith(("os.", "shutil.")):
            count += 1
            if count == number:
                os._exit(KILLED)

    sys.addaudithook(hook)
    _write(directory, step, max_to_keep=max_to_keep)


def kill_at_random(directory: pathlib.Path, num_kills: int, seed: int) -> dict:
    """Resumes from what is left, writes on, is killed at a random instant; and again."""
    rng = random.Random(seed)
    _write(directory.with_name("scratch"), 0)
    leftovers = 0
    steps = []
    for _ in range(num_kills):
        begun_end, begun_start = os.pipe()

        child = _fork(_write_for_ever, directory, begun_start)
        os.close(begun_start)
        begun = os.read(begun_end, 8)
        # Up to three writes' time, at the speed that the machine has now.
        start = time.monotonic()
        _write(directory.with_name("scratch"), 0)
        time.sleep(rng.uniform(0.0, 2.0) * (time.monotonic() - start))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        while more := os.read(begun_end, 8):
            begun = more
        os.close(begun_end)
        last = int.from_bytes(begun, "big")
        found = _read(directory)
        assert found in (last, last - 1), f"began to write {last}, found {found}"
        leftovers += any(path.name.startswith(".") for path in directory.iterdir())
        steps.append(found)
    return {"kills": num_kills, "interrupted_writes": leftovers, "last_step": steps[-1]}


def kill_everywhere(directory: pathlib.Path, max_to_keep: int, same_step: bool) -> dict:
    """Kills a write at its first file operation, then at its second, ... until it is through."""
    number = 0
    while True:
        number += 1
        shutil.rmtree(directory, ignore_errors=True)
        for step in range(max_to_keep):
            _write(directory, step, max_to_keep=max_to_keep)
        before = max_to_keep - 1
        after = before if same_step else before + 1

        child = _fork(_write_and_die, directory, after, max_to_keep, number)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        found = _read(directory)
        assert found in (before, after), f"killed at operation {number}: found {found}"
        # The next writer clears what the dead one left.
        _write(directory, after + 1, max_to_keep=max_to_keep)
        assert _read(directory) == after + 1
        names = sorted(path.name for path in directory.iterdir())
        assert len(names) <= max_to_keep and not any(name.startswith(".") for name in names), names
        if status != KILLED:
            assert found == after
            return {"operations": number - 1}


def limit_file_size(directory: pathlib.Path) -> dict:
    """A disk that refuses: files of more than 100 kB cannot be written."""
    _write(directory, 1)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
    try:
        _write(directory, 2)
    except errors.CheckpointError as error:
        message = str(error)
    names = sorted(path.name for path in directory.iterdir())
    return {"message": message, "found": _read(directory), "names": names}


if __name__ == "__main__":
    mode, folder, *arguments = sys.argv[1:]
    result = {
        "random": lambda: kill_at_random(pathlib.Path(folder), int(arguments[0]), seed=0),
        "everywhere": lambda: kill_everywhere(pathlib.Path(folder), int(arguments[0]), arguments[1] == "same"),
        "full": lambda: limit_file_size(pathlib.Path(folder)),
    }[mode]()
    print(json.dumps(result))
