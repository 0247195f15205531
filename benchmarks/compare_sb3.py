"""Speed of agentkit beside Stable-Baselines3: one environment, one update per step, alternating runs.

    python benchmarks/compare_sb3.py --peer-python /path/to/sb3/bin/python
    python benchmarks/compare_sb3.py --breakdown        # where each step's time goes; agentkit alone

Run it with an interpreter that has agentkit's dependencies, on an otherwise idle machine. Without
``--peer-python`` it installs the peer into a temporary virtual environment. Each round runs every agentkit
variant and the peer at each number of threads, one process at a time; the peer's faster run counts. Every
figure is reported beside its ratio, pair by pair. Standard library only: on Linux a child process starts
with its parent's peak memory, so this one stays small.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import pathlib
import platform
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from typing import Any

from workloads import LEARNING_STARTS, WORKLOADS

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
PEER_PACKAGES = (("torch==2.13.0",), ("stable-baselines3", "gymnasium[mujoco]", "mujoco<4"))

Row = dict[str, Any]


# Name in a row, name in a table, and which way is better.
QUANTITIES = (
    ("steps_per_second", "environment steps per second", "higher"),
    ("first_update_seconds", "process start to first update, s", "lower"),
    ("import_seconds", "import, s", "lower"),
    ("peak_mebibytes", "peak memory, MiB", "lower"),
)


def make_job(name: str, variant: str | None, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """What one run is to do; `variant` is agentkit's, None for the peer."""
    workload = WORKLOADS[name]
    settings = dict(workload.settings)
    if variant is not None:
        settings |= workload.agentkit_only | workload.variants[variant]
    first = LEARNING_STARTS + options.warmup
    return {
        "workload": name,
        "environment": workload.environment,
        "learning_starts": LEARNING_STARTS,
        "first": first,
        "last": first + (workload.window if options.window is None else options.window),
        "settings": settings,
        "seed": seed,
        "parts": None,
    }


def run_side(python: str, script: str, job: dict[str, Any], timeout: float) -> tuple[Row, list[str]]:
    """Runs one side in a process of its own; its measurement and the other lines it printed."""
    environment = dict(os.environ, JAX_PLATFORMS="cpu", CUDA_VISIBLE_DEVICES="")
    environment.pop("PYTHONPATH", None)
    if "threads" in job:
        environment |= {name: str(job["threads"]) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    else:
        environment["PYTHONPATH"] = str(ROOT)
    command = [python, str(HERE / script), json.dumps(job | {"started": time.time()})]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=timeout)
    if ended.returncode != 0:
        raise SystemExit(f"{script} failed for {job['workload']}:\n{ended.stderr[-4000:]}")
    *others, last = ended.stdout.strip().splitlines()
    return json.loads(last), others


def run_rounds(name: str, options: argparse.Namespace, peer_python: str) -> Iterator[dict[str, Any]]:
    """`options.pairs` rounds; each has a row of every agentkit variant and of the peer's threads."""
    for seed in range(options.pairs):
        found: dict[str, Any] = {"agentkit": {}, "peer": {}}
        # agentkit and the peer in turn, so that a drift of the machine meets both.
        variants, threads = list(WORKLOADS[name].variants), list(options.peer_threads)
        for i in range(max(len(variants), len(threads))):
            if i < len(variants):
                job = make_job(name, variants[i], seed, options)
                found["agentkit"][variants[i]] = run_side(sys.executable, "agentkit_side.py", job, options.timeout)[0]
            if i < len(threads):
                job = make_job(name, None, seed, options) | {"threads": threads[i]}
                found["peer"][str(threads[i])] = run_side(peer_python, "sb3_side.py", job, options.timeout)[0]
        yield found


def best_peer(found: dict[str, Any]) -> tuple[str, Row]:
    """The number of threads at which the peer was fastest in this round, and that run."""
    return max(found["peer"].items(), key=lambda item: item[1]["steps_per_second"])


def summarise(rounds: Sequence[dict[str, Any]], variant: str) -> list[Row]:
    """For each quantity both medians, and the ratio agentkit / peer of the pairs: median, least, greatest."""
    table = []
    for key, label, better in QUANTITIES:
        ours = [found["agentkit"][variant][key] for found in rounds]
        theirs = [best_peer(found)[1][key] for found in rounds]
        ratios = sorted(a / b for a, b in zip(ours, theirs, strict=True))
        table.append(
            {
                "quantity": label,
                "better": better,
                "agentkit": statistics.median(ours),
                "sb3": statistics.median(theirs),
                "ratio": statistics.median(ratios),
                "ratio_min": ratios[0],
                "ratio_max": ratios[-1],
            }
        )
    return table


