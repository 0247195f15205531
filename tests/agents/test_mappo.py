"""MAPPO, and IPPO by its own critic: who sees what, the loss by hand, the contract of agents, and learning."""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentkit import envs, specs
from agentkit import networks as nets
from agentkit.actors import PolicyVariables
from agentkit.agents import mappo
from agentkit.agents.common import advantages
from agentkit.agents.common.advantages import Minibatch, Trajectories
from agentkit.experiment import ExperimentConfig, run
from agentkit.testing.agent import AgentContract, Change
from agentkit.testing.learning import learns
from agentkit.testing.programs import quickly_compiled
from agentkit.types import ReplaySample, Step
from tests.agents import on_policy_settings
from tests.agents.on_policy_training import Training, rows_of
from tests.agents.teams import make_hints

KEY = jax.random.PRNGKey(0)
SMALL = {**on_policy_settings.SMALL, "num_epochs": 2, "num_minibatches": 2}


@pytest.mark.both_stacks
class TestMappo(AgentContract):
    unsuitable_environment = "agentkit:catch"
    steps_before_learning = 12
    refused: ClassVar = {
        **{name: value for name, value in on_policy_settings.REFUSED.items() if name != "initial_std"},
        "critic": "none",
        "adam_epsilon": 0.0,
        "num_epochs": 0,
        "num_minibatches": 3,
        "clip_epsilon": 0.0,
        "value_clip": -1.0,
        "value_cost": -1.0,
        "entropy_cost": -1.0,
    }
    changes: ClassVar = {
        **{name: value for name, value in on_policy_settings.CHANGES.items() if name != "initial_std"},
        "critic": "own",
        "adam_epsilon": 1e-2,
        "num_epochs": 3,
        "num_minibatches": 4,
        "clip_epsilon": Change(0.001, {"learning_rate": 0.1}),
        "value_clip": 0.001,
        "value_cost": 0.1,
        "entropy_cost": 0.1,
    }

    @pytest.mark.full
    def test_every_setting_changes_what_the_agent_does(self) -> None:
        """Each is traced anew."""
        super().test_every_setting_changes_what_the_agent_does()

    def make_agent(self, **settings: Any) -> Any:
        return mappo.make_agent(mappo.Config(**{**SMALL, **settings}))

    def make_environment(self, seed: int) -> Any:
        return envs.make(make_hints, seed=seed)


def outputs(networks: nets.PolicyValue, seen: Any) -> tuple[np.ndarray, np.ndarray]:
    distribution, values = quickly_compiled(lambda o: networks.apply(networks.init(KEY), o))(seen)
    return np.asarray(distribution.logits), np.asarray(values)


@pytest.mark.parametrize(
    ("critic", "part", "expected"),
    [
        ("team", "state", [True, True]),
        ("team", "agents", [False, True]),
        ("own", "state", [False, False]),
        ("own", "agents", [False, True]),
    ],
)
def test_policies_see_their_own_and_the_critic_the_state_too_unless_it_is_ippos(
    critic: Any, part: str, expected: list[bool]
) -> None:
    """What changes is the state, or what agent_2 sees; asked is whether an agent's value does."""
    spec = specs.make_environment_spec(envs.make("team:agentkit:two_step_game"))
    networks = mappo.make_agent(mappo.Config(hidden_sizes=(8,), critic=critic)).make_networks(spec)
    rows = jax.tree.map(
        lambda leaf: np.full((2, *leaf.shape), 0.5, np.float32), spec.observations, is_leaf=specs.is_spec
    )
    moved = {**rows, "state": rows["state"] + 1}
    if part == "agents":
        moved = {**rows, "agents": {**rows["agents"], "agent_2": rows["state"] + 1}}
    (logits, values), (other_logits, other_values) = outputs(networks, rows), outputs(networks, moved)
    assert values.shape == (2, 2) and logits.shape == (2, 2, 2)
    assert np.any(values != other_values, axis=0).tolist() == expected
    assert np.any(logits != other_logits, axis=(0, 2)).tolist() == [False, part == "agents"]
    assert np.all(values[:, 0] != values[:, 1]), "agents that see the same must know who they are"


def test_each_agents_advantages_are_those_of_its_values_and_the_teams_rewards() -> None:
    rng = np.random.default_rng(0)
    reward, discount = (rng.uniform(size=(2, 5)).astype(np.float32) for _ in range(2))
    values, mask = rng.normal(size=(2, 6, 3)).astype(np.float32), np.ones((2, 5), np.float32)
    mask[0, 2] = discount[0, 2] = 0.0
    found = mappo.estimate_advantages(Trajectories(reward, discount, values, mask), mappo.Config())
    assert found.shape == (2, 5, 3)
    for i in range(3):
        one = advantages.estimate_advantages(Trajectories(reward, discount, values[..., i], mask), mappo.Config())
        np.testing.assert_allclose(found[..., i], one, rtol=1e-5)


