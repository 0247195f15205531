"""Writes what each test did and cost, a line of JSON for each, to the file that ``--report`` names.

A line has the test's ``id``, its ``outcome`` (passed, failed or skipped), its ``marks``, seconds of the ``clock`` and
of the ``processor`` (with child processes), how many programs XLA ``compiled`` and how many ``processes`` the test's
own process started, whether it was ``too_dear``, and what is ``shown`` of a failure. Where the machine was measured
after a test, the line has how many times ``slower`` than idle it was. A file that is skipped as a whole has a line,
too, and so have tests that were selected and ``left`` to ``--full``, and those ``deselected`` by marks or words.
"""

import json
import os
import pathlib
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from tests import tiers

_COST = "cost"


class Report:
    """Measures each test in the process that runs it, and writes the report in the one that was started."""

    def __init__(self, config: pytest.Config):
        self._config = config
        self._is_worker = hasattr(config, "workerinput")
        path = config.getoption("--report")
        self._path = pathlib.Path(path) if path and not self._is_worker else None
        if self._path is not None:
            self._path.write_text("")
        self._counts = {"compiled": 0, "processes": 0}
        self._listens = False
        self._start: dict[str, float] = {}
        self._next_sample = time.monotonic() + tiers.SAMPLE_SECONDS
        self._lines: dict[str, dict[str, Any]] = {}
        self._skipped_files: dict[str, str] = {}
        self._left: set[str] = set()
        self._deselected: set[str] = set()
        sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in ("subprocess.Popen", "os.fork", "os.posix_spawn"):
            self._counts["processes"] += 1

    def _hear_jax(self, event: str, seconds: float, **labels: Any) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            self._counts["compiled"] += 1

    def _measure(self) -> dict[str, float]:
        if not self._listens and "jax" in sys.modules:
            import jax.monitoring  # Here, since many tests do without.

            jax.monitoring.register_event_duration_secs_listener(self._hear_jax)
            self._listens = True
        return {"clock": time.monotonic(), "processor": sum(os.times()[:4]), **self._counts}

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Notes the costs so far."""
        self._start = self._measure()
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
        """Adds a test's costs to its last report, and fails it where the landing tier does not allow them."""
        report = yield
        if report.when == "teardown":
            now = self._measure()
            cost: dict[str, Any] = {name: round(now[name] - self._start[name], 3) for name in now}
            cost["marks"] = sorted({mark.name for mark in item.iter_markers()})
            report.user_properties.append((_COST, cost))
            light = report.passed and not item.config.getoption("--full")
            if light and (says := tiers.too_dear(cost["processor"], tiers.TEST_SECONDS)):
                report.outcome, report.longrepr = "failed", f"{item.nodeid} took {says}."
                cost["too_dear"] = True
            if time.monotonic() > self._next_sample:
                cost["slower"] = round(tiers.slowness(1), 2)
                self._next_sample = time.monotonic() + tiers.SAMPLE_SECONDS
        return report

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Notes a file that is skipped as a whole."""
        if report.skipped:
            self._skipped_files[report.nodeid] = str(report.longrepr)

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        """Notes what does not run: by marks, by words, and what is left to the full tier."""
        self._deselected |= {item.nodeid for item in items}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Writes a test down once it is over; a worker that dies in a test has only a failure to show."""
        if self._is_worker:
            return
        line = self._lines.setdefault(report.nodeid, {"id": report.nodeid, "outcome": "passed"})
        if not report.passed:
            line["outcome"] = report.outcome
            line["shown"] = report.longreprtext
        for name, cost in report.user_properties:
            if name == _COST:
                line |= cost

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: Any) -> None:
        """Takes over what a worker skipped and left out while collecting."""
        output = getattr(node, "workeroutput", {})
        self._skipped_files |= output.get("skipped_files", {})
        self._left |= set(output.get("left", ()))
        self._deselected |= set(output.get("deselected", ()))

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Writes the report, and fails a landing tier that has become dear."""
        self._left |= set(self._config.stash.get(tiers.LEFT, ()))
        if self._is_worker:
            found = {"left": sorted(self._left), "deselected": sorted(self._deselected)}
            self._config.workeroutput |= {"skipped_files": self._skipped_files, **found}
            return
        if self._path is not None:
            files = [{"id": name, "outcome": "skipped", "shown": why} for name, why in self._skipped_files.items()]
            left = [{"id": name, "outcome": "left"} for name in sorted(self._left)]
            others = [{"id": name, "outcome": "deselected"} for name in sorted(self._deselected - self._left)]
            lines = [json.dumps(line) for line in [*self._lines.values(), *files, *left, *others]]
            self._path.write_text("".join(f"{line}\n" for line in lines))
        if not self._config.getoption("--full") and self._too_dear() and session.exitstatus == 0:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def _total(self, name: str) -> float:
        return sum(line.get(name, 0) for line in self._lines.values())

    def _slower(self) -> float | None:
        """Returns how many times slower than idle the machine was on average, or None where that was not measured."""
        samples = [line["slower"] for line in self._lines.values() if "slower" in line]
        return sum(samples) / len(samples) if samples else None

    def _too_dear(self) -> str | None:
        return tiers.too_dear(self._total("processor"), tiers.TIER_SECONDS, self._slower())

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Says what all cost, and which tests were the dearest."""
        if self._is_worker or len(self._lines) < 100:
            return
        terminalreporter.section("costs")
        slower = self._slower()
        machine = "" if slower is None else f" on a machine {slower:.1f} times slower than idle"
        terminalreporter.line(
            f"{self._total('processor'):,.0f} s of processor time{machine}, {self._total('compiled'):,.0f} programs "
            f"compiled, {self._total('processes'):,.0f} processes. The dearest:"
        )
        for line in sorted(self._lines.values(), key=lambda line: -line.get("processor", 0))[:10]:
            terminalreporter.line(f"{line.get('processor', 0):7.1f} s  {line['id']}")
        if not self._config.getoption("--full") and (says := self._too_dear()):
            terminalreporter.line(f"The landing tier took {says}.", red=True)
