"""Environments that break their promises: each is refused in one sentence that says what was expected and found."""

import jax
import numpy as np
import pytest

from agentkit import agents, core, specs
from agentkit.envs.batched import BatchedEnvironment
from agentkit.errors import NonFiniteError, SpecError
from agentkit.experiment import ExperimentConfig, run
from agentkit.experiment.checks.agent_fits import check_fit
from agentkit.experiment.policies.make_actor import make_loop
from agentkit.testing.environment import BatchedEnvironmentContract, EnvironmentContract
from tests.envs import odd


class Idle(core.Actor):
    """Takes action 0, and counts what it was shown."""

    def __init__(self, action):
        self.action, self.num_seen = action, 0

    def select_action(self, observation):
        return self.action

    def observe_first(self, timestep):
        pass

    def observe(self, action, next_timestep):
        self.num_seen += 1

    def update(self, wait=False):
        pass


@pytest.mark.parametrize("num_envs", [None, 3])
@pytest.mark.parametrize("name", odd.BAD_STEPS)
def test_a_step_is_refused_before_anyone_sees_it(name, num_envs):
    cls, message = odd.BAD_STEPS[name]
    if num_envs is None:
        environment, actor = cls(), Idle(np.int32(0))
    else:
        others = [odd.Plain() for _ in range(num_envs - 1)]
        environment, actor = BatchedEnvironment([*others, cls()]), Idle(np.zeros(num_envs, np.int32))
    with pytest.raises((SpecError, NonFiniteError), match=message) as error:
        make_loop(environment, actor).run(num_steps=100)
    assert actor.num_seen == odd.STEP - 1
    assert len(str(error.value)) < 600


@pytest.mark.parametrize("num_envs", [None, 3])
def test_the_plain_one_is_taken(num_envs):
    environment = odd.Plain() if num_envs is None else BatchedEnvironment([odd.Plain() for _ in range(num_envs)])
    actor = Idle(np.int32(0) if num_envs is None else np.zeros(num_envs, np.int32))
    assert make_loop(environment, actor).run(num_steps=50)[0]["episode_return"] == 3.5


class Choosing(odd.Plain):
    """Observes three choices of four, which are out of their range at the odd step."""

    observation = specs.BoundedArray((3,), np.int32, 0, 3)

    def observe(self):
        return np.array([9, 0, -4] if self.is_odd else [3, 0, 1], np.int32)


BAD_NUMBERS = {
    name: odd.BAD_STEPS[name]
    for name in ("NaN", "infinity", "a reward of NaN", "an infinite reward", "a discount of 2", "a discount of NaN")
} | {"choices out of their range": (Choosing, "expected int32.* found int32 9")}


@pytest.mark.parametrize("name", BAD_NUMBERS)
def test_contracts_refuse_the_numbers_that_a_run_refuses(name):
    cls, message = BAD_NUMBERS[name]

    class Precise(cls):
        reward = discount = specs.Array((), np.float64)  # As dm_env's own time steps are.

    class Single(EnvironmentContract):
        def make_environment(self):
            return Precise()

    class Batched(BatchedEnvironmentContract):
        def make_environment(self):
            return BatchedEnvironment([Precise(), Precise()])

    with pytest.raises((SpecError, NonFiniteError), match=message):
        Single().test_every_step_fits_its_spec_and_follows_from_the_last()
    with pytest.raises((SpecError, NonFiniteError), match=message):
        Batched().test_elements_are_reset_after_their_last_step_only()


@pytest.mark.parametrize("agent", ["dqn", "ppo", "r2d2"])
@pytest.mark.parametrize("name", odd.BAD_SPECS)
def test_a_spec_is_refused_and_no_folder_is_made(name, agent, tmp_path):
    cls, message = odd.BAD_SPECS[name]
    plan = ExperimentConfig(agents.registry.make(agent, {}), lambda seed: cls(), 100, run_directory=tmp_path / "run")
    with pytest.raises(SpecError, match=message):
        run(plan)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", odd.BAD_ACTIONS)
def test_actions_are_refused_by_those_who_cannot_take_them(name, tmp_path):
    cls, agent, message = odd.BAD_ACTIONS[name]
    plan = ExperimentConfig(agents.registry.make(agent, {}), lambda seed: cls(), 100, run_directory=tmp_path / "run")
    with pytest.raises(SpecError, match=message):
        run(plan)
    assert not (tmp_path / "run").exists()


def test_a_batch_of_different_environments_is_refused():
    with pytest.raises(SpecError, match="must have the same specs; number 1"):
        BatchedEnvironment([odd.Plain(), odd.with_specs(observation=specs.Array((2,), np.float32))()])


def test_an_agent_of_ones_own_may_take_nested_rewards():
    """Adders do; who replaces the loss says what it makes of them."""
    from agentkit.agents import dqn

    cls, _ = odd.BAD_SPECS["nested rewards"]
    plan = ExperimentConfig(dqn.make_agent(make_loss=_summed), lambda seed: cls(), 100)
    check_fit(plan, specs.make_environment_spec(cls()))


def _summed(network, config):
    from agentkit.agents import dqn

    loss = dqn.make_loss(network, config)

    def of_sum(params, state, batch, key):
        rewards = sum(jax.tree.leaves(batch.data.reward))
        return loss(params, state, batch._replace(data=batch.data._replace(reward=rewards)), key)

    return of_sum
