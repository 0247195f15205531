"""Several agents beside Tianshou's and RLlib's own multi-agent examples: one process at a time, in turns.

    python benchmarks/peers/several_beside.py --workloads tictactoe-dqn --other-python ~/peers/tianshou/bin/python
    python benchmarks/peers/several_beside.py --workloads spread-ppo --other-python ~/peers/rllib/bin/python

Run it alone on the machine, with an interpreter that has agentkit, PettingZoo and mpe2, which the others need, too.

* ``tictactoe-dqn`` is Tianshou's ``tic_tac_toe.py``: DQN against a random player, in 10 environments that step
  together, with its settings. Its batch of 64 holds the rows of both players, of which it learns from one's; agentkit's
  are all of the player who learns.
* ``spread-ppo`` is RLlib's ``pettingzoo_parameter_sharing.py`` on simple_spread: one PPO for three agents in 8
  environments, 10 epochs of 4 minibatches on 128 steps of each agent. RLlib runs all in one process, on its newest
  interface.

Steps are the environment's: of tic-tac-toe a move, of simple_spread one of all three agents.
"""

from __future__ import annotations

import pathlib
import tempfile
from typing import Any

import beside

# Workloads: environments, steps in all, and those before the clock starts, in which replay fills and XLA compiles.
WORKLOADS: dict[str, dict[str, Any]] = {
    "tictactoe-dqn": {"other": "tianshou", "num_envs": 10, "steps": 12_000, "first": 4_000},
    "spread-ppo": {"other": "rllib", "num_envs": 8, "steps": 4 * 1_024, "first": 1_024},
}
HIDDEN = (128, 128, 128, 128)


def run_agentkit(work: dict[str, Any]) -> dict[str, float]:
    """Trains as `agentkit.run` does; the clock starts after the first steps."""
    import agentkit
    from agentkit.agents import dqn, ppo
    from agentkit.experiment.local import started

    if work["other"] == "tianshou":
        learner = dqn.make_agent(
            dqn.Config(
                n_step=3, batch_size=64, updates_per_step=0.2, replay_size=20_000, hidden_sizes=HIDDEN, discount=0.9,
                learning_rate=1e-4, target_update_period=320, epsilon=0.1, min_replay_size=320,
            )
        )  # fmt: skip
        who = {"player_1": "chance", "player_2": "learner"}
        given: tuple[Any, ...] = ({"learner": learner, "chance": "random"}, "pettingzoo:classic/tictactoe_v3")
    else:
        config = ppo.Config(segment_length=128, num_epochs=10, num_minibatches=4, hidden_sizes=(256, 256))
        who, given = "shared", (ppo.make_agent(config), "pettingzoo:mpe/simple_spread_v3")  # type: ignore[assignment]
    with tempfile.TemporaryDirectory() as folder:
        experiment = agentkit.MultiAgentConfig(
            *given, work["steps"], who, num_envs=work["num_envs"], evaluation_period=0, checkpoint_period=0,
            run_directory=pathlib.Path(folder) / "run", progress=False,
        )  # fmt: skip
        begun = beside.clocks()
        with started(experiment, False) as (training, stop):
            training.begin(stop)
            while training.work.num_steps < work["first"]:
                training.advance(stop)
            ready, first = beside.clocks(), training.work.num_steps
            while training.goes_on:
                training.advance(stop)
            return beside.figures(begun, ready, training.work.num_steps - first)


def run_other(work: dict[str, Any]) -> dict[str, float]:
    """Trains with the workload's other package."""
    return run_tianshou(work) if work["other"] == "tianshou" else run_rllib(work)


