"""One run of Tianshou, by its own trainers as released: ``python tianshou_side.py JOB``; see step_clock.py.

Where the job has ``pool``, EnvPool steps the environments, else Tianshou's `DummyVectorEnv`.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import sys
import time
from typing import Any

from step_clock import StepClock, WindowEnded


def make_environment(job: dict[str, Any], clock: StepClock) -> Any:
    """The vector environment."""
    if not job.get("pool"):
        from counted_environment import make_counted
        from tianshou.env import DummyVectorEnv

        return DummyVectorEnv([lambda: make_counted(job, clock)] * job["num_envs"])
    import envpool

    pool = envpool.make_gymnasium(
        job["environment"], num_envs=job["num_envs"], seed=job["seed"], **job["pool_settings"]
    )
    step, reset = pool.step, pool.reset

    def counted_step(actions: Any, ids: Any = None) -> Any:
        clock.tick(len(actions))
        return step(actions, ids)

    def counted_reset(env_id: Any = None, **_: Any) -> Any:  # EnvPool cannot be seeded anew.
        clock.num_episodes += job["num_envs"] if env_id is None else len(env_id)
        return reset(env_id)

    pool.step, pool.reset = counted_step, counted_reset
    return pool


def make_sac(settings: dict[str, Any], space: Any, actions: Any) -> Any:
    """SAC with a temperature that is tuned."""
    from tianshou.algorithm.modelfree.sac import SAC, AutoAlpha, SACPolicy
    from tianshou.algorithm.optim import AdamOptimizerFactory
    from tianshou.utils.net.common import Net
    from tianshou.utils.net.continuous import ContinuousActorProbabilistic

    adam = AdamOptimizerFactory(lr=settings["learning_rate"])
    torso = Net(state_shape=space.shape, hidden_sizes=settings["hidden_sizes"])
    actor = ContinuousActorProbabilistic(
        preprocess_net=torso, action_shape=actions.shape, unbounded=True, conditioned_sigma=True
    )
    critics = [make_critic(settings, space, actions) for _ in range(2)]
    return SAC(
        policy=SACPolicy(actor=actor, action_space=actions),
        policy_optim=adam,
        critic=critics[0],
        critic_optim=adam,
        critic2=critics[1],
        critic2_optim=adam,
        tau=settings["tau"],
        gamma=settings["discount"],
        alpha=AutoAlpha(-float(actions.shape[0]), 0.0, adam),
    )


def make_critic(settings: dict[str, Any], space: Any, actions: Any) -> Any:
    """Of an observation and an action."""
    from tianshou.utils.net.common import Net
    from tianshou.utils.net.continuous import ContinuousCritic

    sizes = settings["hidden_sizes"]
    return ContinuousCritic(
        preprocess_net=Net(state_shape=space.shape, action_shape=actions.shape, hidden_sizes=sizes, concat=True)
    )


def make_td3(settings: dict[str, Any], space: Any, actions: Any) -> Any:
    """TD3."""
    from tianshou.algorithm.modelfree.ddpg import ContinuousDeterministicPolicy
    from tianshou.algorithm.modelfree.td3 import TD3
    from tianshou.algorithm.optim import AdamOptimizerFactory
    from tianshou.exploration import GaussianNoise
    from tianshou.utils.net.common import Net
    from tianshou.utils.net.continuous import ContinuousActorDeterministic

    adam = AdamOptimizerFactory(lr=settings["learning_rate"])
    actor = ContinuousActorDeterministic(
        preprocess_net=Net(state_shape=space.shape, hidden_sizes=settings["hidden_sizes"]), action_shape=actions.shape
    )
    noise = GaussianNoise(sigma=settings["exploration_noise"])
    critics = [make_critic(settings, space, actions) for _ in range(2)]
    return TD3(
        policy=ContinuousDeterministicPolicy(actor=actor, exploration_noise=noise, action_space=actions),
        policy_optim=adam,
        critic=critics[0],
        critic_optim=adam,
        critic2=critics[1],
        critic2_optim=adam,
        tau=settings["tau"],
        gamma=settings["discount"],
        policy_noise=settings["target_policy_noise"],
        noise_clip=settings["target_noise_clip"],
        update_actor_freq=settings["policy_delay"],
    )


def make_dqn(settings: dict[str, Any], space: Any, actions: Any) -> Any:
    """DQN; of images with the network of Mnih et al. 2015. Its gradients are not clipped: Tianshou's are not."""
    from tianshou.algorithm.modelfree.dqn import DQN, DiscreteQLearningPolicy
    from tianshou.algorithm.optim import AdamOptimizerFactory

    if len(space.shape) == 3:
        from tianshou.env.atari.atari_network import DQNet, ScaledObsInputActionReprNet

        model: Any = ScaledObsInputActionReprNet(DQNet(*space.shape, action_shape=int(actions.n)))
    else:
        from tianshou.utils.net.common import Net

        model = Net(state_shape=space.shape, action_shape=int(actions.n), hidden_sizes=settings["hidden_sizes"])
    return DQN(
        policy=DiscreteQLearningPolicy(
            model=model, action_space=actions, observation_space=space, eps_training=settings["epsilon_start"]
        ),
        optim=AdamOptimizerFactory(lr=settings["learning_rate"]),
        gamma=settings["discount"],
        target_update_freq=settings["target_update_period"],
        is_double=False,
        huber_loss_delta=1.0,
    )


