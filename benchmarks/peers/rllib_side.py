"""One run of RLlib on its newest interface, all of it in this process: ``python rllib_side.py JOB``; see step_clock.py.

Ray's own processes (its scheduler and object store) run beside it; memory and cores are of this process alone.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import shutil
import sys
import tempfile
import time
from typing import Any

from step_clock import StepClock, WindowEnded


class LooseClock(StepClock):
    """A `StepClock` that allows a tenth of PPO's updates to be missing.

    RLlib fills iterations by episodes' lengths, not by rows: 132 gradient steps were seen where there should be 140.
    """

    def updates_owed(self) -> tuple[float, float]:
        """See `StepClock`."""
        owed, slack = super().updates_owed()
        return owed, slack + (0.1 * owed if self._job["rows_per_iteration"] else 0.0)


def configure(job: dict[str, Any]) -> Any:
    """The algorithm's configuration."""
    settings, algorithm = job["settings"], job["algorithm"]
    network: dict[str, Any] = {"fcnet_hiddens": settings["hidden_sizes"], "head_fcnet_hiddens": []}
    if algorithm == "ppo":
        from ray.rllib.algorithms.ppo import PPOConfig

        network |= {"fcnet_activation": "tanh", "vf_share_layers": False}
        config: Any = PPOConfig().training(
            lr=settings["learning_rate"],
            train_batch_size_per_learner=job["rows_per_iteration"],
            minibatch_size=job["rows_per_iteration"] // settings["num_minibatches"],
            num_epochs=settings["num_epochs"],
            lambda_=settings["gae_lambda"],
            clip_param=settings["clip_epsilon"],
            entropy_coeff=settings["entropy_cost"],
            vf_loss_coeff=settings["value_cost"],
            grad_clip=settings["max_grad_norm"],
            use_kl_loss=False,
        )
        fragment = settings["segment_length"]
    else:
        config, more = configure_off_policy(settings, algorithm)
        network |= more
        config.training(
            train_batch_size_per_learner=settings["batch_size"],
            num_steps_sampled_before_learning_starts=job["learning_starts"],
            replay_buffer_config={"type": "EpisodeReplayBuffer", "capacity": settings["replay_size"]},
        )
        fragment = 1  # With `training_intensity` unset that is one update a step.
    return (
        config.environment("counted", env_config={"job": job})
        .framework("torch")
        .env_runners(num_env_runners=0, num_envs_per_env_runner=job["num_envs"], rollout_fragment_length=fragment)
        .learners(num_learners=0, num_gpus_per_learner=0)
        .rl_module(model_config=network)
        .training(gamma=settings["discount"])
        .debugging(seed=job["seed"], log_level="ERROR")
    )


def configure_off_policy(settings: dict[str, Any], algorithm: str) -> tuple[Any, dict[str, Any]]:
    """The configuration of SAC or DQN, and what it asks of the network."""
    if algorithm == "sac":
        from ray.rllib.algorithms.sac import SACConfig

        rate = settings["learning_rate"]
        config = SACConfig().training(tau=settings["tau"], actor_lr=rate, critic_lr=rate, alpha_lr=rate, n_step=1)
        return config, {"fcnet_activation": "relu"}
    from ray.rllib.algorithms.dqn import DQNConfig

    config = DQNConfig().training(
        lr=settings["learning_rate"],
        epsilon=[(0, settings["epsilon_start"]), (settings["epsilon_steps"], settings["epsilon_end"])],
        target_network_update_freq=settings["target_update_period"],
        grad_clip=settings["max_grad_norm"],
        dueling=False,
        double_q=False,
        n_step=1,
    )
    return config, {"fcnet_activation": "relu"}


def main(job: dict[str, Any]) -> None:
    """Runs it."""
    start = time.perf_counter()
    import ray
    import torch
    from ray import tune
    from ray.rllib.algorithms import dqn, ppo, sac  # noqa: F401

    import_seconds = time.perf_counter() - start
    from counted_environment import RLLIB_CLOCK, make_for_rllib
    from torch_updates import UpdateCounter

    torch.set_num_threads(job["threads"])
    clock, counter = LooseClock(job, raise_at_end=True), UpdateCounter()
    RLLIB_CLOCK.append(clock)
    tune.register_env("counted", make_for_rllib)
    folder = tempfile.mkdtemp(prefix="rllib")
    try:
        # Ray takes the number of its cores for torch's threads, too.
        ray.init(
            num_cpus=job["threads"],
            include_dashboard=False,
            log_to_driver=False,
            logging_level="ERROR",
            _temp_dir=folder,
            object_store_memory=100 * 2**20,
        )
        trained = configure(job).build_algo()
        with contextlib.suppress(WindowEnded):
            while True:
                trained.train()
        packages = ("ray", "torch", "gymnasium", "mujoco", "numpy")
        versions = {package: importlib.metadata.version(package) for package in packages}
        clock.report(import_seconds=import_seconds, num_updates=counter.num_updates, versions=versions)
        sys.stdout.flush()
    finally:
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    os.environ.setdefault("RAY_DEDUP_LOGS", "0")
    main(json.loads(sys.argv[1]))
