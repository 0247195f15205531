"""What keeps the tiers: marks, costs, limits of time, second chances, and tests that no stack has passed."""

import argparse
import importlib.util
import json
import pathlib
import subprocess
import sys
import zlib
from typing import Any

import pytest

from tests import compile_cache, report, tiers

ROOT = pathlib.Path(__file__).parents[1]
TESTS = """
import os
import time

import pytest

from tests import tiers

tiers.TEST_SECONDS = 0.3


@pytest.mark.full
def test_of_the_full_tier():
    assert True


@pytest.mark.one_case
@pytest.mark.parametrize("case", [1, 2, 3])
def test_of_cases(case):
    assert case


def test_of_the_landing_tier():
    os.fork() or os._exit(0)
    os.wait()


def test_that_fails():
    raise ValueError("as it should")


def test_that_is_dear():
    while time.process_time() < 30 and sum(os.times()[:2]) < START + 1.5 * tiers.slowness():
        pass


@pytest.mark.timeout(1)
def test_that_hangs():
    time.sleep(300)


START = sum(os.times()[:2])
"""


def load_verdict() -> Any:
    spec = importlib.util.spec_from_file_location("verdict", ROOT / ".ci" / "verdict.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run_pytest(folder: pathlib.Path, *options: str) -> dict[str, Any]:
    """Runs TESTS with this suite's own plugins, and returns the lines of the report by the names of functions."""
    (folder / "test_tiers_sample.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.conftest", "-p", "no:cacheprovider", *options]
    command += ["-c", "pyproject.toml", "--rootdir", str(folder), f"--report={folder}/report.jsonl", str(folder)]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert found.returncode == 1, found.stdout + found.stderr
    lines = map(json.loads, (folder / "report.jsonl").read_text().splitlines())
    return {line["id"].partition("::")[2]: line for line in lines}


@pytest.mark.full
def test_the_landing_tier_has_one_case_limits_of_time_and_of_what_a_test_costs(tmp_path: pathlib.Path) -> None:
    lines = run_pytest(tmp_path)
    assert {name: line["outcome"] for name, line in lines.items()} == {
        "test_of_the_full_tier": "left",
        "test_of_cases[2]": "left",
        "test_of_cases[3]": "left",
        "test_of_cases[1]": "passed",
        "test_of_the_landing_tier": "passed",
        "test_that_fails": "failed",
        "test_that_is_dear": "failed",
        "test_that_hangs": "failed",
    }
    assert "as it should" in lines["test_that_fails"]["shown"]
    assert "processor time" in lines["test_that_is_dear"]["shown"] and lines["test_that_is_dear"]["too_dear"]
    assert "Timeout" in lines["test_that_hangs"]["shown"] and lines["test_that_hangs"]["clock"] < 60
    assert lines["test_of_the_landing_tier"]["processes"] == 1 and lines["test_of_cases[1]"]["marks"] == [
        "one_case",
        "parametrize",
    ]


@pytest.mark.full
def test_the_full_tier_has_all_and_lets_them_cost_what_they_may(tmp_path: pathlib.Path) -> None:
    lines = run_pytest(tmp_path, "--full", "-n", "2")
    failed = {name for name, line in lines.items() if line["outcome"] == "failed"}
    assert len(lines) == 8 and failed == {"test_that_fails", "test_that_hangs"}


def test_costs_are_measured_by_a_machines_own_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiers, "slowness", lambda: 3.0)
    assert tiers.too_dear(29.0, 10.0) is None
    assert "3.0 times slower" in str(tiers.too_dear(31.0, 10.0))


