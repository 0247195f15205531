from typing import Any, ClassVar

import pytest

from agentkit import envs
from agentkit.agents import dqn
from agentkit.learning import Linear
from agentkit.testing.agent import AgentContract, Change
from agentkit.testing.learning import learns
from tests.agents import settings


@pytest.mark.both_stacks
class TestDqn(AgentContract):
    unsuitable_environment = "agentkit:point_mass"
    refused: ClassVar = {
        **settings.VALUE_REFUSED,
    }
    changes: ClassVar = {
        **settings.VALUE_CHANGES,
        "duelling": True,
        "double": Change(False, {"learning_rate": 0.1}),
        "huber_delta": 1e-3,
    }

    def make_agent(self, **changes: Any) -> Any:
        small = {**settings.SMALL_VALUES}
        return dqn.make_agent(dqn.Config(**{**small, **changes}))

    def make_environment(self, seed: int) -> Any:
        return envs.make("agentkit:catch", seed=seed)


@pytest.mark.full
def test_it_learns_catch() -> None:
    config = dqn.Config(
        n_step=3,
        batch_size=64,
        updates_per_step=1.0,
        learning_rate=2e-3,
        min_replay_size=100,
        target_update_period=50,
        epsilon=Linear(1.0, 0.05, 1_000),
    )
    learns(dqn.make_agent(config), "agentkit:catch", num_steps=2_500, threshold=0.8)
