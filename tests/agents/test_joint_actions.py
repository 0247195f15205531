"""Policy gradients take several actions at once: multi-discrete, tuples and dictionaries, discrete and continuous."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tree

from agentkit import networks as nets
from agentkit import specs
from agentkit.agents import ppo, registry
from agentkit.errors import SpecError
from agentkit.experiment import ExperimentConfig, run
from agentkit.testing.learning import learns
from tests.agents.spaces import Hands

JOINT = [name for name in registry.names() if "joint" in registry.about(name).actions]
OTHERS = [name for name in registry.names() if name not in JOINT]
KEY = jax.random.PRNGKey(0)


def test_which_agents_take_them() -> None:
    assert JOINT == ["a2c", "impala", "npg", "ppo", "reinforce", "trpo"]


@pytest.mark.full
@pytest.mark.parametrize(("name", "num_envs"), [*((name, 3) for name in JOINT), ("ppo", None)])
def test_an_agent_acts_and_learns(name: str, num_envs: int | None) -> None:
    """Each action is checked by `Hands` against its spec."""
    settings = {"hidden_sizes": (8,), "segment_length": 16, "num_minibatches": 1, "core_size": 8}
    fields = registry.config_class(name).__dataclass_fields__
    agent = registry.make(name, {key: value for key, value in settings.items() if key in fields})
    result = run(ExperimentConfig(agent, Hands, num_steps=160, num_envs=num_envs, evaluation_period=80))
    assert result.updates > 0 and len(result.evaluations) >= 2


@pytest.mark.parametrize("name", OTHERS)
def test_other_agents_refuse_them(name: str) -> None:
    with pytest.raises(SpecError, match="found"):
        registry.make(name).make_networks(specs.make_environment_spec(Hands(0)))


@pytest.mark.full
def test_a_joint_density_is_the_product_of_its_parts() -> None:
    rng = np.random.default_rng(0)
    logits, other = (jnp.float32(rng.normal(size=(4, 3))) for _ in range(2))
    mean = jnp.float32(rng.normal(size=(4, 2)))
    first, second = nets.Categorical(logits), nets.DiagonalNormal(mean, jnp.zeros((4, 2)))
    joint = nets.Joint((first, nets.Joint((second,))))
    sample = joint.sample(KEY)
    expected = first.log_prob(sample[0]) + second.log_prob(sample[1][0])
    np.testing.assert_allclose(joint.log_prob(sample), expected, rtol=1e-6)
    np.testing.assert_allclose(joint.entropy(), first.entropy() + second.entropy(), rtol=1e-6)
    moved = nets.Joint((nets.Categorical(other), nets.Joint((nets.DiagonalNormal(mean + 1, jnp.zeros((4, 2))),))))
    np.testing.assert_allclose(joint.kl(moved), first.kl(nets.Categorical(other)) + 1.0, rtol=1e-5)
    np.testing.assert_array_equal(joint.mode()[1][0], mean)


def test_parts_are_drawn_independently() -> None:
    joint = nets.Joint(tuple(nets.Categorical(jnp.zeros((2_000, 2))) for _ in range(2)))
    a, b = (np.asarray(x) for x in joint.sample(KEY))
    assert 0.4 < np.mean(a == b) < 0.6


@pytest.mark.full
def test_a_sample_becomes_an_action_within_the_bounds() -> None:
    actions = {
        "grid": specs.BoundedArray((2, 2), np.int8, np.array([[0, 1], [2, -3]]), np.array([[1, 1], [4, -1]])),
        "push": specs.BoundedArray((2,), np.float32, -2.0, 6.0),
        "turn": specs.DiscreteArray(3, np.int32),
    }
    head = nets.make_network(lambda x: nets.policy_head(x, actions, (8,), 1.0), specs.Array((4,), np.float32))
    distribution = head.apply(head.init(KEY), jnp.ones((50, 4)))
    to_action = jax.vmap(nets.sample_to_action(actions))
    taken = jax.tree.map(np.asarray, to_action(distribution.sample(KEY)))
    for i in range(50):
        for spec, leaf in zip(tree.flatten(actions), tree.flatten(taken), strict=True):
            spec.validate(leaf[i])
    assert set(np.unique(taken["grid"][:, 1, 0])) == {2, 3, 4} and set(np.unique(taken["grid"][:, 0, 1])) == {1}
    mode = jax.tree.map(lambda x: x[0], distribution.mode())
    assert nets.sample_to_action(actions)(mode)["push"].shape == (2,)
    stored = nets.policy_extras_spec(actions)
    specs.validate(jax.tree.map(lambda x: np.asarray(x[0]), distribution.sample(KEY)), stored.sample, "sample")


@pytest.mark.parametrize(
    "actions",
    [
        {"a": specs.DiscreteArray(2), "b": specs.Array((2,), np.float32)},
        (specs.BoundedArray((1,), np.float32, -np.inf, 1.0),),
        specs.Array((3,), np.int32),
        {},
    ],
)
def test_actions_without_bounds_are_refused(actions: object) -> None:
    with pytest.raises(SpecError, match="found"):
        nets.check_policy_actions(actions, "A policy-gradient agent")


@pytest.mark.full
def test_a_mask_for_several_actions_is_refused() -> None:
    class Masked(Hands):
        def observation_spec(self) -> dict[str, specs.Array]:  # type: ignore[override]
            return {"action_mask": specs.Array((3,), np.int8), "seen": super().observation_spec()}

    with pytest.raises(SpecError, match="action_mask"):
        ppo.make_agent().make_networks(specs.make_environment_spec(Masked(0))).init(KEY)


@pytest.mark.full
def test_gymnasium_spaces_arrive_whole() -> None:
    gymnasium = pytest.importorskip("gymnasium")
    spaces = gymnasium.spaces

    class Both(gymnasium.Env):
        observation_space = spaces.Dict(
            {"x": spaces.Box(-1, 1, (2,)), "deep": spaces.Dict({"y": spaces.MultiBinary(3)})}
        )
        action_space = spaces.Tuple([spaces.MultiDiscrete([2, 3], start=[1, 0]), spaces.Box(-1, 1, (2,))])

        def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple:
            super().reset(seed=seed)
            self.observation_space.seed(seed)
            self.left = 5
            return self.observation_space.sample(), {}

        def step(self, action: tuple) -> tuple:
            assert self.action_space.contains(action), action
            self.left -= 1
            return self.observation_space.sample(), 1.0, self.left == 0, False, {}

    from agentkit.envs.gymnasium import GymnasiumEnvironment

    agent = ppo.make_agent(ppo.Config(hidden_sizes=(8,), segment_length=16))
    result = run(ExperimentConfig(agent, lambda seed: GymnasiumEnvironment(Both(), seed), num_steps=100))
    assert result.updates > 0


@pytest.mark.full
def test_it_learns_with_both_hands() -> None:
    """8 is perfect; chance gets about 4.6."""
    config = ppo.Config(segment_length=128, learning_rate=3e-3, discount=0.0, entropy_cost=0.0)
    learns(ppo.make_agent(config), Hands, num_steps=24_000, threshold=7.0, seeds=(0,))


def test_the_environment_wants_more_than_chance() -> None:
    environment, rng, total = Hands(0), np.random.default_rng(0), 0.0
    environment.reset()
    for _ in range(50):
        timestep = environment.step(
            {
                "fingers": rng.integers(0, 2, 3).astype(np.int32),
                "hand": np.int32(rng.integers(3)),
                "place": rng.uniform(0, 10, 2).astype(np.float32),
            }
        )
        total += float(timestep.reward or 0)
    assert total / 50 < 0.65
