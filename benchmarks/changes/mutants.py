"""Which single-line faults in the code the two tiers of tests notice: a random sample of each folder.

``nice -n 15 python benchmarks/changes/mutants.py --json mutants.json`` goes on where an earlier call with the same file
stopped, prints the share that each tier notices, and every survivor; docs/benchmarks/mutants.md has what was found.

Each mutant meets the tests in steps until one fails: the nearest ones of the landing tier, a wider set of it, and what
only ``--full`` runs in both (`nearest_tests.py`). A test that fails counts if it fails alone, too, and passes without
the mutant; else it is left out and the step repeated. A mutant that changes nothing can be marked in the file by hand,
``"equivalent": "why"``, and is then counted apart.

It is our own since the two well-kept tools do not fit tests that load JAX. mutmut 3 runs the tests in the process that
it then forks for each mutant, and to fork one whose JAX has begun to compute hangs or dies. cosmic-ray starts a new
interpreter for each mutant, which is 3 seconds of imports, and runs one test command for all files. Neither bounds a
run by minutes. Here the third parties' packages are imported once; each mutant is a fork of that process, made before
JAX has any backend, which imports agentkit from a copy with one change and runs tests until one fails. What was
compiled stays on disk between them: most mutants change little of it.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import importlib
import json
import os
import pathlib
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from typing import Any, NamedTuple

import mutations
import nearest_tests
from mutations import Mutant

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDERS = {"losses": 1, "adders": 1, "replay/in_process": 1, "learning": 1}
FOLDERS |= {"variables": 1, "actors": 1, "agents": 2, "experiment": 2}
"""By folder of agentkit, its part of the sample."""

OTHER_STACK = ("reverb.py", "savedmodel.py")
"""Files that the newest stack cannot import."""


class Step(NamedTuple):
    """Tests that a mutant meets, if it survived those before.

    Attributes:
        options: of pytest.
        cpu_seconds: of processor time that they may take, since the machine does other things.
        wall_seconds: that they may take in case they wait for ever.
    """

    options: tuple[str, ...]
    cpu_seconds: int
    wall_seconds: float


STEPS = {
    "nearest": Step((), 600, 1800.0),
    "wider": Step((), 900, 2700.0),
    "full": Step(("--full", "-m", "full or one_case", "--timeout=900", "-o", "faulthandler_timeout=930"), 1200, 3600.0),
}
LANDING = ("nearest", "wider")
NOT_NOTICED = ("passed", "too long")  # Out of time, nothing had failed: a test that hangs fails before.

LOADED = "jax jax.numpy haiku optax rlax chex numpy scipy.stats tree dm_env hypothesis.extra.numpy psutil rich mctx"
LOADED += " cloudpickle h5py matplotlib gymnasium _pytest.pytester"
SETTINGS = {
    "JAX_PLATFORMS": "cpu",
    "JAX_NUMPY_RANK_PROMOTION": "raise",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
}
SETTINGS |= {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", "MPLBACKEND": "Agg", "CUDA_VISIBLE_DEVICES": ""}

Row = dict[str, Any]


def sample(folder: str, seed: int) -> list[Mutant]:
    """Returns all mutants of a folder whose files have a near test, in an order that the seed gives."""
    files = [file.relative_to(ROOT).as_posix() for file in sorted((ROOT / "agentkit" / folder).rglob("*.py"))]
    found = [
        mutant
        for path in files
        if nearest_tests.nearest(path) and not path.endswith(OTHER_STACK)
        for mutant in mutations.mutants_of(path, (ROOT / path).read_text())
    ]
    random.Random(f"{seed}{folder}").shuffle(found)
    return found


def numbers(folders: list[str], number: int) -> dict[str, int]:
    """Returns how many mutants each folder gets, by its part; together they are `number`."""
    shares: dict[str, int] = {}
    for place, folder in enumerate(folders):
        left = sum(FOLDERS[name] for name in folders[place:])
        shares[folder] = round((number - sum(shares.values())) * FOLDERS[folder] / left)
    return shares


def diff(mutant: Mutant) -> list[str]:
    """Returns the lines that a mutant takes out (``-``) and puts in (``+``)."""
    before = (ROOT / mutant.path).read_text().splitlines()
    lines = difflib.unified_diff(before, mutant.source.splitlines(), n=0, lineterm="")
    return [line for line in lines if line[:1] in "-+" and line[:3] not in ("---", "+++")]


@contextlib.contextmanager
def copied() -> Iterator[pathlib.Path]:
    """Yields a copy of what git knows of the repository."""
    with tempfile.TemporaryDirectory(prefix="agentkit-mutants-") as folder:
        copy = pathlib.Path(folder) / "repository"
        listed = subprocess.run(["git", "ls-files", "-coz", "--exclude-standard"], cwd=ROOT, stdout=-1, check=True)
        for name in filter(None, listed.stdout.decode().split("\0")):
            if (ROOT / name).is_file():
                (copy / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, copy / name)
        # By their contents: a mutant has the time and often the length of the file that it replaces.
        compiled = ["-m", "compileall", "-q", "--invalidation-mode", "checked-hash", "agentkit"]
        subprocess.run([sys.executable, *compiled], cwd=copy, check=True)
        os.environ["TMPDIR"] = tempfile.tempdir = folder
        yield copy


@contextlib.contextmanager
def changed(copy: pathlib.Path, mutant: Mutant) -> Iterator[None]:
    """Lets the copy have the mutant's file."""
    original = (copy / mutant.path).read_text()
    (copy / mutant.path).write_text(mutant.source)
    try:
        yield
    finally:
        (copy / mutant.path).write_text(original)


