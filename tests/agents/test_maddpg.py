"""MADDPG: actions as vectors, the losses by hand, the contract of agents, and learning."""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentkit import envs, specs
from agentkit import networks as nets
from agentkit.agents import maddpg
from agentkit.errors import SpecError
from agentkit.learning import SgdState
from agentkit.testing.agent import AgentContract
from agentkit.testing.learning import learns
from agentkit.testing.programs import quickly_compiled
from agentkit.types import ReplaySample, SampleInfo, Transition
from tests.agents import settings
from tests.agents.teams import make_dials, make_hints
from tests.agents.test_qmix import observations_of

KEY = jax.random.PRNGKey(0)


@pytest.mark.both_stacks
class TestMaddpg(AgentContract):
    unsuitable_environment = "agentkit:catch"
    refused: ClassVar = {
        **settings.OFF_POLICY_REFUSED,
        "policy_learning_rate": 0.0,
        "critic_learning_rate": -1.0,
        "tau": 1.5,
        "output_cost": -1.0,
        "exploration_noise": -0.1,
    }
    changes: ClassVar = {
        **settings.OFF_POLICY_CHANGES,
        "policy_learning_rate": 1e-4,
        "critic_learning_rate": 1e-4,
        "tau": 0.5,
        "output_cost": 1.0,
        "exploration_noise": 0.0,
    }

    @pytest.mark.full
    def test_every_setting_changes_what_the_agent_does(self) -> None:
        """Each is traced anew."""
        super().test_every_setting_changes_what_the_agent_does()

    def make_agent(self, **changes: Any) -> Any:
        return maddpg.make_agent(maddpg.Config(**{**settings.SMALL, "updates_per_step": 1.0, **changes}))

    def make_environment(self, seed: int) -> Any:
        return envs.make(make_dials, seed=seed)


def team() -> nets.Team:
    return nets.team_of(specs.make_environment_spec(envs.make(make_dials)), "MADDPG", continuous=True)


def test_actions_are_vectors_one_hot_or_as_they_are_and_become_actions_again() -> None:
    actions = {"dial": np.float32([[0.5, -1]]), "knob": np.float32([[0.25]]), "switch": np.int32([1])}
    found = team().vectors(actions)
    np.testing.assert_array_equal(found, [[[0.5, -1], [0.25, 0], [0, 1]]])
    for name, action in team().from_vectors(found[0]).items():
        assert action.dtype == actions[name].dtype
        np.testing.assert_array_equal(action, actions[name][0])


def test_a_choice_is_one_hot_and_has_the_gradient_of_its_probability() -> None:
    outputs = np.float32([[[0.3, -2.0], [1.0, specs.ILLEGAL_VALUE], [1.0, 1.5]]])
    found = maddpg.choose(team(), outputs, 0.0)[0]
    np.testing.assert_allclose(found, [[np.tanh(0.3), np.tanh(-2.0)], [np.tanh(1.0), 0], [0, 1]], rtol=1e-5)
    slopes = jax.grad(lambda o: maddpg.choose(team(), o, 0.0)[0, 2, 1])(outputs)
    p = 1 / (1 + np.exp(-0.5))
    np.testing.assert_allclose(slopes[0], [[0, 0], [0, 0], [-p * (1 - p), p * (1 - p)]], atol=1e-6)


def test_the_critic_sees_all_and_each_policy_its_own() -> None:
    spec = specs.make_environment_spec(envs.make(make_dials))
    networks = maddpg.make_agent(maddpg.Config(hidden_sizes=(8,))).make_networks(spec)
    params, seen = quickly_compiled(networks.init)(KEY), observations_of(spec, 4)
    moved = {**seen, "agents": {**seen["agents"], "knob": seen["agents"]["knob"] + 1}}
    outputs = quickly_compiled(networks.outputs)
    changed = np.any(np.asarray(outputs(params, seen)) != np.asarray(outputs(params, moved)), axis=(0, 2))
    assert changed.tolist() == [False, True, False]
    critic, actions = quickly_compiled(networks.critic), np.zeros((4, 3, 2), np.float32)
    first = np.asarray(critic(params, seen, actions))
    assert np.all(first != np.asarray(critic(params, moved, actions)))
    for i in range(3):
        others = actions.copy()
        others[:, i, 0] = 1
        assert np.all(first != np.asarray(critic(params, seen, others))), "the critic does not see what an agent does"


def linear() -> maddpg.Networks:
    """A policy whose outputs are its parameters, and a critic that weighs each number, and the first two together."""

    def critic(params: maddpg.Params, o: Any, actions: Any) -> jax.Array:
        flat = actions.reshape(len(actions), -1)
        return flat @ params.critic + 2.0 * flat[:, 0] * flat[:, 2]

    return maddpg.Networks(
        init=lambda key: (),
        outputs=lambda params, o: jnp.broadcast_to(params.policy, (len(o["active"]), 3, 2)),
        critic=critic,
        team=team(),
    )


