"""Evaluations in the compiled loop: what they count, and that they are of the host's distribution."""

import contextlib
import dataclasses
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentkit.agents import dqn
from agentkit.callbacks import Callback
from agentkit.envs.jax.base import JaxEnvironment
from agentkit.envs.jax.cartpole import CartPole
from agentkit.envs.jax.dm_environment import CompiledSteps, DmEnvironment, attributes_of
from agentkit.envs.jax.pooled import Pooled
from agentkit.envs.jax.time_steps import first_step, next_step
from agentkit.errors import NonFiniteError, NonFiniteWarning
from agentkit.experiment import ExperimentConfig
from agentkit.experiment.evaluation.evaluate import Evaluator
from agentkit.experiment.on_device.build import build, find_parts
from agentkit.experiment.on_device.evaluation import DeviceEvaluator
from agentkit.experiment.training.hooks import Hooks
from agentkit.variables import VariableStore
from tests.experiment.on_device_runs import Endless


def plan(environment, **settings):
    agent = dqn.make_agent(dqn.Config(hidden_sizes=(8,), batch_size=8, min_replay_size=20))
    quiet = {"num_steps": 40, "num_envs": 2, "on_device": True, "progress": False}
    return ExperimentConfig(agent, environment, **(quiet | settings))


@dataclasses.dataclass(frozen=True)
class Forever(Endless):
    """Never cuts an episode off."""

    def step(self, state, action, key):
        return state + 1, next_step(jnp.full(1, 10.0), self.reward)


@dataclasses.dataclass(frozen=True)
class Unseen(Endless):
    """Gives observations that are NaN, and rewards that are finite."""

    def step(self, state, action, key):
        return state + 1, next_step(jnp.full(1, jnp.nan), self.reward, truncated=state + 1 == 3)


@dataclasses.dataclass(frozen=True)
class Mixed(Endless):
    """Has short episodes and long ones, of which some pay NaN."""

    def reset(self, key):
        length, bad = jax.random.split(key)
        state = jax.random.randint(length, (), 1, 6), jax.random.bernoulli(bad, 0.3)
        return state, first_step(jnp.full(1, 10.0))

    def step(self, state, action, key):
        left, bad = state
        return (left - 1, bad), next_step(jnp.full(1, 10.0), jnp.where(bad, jnp.nan, 1.0), truncated=left == 1)


class Looking(Callback):
    """Wants to see evaluations' episodes."""

    def on_evaluation_episode(self, run, episode):
        return None


def evaluators(experiment):
    """The one on the device, and the host's, with the parameters that a run begins with."""
    parts, store = find_parts(experiment), VariableStore()
    store.publish(0, parts.agent.update.variables(parts.agent.compiled_update.init(jax.random.PRNGKey(0))))
    policy = parts.agent.policy(evaluation=True)
    return DeviceEvaluator(experiment, parts.environment, policy, store), Evaluator(
        experiment, parts.agent.networks, store
    )


def test_episodes_end_are_cut_off_and_left_out_as_on_the_host():
    for max_steps, num_episodes in ((100, 4), (2, 4), (100, 1)):
        device, host = evaluators(plan(Endless(), evaluation_max_steps=max_steps))
        with host:
            expected = host.run(num_episodes, 5)
        assert device.run(num_episodes, 5) == expected
        assert device.num_cut == host.num_cut
        assert expected["evaluation_episodes"] == num_episodes
        assert expected["episode_return"] == (3.0 if max_steps == 100 else 2.0)


def test_returns_are_of_the_hosts_distribution_and_depend_on_the_number_alone():
    device, host = evaluators(plan(CartPole()))
    with host:
        theirs = np.array([record["episode_return"] for record in host.episodes(60)])
    first, again, other = (device.run(200, number) for number in (1, 1, 2))
    assert first == again != other
    assert device.num_cut == 0 and first["evaluation_episodes"] == 200
    assert first["episode_return"] == first["episode_length"]
    assert first["episode_return_min"] < first["episode_return"] < first["episode_return_max"]
    # Five standard errors of the difference; the deviation of one is that of the other.
    assert abs(first["episode_return"] - theirs.mean()) < 5 * theirs.std() * np.sqrt(1 / 60 + 1 / 200)
    assert theirs.min() - 2 <= first["episode_return_min"] <= theirs.max()


class Paying(JaxEnvironment):
    """A class as most people write one: with attributes, and without an `__eq__`."""

    def __init__(self, reward, table):
        self.reward, self.table = reward, table

    def observation_spec(self):
        return Endless().observation_spec()

    def action_spec(self):
        return Endless().action_spec()

    def reset(self, key):
        return Endless().reset(key)

    def step(self, state, action, key):
        return Endless(reward=self.reward + self.table[0]).step(state, action, key)


