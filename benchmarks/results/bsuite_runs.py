"""Scores agents on bsuite's reduced sweep (Osband et al. 2020, 1908.03568) and records them in docs/results/bsuite.md.

    python benchmarks/results/bsuite_runs.py                      # dqn and ppo
    python benchmarks/results/bsuite_runs.py --agents a2c --cores 2 3

The reduced sweep is the first setting of each experiment (`bsuite.sweep.TESTING`); mnist is left out, which downloads
its images. Each run has bsuite's own number of episodes and one environment, in a process pinned to one core; scores,
from 0 to 1, are of bsuite's own analysis of what it logged while the agent learned. No setting is tuned for bsuite.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from typing import Any

from cores import run_on_cores

from agentkit.learning import Linear

RECORD = pathlib.Path(__file__).resolve().parents[2] / "docs" / "results" / "bsuite.json"
LEFT_OUT = ("mnist",)
MOST_STEPS = 10_000_000
SETTINGS: dict[str, dict[str, Any]] = {
    # Of one environment, PPO and A2C learn from short segments, as bsuite's own actor-critic does.
    "dqn": {"epsilon": Linear(1.0, 0.05, 1_000), "n_step": 1},
    "ppo": {"segment_length": 64, "entropy_cost": 0.01},
    "a2c": {"segment_length": 32},
}


def reduced_sweep() -> list[str]:
    """bsuite's ids, but for those left out."""
    from bsuite import sweep

    return [bsuite_id for bsuite_id in sweep.TESTING if bsuite_id.split("/")[0] not in LEFT_OUT]


def train(agent_name: str, bsuite_id: str, seed: int, folder: str) -> None:
    """One run in this process, logged by bsuite into `folder`."""
    import bsuite
    import dm_env

    import agentkit
    from agentkit.agents import registry
    from agentkit.envs.bsuite import BsuiteEnvironment
    from agentkit.wrappers.single_precision import SinglePrecision

    environment = bsuite.load_and_record_to_csv(bsuite_id, folder, overwrite=True)
    left = environment.bsuite_num_episodes

    class Counted(dm_env.Environment):
        """Stops the run with bsuite's last episode."""

        def __getattr__(self, name: str) -> Any:
            return getattr(inner, name)

        def reset(self) -> dm_env.TimeStep:
            return inner.reset()

        def step(self, action: Any) -> dm_env.TimeStep:
            nonlocal left
            timestep = inner.step(action)
            left -= timestep.last()
            if left == 0 and timestep.last():
                signal.raise_signal(signal.SIGINT)  # After this step, as by Ctrl-C.
            return timestep

        def observation_spec(self) -> Any:
            return inner.observation_spec()

        def action_spec(self) -> Any:
            return inner.action_spec()

    wrapped = BsuiteEnvironment(environment)
    wrapped.reseed(seed)
    inner = SinglePrecision(wrapped)  # As `envs.make` gives it.
    agent = registry.make(agent_name, SETTINGS.get(agent_name, {}))
    experiment = agentkit.ExperimentConfig(
        agent, lambda seed: Counted(), num_steps=MOST_STEPS, seed=seed, evaluation_period=0, checkpoint_period=0
    )
    agentkit.run(experiment)


def score(folder: pathlib.Path) -> dict[str, float]:
    """bsuite's score of each experiment that was logged in `folder`.

    Raises:
        RuntimeError: one has fewer episodes than it should.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import pandas
        from bsuite.experiments import summary_analysis
        from bsuite.logging import csv_load

        if not hasattr(pandas.Series, "append"):  # Gone since pandas 2; bsuite 0.3.6 still calls it.
            pandas.Series.append = lambda self, other: pandas.concat([self, other])
        frame, _ = csv_load.load_bsuite(str(folder))
        scores = summary_analysis.bsuite_score(frame)
    unfinished = [row.bsuite_env for row in scores.itertuples() if not row.finished]
    if unfinished:
        raise RuntimeError(f"Expected all episodes of each experiment, found fewer of {unfinished}. Run them again.")
    return {row.bsuite_env: float(row.score) for row in scores.itertuples()}


def run_all(agents: list[str], seed: int, cores: list[int], record: pathlib.Path) -> int:
    """Records each run when it ends; what is recorded is not repeated. Counts the failed."""
    done = json.loads(record.read_text()) if record.exists() else {}
    names = [f"{agent}/{bsuite_id}/{seed}" for bsuite_id in reduced_sweep() for agent in agents]
    lock = threading.Lock()

    def run(name: str, prefix: list[str]) -> None:
        agent, *bsuite_id, _ = name.split("/")
        started = time.time()
        with tempfile.TemporaryDirectory() as folder:
            command = [*prefix, sys.executable, __file__, "--one", agent, "/".join(bsuite_id), str(seed), folder]
            ended = subprocess.run(command, capture_output=True, text=True, check=False)
            if ended.returncode:
                raise RuntimeError(ended.stderr[-1500:])
            (value,) = score(pathlib.Path(folder)).values()
        seconds = round(time.time() - started)
        with lock:
            done[name] = {"score": round(value, 4), "seconds": seconds}
            record.write_text(json.dumps(dict(sorted(done.items())), indent=1) + "\n")
        print(f"{name}: {value:.3f} in {seconds} s", flush=True)

    return run_on_cores([name for name in names if name not in done], cores, run)


def write_report(record: pathlib.Path) -> None:
    """The table, as Markdown beside the record."""
    found = json.loads(record.read_text())
    names = [name.split("/") for name in found]  # agent, experiment, number, seed
    agents = sorted({name[0] for name in names})
    experiments = [bsuite_id.split("/")[0] for bsuite_id in reduced_sweep()]
    lines = [
        "# bsuite, reduced sweep",
        "",
        "`python benchmarks/results/bsuite_runs.py`: first settings of all experiments but mnist (a download),",
        "bsuite's own number of episodes and its own scores, 0 to 1, of what an agent got while it learned; seed "
        + ", ".join(sorted({name[3] for name in names}))
        + ".",
        "Settings beside the defaults: "
        + "; ".join(f"{agent} {SETTINGS[agent]}" for agent in agents if agent in SETTINGS).replace("'", "")
        + ". Nothing is tuned for bsuite.",
        "",
        f"| experiment | {' | '.join(agents)} |",
        "|---" * (len(agents) + 1) + "|",
    ]
    for experiment in experiments:
        cells = []
        for agent in agents:
            scores = [row["score"] for name, row in found.items() if name.startswith(f"{agent}/{experiment}/")]
            cells.append(", ".join(f"{value:.2f}" for value in scores) or "not run")
        lines.append(f"| {experiment} | {' | '.join(cells)} |")
    record.with_suffix(".md").write_text("\n".join(lines) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", nargs="+", default=["dqn", "ppo"])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cores", type=int, nargs="+", default=sorted(os.sched_getaffinity(0)))
    parser.add_argument("--record", type=pathlib.Path, default=RECORD)
    parser.add_argument("--one", nargs=4, metavar=("AGENT", "ID", "SEED", "FOLDER"), help="one run, here")
    options = parser.parse_args()
    if options.one:
        agent, bsuite_id, seed, folder = options.one
        train(agent, bsuite_id, int(seed), folder)
        return 0
    failed = run_all(options.agents, options.seed, options.cores, options.record)
    write_report(options.record)
    return int(failed > 0)


if __name__ == "__main__":
    raise SystemExit(main())
