"""Measures how long each extra takes to install and how many megabytes it brings, in fresh virtual environments.

    python benchmarks/measure_installs.py --python python3.11 -o docs/benchmarks/installs.json after=.
    python benchmarks/measure_installs.py --python python3.11 -o docs/benchmarks/installs.json before=/an/older/checkout

Rows of an earlier call stay in the file. The package's wheel is built first. The bare package, `all`, `dev` and what
has Reverb's pins are installed into environments of their own; every other extra into a copy of the bare package's
environment, so that its row says what the extra adds. Megabytes are those of new files, compiled bytecode included.
Seconds are of the clock, with downloads that pip's cache does not have; processor seconds tell more where the machine
does other things.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import platform
import shutil
import subprocess
import tempfile
import time
import tomllib
from typing import Any

WHOLE = ("all", "dev", "reverb")
"""Extras that are installed into an empty environment: others are additions to the bare package."""


def megabytes(folder: pathlib.Path) -> float:
    """Returns the size of the files below a folder, links not followed."""
    found = (pathlib.Path(root) / name for root, _, names in os.walk(folder) for name in names)
    return sum(path.lstat().st_size for path in found) / 1e6


def num_packages(venv: pathlib.Path) -> int:
    """Returns how many distributions an environment has."""
    (site,) = venv.glob("lib/python3.*/site-packages")
    return len(list(site.glob("*.dist-info")))


def install(venv: pathlib.Path, requirement: str) -> dict[str, Any]:
    """Installs a requirement into an environment; returns what that took and added, or pip's last line."""
    size, packages, begin, used = megabytes(venv), num_packages(venv), time.perf_counter(), os.times()
    command = [venv / "bin" / "python", "-m", "pip", "install", "-q", "--disable-pip-version-check", requirement]
    done = subprocess.run(command, capture_output=True, text=True)
    seconds, now = time.perf_counter() - begin, os.times()
    if done.returncode != 0:
        return {"failed": done.stderr.strip().splitlines()[-1]}
    processor = now.children_user + now.children_system - used.children_user - used.children_system
    return {
        "seconds": round(seconds, 1),
        "processor_seconds": round(processor, 1),
        "megabytes": round(megabytes(venv) - size),
        "packages": num_packages(venv) - packages,
    }


def wheel_of(python: str, checkout: pathlib.Path, work: pathlib.Path) -> pathlib.Path:
    """Builds the wheel of a checkout."""
    target = work / "wheel"
    command = [python, "-m", "pip", "wheel", "-q", "--no-deps", "-w", target, checkout]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    (wheel,) = target.glob("*.whl")
    return wheel


def measure(python: str, checkout: pathlib.Path, chosen: list[str] | None) -> Any:
    """Yields the name of each extra, and what its installation took."""
    extras = tomllib.loads((checkout / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        wheel, bare = wheel_of(python, checkout, work), work / "bare"
        subprocess.run([python, "-m", "venv", bare], check=True)
        yield "", install(bare, str(wheel))
        for extra in sorted(extras, key=lambda name: (name in WHOLE, name)):
            if chosen is not None and extra not in chosen:
                continue
            venv = work / "venv"
            if extra in WHOLE:
                subprocess.run([python, "-m", "venv", venv], check=True)
            else:
                shutil.copytree(bare, venv, symlinks=True)
            yield extra, install(venv, f"{wheel}[{extra}]")
            shutil.rmtree(venv)


def main() -> None:
    """Measures the checkouts named on the command line and writes a JSON file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkouts", nargs="+", metavar="NAME=FOLDER")
    parser.add_argument("--python", default="python3.11")
    parser.add_argument("--only", nargs="*", help="these extras; all of them by default")
    parser.add_argument("-o", "--out", type=pathlib.Path, required=True)
    options = parser.parse_args()
    rows = json.loads(options.out.read_text())["rows"] if options.out.exists() else []
    version = subprocess.run([options.python, "-V"], capture_output=True, text=True, check=True).stdout.split()[1]
    for checkout in options.checkouts:
        name, _, path = checkout.partition("=")
        for extra, found in measure(options.python, pathlib.Path(path).resolve(), options.only):
            row = {"checkout": name, "extra": extra, "python": version}
            rows = [old for old in rows if any(old[key] != value for key, value in row.items())]
            rows.append(row | found)
            print(rows[-1], flush=True)
            document = {"machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores", "rows": rows}
            options.out.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
