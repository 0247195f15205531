"""Pages written by hand: returns of trainings that are recorded are those of the records."""

import itertools
import pathlib
import re

import pytest

from agentkit.agents import registry
from benchmarks.evidence import tables
from benchmarks.evidence.plan import DOCS, ROOT, read_records

GROUPS = [group for page in tables.groups_by_page(read_records().values()).values() for group in page]
LABELS = sorted({group[0].run.label for group in GROUPS}, key=len, reverse=True)  # Else dqn is found in qr_dqn.
NAMES = re.compile(r"\b({})\b".format("|".join(re.sub("[_ ]", "[_ -]", label) for label in LABELS)), re.IGNORECASE)
NUMBER = re.compile(r"(?<![\w.])-?\d+(?:,\d{3})*(?:\.\d+)?")
HAVE_RUNS_OF_THEIR_OWN = {DOCS / "presets.md"}


def _holds(numbers: list[str], value: float) -> bool:
    """Returns whether one of the numbers is the value, rounded to the decimals that it is written with."""
    digits = [(float(number.replace(",", "")), len(number.partition(".")[2])) for number in numbers]
    return any(abs(number - value) <= 0.5 * 10.0**-decimals + 1e-6 for number, decimals in digits)


def _contradicted(text: str, agents: set[str]) -> list[str]:
    """Returns the runs that a text names by agent, task and steps, beside numbers without their mean or all returns."""
    found = []
    for group in GROUPS:
        run, last = group[0].run, [record.evaluations[-1][1] for record in group]
        steps = rf"(?<![\d,])(?:(?<!at ){run.steps:,}(?![\d,]*\d)|{run.steps:,} (?:steps|updates))"  # "At": published.
        if run.label in agents and re.search(rf"\b{run.task}\b", text) and re.search(steps, text):
            numbers = NUMBER.findall(re.sub(steps, "", text))
            right = _holds(numbers, sum(last) / len(last)) or all(_holds(numbers, value) for value in last)
            if numbers and not right:
                found.append(f"{run.name}: the last evaluations are {last}, and not as in: {text}")
    return found


def _contradictions(path: pathlib.Path) -> list[str]:
    """Returns those of a page's tables, and on an agent's page those of its sentences about itself."""
    text = path.read_text().partition(tables.MARK)[0]
    rows = [line for line in text.splitlines() if line.startswith("|")]
    found = [_contradicted(row, {re.sub("[ -]", "_", name).lower() for name in NAMES.findall(row)}) for row in rows]
    if path.stem in registry.names():
        found += [_contradicted(sentence, {path.stem}) for sentence in re.split(r"\.\s|\n\n", text)]
    return list(itertools.chain.from_iterable(found))


def test_returns_of_recorded_runs_are_those_of_the_records() -> None:
    pages = {ROOT / "README.md", *DOCS.parent.rglob("*.md")} - HAVE_RUNS_OF_THEIR_OWN
    pages -= set(DOCS.parent.glob("decisions/*"))  # They say what was known then.
    assert [message for page in sorted(pages) for message in _contradictions(page)] == []


@pytest.mark.parametrize(
    ("text", "is_found"),
    [
        ("| HalfCheetah | PPO | 1,000,000 | {mean:,.0f} | 5,784 at 1,000,000 |", False),
        ("| HalfCheetah | PPO | 1,000,000 | {wrong:,.0f} | 5,784 at 1,000,000 |", True),
        ("| PPO, HalfCheetah | {mean:,.0f} after 1,000,000 steps |", False),
        ("PPO on HalfCheetah, 1,000,000 steps, seeds 0, 1, 2: {0:.0f}, {1:.0f}, {2:.0f}", False),
        ("PPO on HalfCheetah, 1,000,000 steps, seeds 0, 1: {0:.0f}, {1:.0f}", True),
        ("PPO ran for 1,000,000 steps of HalfCheetah, and its returns are in the results", False),
    ],
)
def test_other_returns_are_found(text: str, is_found: bool) -> None:
    (group,) = (group for group in GROUPS if group[0].run.name.startswith("ppo/envpool:HalfCheetah-v4/1000000/"))
    last = [record.evaluations[-1][1] for record in group]
    mean = sum(last) / len(last)
    assert bool(_contradicted(text.format(*last, mean=mean, wrong=mean + 1), {"ppo"})) == is_found