@pytest.mark.parametrize(("active", "acting"), [((True, True, True), 3), ((True, False, True), 2)])
def test_the_losses_by_hand_and_each_agent_climbs_along_its_own_action(active: Any, acting: int) -> None:
    """The switch's logits are so far apart that its choice is certain."""
    params = maddpg.Params(jnp.array([[0.5, -0.5], [1.0, 0.0], [-50.0, 50.0]]), jnp.arange(6.0))
    target = maddpg.Params(jnp.array([[0.0, 0.0], [0.0, 0.0], [50.0, -50.0]]), jnp.full(6, 3.0))
    config = maddpg.Config(output_cost=0.1)
    loss = maddpg.make_loss(linear(), config)
    action = {"dial": np.float32([[0.1, 0.2]]), "knob": np.float32([[-0.5]]), "switch": np.int32([0])}
    seen = {"agents": {}, "active": np.array([active])}
    data = Transition(seen, action, np.float32([10]), np.float32([0.5]), seen)
    batch = ReplaySample(SampleInfo(*(np.ones(1, np.float32) for _ in SampleInfo._fields)), data)
    state = SgdState(params, target, (), KEY, jnp.int32(0))
    output, grads = jax.value_and_grad(lambda p: loss(p, state, batch, KEY)[:2], has_aux=True)(params)
    (found, metrics), error = output, 10 + 0.5 * 3.0 - (0.1 * 0 + 0.2 * 1 - 0.5 * 2 + 4 + 2 * 0.1 * -0.5)
    np.testing.assert_allclose(metrics["critic_loss"], error**2, rtol=1e-5)
    np.testing.assert_allclose(found, error**2 + metrics["policy_loss"], rtol=1e-5)
    # The dial's value rises by 0 and 1 a number, the first also by 2 times what the knob did: -0.5 and not tanh(1).
    of_dial = np.array([2 * -0.5, 1.0]) * (1 - np.tanh([0.5, -0.5]) ** 2)
    expected = -of_dial + 0.1 * np.array([0.5, -0.5])
    np.testing.assert_allclose(grads.policy[0], expected / acting, rtol=1e-4)
    knob = -(2 + 2 * 0.1) * (1 - np.tanh(1.0) ** 2) + 0.1 * 1.0
    np.testing.assert_allclose(grads.policy[1], [knob / 3 if acting == 3 else 0.0, 0.0], rtol=1e-4, atol=1e-7)
    # The critic learns from its own error alone.
    np.testing.assert_allclose(grads.critic, -2 * error * np.float32([0.1, 0.2, -0.5, 0, 1, 0]), rtol=1e-4)


def test_actors_draw_choices_by_their_probability_and_add_noise_to_numbers() -> None:
    networks = linear()
    params = maddpg.Params(jnp.array([[0.5, -3.0], [0.0, 0.0], [0.0, np.log(3.0)]]), ())
    seen = {"active": np.ones(3, bool)}
    policy = maddpg.make_policy(networks, maddpg.Config(exploration_noise=0.2))
    keys = jax.random.split(KEY, 4_000)
    actions, _, _ = jax.jit(jax.vmap(lambda key: policy.act(params, key, seen, ())))(keys)
    assert np.mean(actions["switch"]) == pytest.approx(0.75, abs=0.03)
    assert np.std(actions["knob"]) == pytest.approx(0.2, abs=0.02)
    assert np.mean(actions["dial"][:, 0]) == pytest.approx(np.tanh(0.5), abs=0.02)
    assert np.min(actions["dial"]) == -1.0
    judged, _, _ = maddpg.make_policy(networks, maddpg.Config(), evaluation=True).act(params, KEY, seen, ())
    np.testing.assert_allclose(judged["dial"], np.tanh([0.5, -3.0]), rtol=1e-5)
    assert judged["switch"] == 1 and judged["knob"] == 0


@pytest.mark.parametrize(
    ("observation", "action", "found"),
    [
        (
            specs.Array((3,), np.float32),
            specs.BoundedArray((2,), np.float32, 0, 1),
            "agent 'b' needs one continuous action",
        ),
        (
            {"observation": specs.Array((3,), np.float32), "action_mask": specs.BoundedArray((2,), np.int8, 0, 1)},
            specs.BoundedArray((2,), np.float32, -1, 1),
            "'action_mask'.*another kind",
        ),
    ],
)
def test_actions_that_no_policy_has_are_refused(observation: Any, action: Any, found: str) -> None:
    seen = {"agents": {"a": specs.Array((3,), np.float32), "b": observation}}
    scalar = specs.Array((), np.float32)
    spec = specs.EnvironmentSpec(seen, {"a": specs.DiscreteArray(2), "b": action}, scalar, scalar)
    with pytest.raises(SpecError, match=found):
        maddpg.make_agent().make_networks(spec)


SMALL = {"batch_size": 64, "updates_per_step": 0.5, "min_replay_size": 200, "replay_size": 5_000}


@pytest.mark.full
def test_it_finds_the_8_of_the_two_step_game() -> None:
    """7 needs no coordination."""
    agent = maddpg.make_agent(maddpg.Config(**SMALL, discount=0.99))
    assert learns(agent, "team:agentkit:two_step_game", 3_000, 8.0) == [8.0] * 3


@pytest.mark.full
@pytest.mark.one_case
@pytest.mark.parametrize(("environment", "threshold"), [(make_dials, 15.0), (make_hints, 14.0)])
def test_it_learns_continuous_actions_and_choices_where_agents_differ(environment: Any, threshold: float) -> None:
    """16 is perfect with dials and about 12 is to set all to 0; with hints, which have masks and ends, 15 and 7.5."""
    agent = maddpg.make_agent(maddpg.Config(**SMALL, discount=0.0))
    learns(agent, environment, num_steps=2_500, threshold=threshold, num_episodes=50)
