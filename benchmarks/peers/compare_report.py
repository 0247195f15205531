"""The report of `compare.py`: ratios, their table and their plot.

python benchmarks/peers/compare_report.py docs/benchmarks/compare_newest.json    # again; needs matplotlib
"""

from __future__ import annotations

import json
import pathlib
import statistics
import sys
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from peer_environments import PEERS
from workloads import WORKLOADS

# Name in a row, and name in a table.
SPEED = "steps_per_second"
COSTS = {
    "first_step_seconds": "process start to first step",
    "first_update_seconds": "process start to first update",
    "import_seconds": "import",
    "peak_mebibytes": "peak memory",
    "last_mebibytes": "memory at the end",
    "cores_used": "cores busy",
}


# What says more of torch's libraries for CUDA than of a peer, where these are loaded.
OF_LIBRARIES = {"first_step_seconds", "first_update_seconds", "import_seconds", "peak_mebibytes", "last_mebibytes"}


class Ratio(NamedTuple):
    """agentkit's figure over a peer's, pair by pair.

    Attributes:
        agentkit: median of agentkit's runs that have a pair.
        peer: the same of the peer.
        median: of the pairs' ratios; beside it the least and the greatest.
        pairs: how many.
    """

    agentkit: float
    peer: float
    median: float
    least: float
    greatest: float
    pairs: int

    def __str__(self) -> str:
        return f"**{self.median:.2f}** ({self.least:.2f} to {self.greatest:.2f}, {self.pairs} pairs)"


