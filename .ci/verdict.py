"""Judges what a test run reported (``--report``): gives races a second chance, and finds what passed nowhere.

.ci/verdict.py again REPORT [--full]  runs at most three failed tests once more, alone, in a fresh process
.ci/verdict.py nowhere REPORT...      lists the tests that passed in none of the reports, of all stacks
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[1]
MOST_FAILURES = 3

# One process, and nothing that depends on a clock: what fails here once is a defect, but for what a test costs.
IN_PROCESS = ("tests/losses/", "tests/adders/", "tests/replay/in_process/", "tests/networks/", "tests/agents/")
IN_PROCESS_BUT = {"reverb", "ray"}

# What both stacks skip, and who runs it.
ELSEWHERE = {
    "tests/envs/test_gymnax.py": ".ci/smoke, with the gymnasium that gymnax wants",
    "tests/envs/test_jaxmarl.py": ".ci/smoke, with gymnax, which it asks for",
    "tests/envs/test_pgx.py": ".ci/smoke, with the other environments in JAX",
    "tests/envs/test_others_in_jax.py": ".ci/smoke, with the mujoco that MuJoCo Playground wants",
    "tests/envs/test_metaworld.py": ".ci/smoke, with the mujoco that Meta-World wants",
    "tests/experiment/test_own_boxes.py::test_torch_learns_and_is_resumed": ".ci/smoke, with torch",
    "tests/experiment/test_launched_own_boxes.py::test_torch_is_launched_killed_resumed_and_evaluated": ".ci/smoke",
    "tests/launch/test_slurm.py": "a machine that has SLURM, which no package index has",
}

Line = Mapping[str, Any]


def read(path: str | pathlib.Path) -> list[Line]:
    """Reads a report."""
    return [json.loads(line) for line in pathlib.Path(path).read_text().splitlines()]


def forgiven_before(path: pathlib.Path = ROOT / "tests" / "flaky.txt") -> set[str]:
    """Returns the tests that tests/flaky.txt names: ``id | date | cause`` on a line."""
    lines = path.read_text().splitlines()
    return {line.partition(" | ")[0].strip() for line in lines if line and not line.startswith("#")}


def why_no_second_chance(failed: Iterable[Line], forgiven: set[str]) -> list[str]:
    """Returns why failures must not be tried again; nothing where they may."""
    failed = list(failed)
    if len(failed) > MOST_FAILURES:
        return [f"{len(failed)} tests failed, and at most {MOST_FAILURES} are tried again."]
    why = []
    for line in failed:
        if line["id"] in forgiven:
            why.append(f"{line['id']} was forgiven once already: tests/flaky.txt has it.")
        elif line.get("too_dear"):
            continue
        elif line["id"].startswith(IN_PROCESS) and not IN_PROCESS_BUT & set(line.get("marks", ())):
            why.append(f"{line['id']} runs in one process, without a clock: it is no race.")
    return why


def again(report: str, *tier: str) -> int:
    """Runs a report's failed tests once more and says what came of it; returns 0 where all of them passed.

    What then passed is added to the report.
    """
    failed = [line for line in read(report) if line["outcome"] == "failed"]
    if not failed:
        print("The run failed, and its report has no failed test: see its output.")
        return 1
    if why := why_no_second_chance(failed, forgiven_before()):
        print("\n".join(why))
        return 1
    with tempfile.NamedTemporaryFile(suffix=".jsonl") as file:
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tier, f"--report={file.name}"]
        environment = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}
        subprocess.run([*command, *(line["id"] for line in failed)], cwd=ROOT, env=environment, check=False)
        found = [line for line in read(file.name) if line["outcome"] == "passed"]
    with open(report, "a") as file_of_all:
        file_of_all.writelines(f"{json.dumps(line)}\n" for line in found)
    passed = {line["id"] for line in found}
    for line in failed:
        if line["id"] in passed:
            print(f"FLAKY: {line['id']}\n{line['shown']}")
    print(
        f"{len(failed)} failed, {len(passed)} of them passed alone: write those into tests/flaky.txt, with the cause."
    )
    return int(any(line["id"] not in passed for line in failed))


def nowhere(reports: Iterable[Iterable[Line]]) -> list[str]:
    """Returns the tests of the tier, and the files skipped as a whole, of which no report says that they passed.

    Tests that a report says were deselected are of the other stack, which has them all but where it skips the file: one
    that lacks its mark there runs on neither.
    """
    lines = [line for report in reports for line in report]
    passed, left, skipped = (
        {line["id"] for line in lines if line["outcome"] == outcome} for outcome in ("passed", "left", "skipped")
    )
    asked = {
        line["id"] for line in lines if line["outcome"] != "deselected" or line["id"].partition("::")[0] in skipped
    }
    files = {name.partition("::")[0] for name in passed | left}
    missing = asked - passed - left - files
    return sorted(name for name in missing if not {name, name.partition("::")[0]} & ELSEWHERE.keys())


def main() -> int:
    """Runs what the command line asks for."""
    what, *arguments = sys.argv[1:]
    if what == "again":
        return again(*arguments)
    missing = nowhere(map(read, arguments))
    print("\n".join(["These tests passed on no stack:", *missing] if missing else ["Each test passed on a stack."]))
    return int(bool(missing))


if __name__ == "__main__":
    sys.exit(main())
