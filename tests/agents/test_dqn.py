import re
import textwrap
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from agentkit import envs
from agentkit.agents import dqn
from agentkit.learning import Linear
from agentkit.networks import Network
from agentkit.testing.agent import AgentContract, Change
from agentkit.testing.learning import learns
from agentkit.types import LossOutput, ReplaySample
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


def test_the_papers_config_can_be_pasted_and_the_defaults_beside_it_are_the_defaults() -> None:
    assert dqn.__doc__ is not None
    code = textwrap.dedent(dqn.__doc__[dqn.__doc__.index("    Config(") : dqn.__doc__.index("The table's other")])
    names: dict[str, Any] = {"Config": dqn.Config, "Linear": Linear}
    paper, default = eval(code, names), dqn.Config()
    lines = re.findall(r"^ +(\w+)=.*\| (.*)$", code, re.MULTILINE)
    assert len(lines) == code.count("=") == 14
    assert {name: getattr(default, name) for name, _ in lines} == {name: eval(value, names) for name, value in lines}
    same = {"discount", "huber_delta"}
    assert same == {name for name, _ in lines if getattr(paper, name) == getattr(default, name)}
    assert (default.prioritized, default.duelling, default.epsilon_ladder) == (False, False, False)


def scalar_update() -> Any:
    """DQN's update of one number, by plain gradient steps on half the square of ``params - data - target``."""

    def loss(params: Any, state: Any, batch: Any, key: Any) -> LossOutput:
        seen = state.target_params
        return LossOutput(0.5 * (params - batch.data - seen) ** 2, {"seen": seen}, jnp.full(2, params))

    network = Network(lambda key: jnp.float32(1.0), lambda params, o: params)
    return dqn.make_update(network, loss, dqn.Config(target_update_period=3), optax.sgd(0.25))


def test_an_update_steps_and_every_third_copies_the_new_parameters_to_the_target() -> None:
    update = scalar_update()
    state, step = jax.jit(update.init)(jax.random.PRNGKey(0)), jax.jit(update.update)
    params = target = 1.0
    for number, data in enumerate((3.0, -1.0, 0.5, 2.0, 2.5, -2.0, 1.0), 1):
        error, seen, priority = params - data - target, target, params
        params -= 0.25 * error
        if number % 3 == 0:
            target = params
        state, output = step(state, ReplaySample((), np.float32(data)))
        np.testing.assert_allclose([state.params, state.target_params], [params, target], rtol=1e-5)
        np.testing.assert_allclose(output.priorities, [priority, priority], rtol=1e-5)
        metrics = {"loss": 0.5 * error**2, "grad_norm": abs(error), "seen": seen}
        assert {name: float(x) for name, x in output.metrics.items()} == pytest.approx(metrics, rel=1e-5)
    assert int(state.num_updates) == 7 and update.variables(state)["policy"] == state.params


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