def test_the_tier_is_judged_by_the_machine_as_it_was_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once the workers have ended it is idle, and twice as fast."""
    monkeypatch.setattr(tiers, "slowness", lambda: 1.0)
    plugin = report.Report(argparse.Namespace(getoption={"--report": None, "--full": False}.get, stash={}))
    session = argparse.Namespace(exitstatus=0)
    for number, (slower, exit_status) in enumerate([(2.0, 0), (None, 0), (4.0, 0), (None, 1)]):
        cost = {"processor": tiers.TIER_SECONDS * 0.8} | ({"slower": slower} if slower else {})
        properties = [("cost", cost)]
        plugin.pytest_runtest_logreport(
            pytest.TestReport(f"test_{number}", ("", 0, ""), {}, "passed", None, "teardown", user_properties=properties)
        )
        plugin.pytest_sessionfinish(session)
        assert session.exitstatus == exit_status


def test_only_few_that_may_be_races_run_again() -> None:
    verdict = load_verdict()
    failed = [{"id": "tests/experiment/test_launch.py::test_a", "marks": ["reverb"]}]
    assert not verdict.why_no_second_chance(failed, set())
    assert verdict.why_no_second_chance(failed * 4, set())
    assert verdict.why_no_second_chance(failed, {failed[0]["id"]})
    assert verdict.why_no_second_chance([{"id": "tests/losses/test_value.py::test_a", "marks": []}], set())
    assert not verdict.why_no_second_chance([{"id": "tests/agents/test_ppo.py::test_a", "marks": ["reverb"]}], set())
    assert not verdict.why_no_second_chance([{"id": "tests/agents/test_ppo.py::test_a", "too_dear": True}], set())


@pytest.mark.full
def test_what_passes_alone_is_called_flaky(tmp_path: pathlib.Path, capfd: pytest.CaptureFixture[str]) -> None:
    race = "tests/test_errors.py::test_unknown_name_proposes_nothing_far_off"
    report = tmp_path / "report.jsonl"
    report.write_text(json.dumps({"id": race, "outcome": "failed", "shown": "for once"}) + "\n")
    assert load_verdict().again(str(report)) == 0 and not load_verdict().nowhere([load_verdict().read(report)])
    assert f"FLAKY: {race}\nfor once\n1 failed, 1 of them passed alone" in capfd.readouterr().out


def test_no_test_is_forgiven_twice() -> None:
    lines = [line for line in (ROOT / "tests" / "flaky.txt").read_text().splitlines() if not line.startswith("#")]
    assert all(line.count(" | ") == 2 for line in lines), "id | date | cause"
    assert len(load_verdict().forgiven_before()) == len(lines)


def test_what_passed_on_no_stack_is_found() -> None:
    newest = [
        {"id": "tests/a.py::test_1", "outcome": "passed"},
        {"id": "tests/a.py::test_2", "outcome": "skipped"},
        {"id": "tests/a.py::test_3", "outcome": "skipped"},
        {"id": "tests/b.py", "outcome": "skipped"},
        {"id": "tests/c.py", "outcome": "skipped"},
        {"id": "tests/d.py", "outcome": "skipped"},
        {"id": "tests/d.py::test_1", "outcome": "left"},
    ]
    reverb = [{"id": "tests/a.py::test_2", "outcome": "passed"}, {"id": "tests/b.py::test_1", "outcome": "passed"}]
    assert load_verdict().nowhere([newest, reverb]) == ["tests/a.py::test_3", "tests/c.py"]


def test_what_lacks_its_mark_in_a_file_of_the_other_stack_is_found() -> None:
    newest = [
        {"id": "tests/a.py::test_1", "outcome": "passed"},
        {"id": "tests/a.py::test_3", "outcome": "skipped"},
        {"id": "tests/b.py", "outcome": "skipped"},
    ]
    reverb = [
        {"id": "tests/a.py::test_1", "outcome": "deselected"},
        {"id": "tests/a.py::test_2[of older packages]", "outcome": "deselected"},
        {"id": "tests/a.py::test_3", "outcome": "deselected"},
        {"id": "tests/b.py::test_1", "outcome": "passed"},
        {"id": "tests/b.py::test_2", "outcome": "deselected"},
    ]
    assert load_verdict().nowhere([newest, reverb]) == ["tests/a.py::test_3", "tests/b.py::test_2"]


@pytest.mark.full
@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_report_has_what_was_deselected(tmp_path: pathlib.Path, workers: str) -> None:
    lines = run_pytest(tmp_path, "-n", workers, "-k", "fails or test_of_cases")
    found: dict[str, set[str]] = {}
    for name, line in lines.items():
        found.setdefault(line["outcome"], set()).add(name)
    assert found == {
        "failed": {"test_that_fails"},
        "passed": {"test_of_cases[1]"},
        "left": {"test_of_cases[2]", "test_of_cases[3]"},
        "deselected": {
            "test_of_the_full_tier",
            "test_of_the_landing_tier",
            "test_that_is_dear",
            "test_that_hangs",
        },
    }


def test_half_a_compiled_program_is_not_kept(tmp_path: pathlib.Path) -> None:
    session, kept, other = tmp_path / "session", tmp_path / "kept", tmp_path / "other"
    session.mkdir()
    other.mkdir()
    whole = zlib.compress(b"program" * 100)
    (session / "a-cache").write_bytes(whole)
    (session / "b-cache").write_bytes(whole[:-9])
    compile_cache.keep(session, kept)
    compile_cache.fill(other, kept)
    assert {path.name: path.read_bytes() for path in other.iterdir()} == {"a-cache": whole}


def test_too_many_compiled_programs_are_none_of_them_kept(tmp_path: pathlib.Path, monkeypatch) -> None:
    session, kept = tmp_path / "session", tmp_path / "kept"
    session.mkdir()
    monkeypatch.setattr(compile_cache, "_MOST_ENTRIES", 2)
    for names, expected in (("ab", "ab"), ("c", "abc"), ("d", "d")):
        for name in names:
            (session / f"{name}-cache").write_bytes(zlib.compress(b"program"))
        compile_cache.keep(session, kept)
        assert {path.name[0] for path in kept.iterdir()} == set(expected)


def test_a_machine_that_compiles_slowly_is_slower(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiers.os, "getloadavg", lambda: (0.0, 0.0, 0.0))
    for name in ("_COMPILE_SECONDS", "_OLD_COMPILE_SECONDS"):
        monkeypatch.setattr(tiers, name, getattr(tiers, name) / 20)
    assert tiers.slowness() > 5.0


def test_a_machine_whose_cores_others_want_is_slower(monkeypatch):
    monkeypatch.setenv("PYTEST_XDIST_WORKER_COUNT", "500")
    monkeypatch.setattr(tiers.os, "getloadavg", lambda: (2_000.0, 0.0, 0.0))
    assert tiers.slowness() >= 4.0
    monkeypatch.setattr(tiers.os, "getloadavg", lambda: (500.0, 0.0, 0.0))
    monkeypatch.setattr(tiers.time, "process_time", lambda: 0.0)
    assert tiers.slowness() == 1.0
