from typing import Any, ClassVar

from agentkit import envs
from agentkit.agents import dqn
from agentkit.testing.agent import AgentContract, Change
from agentkit.testing.learning import learns

PRIORITIZED = {"prioritized": True}


class TestDqn(AgentContract):
    unsuitable_environment = "agentkit:point_mass"
    refused: ClassVar = {
        "discount": 1.5,
        "n_step": 0,
        "batch_size": 0,
        "target_update_period": 0,
        "updates_per_step": 0.0,
        "replay_size": 10,
        "min_replay_size": 0,
        "priority_exponent": Change(-1.0, PRIORITIZED),
        "epsilon_steps": 0,
    }
    changes: ClassVar = {
        "hidden_sizes": (8, 8),
        "duelling": True,
        "double": Change(False, {"learning_rate": 0.1}),
        "n_step": 1,
        "discount": 0.5,
        "learning_rate": 1e-2,
        "max_grad_norm": 1e-3,
        "huber_delta": 1e-3,
        "batch_size": 4,
        "target_update_period": 1,
        "updates_per_step": 0.5,
        "updates_per_call": 2,
        "replay_size": 500,
        "min_replay_size": 30,
        "prioritized": True,
        "priority_exponent": Change(0.9, PRIORITIZED),
        "importance_exponent": Change(0.9, PRIORITIZED),
        "epsilon_start": 0.1,
        "epsilon_end": 1.0,
        "epsilon_steps": 1,
        "epsilon_evaluation": 0.9,
        "epsilon_ladder": True,
    }

    def make_agent(self, **settings: Any) -> dqn.Agent:
        small = {
            "hidden_sizes": (8,),
            "batch_size": 8,
            "replay_size": 1_000,
            "min_replay_size": 20,
            "n_step": 3,
            "updates_per_step": 1.0,
            "target_update_period": 10,
            "epsilon_steps": 40,
        }
        return dqn.Agent(dqn.Config(**{**small, **settings}))

    def make_environment(self, seed: int) -> Any:
        return envs.make("agentkit:catch", seed=seed)


def test_it_learns_catch() -> None:
    config = dqn.Config(
        n_step=3,
        batch_size=64,
        updates_per_step=1.0,
        learning_rate=2e-3,
        min_replay_size=100,
        target_update_period=50,
        epsilon_steps=1_000,
    )
    returns = learns(dqn.Agent(config), "agentkit:catch", num_steps=2_500, threshold=0.8)
    assert len(returns) == 3