def make_ppo(settings: dict[str, Any], space: Any, actions: Any) -> Any:
    """PPO with tanh layers; policy and value share none."""
    import torch
    from tianshou.algorithm.modelfree.ppo import PPO
    from tianshou.algorithm.modelfree.reinforce import DiscreteActorPolicy, ProbabilisticActorPolicy
    from tianshou.algorithm.optim import AdamOptimizerFactory
    from tianshou.utils.net.common import Net
    from tianshou.utils.net.continuous import ContinuousActorProbabilistic, ContinuousCritic
    from tianshou.utils.net.discrete import DiscreteActor, DiscreteCritic

    def torso() -> Any:
        return Net(state_shape=space.shape, hidden_sizes=settings["hidden_sizes"], activation=torch.nn.Tanh)

    if hasattr(actions, "n"):
        actor: Any = DiscreteActor(preprocess_net=torso(), action_shape=int(actions.n), softmax_output=False)
        policy: Any = DiscreteActorPolicy(actor=actor, action_space=actions)
        critic: Any = DiscreteCritic(preprocess_net=torso())
    else:
        actor = ContinuousActorProbabilistic(preprocess_net=torso(), action_shape=actions.shape, unbounded=True)
        policy = ProbabilisticActorPolicy(
            actor=actor,
            dist_fn=lambda loc_scale: torch.distributions.Independent(torch.distributions.Normal(*loc_scale), 1),
            action_space=actions,
        )
        critic = ContinuousCritic(preprocess_net=torso())
    return PPO(
        policy=policy,
        critic=critic,
        optim=AdamOptimizerFactory(lr=settings["learning_rate"]),
        eps_clip=settings["clip_epsilon"],
        vf_coef=settings["value_cost"],
        ent_coef=settings["entropy_cost"],
        max_grad_norm=settings["max_grad_norm"],
        gae_lambda=settings["gae_lambda"],
        gamma=settings["discount"],
    )


def train(job: dict[str, Any], algorithm: Any, environment: Any) -> None:
    """Trains with Tianshou's trainer until the clock ends it."""
    from tianshou.data import Collector, VectorReplayBuffer
    from tianshou.trainer import OffPolicyTrainerParams, OnPolicyTrainerParams

    settings, num_envs, rows = job["settings"], job["num_envs"], job["rows_per_iteration"]
    buffer = VectorReplayBuffer(rows or settings["replay_size"], num_envs)
    collector = Collector(algorithm, environment, buffer, exploration_noise=True)
    common: dict[str, Any] = {
        "max_epochs": 1,
        "epoch_num_steps": 10**9,
        "training_collector": collector,
        "verbose": False,
        "show_progress": False,
    }
    if rows:
        algorithm.run_training(
            OnPolicyTrainerParams(
                batch_size=rows // settings["num_minibatches"],
                update_step_num_repetitions=settings["num_epochs"],
                collection_step_num_env_steps=rows,
                **common,
            )
        )
    collector.reset()
    collector.collect(n_step=-(-job["learning_starts"] // num_envs) * num_envs, random=True)
    if job["algorithm"] == "dqn":
        start, end = settings["epsilon_start"], settings["epsilon_end"]

        def explore(epoch: int, step: int) -> None:
            fraction = min(1.0, (job["learning_starts"] + step) / settings["epsilon_steps"])
            algorithm.policy.set_eps_training(start + fraction * (end - start))

        common["training_fn"] = explore
    every = max(1, round(1 / (job["updates_per_step"] * num_envs)))
    algorithm.run_training(
        OffPolicyTrainerParams(
            batch_size=settings["batch_size"],
            update_step_num_gradient_steps_per_sample=job["updates_per_step"],
            collection_step_num_env_steps=every * num_envs,
            **common,
        )
    )


MAKERS = {"sac": make_sac, "td3": make_td3, "dqn": make_dqn, "ppo": make_ppo}


def main(job: dict[str, Any]) -> None:
    """Runs it."""
    start = time.perf_counter()
    import torch
    from tianshou import algorithm as _  # noqa: F401
    from tianshou import data, env, trainer  # noqa: F401
    from torch_updates import UpdateCounter

    import_seconds = time.perf_counter() - start
    torch.set_num_threads(job["threads"])
    torch.manual_seed(job["seed"])
    clock, counter = StepClock(job, raise_at_end=True), UpdateCounter()
    environment = make_environment(job, clock)
    space, actions = environment.observation_space, environment.action_space
    if not job.get("pool"):  # A list, of each environment.
        space, actions = space[0], actions[0]
    with contextlib.suppress(WindowEnded):
        train(job, MAKERS[job["algorithm"]](job["settings"], space, actions), environment)
    packages = ["tianshou", "torch", "gymnasium", "mujoco", "numpy", *(["envpool"] if job.get("pool") else [])]
    versions = {package: importlib.metadata.version(package) for package in packages}
    clock.report(import_seconds=import_seconds, num_updates=counter.num_updates, versions=versions)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
