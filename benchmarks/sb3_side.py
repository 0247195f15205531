"""One run of Stable-Baselines3: ``python sb3_side.py JOB`` where it is installed; see compare_sb3.py."""

from __future__ import annotations

import importlib.metadata
import json
import sys
import time
from typing import Any

from step_clock import StepClock


def main(job: dict[str, Any]) -> None:
    start = time.perf_counter()
    import gymnasium
    import stable_baselines3
    import torch

    import_seconds = time.perf_counter() - start
    torch.set_num_threads(job["threads"])
    clock = StepClock(job)

    class Counted(gymnasium.Wrapper):
        def reset(self, **kwargs: Any) -> Any:
            clock.num_episodes += 1
            return self.env.reset(**kwargs)

        def step(self, action: Any) -> Any:
            clock.tick()
            return self.env.step(action)

    # Without gymnasium's environment checker, which agentkit switches off too: it costs time at every step.
    environment = Counted(gymnasium.make(job["environment"], disable_env_checker=True))
    settings = job["settings"]
    common = {
        "env": environment,
        "learning_rate": settings["learning_rate"],
        "buffer_size": settings["replay_size"],
        "learning_starts": job["learning_starts"],
        "batch_size": settings["batch_size"],
        "gamma": settings["discount"],
        "train_freq": 1,
        "gradient_steps": 1,
        "policy_kwargs": {"net_arch": list(settings["hidden_sizes"])},
        "seed": job["seed"],
        "device": "cpu",
    }
    if job["workload"] == "sac":
        model = stable_baselines3.SAC("MlpPolicy", tau=settings["tau"], **common)
    else:
        model = stable_baselines3.DQN(
            "MlpPolicy",
            target_update_interval=settings["target_update_period"],
            exploration_initial_eps=settings["epsilon_start"],
            exploration_final_eps=settings["epsilon_end"],
            exploration_fraction=min(1.0, settings["epsilon_steps"] / job["last"]),
            max_grad_norm=settings["max_grad_norm"],
            **common,
        )
    model.learn(job["last"], log_interval=1_000_000)
    packages = ("stable-baselines3", "torch", "gymnasium", "mujoco", "numpy")
    versions = {package: importlib.metadata.version(package) for package in packages}
    clock.report(import_seconds=import_seconds, num_updates=model._n_updates, versions=versions)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
