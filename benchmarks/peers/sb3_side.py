"""One run of Stable-Baselines3 or of sbx, which has its interface: ``python sb3_side.py JOB``; see step_clock.py.

The job names the library: ``peer`` is "sb3" or "sbx".
"""

from __future__ import annotations

import importlib.metadata
import json
import sys
import time
from typing import Any

from step_clock import StepClock


def off_policy_settings(job: dict[str, Any]) -> dict[str, Any]:
    """What SAC, TD3 and DQN have in common."""
    settings = job["settings"]
    # train_freq counts steps of all environments together.
    every = max(1, round(1 / (job["updates_per_step"] * job["num_envs"])))
    return {
        "buffer_size": settings["replay_size"],
        "learning_starts": job["learning_starts"],
        "batch_size": settings["batch_size"],
        "train_freq": every,
        "gradient_steps": round(job["updates_per_step"] * every * job["num_envs"]),
    }


def make_model(library: Any, job: dict[str, Any], environment: Any) -> Any:
    """The library's agent for the job."""
    settings, algorithm = job["settings"], job["algorithm"]
    hidden = list(settings["hidden_sizes"])
    images = len(environment.observation_space.shape) == 3
    # The network for images has the hidden layer of 512 units in its torso.
    common = {
        "policy": "CnnPolicy" if images else "MlpPolicy",
        "env": environment,
        "learning_rate": settings["learning_rate"],
        "gamma": settings["discount"],
        "policy_kwargs": {"net_arch": hidden[:-1] if images else hidden},
        "seed": job["seed"],
        "device": "cpu",
    }
    if algorithm == "ppo":
        return library.PPO(
            n_steps=settings["segment_length"],
            batch_size=job["rows_per_iteration"] // settings["num_minibatches"],
            n_epochs=settings["num_epochs"],
            gae_lambda=settings["gae_lambda"],
            clip_range=settings["clip_epsilon"],
            ent_coef=settings["entropy_cost"],
            vf_coef=settings["value_cost"],
            max_grad_norm=settings["max_grad_norm"],
            **common,
        )
    common |= off_policy_settings(job)
    if algorithm == "sac":
        return library.SAC(tau=settings["tau"], **common)
    if algorithm == "td3":
        from stable_baselines3.common.noise import NormalActionNoise, VectorizedActionNoise

        size = environment.action_space.shape[0]
        noise: Any = NormalActionNoise([0.0] * size, [settings["exploration_noise"]] * size)
        if job["num_envs"] > 1:
            noise = VectorizedActionNoise(noise, job["num_envs"])
        return library.TD3(
            tau=settings["tau"],
            policy_delay=settings["policy_delay"],
            target_policy_noise=settings["target_policy_noise"],
            target_noise_clip=settings["target_noise_clip"],
            action_noise=noise,
            **common,
        )
    if job["peer"] == "sb3":  # sbx cannot clip the gradients of DQN.
        common["max_grad_norm"] = settings["max_grad_norm"]
    return library.DQN(
        target_update_interval=settings["target_update_period"],
        exploration_initial_eps=settings["epsilon_start"],
        exploration_final_eps=settings["epsilon_end"],
        exploration_fraction=min(1.0, settings["epsilon_steps"] / job["last"]),
        **common,
    )


def make_environment(job: dict[str, Any], clock: StepClock) -> Any:
    """The environment, several of them as `DummyVecEnv`, or EnvPool's Pong."""
    from counted_environment import make_counted

    if job["pool_settings"]:
        from sb3_envpool import PoolVecEnv

        return PoolVecEnv(job["environment"], job["num_envs"], job["seed"], job["pool_settings"], clock)
    if job["num_envs"] == 1:
        return make_counted(job, clock)
    from stable_baselines3.common.vec_env import DummyVecEnv

    return DummyVecEnv([lambda: make_counted(job, clock)] * job["num_envs"])


def main(job: dict[str, Any]) -> None:
    """Runs it."""
    start = time.perf_counter()
    import gymnasium  # noqa: F401
    import torch

    if job["peer"] == "sbx":
        import sbx as library
    else:
        import stable_baselines3 as library
    import_seconds = time.perf_counter() - start
    torch.set_num_threads(job["threads"])
    clock = StepClock(job)
    model = make_model(library, job, make_environment(job, clock))
    model.learn(
        10**9 if job["algorithm"] == "ppo" else job["last"] + job["num_envs"],
        lambda *_: not clock.ended,
        log_interval=1_000_000,
    )
    num_updates = model._n_updates
    if job["algorithm"] == "ppo":  # It counts epochs.
        num_updates *= job["settings"]["num_minibatches"]
    packages = ["stable-baselines3", "torch", "gymnasium", "mujoco", "numpy"]
    packages += ["sbx-rl", "jax", "flax"] if job["peer"] == "sbx" else []
    packages += ["envpool"] if job["pool_settings"] else []
    versions = {package: importlib.metadata.version(package) for package in packages}
    clock.report(import_seconds=import_seconds, num_updates=num_updates, versions=versions)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