def outcome(copy: pathlib.Path, tests: tuple[str, ...], step: Step, left_out: frozenset[str] = frozenset()) -> str:
    """Runs tests in a fork until one fails: "passed", the one that failed, or how it ended else."""
    log = copy.parent / "log"
    child = os.fork()
    if child == 0:
        _test(copy, tests, step, left_out, log)
    until = time.monotonic() + step.wall_seconds
    while not (ended := os.waitpid(child, os.WNOHANG))[0] and time.monotonic() < until:
        time.sleep(0.05)
    with contextlib.suppress(ProcessLookupError):  # Also what a test may have left.
        os.killpg(child, signal.SIGKILL)
    if not ended[0]:
        os.waitpid(child, 0)
        return "too long"
    code = os.waitstatus_to_exitcode(ended[1])
    if code in (0, 5):  # 5: none of these tests is in the tier.
        return "passed"
    if code < 0:
        return "too long" if -code in (signal.SIGXCPU, signal.SIGKILL) else "crashed"
    text = log.read_text(errors="replace")
    failed = re.findall(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", text, re.MULTILINE)
    return failed[0].removeprefix("tests/") if failed else "failed before any test: " + text[-200:]


def _test(copy: pathlib.Path, tests: tuple[str, ...], step: Step, left_out: frozenset[str], log: pathlib.Path) -> None:
    """Never returns."""
    status = 99
    try:
        os.setpgid(0, 0)
        os.chdir(copy)
        resource.setrlimit(resource.RLIMIT_CPU, (step.cpu_seconds, step.cpu_seconds + 5))
        with log.open("w") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        sys.dont_write_bytecode = True
        os.environ |= {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
        sys.path[0:1] = [str(copy)]
        import pytest

        import agentkit

        assert agentkit.__file__.startswith(str(copy)), agentkit.__file__
        options = ["-x", "-q", "--tb=line", "-p", "no:cacheprovider", "-p", "no:xdist"]
        options += ["-W", "ignore::pytest.PytestAssertRewriteWarning", *step.options]
        options += [f"--deselect=tests/{name}" for name in sorted(left_out)]
        status = int(pytest.main([*options, *(f"tests/{name}" for name in tests)]))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def judge(copy: pathlib.Path, mutant: Mutant, tests: tuple[str, ...], step: Step, unsound: set[str]) -> str:
    """Returns what noticed a mutant, as `outcome` does; "undecided: " and why where tests fail for other reasons.

    Args:
        copy: of the repository.
        mutant: the change.
        tests: that it meets.
        step: how they run.
        unsound: tests that failed without a mutant, which are left out; what is found to be such is added.
    """
    left_out, noticed = frozenset(unsound), ""
    for _ in range(4):
        with changed(copy, mutant):
            noticed = outcome(copy, tests, step, left_out)
            is_test = re.match(r"\S+\.py", noticed) is not None
            alone = outcome(copy, (noticed,), step) if is_test else "fails"
        if not is_test:
            return noticed
        if outcome(copy, (noticed,), step) != "passed":
            unsound.add(noticed)
        elif alone != "passed":
            return noticed
        left_out |= {noticed}
    return f"undecided: {noticed} fails without it, too, or only now and then"


def examine(copy: pathlib.Path, mutant: Mutant, row: Row, unsound: set[str]) -> Iterator[None]:
    """Runs the steps that a row lacks until one notices the mutant, and yields after each."""
    nearest, wider = nearest_tests.nearest(mutant.path), nearest_tests.wider(mutant.path)
    tests = {"nearest": nearest, "wider": wider, "full": nearest + wider}
    for name, step in STEPS.items():
        if name not in row["steps"]:
            start = time.monotonic()
            noticed = judge(copy, mutant, tests[name], step, unsound)
            seconds = round(time.monotonic() - start)
            row["steps"][name] = {"outcome": noticed, "seconds": seconds, "tests": tests[name]}
            print(f"{mutant.name} | {name}, {seconds} s | {noticed}", flush=True)
            yield
        if row["steps"][name]["outcome"] not in NOT_NOTICED:
            return


def rows_of(samples: dict[str, list[Mutant]], earlier: dict[str, list[Row]], again: bool) -> dict[str, list[Row]]:
    """Returns a row for each mutant, with what an earlier call found of it but for what was undecided.

    Args:
        samples: the mutants, by folder.
        earlier: rows of an earlier call.
        again: begin anew with the mutants that nothing noticed.
    """
    found = {(row["mutant"], *row["diff"]): row for rows in earlier.values() for row in rows}
    rows = {}
    for folder, mutants in samples.items():
        rows[folder] = [{"mutant": mutant.name, "diff": diff(mutant), "steps": {}} for mutant in mutants]
        rows[folder] = [found.pop((row["mutant"], *row["diff"]), row) for row in rows[folder]]
    if found:
        raise SystemExit(
            f"the file has {len(found)} mutants that are not of this sample, as {next(iter(found))[0]}: give it its "
            "own --folders, --number and --seed, and its code; or another file"
        )
    for row in [row for rows_of_folder in rows.values() for row in rows_of_folder]:
        outcomes = {name: step["outcome"] for name, step in row["steps"].items()}
        if again and outcomes.get("full") in NOT_NOTICED and "equivalent" not in row:
            row["steps"] = {}
        row["steps"] = {name: row["steps"][name] for name in row["steps"] if "undecided" not in outcomes[name]}
    return rows


def write(path: pathlib.Path, results: dict[str, list[Row]]) -> None:
    """Writes the results, whole or not at all."""
    new = path.with_suffix(".new")
    new.write_text(json.dumps(results, indent=1) + "\n")
    new.replace(path)


def noticed_by(row: Row) -> str | None:
    """Returns the step that noticed a mutant, "nothing" where all passed, or None where that is not known."""
    for name, step in row["steps"].items():
        if step["outcome"] not in NOT_NOTICED:
            return None if step["outcome"].startswith("undecided") else name
    return "nothing" if "full" in row["steps"] else None


def report(results: dict[str, list[Row]]) -> str:
    """Returns the share that each tier notices, by folder and of all, and the survivors with what they met."""
    all_rows = [row for rows in results.values() for row in rows]
    text = ["", "| folder | decided | landing tier | --full | equivalent | not decided |", "|---|---|---|---|---|---|"]
    for folder, rows in [*results.items(), ("all", all_rows)]:
        counted = [noticed_by(row) for row in rows if "equivalent" not in row]
        decided = [by for by in counted if by is not None]
        landing, full = sum(by in LANDING for by in decided), sum(by in STEPS for by in decided)
        shares = [f"{number} ({number / max(len(decided), 1):.0%})" for number in (landing, full)]
        cells = [folder, len(decided), *shares, len(rows) - len(counted), len(counted) - len(decided)]
        text.append(f"| {' | '.join(map(str, cells))} |")
    titles = {"nothing": "noticed by nothing", "full": "noticed by --full only", None: "not decided"}
    for by, title in titles.items():
        found = [row for row in all_rows if noticed_by(row) == by and row["steps"] and "equivalent" not in row]
        text += [f"\n{title}: {len(found)}"] + [line for row in found for line in _shown(row)]
    equivalent = [row for row in all_rows if "equivalent" in row]
    text += [f"\nequivalent: {len(equivalent)}"]
    text += [line for row in equivalent for line in (*_shown(row)[:-1], f"    because {row['equivalent']}")]
    return "\n".join(text)


def _shown(row: Row) -> list[str]:
    met = []
    for name, step in row["steps"].items():
        tests = step["tests"]
        more = f" and {len(tests) - 3} more" if len(tests) > 3 else ""
        met.append(f"{name}: {step['outcome']} ({', '.join(tests[:3])}{more})")
    return [f"  {row['mutant']}", *(f"    {line}" for line in row["diff"]), "    met " + "; ".join(met)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", metavar="FILE", type=pathlib.Path, required=True, help="the results, to go on from")
    parser.add_argument("--number", type=int, default=60, help="of mutants, in all folders together")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="stop before the next step then")
    parser.add_argument("--folders", nargs="+", choices=FOLDERS, default=list(FOLDERS))
    parser.add_argument("--seed", type=int, default=0, help="chooses the sample")
    parser.add_argument("--again", action="store_true", help="run anew those that nothing noticed")
    args = parser.parse_args()
    until = time.monotonic() + 60.0 * args.minutes
    shares = numbers(args.folders, args.number)
    samples = {folder: sample(folder, args.seed)[:share] for folder, share in shares.items()}
    earlier = json.loads(args.json.read_text()) if args.json.exists() else {}
    results = rows_of(samples, earlier, args.again)
    with copied() as copy:
        os.environ |= SETTINGS | {"JAX_COMPILATION_CACHE_DIR": str(copy.parent / "compiled")}
        for name in LOADED.split():
            with contextlib.suppress(ImportError):
                importlib.import_module(name)
        unsound: set[str] = set()
        pairs = [pair for folder in samples for pair in zip(samples[folder], results[folder], strict=True)]
        for mutant, row in pairs:
            if time.monotonic() < until and "equivalent" not in row:
                for _ in examine(copy, mutant, row, unsound):
                    write(args.json, results)
                    if time.monotonic() > until:
                        break
    print(report(results))


if __name__ == "__main__":
    main()
