"""How the parts are measured: contestants in turns, A B A B, and the median of their ratios round by round."""

from __future__ import annotations

import dataclasses
import gc
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

ROUNDS = 7


@dataclasses.dataclass
class Line:
    """One figure: ours beside what it is measured by.

    Attributes:
        part: the heading it goes under.
        what: the operation.
        reference: what `ours` is divided by.
        unit: of `ours` and `theirs`.
        ours: median over the rounds.
        theirs: the reference's median.
        ratio: median of the rounds' ratios.
        low: the least ratio.
        high: the greatest.
        limit: what `ratio` may be (or `ours`, where `of` says so); None for no limit.
        of: "ratio" or "ours".
        at_least: whether the limit is a least value.
        note: what a reader needs to know besides.
    """

    part: str
    what: str
    reference: str
    unit: str
    ours: float
    theirs: float
    ratio: float
    low: float
    high: float
    limit: float | None = None
    of: str = "ratio"
    at_least: bool = False
    note: str = ""

    @property
    def within(self) -> bool | None:
        """Whether the limit is kept; None without one."""
        if self.limit is None:
            return None
        value = self.ours if self.of == "ours" else self.ratio
        return value >= self.limit if self.at_least else value <= self.limit


def repeat(call: Callable[[], Any], number: int) -> Callable[[], float]:
    """A contestant: seconds a call, over `number` of them."""

    def timed() -> float:
        start = time.perf_counter()
        for _ in range(number):
            call()
        return (time.perf_counter() - start) / number

    return timed


def in_turns(contestants: Mapping[str, Callable[[], float]], rounds: int = ROUNDS) -> dict[str, list[float]]:
    """What each contestant returns in each round; a first round is not counted.

    Every second round goes backwards, so that nobody always follows the same one.
    """
    names = list(contestants)
    found: dict[str, list[float]] = {name: [] for name in names}
    gc.collect()
    gc.disable()  # A collection would fall on whoever is running, not on whoever made the garbage.
    try:
        for number in range(rounds + 1):
            for name in names if number % 2 == 0 else reversed(names):
                value = contestants[name]()
                if number:
                    found[name].append(value)
            gc.collect()
    finally:
        gc.enable()
    return found


def line(
    part: str, what: str, times: Mapping[str, list[float]], ours: str, theirs: str, unit: str = "us", **limits: Any
) -> Line:
    """The figure of two contestants of `in_turns`, whose seconds are shown in `unit` ("us", "ms" or "s")."""
    scale = {"us": 1e6, "ms": 1e3, "s": 1.0}[unit]
    ratios = [a / b for a, b in zip(times[ours], times[theirs], strict=True)]
    return Line(
        part=part,
        what=what,
        reference=theirs,
        unit=unit,
        ours=scale * statistics.median(times[ours]),
        theirs=scale * statistics.median(times[theirs]),
        ratio=statistics.median(ratios),
        low=min(ratios),
        high=max(ratios),
        **limits,
    )


def plain(lines: list[Line]) -> list[dict[str, Any]]:
    """The lines as JSON holds them, each with its verdict."""
    return [dataclasses.asdict(x) | {"within": x.within} for x in lines]


def table(lines: list[Line]) -> str:
    """Markdown: a table for each part."""
    text = []
    for part in dict.fromkeys(x.part for x in lines):
        heads = "| what | beside | ratio (range) | limit | ours | beside it |"
        text += [f"## {part}", "", heads, "|---|---|---|---|---|---|"]
        text += [_row(x) for x in lines if x.part == part]
        notes = [f"- {x.what}: {x.note}" for x in lines if x.part == part and x.note]
        text += ["", *notes, ""] if notes else [""]
    return "\n".join(text)


def _row(x: Line) -> str:
    limit = ""
    if x.limit is not None:
        verdict, unit = "kept" if x.within else "**missed**", f" {x.unit}" if x.of == "ours" else ""
        limit = f"{'at least' if x.at_least else 'at most'} {x.limit:g}{unit}, {verdict}"
    return (
        f"| {x.what} | {x.reference} | {x.ratio:.3g} ({x.low:.3g} to {x.high:.3g}) | {limit} "
        f"| {x.ours:.3g} {x.unit} | {x.theirs:.3g} {x.unit} |"
    )
