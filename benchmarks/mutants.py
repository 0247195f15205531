"""Which single-line faults in the code the nearest tests notice: a random sample of each folder.

``python benchmarks/mutants.py --minutes 30`` (niced, on a machine that does other things) prints the share that is
noticed and every survivor; docs/benchmarks/mutants.md has what was found. ``--json`` keeps the results, ``--again``
runs an earlier file's survivors only, and ``--tests COMMIT`` takes the tests of another commit.

It is our own since the two well-kept tools do not fit tests that load JAX. mutmut 3 runs the tests in the process that
it then forks for each mutant, and to fork one whose JAX has begun to compute hangs or dies. cosmic-ray starts a new
interpreter for each mutant, which is 3 seconds of imports, and runs one test command for all files. Neither bounds a
run by minutes. Here the third parties' packages are imported once; each mutant is a fork of that process, made before
JAX has any backend, which imports agentkit from a copy with one change and runs the few nearest test files until one
fails. What was compiled stays on disk between them: most mutants change little of it.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
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

import mutations
from mutations import Mutant

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDERS = {"losses": 1.0, "adders": 1.0, "replay/in_process": 1.0, "learning": 1.0, "agents": 4.0}
"""By folder of agentkit, its part of the minutes."""

CPU_SECONDS, WALL_SECONDS = 200, 900.0
"""What one mutant may take: processor time, since the machine does other things; and in case it waits for ever."""

TESTS: dict[str, tuple[str, ...]] = {
    "losses/continuous": ("losses/test_continuous.py",),
    "losses/distributional": ("losses/test_distributional.py", "losses/test_categorical.py"),
    "losses/library": ("losses/test_value.py", "replay/reverb/test_library.py"),
    "losses/planning": ("losses/test_planning.py",),
    "losses/regression": ("losses/test_offline.py",),
    "losses/v_trace": ("losses/test_vtrace.py",),
    "losses/value": ("losses/test_value.py", "losses/test_offline.py"),
    "adders": ("adders",),
    "learning/compiled": ("learning/test_learner.py", "experiment/test_shared_parts.py"),
    "learning/finite": ("learning/test_learner.py", "experiment/test_not_finite.py"),
    "learning/gradients": ("learning/test_apply_gradients.py",),
    "learning/optimizers": ("learning", "agents/test_updates_by_hand.py"),
    "replay/in_process": ("replay/in_process", "replay/test_lockstep.py"),
    "replay/in_process/slots": ("replay/in_process/test_slots.py", "replay/in_process"),
    "replay/in_process/sum_tree": ("replay/in_process/test_sum_tree.py", "replay/in_process"),
    "agents/common/advantages": ("agents/test_losses_by_hand.py", "agents/test_a2c.py"),
    "agents/common/agent": ("agents/test_composition.py", "agents/test_dqn.py"),
    "agents/common/epochs": ("agents/test_minibatches.py",),
    "agents/common/experience": ("agents/test_dqn.py", "agents/test_r2d2.py", "agents/test_a2c.py"),
    "agents/common/experience_wrappers": ("agents/test_composition.py", "experiment/test_reverb_run.py"),
    "agents/common/natural_gradient": ("agents/test_natural_gradient.py", "agents/test_npg.py"),
    "agents/common/prioritized": ("losses/test_value.py", "agents/test_losses_by_hand.py", "agents/test_schedules.py"),
    "agents/common/ranges": ("agents/test_ranges.py",),
    "agents/common/torso": ("agents/test_torso.py",),
    "agents/common/drq": ("agents/addons/test_drq.py",),
    "agents/common/past": ("agents/addons/test_views.py",),
    "agents/common/views": ("agents/addons/test_views.py",),
    "agents/addons/prior_data": ("experiment/test_prior_data.py",),
    "agents/addons/rewards": ("agents/addons",),
    "agents/dqn": ("agents/test_losses_by_hand.py", "agents/test_dqn.py"),
    "agents/munchausen_dqn": ("agents/test_munchausen.py",),
    "agents/c51": ("agents/test_distributional_by_hand.py", "agents/test_c51.py"),
    "agents/iqn": ("agents/test_distributional_by_hand.py", "agents/test_iqn.py"),
    "agents/qr_dqn": ("agents/test_distributional_by_hand.py", "agents/test_qr_dqn.py"),
    "agents/rainbow": ("agents/test_distributional_by_hand.py", "agents/test_rainbow.py"),
    "agents/ppo": ("agents/test_losses_by_hand.py", "agents/test_ppo.py", "agents/test_minibatches.py"),
}
"""Tests nearest to a file of agentkit/, for those whose own file is not all; of a folder, what follows the own file."""

BY_HAND = ("sac", "td3", "td3_bc", "ddpg", "d4pg", "redq", "droq", "cql", "discrete_sac", "crr", "iql", "mpo")
LOADED = "jax jax.numpy haiku optax rlax chex numpy scipy.stats tree dm_env hypothesis.extra.numpy psutil rich mctx"
LOADED += " cloudpickle h5py matplotlib gymnasium _pytest.pytester"
SETTINGS = {
    "JAX_PLATFORMS": "cpu",
    "JAX_NUMPY_RANK_PROMOTION": "raise",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
}
SETTINGS |= {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", "MPLBACKEND": "Agg", "CUDA_VISIBLE_DEVICES": ""}


def tests_of(path: str) -> tuple[str, ...]:
    """Returns the nearest tests of a file of agentkit, as paths below tests/."""
    module = path.removeprefix("agentkit/").removesuffix(".py")
    folder, name = os.path.split(module)
    own = (f"{folder}/test_{name}.py",) if (ROOT / "tests" / folder / f"test_{name}.py").exists() else ()
    by_hand = ("agents/test_updates_by_hand.py",) if folder == "agents" and name in BY_HAND else ()
    return by_hand + (TESTS.get(module) or own + TESTS.get(folder, ()))


def sample(folder: str, seed: int) -> list[Mutant]:
    """Returns all mutants of a folder whose files have a near test, in an order that the seed gives."""
    files = [file.relative_to(ROOT).as_posix() for file in sorted((ROOT / "agentkit" / folder).rglob("*.py"))]
    found = [
        mutant for path in files if tests_of(path) for mutant in mutations.mutants_of(path, (ROOT / path).read_text())
    ]
    random.Random(f"{seed}{folder}").shuffle(found)
    return found


@contextlib.contextmanager
def copied(tests_from: str | None) -> Iterator[pathlib.Path]:
    """Yields a copy of what git knows of the repository, with the tests of another commit where one is given."""
    with tempfile.TemporaryDirectory(prefix="agentkit-mutants-") as folder:
        copy = pathlib.Path(folder) / "repository"
        listed = subprocess.run(["git", "ls-files", "-coz", "--exclude-standard"], cwd=ROOT, stdout=-1, check=True)
        for name in filter(None, listed.stdout.decode().split("\0")):
            if (ROOT / name).is_file() and not name.startswith("docs/results/"):
                (copy / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, copy / name)
        if tests_from is not None:
            shutil.rmtree(copy / "tests")
            archive = subprocess.run(["git", "archive", tests_from, "tests"], cwd=ROOT, stdout=-1, check=True)
            subprocess.run(["tar", "x"], input=archive.stdout, cwd=copy, check=True)
        # By their contents: a mutant has the time and often the length of the file that it replaces.
        compiled = ["-m", "compileall", "-q", "--invalidation-mode", "checked-hash", "agentkit"]
        subprocess.run([sys.executable, *compiled], cwd=copy, check=True)
        os.environ["TMPDIR"] = tempfile.tempdir = folder
        yield copy


def outcome(copy: pathlib.Path, tests: tuple[str, ...]) -> str:
    """Runs tests in a fork until one fails: "passed", the one that failed, or how it ended else."""
    log = copy.parent / "log"
    child = os.fork()
    if child == 0:
        _test(copy, tests, log)
    until = time.monotonic() + WALL_SECONDS
    while not (ended := os.waitpid(child, os.WNOHANG))[0] and time.monotonic() < until:
        time.sleep(0.05)
    with contextlib.suppress(ProcessLookupError):  # Also what a test may have left.
        os.killpg(child, signal.SIGKILL)
    if not ended[0]:
        os.waitpid(child, 0)
        return "too long"
    if ended[1] == 0:
        return "passed"
    if os.WIFSIGNALED(ended[1]):
        return "too long" if os.WTERMSIG(ended[1]) in (signal.SIGXCPU, signal.SIGKILL) else "crashed"
    text = log.read_text(errors="replace")
    failed = re.findall(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", text, re.MULTILINE)
    return failed[0].removeprefix("tests/") if failed else "failed before any test: " + text[-200:]


def _test(copy: pathlib.Path, tests: tuple[str, ...], log: pathlib.Path) -> None:
    """Never returns. Learning tests are left out: they cost most, and what they notice, others should say."""
    status = 99
    try:
        os.setpgid(0, 0)
        os.chdir(copy)
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS + 5))
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
        options += ["-W", "ignore::pytest.PytestAssertRewriteWarning", "-m", "not slow", "-k", "not it_learns"]
        there = [f"tests/{name}" for name in tests if (copy / "tests" / name.partition("::")[0]).exists()]
        status = int(pytest.main([*options, *there]))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def examine(copy: pathlib.Path, mutants: list[Mutant], minutes: float) -> Iterator[dict[str, str]]:
    """Runs as many mutants as the minutes allow, and says what noticed each.

    A test that fails must pass on the code as it is: else the test, and not the mutant, is at fault.
    """
    sound: dict[str, bool] = {}
    until = time.monotonic() + 60.0 * minutes
    for mutant in mutants:
        if time.monotonic() > until:
            break
        original = (copy / mutant.path).read_text()
        (copy / mutant.path).write_text(mutant.source)
        noticed = outcome(copy, tests_of(mutant.path))
        (copy / mutant.path).write_text(original)
        found = "::" in noticed
        if found and noticed not in sound:
            sound[noticed] = outcome(copy, (noticed,)) == "passed"
        if found and not sound[noticed]:
            noticed = f"undecided: {noticed} fails without it, too"
        print(f"{mutant.name} | {'SURVIVES' if noticed == 'passed' else noticed}", flush=True)
        yield {"mutant": mutant.name, "noticed_by": noticed}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30.0, help="of wall time, for all folders together")
    parser.add_argument("--folders", nargs="+", choices=FOLDERS, default=list(FOLDERS))
    parser.add_argument("--seed", type=int, default=0, help="chooses the sample")
    parser.add_argument("--tests", metavar="COMMIT", help="take the tests of this commit")
    parser.add_argument(
        "--again", metavar="FILE", type=pathlib.Path, help="only survivors, and the undecided, of this file"
    )
    parser.add_argument("--json", metavar="FILE", type=pathlib.Path, help="write the results here")
    args = parser.parse_args()
    samples = {folder: sample(folder, args.seed) for folder in args.folders}
    if args.again is not None:
        earlier = json.loads(args.again.read_text())
        kinds = ("passed", "too long", "undecided")
        survived = {x["mutant"] for rows in earlier.values() for x in rows if x["noticed_by"].startswith(kinds)}
        samples = {folder: [m for m in mutants if m.name in survived] for folder, mutants in samples.items()}
    results: dict[str, list[dict[str, str]]] = collections.defaultdict(list)
    with copied(args.tests) as copy:
        os.environ |= SETTINGS | {"JAX_COMPILATION_CACHE_DIR": str(copy.parent / "compiled")}
        for name in LOADED.split():
            with contextlib.suppress(ImportError):
                importlib.import_module(name)
        whole = sum(FOLDERS[folder] for folder in samples)
        for folder, mutants in samples.items():
            for row in examine(copy, mutants, args.minutes * FOLDERS[folder] / whole):
                results[folder].append(row)
                if args.json is not None:
                    args.json.write_text(json.dumps(results, indent=1) + "\n")
    print("\n| folder | run | noticed | survive | undecided | noticed of those decided |\n|---|---|---|---|---|---|")
    for folder, rows in results.items():
        survive = sum(row["noticed_by"] == "passed" for row in rows)
        undecided = sum(row["noticed_by"].startswith(("too long", "undecided")) for row in rows)
        noticed = len(rows) - survive - undecided
        share = f"{noticed / max(noticed + survive, 1):.0%}"
        print(f"| {folder} | {len(rows)} | {noticed} | {survive} | {undecided} | {share} |")


if __name__ == "__main__":
    main()