def as_markdown(name: str, rounds: Sequence[dict[str, Any]]) -> str:
    """One section: a table for each agentkit variant."""
    workload = WORKLOADS[name]
    threads = [best_peer(found)[0] for found in rounds]
    settings = ", ".join(f"{key} {value}" for key, value in workload.settings.items())
    lines = [
        f"## {name} on {workload.environment}",
        "",
        f"Both: one update per step; {settings}.",
        "",
        "Neither has gymnasium's environment checker around the environment.",
        "",
    ]
    for variant in workload.variants:
        cores = [statistics.median(found["agentkit"][variant]["cores_used"] for found in rounds)]
        cores.append(statistics.median(best_peer(found)[1]["cores_used"] for found in rounds))
        lines += [
            f"agentkit with {variant}. Cores busy: {cores[0]:.2f} and {cores[1]:.2f} (SB3). SB3's threads where "
            f"it was fastest, round by round: {', '.join(threads)}.",
            "",
            "| | agentkit | SB3 | agentkit / SB3: median (least to greatest of the pairs) | better |",
            "|---|---|---|---|---|",
        ]
        for row in summarise(rounds, variant):
            lines.append(
                f"| {row['quantity']} | {row['agentkit']:.4g} | {row['sb3']:.4g} | **{row['ratio']:.2f}** "
                f"({row['ratio_min']:.2f} to {row['ratio_max']:.2f}) | {row['better']} |"
            )
        lines.append("")
    return "\n".join(lines)


PARTS = ("environment", "acting", "adding", "sampling", "update", "rest")
WAYS = ("as it runs", "one at a time")


def break_down(name: str, variant: str, options: argparse.Namespace) -> dict[str, Any]:
    """Seconds per step of each part, both ways; and how fast the timed runs were beside untimed ones."""
    ratios: dict[str, list[float]] = {way: [] for way in WAYS}
    parts: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    for seed in range(options.pairs):
        job = make_job(name, variant, seed, options)
        steps = job["last"] - job["first"]
        plain, _ = run_side(sys.executable, "agentkit_side.py", job, options.timeout)
        for way in WAYS:
            timed, lines = run_side(sys.executable, "agentkit_side.py", job | {"parts": way}, options.timeout)
            (found,) = [json.loads(line.removeprefix("parts ")) for line in lines if line.startswith("parts ")]
            parts[way].append({part: found.get(part, 0.0) / steps for part in PARTS})
            ratios[way].append(timed["steps_per_second"] / plain["steps_per_second"])
    return {
        "workload": name,
        "variant": variant,
        "parts": {way: {part: statistics.median(row[part] for row in parts[way]) for part in PARTS} for way in WAYS},
        "timed_over_untimed": {way: statistics.median(ratios[way]) for way in WAYS},
    }


def breakdown_markdown(results: Sequence[dict[str, Any]]) -> str:
    """A table for each variant: share of a step's time, and microseconds."""
    lines = [
        "Share of a step's wall time in agentkit, and microseconds; medians of the rounds. Left as it runs:",
        "the device computes while the environment steps, and what is left of the update is waited for in",
        "*acting*. Right with a wait after every update, so that *update* is its whole cost and nothing",
        "overlaps.",
        "",
    ]
    for result in results:
        ratios = ", ".join(f"{result['timed_over_untimed'][way]:.2f} ({way})" for way in WAYS)
        lines += [
            f"## {result['workload']} on {WORKLOADS[result['workload']].environment}, {result['variant']}",
            "",
            f"Speed of the run with timers over the run without: {ratios}.",
            "",
            f"| part | {WAYS[0]} | µs | {WAYS[1]} | µs |",
            "|---|---|---|---|---|",
        ]
        totals = {way: sum(result["parts"][way].values()) for way in WAYS}
        for part in PARTS:
            seconds = [result["parts"][way][part] for way in WAYS]
            cells = [f"{s / totals[way]:.1%} | {s * 1e6:.1f}" for way, s in zip(WAYS, seconds, strict=True)]
            lines.append(f"| {part} | {cells[0]} | {cells[1]} |")
        whole = " | ".join(f"100% | {totals[way] * 1e6:.1f}" for way in WAYS)
        lines += [f"| whole step | {whole} |", ""]
    return "\n".join(lines)