@pytest.mark.parametrize("is_inside", [False, True])
def test_what_is_set_on_an_environment_between_two_runs_counts_in_evaluations(is_inside):
    """The training was compiled anew; evaluations, and all on the host, had the rewards of the first run."""
    own = Paying(1.0, [0.0])
    environment = Pooled(own) if is_inside else own
    experiment = plan(environment)
    found = []
    for reward, table in ((1.0, own.table), (2.0, own.table), (2.0, [5.0]), (1.0, [0.0])):
        own.reward, own.table = reward, table
        one, other = evaluators(experiment)
        found.append((one.run(2, 1)["episode_return"], other.run(2, 1)["episode_return"]))
    assert found == [(3.0, 3.0), (6.0, 6.0), (21.0, 21.0), (3.0, 3.0)]
    assert CompiledSteps(environment).step is CompiledSteps(environment).step


def _reward_of(host):
    host.reset()
    return float(host.step(np.int32(0)).reward)


def test_what_is_set_before_the_first_use_does_not_count_under_what_was_there_before():
    """What was found when it was made was the name of what was compiled later, of other attributes."""
    own = Paying(11.0, [0.0])
    host, (device, _) = DmEnvironment(own), evaluators(plan(own))
    own.reward = 12.0
    assert (_reward_of(host), device.run(2, 1)["episode_return"]) == (12.0, 36.0)
    own.reward = 11.0
    assert (_reward_of(DmEnvironment(own)), evaluators(plan(own))[0].run(2, 1)["episode_return"]) == (11.0, 33.0)
    own.reward = 13.0
    host = DmEnvironment(own)
    host.reset()
    own.reward = 14.0  # Between the first reset and the first step.
    assert float(host.step(np.int32(0)).reward) == 13.0
    assert _reward_of(DmEnvironment(own)) == 14.0
    own.reward = 13.0
    assert _reward_of(DmEnvironment(own)) == 13.0


def test_another_number_of_episodes_goes_by_the_attributes_of_its_first_time():
    own = Paying(21.0, [0.0])
    device = evaluators(plan(own))[0]
    assert device.run(2, 1)["episode_return"] == 63.0
    own.reward = 22.0
    assert device.run(11, 1)["episode_return"] == 66.0  # More than the plan has at once.
    own.reward = 21.0
    assert evaluators(plan(own))[0].run(3, 1)["episode_return"] == 63.0


class NoHash:
    """Raises something of its own when its hash is asked for."""

    def __hash__(self):
        raise RuntimeError("no hash today")


def test_attributes_of_any_kind_are_told_apart():
    """A cycle went on without end, a hash that raised ended all, and a tracer left behind is no attribute."""
    one, other = Paying(1.0, NoHash()), Paying(1.0, [0.0])
    one.other, other.other = other, one
    found = attributes_of(one)
    assert found == attributes_of(one) and hash(found) == hash(attributes_of(one))
    other.reward = 2.0
    assert attributes_of(one) != found
    other.reward = 1.0
    jax.jit(lambda x: setattr(other, "left", x))(1.0)
    assert isinstance(other.left, jax.core.Tracer) and attributes_of(one) == found


def test_it_stops_when_it_is_asked_to_and_says_what_is_not_finite():
    device, host = evaluators(plan(Forever(), evaluation_max_steps=1_000))
    asked = iter([False, False, True])
    with host:
        assert device.run(2, 1, should_stop=lambda: next(asked)) is None
    assert device.run(2, 1)["episode_length"] == 1_000
    for on_nan, told in (
        ("stop", pytest.raises(NonFiniteError, match="evaluation at step 7 the environment gave")),
        ("warn", pytest.warns(NonFiniteWarning, match="evaluation at step 7 the environment gave")),
    ):
        for broken in (Endless(reward=float("nan")), Endless(at_reset=float("inf")), Unseen()):
            device, host = evaluators(plan(broken, on_nan=on_nan))
            with host, told:
                device.run(2, 7)


def test_what_is_not_finite_counts_in_the_episodes_that_are_judged_alone():
    """It did after their end, too, and in episodes that were played beside them."""
    device, host = evaluators(plan(Mixed(), evaluation_episodes=8, on_nan="warn"))
    host.close()
    found = []
    for number in range(8):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            record = device.run(2, number)
        found.append((any(w.category is NonFiniteWarning for w in caught), bool(np.isnan(record["episode_return"]))))
    assert set(found) == {(True, True), (False, False)}


@pytest.mark.parametrize(
    ("settings", "kind"),
    [
        ({}, DeviceEvaluator),
        ({"callbacks": [Looking()]}, Evaluator),
        ({"evaluation_samples": True}, Evaluator),
        ({"evaluation_period": 0}, type(None)),
    ],
)
def test_where_python_looks_on_or_exploration_is_judged_the_host_evaluates(settings, kind):
    experiment = plan(Endless(), **settings)
    with contextlib.ExitStack() as stack:
        training = build(experiment, stack, None, Hooks(experiment), resume=False)
        assert type(training.evaluator) is kind
