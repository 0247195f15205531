"""The comparison with peers: what it runs, how it measures, and what it says of it."""

import argparse
import importlib
import json
import pathlib
import sys

import pytest

BENCHMARKS = pathlib.Path(__file__).parents[2] / "benchmarks" / "peers"


@pytest.fixture(autouse=True)
def modules(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    names = ("step_clock", "workloads", "peer_environments", "compare_report", "compare")
    yield {name: importlib.import_module(name) for name in names}
    for name in names:
        sys.modules.pop(name)


def tick_all(modules, job, num_slots, num_envs=1):
    clock = modules["step_clock"].StepClock(job | {"started": 0.0})
    for _ in range(num_slots // num_envs):
        clock.tick(num_envs)
    return clock


def test_the_window_is_counted_in_steps_and_the_end_is_seen(modules, capsys):
    job = modules["workloads"].make_job("dqn", "sb3", seconds=0.1)
    clock = tick_all(modules, job, job["last"] - 1)
    assert not clock.ended
    clock.tick()
    assert clock.ended
    owed = job["last"] - job["learning_starts"]
    clock.report(import_seconds=1.0, num_updates=owed, versions={})
    row = json.loads(capsys.readouterr().out)
    assert row["steps_per_second"] * row["window_seconds"] == pytest.approx(job["last"] - job["first"])
    if sys.platform == "linux":
        assert 0 < row["last_mebibytes"] <= row["peak_mebibytes"] + 1


@pytest.mark.parametrize("missing", [5, -5])
def test_another_number_of_updates_is_refused(modules, missing):
    job = modules["workloads"].make_job("sac", "sb3", seconds=0.1)
    clock = tick_all(modules, job, job["last"])
    with pytest.raises(RuntimeError, match="Expected 1 updates per step"):
        clock.report(import_seconds=1.0, num_updates=job["last"] - job["learning_starts"] - missing, versions={})


def test_on_policy_windows_are_whole_iterations(modules):
    job = modules["workloads"].make_job("ppo-cartpole", "sb3", seconds=0.1)
    assert (job["last"] - job["first"]) % job["rows_per_iteration"] == 0
    clock = tick_all(modules, job, job["last"] + 7, num_envs=8)
    assert clock.ended
    owed, slack = clock.updates_owed()
    assert owed == 20 * (job["last"] // 256)
    assert slack == 20


def test_a_clock_can_end_its_side(modules):
    job = modules["workloads"].make_job("sac", "tianshou", seconds=0.1)
    clock = modules["step_clock"].StepClock(job, raise_at_end=True)
    with pytest.raises(modules["step_clock"].WindowEnded):
        for _ in range(job["last"]):
            clock.tick()
    assert clock.num_steps == job["last"]


def test_each_environment_of_a_batch_counts_its_own_random_steps(modules):
    job = modules["workloads"].make_job("sac-16", "agentkit", variant="16 updates a call", stored=1_600)
    assert job["settings"]["min_replay_size"] == 1_600
    assert job["settings"]["num_random_steps"] == 100


def test_rounds_alternate_and_slow_peers_leave(modules):
    compare = modules["compare"]
    options = compare.parse(["--peers", "sb3", "rllib", "--pairs", "3", "--slow-pairs", "1"])
    case = compare.Case("dqn")
    first = compare.plan_round(case, 0, {}, options, [1, 2])
    assert [run.side for run in first] == ["agentkit", "sb3", "sb3", "agentkit", "rllib", "rllib"]
    second = compare.plan_round(case, 1, {"sb3": 2}, options, [1, 2])
    assert [(run.side, run.threads) for run in second][-1] == ("agentkit", None)
    assert [run.threads for run in second if run.side == "sb3"] == [2]
    assert not [run for run in second if run.side == "rllib"]


def record_of(speeds):
    rounds = [
        {
            "agentkit": {"one update a call": row(ours)},
            "peers": {"sbx": {"1": row(theirs), "2": row(theirs / 2)}, "sb3": {"1": row(theirs / 4)}},
            "failed": {},
        }
        for ours, theirs in speeds
    ]
    machine = {"date": "", "processor": "", "cores": 1, "load_average_before": 0.0, "command": "c"}
    cases = {"sac": {"workload": "sac", "stored": None, "rounds": rounds}}
    return {"stack": "newest", "machine": machine, "threads": [1, 2], "window_seconds": 1.0, "cases": cases}


def row(speed):
    costs = ("first_step_seconds", "first_update_seconds", "import_seconds", "peak_mebibytes", "cores_used")
    return {"steps_per_second": speed, "versions": {"numpy": "1"}, **dict.fromkeys(costs, 1.0)}


def test_ratios_are_of_pairs_and_the_fastest_peer_is_named(modules, tmp_path):
    record = record_of([(100.0, 100.0), (300.0, 100.0), (160.0, 100.0)])
    modules["compare_report"].write_report(tmp_path, record)
    text = (tmp_path / "compare_newest.md").read_text()
    assert "| sac | one update a call | sbx | **1.60** (1.00 to 3.00, 3 pairs) |" in text
    assert "sbx 1.6: yes" in text
    slower = record_of([(159.0, 100.0)])
    assert "sbx 1.6: no" in modules["compare_report"].as_markdown(slower)
    assert "Stable-Baselines3 2: yes" in modules["compare_report"].as_markdown(slower)


def test_start_and_memory_are_not_compared_with_the_build_of_torch_for_cuda(modules):
    record = record_of([(2.0, 1.0)])
    rows = record["cases"]["sac"]["rounds"][0]["peers"]["sb3"]
    for version, expected in (("2.13.0", "- | - | - | - | **1.00**"), ("2.13.0+cpu", "**1.00** (1, 1) | **1.00**")):
        rows["1"]["versions"]["torch"] = version
        text = modules["compare_report"].as_markdown(record)
        assert f"| Stable-Baselines3 | {expected}" in text
        assert ("its build for CUDA" in text) == (f"torch is {version} for CUDA." in text) == ("-" in expected)


def test_the_record_keeps_other_workloads_only_when_told(modules, tmp_path):
    modules["compare_report"].write_report(tmp_path, record_of([(2.0, 1.0)]))
    for add, kept in ((True, ["sac"]), (False, [])):
        options = argparse.Namespace(stack="newest", threads=[1], window_seconds=1.0, add=add)
        machine = {"command": "d", "load_average_before": 1.0}
        record = modules["compare"].start_record(tmp_path / "compare_newest.json", machine, options)
        assert list(record["cases"]) == kept


def test_a_side_that_fails_or_hangs_is_an_error(modules, tmp_path, monkeypatch):
    compare = modules["compare"]
    monkeypatch.setattr(compare, "HERE", tmp_path)
    (tmp_path / "bad.py").write_text("print('{}'); raise SystemExit('the reason')")
    (tmp_path / "hangs.py").write_text("import time; time.sleep(60)")
    with pytest.raises(compare.SideError, match="the reason"):
        compare.run_side(sys.executable, "bad.py", {"workload": "sac"}, 60)
    with pytest.raises(compare.SideError, match="more than 1 s"):
        compare.run_side(sys.executable, "hangs.py", {"workload": "sac"}, 1)
