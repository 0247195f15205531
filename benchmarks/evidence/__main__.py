"""Trains what `evidence.toml` lists, and makes the tables and plots of docs/results from the records.

    python -m benchmarks.evidence list                               # every run, and whether it is recorded
    AGENTKIT_EVIDENCE=~/evidence python -m benchmarks.evidence run   # the next one, and so on
    python -m benchmarks.evidence tables

``run`` works at the lowest priority on one core. SIGTERM, to it or to its process group, lets it save and end, and its
next start goes on from there; to pause it for a measurement, stop the whole group (``kill -STOP -- -PID``, later
``-CONT``). It appends a line to docs/results/records.jsonl for each run that ended. A run that failed is tried again at
the next start.
"""

from __future__ import annotations

import argparse
import os
import pathlib

from agentkit.errors import AgentkitError
from benchmarks.evidence.plan import ROOT, read_records, read_runs

FOLDER = "AGENTKIT_EVIDENCE"
"""Names the variable with the folder of the runs, which must be outside of the repository."""


def main() -> int:
    """Runs a command; returns its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("list", "run", "tables"))
    try:
        return _do(parser.parse_args().command)
    except AgentkitError as error:  # Such as LockedError: another queue is at work there.
        raise SystemExit(f"benchmarks.evidence: {error}") from None
    except OSError as error:  # Such as a full disk.
        raise SystemExit(f"benchmarks.evidence: {error}. Mend that and start again: what is trained is kept.") from None


def _do(command: str) -> int:
    if command == "run":
        from benchmarks.evidence import queue

        folder = pathlib.Path(os.environ.get(FOLDER, "")).absolute()
        if FOLDER not in os.environ or folder == ROOT or ROOT in folder.parents:
            raise SystemExit(f"{FOLDER}: expected a folder outside of {ROOT}, found {os.environ.get(FOLDER)!r}.")
        return queue.run(folder)
    records = read_records()
    if command == "list":
        for run in read_runs():
            found = records.get(run.name)
            print("missing" if found is None else "old    " if found.commit is None else "done   ", run.name)
    else:
        from benchmarks.evidence import tables

        tables.write(records.values())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
