"""Trains SAC with agentkit and with sbx, one beside the other, and records what both reach.

    python benchmarks/results/sac_beside_sbx.py --sbx-python PEER/bin/python --environments Hopper-v5 --seeds 0 1 2
    python benchmarks/results/sac_beside_sbx.py --report     # only write the table again

Each has its own defaults, which agree in all but the initial weights and the random steps at the start (5,000 here, 100
there): batches of 256, an update for each step, two layers of 256 units. Evaluation is the mode of the policy on 5
episodes. Each training has one thread, and the two of a pair run at the same time. dm_control's tasks ("walker/walk")
come to sbx by the adapter below. What is recorded is not trained again.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import subprocess
import sys
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[2]
RECORD = ROOT / "docs" / "results" / "sac_beside_sbx.json"
NUM_EPISODES = 5
NUM_EVALUATIONS = 10
ONE_THREAD = {
    "JAX_PLATFORMS": "cpu",
    "OMP_NUM_THREADS": "1",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
}


def dm_control_for_gymnasium(name: str) -> Any:
    """A dm_control task, its observations in one vector, as a gymnasium environment."""
    import gymnasium
    import numpy as np
    from dm_control import suite

    task = suite.load(*name.split("/"))
    actions = task.action_spec()

    def observe(timestep: Any) -> Any:
        return np.concatenate([np.ravel(part) for part in timestep.observation.values()]).astype(np.float32)

    class Task(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(-np.inf, np.inf, observe(task.reset()).shape)
        action_space = gymnasium.spaces.Box(actions.minimum, actions.maximum, dtype=np.float32)

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            if seed is not None:
                task.task.random.seed(seed)
            return observe(task.reset()), {}

        def step(self, action: Any) -> Any:
            timestep = task.step(action)
            return observe(timestep), timestep.reward, timestep.discount == 0.0, timestep.last(), {}

    return Task()


def sbx_side(environment: str, seed: int, num_steps: int) -> None:
    """Prints sbx's returns as JSON: ``[[steps, return], ...]``. Runs in sbx's own virtual environment."""
    import gymnasium
    import sbx
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.monitor import Monitor

    def make() -> Any:
        return Monitor(dm_control_for_gymnasium(environment) if "/" in environment else gymnasium.make(environment))

    period, curve = num_steps // NUM_EVALUATIONS, []

    class Evaluate(BaseCallback):
        def _on_step(self) -> bool:
            if self.num_timesteps % period == 0:
                judged = make()
                judged.reset(seed=1_000 + seed)
                curve.append((self.num_timesteps, evaluate_policy(self.model, judged, NUM_EPISODES, warn=False)[0]))
            return True

    model = sbx.SAC("MlpPolicy", make(), seed=seed, learning_starts=100)
    model.learn(num_steps, callback=Evaluate(), log_interval=10**9)
    print(json.dumps(curve))


def agentkit_side(environment: str, seed: int, num_steps: int) -> None:
    """Prints agentkit's returns in the same form."""
    import agentkit
    from agentkit.callbacks import Callback

    curve: list[tuple[int, float]] = []

    class Record(Callback):
        def on_evaluation(self, run: Any, record: dict[str, Any]) -> None:
            curve.append((int(record["steps"]), float(record["episode_return"])))

    name = f"dm_control:{environment}" if "/" in environment else f"gymnasium:{environment}"
    agentkit.train(
        "sac",
        name,
        num_steps,
        seed=seed,
        preset="none",
        run_directory=None,
        evaluation_period=num_steps // NUM_EVALUATIONS,
        evaluation_episodes=NUM_EPISODES,
        progress=False,
        callbacks=[Record()],
    )
    print(json.dumps(curve))


def train_pair(sbx_python: str, environment: str, seed: int, num_steps: int) -> dict[str, Any]:
    """Trains both at the same time, in processes of their own."""
    words = [__file__, "--environments", environment, "--seeds", str(seed), "--steps", str(num_steps), "--side"]
    variables = os.environ | ONE_THREAD
    sides = {
        library: subprocess.Popen([python, *words, library], env=variables, stdout=subprocess.PIPE, text=True)
        for library, python in (("agentkit", sys.executable), ("sbx", sbx_python))
    }
    curves = {}
    for library, process in sides.items():
        output, _ = process.communicate()
        if process.returncode != 0:
            raise SystemExit(f"{library} ended with exit code {process.returncode}.")
        curves[library] = json.loads(output.splitlines()[-1])
    return {"environment": environment, "seed": seed, "num_steps": num_steps, "curves": curves}


def report(runs: list[dict[str, Any]]) -> str:
    """A table of the recorded pairs: at the end, and the best evaluation on the way."""
    lines = [
        "| environment | seed | steps | agentkit: last | best | sbx: last | best |",
        "|---|---|---|---|---|---|---|",
    ]
    for run in sorted(runs, key=lambda run: (run["environment"], run["seed"])):
        returns = [[point[1] for point in run["curves"][library]] for library in ("agentkit", "sbx")]
        cells = " | ".join(f"{curve[-1]:.0f} | {max(curve):.0f}" for curve in returns)
        lines.append(f"| {run['environment']} | {run['seed']} | {run['num_steps']:,} | {cells} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sbx-python", default=sys.executable)
    parser.add_argument("--environments", nargs="+", default=["Hopper-v5", "walker/walk"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--report", action="store_true")
    parser.add_argument("--side", choices=["agentkit", "sbx"], help="one training in this process; for this script")
    chosen = parser.parse_args()
    if chosen.side:
        side = agentkit_side if chosen.side == "agentkit" else sbx_side
        return side(chosen.environments[0], chosen.seeds[0], chosen.steps)
    runs = json.loads(RECORD.read_text()) if RECORD.exists() else []
    done = {(run["environment"], run["seed"], run["num_steps"]) for run in runs}
    for environment in [] if chosen.report else chosen.environments:
        for seed in chosen.seeds:
            if (environment, seed, chosen.steps) not in done:
                runs.append(train_pair(chosen.sbx_python, environment, seed, chosen.steps))
                RECORD.write_text(json.dumps(runs, indent=1) + "\n")
    print(report(runs))


if __name__ == "__main__":
    main()