def describe_machine() -> dict[str, Any]:
    """Processor, cores, load and time."""
    model = platform.processor()
    cpuinfo = pathlib.Path("/proc/cpuinfo")
    if cpuinfo.exists():
        found = [line for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
        model = found[0].partition(":")[2].strip() if found else model
    return {
        "processor": model,
        "cores": os.cpu_count(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "load_average_before": os.getloadavg()[0],
        "date": datetime.date.today().isoformat(),
        "command": shlex.join(["python", *sys.argv]),
    }


def write(directory: pathlib.Path, stem: str, title: str, record: dict[str, Any], body: str) -> None:
    """Writes ``stem.json`` and ``stem.md``, and prints the latter."""
    machine = record["machine"]
    head = [
        f"# {title}",
        "",
        f"{machine['date']}, {machine['processor']}, {machine['cores']} cores (no accelerator), "
        f"Python {machine['python']}, load average before: {machine['load_average_before']:.2f}.",
        "",
        f"`{machine['command']}`",
        "",
    ]
    if "versions" in record:
        both = record["versions"]
        head += [f"{side}: " + ", ".join(f"{k} {v}" for k, v in both[side].items()) + "." for side in both]
        head.append("")
    text = "\n".join([*head, body])
    directory.mkdir(parents=True, exist_ok=True)
    (directory / f"{stem}.json").write_text(json.dumps(record, indent=1) + "\n")
    (directory / f"{stem}.md").write_text(text.rstrip() + "\n")
    print(text)


def compare(options: argparse.Namespace, peer_python: str) -> None:
    """Runs and records the comparison."""
    machine = describe_machine()
    rounds: dict[str, list[dict[str, Any]]] = {}
    for name in options.workloads:
        rounds[name] = []
        for number, found in enumerate(run_rounds(name, options, peer_python), start=1):
            rounds[name].append(found)
            peer = best_peer(found)[1]["steps_per_second"]
            for variant, row in found["agentkit"].items():
                ratio = row["steps_per_second"] / peer
                print(f"{name} {number}/{options.pairs} {variant}: {ratio:.2f} times SB3's steps/s", flush=True)
    last = rounds[options.workloads[0]][-1]
    record = {
        "machine": machine,
        "versions": {
            "agentkit's": next(iter(last["agentkit"].values()))["versions"],
            "SB3's": best_peer(last)[1]["versions"],
        },
        "warmup_steps": options.warmup,
        "summary": {
            name: {variant: summarise(rounds[name], variant) for variant in WORKLOADS[name].variants}
            for name in options.workloads
        },
        "rounds": rounds,
    }
    body = "\n".join(as_markdown(name, rounds[name]) for name in options.workloads)
    write(options.output, "compare_sb3", "Beside Stable-Baselines3", record, body)


def install_peer(directory: pathlib.Path) -> str:
    """A virtual environment with the peer in it; its interpreter."""
    subprocess.run([sys.executable, "-m", "venv", str(directory)], check=True)
    python = str(directory / "bin" / "python")
    for packages in PEER_PACKAGES:
        subprocess.run([python, "-m", "pip", "install", "--quiet", *packages], check=True)
    return python


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--peer-python", help="an interpreter that has stable-baselines3; default: installs one")
    parser.add_argument("--workloads", nargs="+", choices=list(WORKLOADS), default=list(WORKLOADS))
    parser.add_argument("--pairs", type=int, default=5, help="rounds, each a pair of runs for every variant")
    parser.add_argument("--peer-threads", type=int, nargs="+", default=[1, 2], help="the faster one counts")
    parser.add_argument("--warmup", type=int, default=1_000, help="steps with learning before the window")
    parser.add_argument("--window", type=int, help="steps to measure; default: each workload's own")
    parser.add_argument("--breakdown", action="store_true", help="where each step's time goes; no peer")
    parser.add_argument("--timeout", type=float, default=1_800.0, help="seconds that one run may take")
    parser.add_argument("--output", type=pathlib.Path, default=ROOT / "docs" / "benchmarks")
    options = parser.parse_args(arguments)
    if options.pairs < 1 or (options.window is not None and options.window < 1):
        parser.error("--pairs and --window are at least 1.")
    if options.warmup < 3:
        parser.error("--warmup is at least 3: the first update compiles, and must not be in the window.")
    return options


def main(options: argparse.Namespace) -> None:
    """Breaks down, or compares."""
    if os.getloadavg()[0] > 0.5:
        print(f"warning: the machine is busy (load {os.getloadavg()[0]:.2f}); timings will be off", flush=True)
    if options.breakdown:
        machine = describe_machine()
        results = [break_down(n, v, options) for n in options.workloads for v in WORKLOADS[n].variants]
        record = {"machine": machine, "results": results}
        write(options.output, "breakdown", "Where each step's time goes", record, breakdown_markdown(results))
    elif options.peer_python is not None:
        compare(options, options.peer_python)
    else:
        with tempfile.TemporaryDirectory() as directory:
            compare(options, install_peer(pathlib.Path(directory)))


if __name__ == "__main__":
    main(parse())
