"""What a soak takes from a program and measures of it: room on its disk; memory and descriptors of its processes."""

from __future__ import annotations

import collections
import contextlib
import os
import pathlib
import subprocess
import time
from typing import Any

import psutil


class SmallDisk:
    """A tmpfs of so many megabytes at a folder, which can be filled to the last byte and freed again. Needs root."""

    def __init__(self, folder: pathlib.Path, megabytes: int):
        self.folder = folder
        command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder)]
        subprocess.run(command, check=True)

    @property
    def is_full(self) -> bool:
        return (self.folder / "other").exists()

    def fill(self) -> None:
        with open(self.folder / "other", "ab", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(1 << 16))

    def free(self) -> None:
        (self.folder / "other").unlink(missing_ok=True)

    def unmount(self, files: pathlib.Path) -> None:
        """Copies its files to another folder first, to be looked at afterwards."""
        self.free()
        subprocess.run(["cp", "-a", f"{self.folder}/.", str(files)], check=True)
        subprocess.run(["umount", "--lazy", str(self.folder)], check=True)


class Resources:
    """Memory (MB, unique to the process) and descriptors of each role's processes, over the time of a soak.

    A process is looked at from its 20th second on: until then it imports, compiles and restores. Replay's memory grows
    until its table is full.
    """

    def __init__(self) -> None:
        self.seen: dict[str, list[tuple[float, float, int]]] = collections.defaultdict(list)  # (time, MB, descriptors)

    def look(self, nodes: dict[str, int]) -> None:
        """Takes a measurement of processes by role and PID."""
        for name, pid in nodes.items():
            with contextlib.suppress(psutil.Error):
                process = psutil.Process(pid)
                if time.time() - process.create_time() > 20.0:
                    memory = process.memory_full_info().uss / 2**20
                    self.seen[name].append((time.monotonic(), memory, process.num_fds()))

    def summary(self) -> dict[str, Any]:
        """Returns each role's medians in the first and in the last third of its measurements, and its maxima."""
        found = {}
        for name, rows in self.seen.items():
            third = max(1, len(rows) // 3)
            found[name] = {
                "megabytes": [middle(row[1] for row in rows[:third]), middle(row[1] for row in rows[-third:])],
                "descriptors": [middle(row[2] for row in rows[:third]), middle(row[2] for row in rows[-third:])],
                "max": [round(max(row[1] for row in rows)), max(row[2] for row in rows)],
                "measurements": len(rows),
            }
        return found


def middle(values: Any) -> float:
    ordered = sorted(values)
    return round(float(ordered[len(ordered) // 2]), 1)


def node_pids(status: dict[str, Any], supervisor: int) -> dict[str, int]:
    """Returns the PIDs of the nodes that live, by name, and the supervisor's."""
    pids = {name: node["pid"] for name, node in status["nodes"].items() if node["state"] == "ready" and node["pid"]}
    return {**{name: pid for name, pid in pids.items() if pid != os.getpid()}, "supervisor": supervisor}