def test_the_loss_clips_each_agents_ratio_and_leaves_out_the_policy_of_who_has_ended() -> None:
    """Two agents of two actions; the last row has no action, and in the second row the first agent has ended."""
    logits = np.log(np.float32([[[0.5, 0.5], [0.8, 0.2]], [[0.9, 0.1], [0.4, 0.6]], [[0.5, 0.5], [0.5, 0.5]]]))
    value = np.float32([[1.0, 2.0], [3.0, 4.0], [100.0, 100.0]])
    network = nets.as_recurrent(lambda key: (), lambda params, o: (nets.Categorical(jnp.asarray(logits)), value))
    config = mappo.Config(normalize_advantages=False, value_clip=None, value_cost=0.5, entropy_cost=0.1)
    loss = mappo.make_loss(nets.PolicyValue(network, lambda x: x, (), nets.PolicyExtras((), ())), config)
    old = np.log(np.float32([[0.25, 0.8], [0.3, 0.4], [0.1, 0.1]]))
    active = np.array([[True, True], [False, True], [True, True]])
    rows = Minibatch(
        observation={"agents": {"a": np.zeros((3, 1)), "b": np.zeros((3, 1))}, "active": active},
        extras=nets.PolicyExtras(np.int32([[0, 0], [1, 1], [0, 0]]), old),
        advantage=np.float32([[1.0, -2.0], [9.0, 1.0], [7.0, 7.0]]),
        target=np.float32([[0.0, 0.0], [1.0, 1.0], [0.0, 0.0]]),
        old_value=value,
        mask=np.float32([1, 1, 0]),
    )
    output = loss((), None, ReplaySample((), rows), KEY)
    # Ratios are 2, 1 and (of the second row's second agent) 1.5; the clip is at 1.2.
    policy_loss = -np.mean([1.2 * 1.0, 1.0 * -2.0, 1.2 * 1.0])
    value_loss = np.mean([0.5, 2.0, 2.0, 4.5])
    entropy = np.mean([-np.sum(p * np.log(p)) for p in ([0.5, 0.5], [0.8, 0.2], [0.4, 0.6])])
    np.testing.assert_allclose(output.metrics["policy_loss"], policy_loss, rtol=1e-5)
    np.testing.assert_allclose(output.metrics["value_loss"], value_loss, rtol=1e-5)
    np.testing.assert_allclose(output.metrics["entropy"], entropy, rtol=1e-5)
    np.testing.assert_allclose(output.metrics["clipped"], 2 / 3, rtol=1e-5)
    np.testing.assert_allclose(output.loss, policy_loss + 0.5 * value_loss - 0.1 * entropy, rtol=1e-5)


def test_who_has_ended_is_seen_as_zeros_and_left_out_of_the_statistics() -> None:
    rng = np.random.default_rng(0)
    seen = {name: rng.normal(5.0, 1.0, (2, 9, 3)).astype(np.float32) for name in "ab"}
    active = np.ones((2, 9, 2), bool)
    active[:, 4:, 1] = False
    seen["b"][:, 4:] = 0.0
    observation = {"agents": seen, "active": active}
    spec = specs.EnvironmentSpec(
        jax.tree.map(lambda x: specs.Array(x.shape[2:], x.dtype), observation),
        dict.fromkeys("ab", specs.DiscreteArray(2)),
        specs.Array((), np.float32),
        specs.BoundedArray((), np.float32, 0, 1),
    )
    networks = mappo.make_networks(spec, mappo.Config(hidden_sizes=(4,)))
    first = PolicyVariables(networks.init(KEY), nets.init_nest_statistics(spec.observations))
    segments = Step(observation, (), (), (), np.zeros((2, 9), bool), ())
    variables = first._replace(statistics=mappo.observe_team(first, segments))
    for name, rows in (("a", seen["a"][:, :8]), ("b", seen["b"][:, :4])):
        statistics = variables.statistics[["active", "a", "b"].index(name)]
        np.testing.assert_allclose(statistics.mean, rows.reshape(-1, 3).mean(axis=0), rtol=1e-5)
    last = jax.tree.map(lambda x: x[:, 7], observation)
    zeros = jax.tree.map(np.zeros_like, last)
    zeros["agents"]["a"], zeros["active"] = variables.normalized(last)["agents"]["a"], last["active"]
    found, expected = (networks.apply(variables.params, x) for x in (variables.normalized(last), zeros))
    jax.tree.map(np.testing.assert_array_equal, found, expected)


@pytest.mark.full
def test_at_the_first_minibatch_every_agents_ratio_is_1() -> None:
    """What actors stored is of the learner's parameters and statistics, also where agents have ended."""
    training = Training(mappo.make_agent(mappo.Config(**SMALL, learning_rate=0.01)), make_hints, 3)
    for _ in range(3):
        batch = training.next_batch()
        rows = rows_of(training.networks, training.agent.config, training.state, batch.data)
        distribution, _ = training.networks.apply(training.state.variables.params, rows.observation)
        counts = rows.mask > 0
        log_prob = distribution.log_prob(rows.extras.sample)
        np.testing.assert_allclose(log_prob[counts], rows.extras.log_prob[counts], rtol=1e-4, atol=1e-5)
        assert not np.all(rows.observation["active"][counts])
        training.learn(batch)


@pytest.mark.full
def test_a_team_keeps_to_its_masks_and_nobody_acts_after_its_end() -> None:
    agent = mappo.make_agent(mappo.Config(**SMALL))
    experiment = ExperimentConfig(
        agent, lambda seed: make_hints(seed, strict=True), num_steps=120, num_envs=3, evaluation_period=60
    )
    assert run(experiment).updates > 0


LEARNING = {"hidden_sizes": (32,), "segment_length": 32, "learning_rate": 3e-3}


@pytest.mark.full
@pytest.mark.one_case
@pytest.mark.parametrize("critic", ["team", "own"])
def test_it_coordinates_in_the_two_step_game(critic: Any) -> None:
    """7 needs no coordination, 8 does."""
    agent = mappo.make_agent(mappo.Config(**LEARNING, critic=critic))
    learns(agent, "team:agentkit:two_step_game", num_steps=6_000, threshold=8.0, num_envs=8)


@pytest.mark.full
def test_it_learns_where_agents_differ_have_masks_and_end_apart() -> None:
    """On average 15 is perfect and 7.5 chance: each of three is paid for what it alone is shown."""
    config = mappo.Config(**LEARNING, discount=0.5)
    learns(mappo.make_agent(config), make_hints, num_steps=6_000, threshold=14.0, num_episodes=50, num_envs=8)