def run_tianshou(work: dict[str, Any]) -> dict[str, float]:
    """Trains as Tianshou's example does, by its own trainer, without tests."""
    from pettingzoo.classic import tictactoe_v3
    from tianshou.algorithm import DQN, MARLRandomDiscreteMaskedOffPolicyAlgorithm, MultiAgentOffPolicyAlgorithm
    from tianshou.algorithm.modelfree.dqn import DiscreteQLearningPolicy
    from tianshou.algorithm.optim import AdamOptimizerFactory
    from tianshou.data import Collector, CollectStats, VectorReplayBuffer
    from tianshou.env import DummyVectorEnv
    from tianshou.env.pettingzoo_env import PettingZooEnv
    from tianshou.trainer import OffPolicyTrainerParams
    from tianshou.utils.net.common import Net

    def make() -> Any:
        return PettingZooEnv(tictactoe_v3.env())

    environment, environments = make(), DummyVectorEnv([make] * work["num_envs"])
    space: Any = environment.observation_space
    shape = space.spaces["observation"].shape
    network = Net(state_shape=shape, action_shape=environment.action_space.n, hidden_sizes=HIDDEN)
    policy = DiscreteQLearningPolicy(model=network, action_space=environment.action_space, eps_training=0.1)
    learner = DQN(
        policy=policy, optim=AdamOptimizerFactory(lr=1e-4), n_step_return_horizon=3, gamma=0.9, target_update_freq=320
    )
    chance = MARLRandomDiscreteMaskedOffPolicyAlgorithm(action_space=environment.action_space)
    both = MultiAgentOffPolicyAlgorithm(algorithms=[chance, learner], env=environment)
    collector = Collector[CollectStats](
        both, environments, VectorReplayBuffer(20_000, work["num_envs"]), exploration_noise=True
    )
    collector.reset()
    begun = beside.clocks()
    collector.collect(n_step=640)
    ready = beside.clocks()
    steps = work["steps"] - work["first"]
    found = both.run_training(
        OffPolicyTrainerParams(
            training_collector=collector, max_epochs=steps // 1_000, epoch_num_steps=1_000,
            collection_step_num_env_steps=10, batch_size=64, update_step_num_gradient_steps_per_sample=0.1,
            test_in_training=False, verbose=False, show_progress=False,
        )
    )  # fmt: skip
    assert found.train_step >= steps, found
    return beside.figures(begun, ready, found.train_step)


def run_rllib(work: dict[str, Any]) -> dict[str, float]:
    """Trains as RLlib's example does, an iteration for each 1,024 steps."""
    import ray
    from mpe2 import simple_spread_v3
    from ray.rllib.algorithms.ppo import PPOConfig
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
    from ray.rllib.core.rl_module.multi_rl_module import MultiRLModuleSpec
    from ray.rllib.core.rl_module.rl_module import RLModuleSpec
    from ray.rllib.env.wrappers.pettingzoo_env import ParallelPettingZooEnv
    from ray.tune.registry import register_env

    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
    register_env("spread", lambda _: ParallelPettingZooEnv(simple_spread_v3.parallel_env()))
    model = DefaultModelConfig(fcnet_hiddens=[256, 256], fcnet_activation="tanh", vf_share_layers=False)
    config = (
        PPOConfig()
        .environment("spread")
        .env_runners(num_env_runners=0, num_envs_per_env_runner=work["num_envs"], rollout_fragment_length=128)
        .multi_agent(policies={"shared"}, policy_mapping_fn=lambda agent_id, *_, **__: "shared")
        .rl_module(rl_module_spec=MultiRLModuleSpec(rl_module_specs={"shared": RLModuleSpec(model_config=model)}))
        .training(train_batch_size_per_learner=1_024, minibatch_size=768, num_epochs=10, use_kl_loss=False)
    )
    begun = beside.clocks()
    algorithm = config.build_algo()
    first = steps = algorithm.train()["num_env_steps_sampled_lifetime"]
    ready = beside.clocks()
    while steps < work["steps"]:
        result = algorithm.train()
        steps = result["num_env_steps_sampled_lifetime"]
    found = beside.figures(begun, ready, int(steps - first))
    algorithm.stop()
    ray.shutdown()
    return found | {"updates": result["learners"]["shared"].get("num_module_steps_trained_lifetime", 0)}


if __name__ == "__main__":
    beside.main(__file__, WORKLOADS, {"agentkit": run_agentkit, "other": run_other})