def best_run(rows: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The number of threads at which a peer was fastest in a round, and that run."""
    return max(rows.items(), key=lambda item: item[1][SPEED])


def has_cuda(row: dict[str, Any]) -> bool:
    """Whether a run had torch's build for CUDA, which loads libraries that are of no use on a CPU."""
    return "+cpu" not in row["versions"].get("torch", "+cpu")


def ratio(rounds: Sequence[dict[str, Any]], variant: str, peer: str, key: str) -> Ratio | None:
    """Of one quantity; None where there is no pair, or where torch's build for CUDA would be what is compared."""
    runs = [
        (found["agentkit"][variant], best_run(found["peers"][peer])[1])
        for found in rounds
        if variant in found["agentkit"] and peer in found["peers"]
    ]
    pairs = [(ours[key], theirs[key]) for ours, theirs in runs if None not in (ours.get(key), theirs.get(key))]
    if not pairs or (key in OF_LIBRARIES and any(has_cuda(theirs) for _, theirs in runs)):
        return None
    ours, theirs = zip(*pairs, strict=True)
    ratios = sorted(a / b for a, b in pairs)
    medians = (statistics.median(values) for values in (ours, theirs, ratios))
    return Ratio(*medians, least=ratios[0], greatest=ratios[-1], pairs=len(ratios))


def compared(entry: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The variants of agentkit and the peers that a case compares."""
    rounds, variants = entry["rounds"], WORKLOADS[entry["workload"]].variants
    peers = dict.fromkeys(peer for found in rounds for peer in found["peers"])
    for variant in dict.fromkeys(name for found in rounds for name in found["agentkit"]):
        only = variants[variant].only
        yield from ((variant, peer) for peer in peers if only in (None, peer))


def fastest_peer(entry: dict[str, Any], variant: str) -> tuple[str, Ratio] | None:
    """The peer with the highest median of steps per second, and agentkit's ratio to it."""
    found = [(peer, ratio(entry["rounds"], variant, peer, SPEED)) for v, peer in compared(entry) if v == variant]
    known = [(peer, value) for peer, value in found if value is not None]
    return max(known, key=lambda item: item[1].peer) if known else None


def verdict(entry: dict[str, Any], variant: str, peer: str, found: Ratio) -> tuple[str, str]:
    """Target and whether it is reached, as a table has them.

    The Acme-like loop has two targets: D4PG's of any replay, and those of agentkit on Reverb.
    """
    workload = WORKLOADS[entry["workload"]]
    target = workload.targets.get(peer)
    on_reverb = workload.variants[variant].replay == "reverb"
    of_reverb = peer == "acme_like" and entry["workload"] != "d4pg"
    if target is None or entry["stored"] is not None or (of_reverb and not on_reverb):
        return "", ""
    return f"{target:g}", "yes" if found.median >= target else "no"


def overview(cases: dict[str, Any]) -> list[str]:
    """One row for each case and variant: the fastest peer, and the targets that are not reached."""
    lines = [
        "| workload | agentkit | fastest peer | steps/s, agentkit / it: median (least to greatest) | targets reached |",
        "|---|---|---|---|---|",
    ]
    for name, entry in cases.items():
        for variant in dict.fromkeys(variant for variant, _ in compared(entry)):
            best = fastest_peer(entry, variant)
            if best is None:
                continue
            verdicts = []
            for v, peer in compared(entry):
                found = ratio(entry["rounds"], variant, peer, SPEED)
                if v == variant and found is not None:
                    target, reached = verdict(entry, variant, peer, found)
                    verdicts += [f"{PEERS[peer].label} {target}: {reached}"] if target else []
            lines.append(f"| {name} | {variant} | {PEERS[best[0]].label} | {best[1]} | {'; '.join(verdicts) or '-'} |")
    return lines


def section(name: str, entry: dict[str, Any]) -> list[str]:
    """A case's tables: speed, then everything else, where less is better."""
    workload, rounds = WORKLOADS[entry["workload"]], entry["rounds"]
    settings = ", ".join(f"{key} {value}" for key, value in workload.settings.items())
    per_step = workload.updates_per_step
    updates = "" if workload.rows_per_iteration else f"{per_step:g} updates per environment step; "
    lines = [
        f"## {name} on {workload.environment}",
        "",
        f"All: environments {workload.num_envs}; {updates}{settings}.",
        "",
        "| agentkit | peer (threads, round by round) | agentkit steps/s | peer's | ratio | target | reached |",
        "|---|---|---|---|---|---|---|",
    ]
    for variant, peer in compared(entry):
        found = ratio(rounds, variant, peer, SPEED)
        if found is not None:
            threads = ", ".join(best_run(r["peers"][peer])[0] for r in rounds if peer in r["peers"])
            target, reached = verdict(entry, variant, peer, found)
            lines.append(
                f"| {variant} | {PEERS[peer].label} ({threads}) | {found.agentkit:.4g} | {found.peer:.4g} | {found} "
                f"| {target} | {reached} |"
            )
    lines += ["", *costs(entry)]
    failed = {key: text for found in rounds for key, text in found["failed"].items()}
    lines += ["", *(f"Failed: {key}: `{text.strip().splitlines()[-1]}`" for key, text in failed.items()), ""]
    return lines


def costs(entry: dict[str, Any]) -> list[str]:
    """A case's table of everything but speed, without columns that nothing was measured for."""
    rounds, pairs = entry["rounds"], list(compared(entry))
    found = {key: [ratio(rounds, variant, peer, key) for variant, peer in pairs] for key in COSTS}
    found = {key: ratios for key, ratios in found.items() if any(ratios)}
    lines = ["agentkit's over the peer's; less is better. In brackets the two medians (seconds, MiB, cores)."]
    if any(has_cuda(best_run(rows)[1]) for each in rounds for rows in each["peers"].values()):
        lines += [
            "Start and memory are left out where torch was its build for CUDA: its libraries, of no use here, would be",
            "what is compared.",
        ]
    lines += ["", f"| agentkit | peer | {' | '.join(COSTS[key] for key in found)} |", f"|---|---|{'---|' * len(found)}"]
    for (variant, peer), ratios in zip(pairs, zip(*found.values(), strict=True), strict=True):
        cells = ["-" if r is None else f"**{r.median:.2f}** ({r.agentkit:.3g}, {r.peer:.3g})" for r in ratios]
        lines.append(f"| {variant} | {PEERS[peer].label} | {' | '.join(cells)} |")
    return lines


def torch_builds(cases: dict[str, Any]) -> str:
    """Which builds of torch the peers had, as a sentence; empty where none has torch."""
    sides = [rows for entry in cases.values() for found in entry["rounds"] for rows in found["peers"].values()]
    rows = [row for side in sides for row in side.values() if "torch" in row["versions"]]
    builds = {f"{row['versions']['torch']} for {'CUDA' if has_cuda(row) else 'CPUs'}" for row in rows}
    return f"torch is {' and '.join(sorted(builds))}." if builds else ""


def decay(cases: dict[str, Any]) -> list[str]:
    """How speed changes as replay fills: each side's steps per second over its own with the least stored."""
    stored = sorted((entry["stored"], name) for name, entry in cases.items() if entry["stored"] is not None)
    if len(stored) < 2:
        return []
    first = cases[stored[0][1]]
    lines = [
        "## As replay fills",
        "",
        f"Steps per second over the same side's with {stored[0][0]:,} steps stored; medians.",
        "",
        f"| | {' | '.join(f'{count:,}' for count, _ in stored)} |",
        f"|---|{'---|' * len(stored)}",
    ]
    for side in dict.fromkeys(name for found in first["rounds"] for name in (*found["agentkit"], *found["peers"])):
        base = _median_speed(first, side)
        values = [_median_speed(cases[name], side) for _, name in stored]
        cells = ["-" if value is None or base is None else f"{value / base:.2f}" for value in values]
        label = PEERS[side].label if side in PEERS else f"agentkit, {side}"
        lines.append(f"| {label} | {' | '.join(cells)} |")
    return [*lines, ""]


def _median_speed(entry: dict[str, Any], side: str) -> float | None:
    rows = [found["agentkit"].get(side) for found in entry["rounds"]]
    rows += [best_run(found["peers"][side])[1] for found in entry["rounds"] if side in found["peers"]]
    values = [row[SPEED] for row in rows if row is not None]
    return statistics.median(values) if values else None


def versions(cases: dict[str, Any]) -> list[str]:
    """A line for agentkit and each peer."""
    known: dict[str, dict[str, str]] = {}
    for entry in cases.values():
        for found in entry["rounds"]:
            for variant, row in found["agentkit"].items():
                on_reverb = WORKLOADS[entry["workload"]].variants[variant].replay == "reverb"
                known.setdefault("agentkit on Reverb" if on_reverb else "agentkit", {}).update(row["versions"])
            for peer, rows in found["peers"].items():
                known.setdefault(PEERS[peer].label, {}).update(best_run(rows)[1]["versions"])
    return [f"- {name}: {', '.join(f'{k} {v}' for k, v in found.items())}" for name, found in known.items()]


def as_markdown(record: dict[str, Any]) -> str:
    """The page."""
    machine, cases = record["machine"], record["cases"]
    title = {"newest": "the newest jax stack", "reverb": "the Reverb stack"}[record["stack"]]
    lines = [
        f"# Beside its peers: {title}",
        "",
        f"{machine['date']}, {machine['processor']}, {machine['cores']} cores, CPU only: no accelerator was used. Load "
        f"average before: {machine['load_average_before']:.2f}.",
        "",
        f"`{machine['command']}`",
        "",
        "Every side did the same work in a process of its own, in turn with the others; ratios are of runs of the",
        f"same round, windows about {record['window_seconds']:g} s long. agentkit as it configures itself; peers at",
        f"their fastest number of threads of {record['threads']}. Peers' environments are gymnasium's, without its",
        "checker, one after the other; so are those of agentkit and Tianshou, but where EnvPool is named. RLlib's",
        "memory is of its own process, without Ray's. sbx and Tianshou do not clip DQN's gradients.",
        torch_builds(cases),
        "",
        f"![ratios](compare_{record['stack']}.png)",
        "",
        *overview(cases),
        "",
    ]
    for name, entry in cases.items():
        lines += section(name, entry)
    lines += [*decay(cases), "## Versions", "", *versions(cases), ""]
    return "\n".join(lines)


def write_report(directory: pathlib.Path, record: dict[str, Any]) -> None:
    """Writes ``compare_STACK.json`` and ``compare_STACK.md``."""
    directory.mkdir(parents=True, exist_ok=True)
    stem = directory / f"compare_{record['stack']}"
    stem.with_suffix(".json").write_text(json.dumps(record, indent=1) + "\n")
    stem.with_suffix(".md").write_text(as_markdown(record))


def draw(record: dict[str, Any], output: pathlib.Path) -> None:
    """A bar for every pair of a variant and a peer: how many times the peer's steps per second, and the target."""
    from matplotlib.figure import Figure  # Not pyplot: no window, no global state.

    cases = {name: list(compared(entry)) for name, entry in record["cases"].items()}
    heights = [len(pairs) for pairs in cases.values()]
    figure = Figure(figsize=(9.0, 1.2 + 0.7 * len(cases) + 0.26 * sum(heights)), layout="constrained")
    axes = figure.subplots(len(cases), 1, squeeze=False, sharex=True, height_ratios=heights)[:, 0]
    for axis, (name, pairs) in zip(axes, cases.items(), strict=True):
        entry = record["cases"][name]
        for place, (variant, peer) in enumerate(pairs):
            found = ratio(entry["rounds"], variant, peer, SPEED)
            if found is None:
                continue
            axis.barh(place, found.median, color=f"C{list(PEERS).index(peer)}", height=0.7)
            axis.plot([found.least, found.greatest], [place, place], color="black", linewidth=1)
            target, _ = verdict(entry, variant, peer, found)
            if target:
                axis.plot(float(target), place, marker="D", color="black", markersize=4)
        axis.set_yticks(range(len(pairs)), [f"{PEERS[peer].label} / {variant}" for variant, peer in pairs], fontsize=7)
        axis.set_title(f"{name} on {WORKLOADS[entry['workload']].environment}", fontsize=9, loc="left")
        axis.axvline(1.0, color="grey", linewidth=0.8)
        axis.set_xscale("log")
        axis.invert_yaxis()
        axis.grid(axis="x", which="both", alpha=0.3)
    axes[-1].set_xlabel("agentkit's environment steps per second / the peer's (line: all pairs, diamond: target)")
    figure.savefig(output, dpi=120)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(f"Expected the path of compare.py's JSON record, found {sys.argv[1:]}.")
    path = pathlib.Path(sys.argv[1])
    loaded = json.loads(path.read_text())
    write_report(path.parent, loaded)
    draw(loaded, path.with_suffix(".png"))
