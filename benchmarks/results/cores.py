"""Shares trainings out to cores: one at a time on each."""

from __future__ import annotations

import contextlib
import queue
import shutil
import threading
from collections.abc import Callable, Iterable
from typing import TypeVar

Job = TypeVar("Job")


def run_on_cores(jobs: Iterable[Job], cores: Iterable[int], run: Callable[[Job, list[str]], None]) -> int:
    """Calls ``run(job, prefix)`` for each job, in a thread for each core; prints those that raise, and counts them.

    Commands that begin with `prefix` are pinned to the core: XLA sizes its threads by it, so each has the same share.
    """
    waiting: queue.SimpleQueue[Job] = queue.SimpleQueue()
    for job in jobs:
        waiting.put(job)
    failures: list[str] = []

    def work(core: int) -> None:
        prefix = ["taskset", "-c", str(core)] if shutil.which("taskset") else []
        with contextlib.suppress(queue.Empty):
            while True:
                job = waiting.get_nowait()
                try:
                    run(job, prefix)
                except Exception as error:  # One that fails shall not end the others.
                    failures.append(f"{job}: {error}")

    threads = [threading.Thread(target=work, args=(core,)) for core in cores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print("\n".join(failures))
    return len(failures)
