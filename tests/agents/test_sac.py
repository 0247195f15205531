from typing import Any, ClassVar

from agentkit import envs
from agentkit.agents import sac
from agentkit.testing.agent import AgentContract, Change
from agentkit.testing.learning import learns
from tests.agents import settings


class TestSac(AgentContract):
    unsuitable_environment = "agentkit:catch"
    refused: ClassVar = {
        **settings.OFF_POLICY_REFUSED,
        "tau": 1.5,
        "initial_temperature": 0.0,
    }
    changes: ClassVar = {
        **settings.OFF_POLICY_CHANGES,
        "learning_rate": 1e-2,
        "tau": 0.5,
        "target_entropy": -7.0,
        "initial_temperature": 0.1,
        "learn_temperature": False,
        "min_log_std": 1.5,
        "max_log_std": -5.0,
        "num_random_steps": Change(0, {"num_random_steps": 10}),
    }

    def make_agent(self, **changes: Any) -> Any:
        small = {**settings.SMALL, "num_random_steps": 20, "updates_per_step": 1.0}
        return sac.Agent(sac.Config(**{**small, **changes}))

    def make_environment(self, seed: int) -> Any:
        return envs.make("agentkit:point_mass", seed=seed)


def test_it_learns_the_point_mass() -> None:
    config = sac.Config(
        hidden_sizes=(32, 32),
        learning_rate=3e-3,
        tau=0.02,
        batch_size=64,
        updates_per_step=1.0,
        min_replay_size=100,
        num_random_steps=200,
    )
    returns = learns(sac.Agent(config), "agentkit:point_mass", num_steps=1_600, threshold=-2.0)
    assert len(returns) == 3
