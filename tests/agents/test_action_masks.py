"""No agent ever takes an action that the observation rules out: acting, exploring, learning, evaluating."""

import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentkit import checkpoint, envs, losses, specs
from agentkit import networks as nets
from agentkit.actors.epsilon_greedy import explore
from agentkit.agents import c51, dqn, ppo, rainbow, registry
from agentkit.agents.common.agent import Agent
from agentkit.errors import SpecError
from agentkit.experiment import ExperimentConfig, run
from agentkit.learning import Linear, SgdState
from agentkit.testing.learning import learns
from agentkit.types import ReplaySample, SampleInfo, Transition
from tests.agents.spaces import NUM_ACTIONS, Rules

DISCRETE = [name for name in registry.names() if "discrete" in registry.about(name).actions]
CONTINUOUS = [name for name in registry.names() if registry.about(name).actions == ("continuous",)]
SMALL = {
    "hidden_sizes": (8,),
    "min_replay_size": 20,
    "num_random_steps": 20,
    "segment_length": 8,
    "num_minibatches": 1,
    "core_size": 8,
    "num_simulations": 4,
    "sequence_length": 8,
    "sequence_period": 4,
    "burn_in": 2,
}


def small(name: str, **more: Any) -> Agent:
    fields = registry.config_class(name).__dataclass_fields__
    settings = {key: value for key, value in {**SMALL, **more}.items() if key in fields}
    if "sequence_length" in settings:
        settings["min_replay_size"] = 4
    return registry.make(name, settings)


# Evaluations step one environment.
@pytest.mark.full
@pytest.mark.parametrize(("name", "num_envs"), [*((name, 3) for name in DISCRETE), ("dqn", None), ("ppo", None)])
def test_an_agent_keeps_to_the_rules(name: str, num_envs: int | None, tmp_path: pathlib.Path) -> None:
    experiment = ExperimentConfig(
        small(name),
        Rules,
        num_steps=160,
        num_envs=num_envs,
        evaluation_period=80,
        evaluation_episodes=2,
        run_directory=tmp_path / "run",
    )
    result = run(experiment)  # Rules raises where an action is against them.
    assert result.updates > 0 and len(result.evaluations) >= 2
    found = checkpoint.read_latest(tmp_path / "run" / "checkpoints")
    assert found is not None
    learned = found.state["learner"]["state"]
    assert not [key for key, leaf in learned.items() if not np.all(np.isfinite(leaf))]


@pytest.mark.parametrize("name", CONTINUOUS)
def test_a_mask_for_continuous_actions_is_refused(name: str) -> None:
    spec = specs.make_environment_spec(envs.make("agentkit:point_mass", seed=0))
    mask = specs.BoundedArray((2,), np.int8, 0, 1)
    spec = spec._replace(observations={"action_mask": mask, "place": spec.observations})
    agent = registry.make(name)
    with pytest.raises(SpecError, match="action_mask"):
        agent.make_update(agent.make_networks(spec)).init(jax.random.PRNGKey(0))


@pytest.mark.parametrize(
    ("mask", "said"),
    [
        (specs.Array((NUM_ACTIONS + 1,), np.int8), "5 actions"),
        (specs.Array((NUM_ACTIONS,), np.float32), "float32"),
    ],
)
def test_a_wrong_mask_is_refused(mask: specs.Array, said: str) -> None:
    spec = specs.make_environment_spec(Rules(0))
    spec = spec._replace(observations={**spec.observations, "action_mask": mask})
    with pytest.raises(SpecError, match=said):
        dqn.make_agent().make_networks(spec).init(jax.random.PRNGKey(0))


@pytest.mark.full
def test_random_actions_are_uniform_among_the_legal() -> None:
    q = jnp.array([specs.ILLEGAL_VALUE, 1.0, specs.ILLEGAL_VALUE, 3.0, -5.0])
    keys = jax.random.split(jax.random.PRNGKey(0), 3_000)
    actions = jax.vmap(lambda key: explore(key, q, 1.0))(keys)
    shares = np.bincount(actions, minlength=5) / len(keys)
    assert shares[0] == shares[2] == 0
    np.testing.assert_allclose(shares[[1, 3, 4]], 1 / 3, atol=0.03)


@pytest.mark.full
def test_without_a_mask_random_actions_are_as_they_were() -> None:
    keys = jax.random.split(jax.random.PRNGKey(1), 500)
    which = jax.vmap(lambda key: jax.random.uniform(key, (2,)))(keys)[:, 1]
    actions = jax.vmap(lambda key: explore(key, jnp.zeros(7), 1.0))(keys)
    np.testing.assert_array_equal(actions, np.floor(np.asarray(which) * 7))


def test_the_best_next_action_is_one_that_may_be_taken() -> None:
    """The target of a DQN, whose ruled-out action would have the greatest value."""
    observation = {"action_mask": jnp.array([[1, 1, 0]]), "x": jnp.zeros((1, 1))}
    q = nets.mask_illegal(jnp.array([[1.0, 2.0, 9.0]]), observation)
    error = losses.q_learning_error(jnp.zeros((1, 3)), jnp.array([0]), jnp.ones(1), jnp.full(1, 0.5), q)
    np.testing.assert_allclose(error, [1.0 + 0.5 * 2.0])


@pytest.mark.full
def test_a_policy_is_that_of_the_legal_actions_alone() -> None:
    logits, mask = jnp.array([[0.3, -1.0, 2.0, 0.1]]), jnp.array([[True, False, True, False]])
    policy = nets.Categorical(nets.mask_illegal(logits, {"action_mask": mask}))
    alone = nets.Categorical(logits[:, np.array([0, 2])])
    np.testing.assert_allclose(policy.entropy(), alone.entropy(), rtol=1e-6)
    np.testing.assert_allclose(policy.log_prob(jnp.array([2])), alone.log_prob(jnp.array([1])), rtol=1e-6)
    other = nets.Categorical(nets.mask_illegal(logits[:, ::-1], {"action_mask": mask}))
    np.testing.assert_allclose(
        policy.kl(other), alone.kl(nets.Categorical(other.logits[:, np.array([0, 2])])), rtol=1e-5
    )
    slope = jax.grad(lambda x: nets.Categorical(nets.mask_illegal(x, {"action_mask": mask})).entropy()[0])(logits)
    assert np.all(slope[0, [1, 3]] == 0) and np.all(slope[0, [0, 2]] != 0)


def test_where_nothing_may_be_taken_everything_may() -> None:
    np.testing.assert_array_equal(nets.action_mask({"action_mask": jnp.array([[0, 0], [0, 1]])}), [[1, 1], [0, 1]])


def test_the_mask_is_no_feature_and_is_found_in_nests() -> None:
    nest = {"game": {"action_mask": jnp.array([[1, 0]]), "board": jnp.ones((1, 4))}, "last": jnp.zeros((1, 1))}
    np.testing.assert_array_equal(nets.action_mask(nest), [[True, False]])
    assert nets.torso(nest).shape == (1, 5)
    assert nets.action_mask(jnp.ones((1, 3))) is None


def test_two_masks_are_refused() -> None:
    with pytest.raises(SpecError, match="found int32"):
        nets.action_mask({"a": {"action_mask": jnp.array([[1]])}, "b": {"action_mask": jnp.array([[1]])}})


@pytest.mark.full
@pytest.mark.parametrize(
    "agent",
    [
        dqn.make_agent(dqn.Config(n_step=1, updates_per_step=1.0, epsilon=Linear(1.0, 0.05, 500), discount=0.0)),
        ppo.make_agent(ppo.Config(segment_length=64, learning_rate=3e-3, discount=0.0)),
    ],
    ids=["dqn", "ppo"],
)
def test_it_learns_what_the_rules_leave(agent: Agent) -> None:
    """8 is perfect; chance among the legal actions gets about 3."""
    learns(agent, Rules, num_steps=6_000, threshold=7.0, seeds=(0,))


def test_the_environment_does_raise() -> None:
    """Or none of the above would prove anything."""
    environment = Rules(0)
    timestep = environment.reset()
    forbidden = int(np.flatnonzero(timestep.observation["action_mask"] == 0)[0])
    with pytest.raises(ValueError, match="against the rules"):
        environment.step(forbidden)


@pytest.mark.parametrize("agent", [c51, rainbow])
def test_a_logged_mean_is_of_the_actions_that_are_allowed(agent: Any) -> None:
    """C51 and Rainbow log means of distributions, which know of no mask."""
    atoms = jnp.array([-1.0, 0.0, 1.0])
    logits = jnp.broadcast_to(jnp.array([[0.0, 9.0, 0.0], [-99.0, -99.0, 99.0]]), (4, 2, 3))  # Of 0, and of 1.
    network = nets.CategoricalNetwork(lambda key: {}, lambda *given: logits, atoms)
    observation = {"board": np.zeros((4, 1), np.float32), "action_mask": np.array([[1, 0]] * 4, bool)}
    data = Transition(observation, np.zeros(4, np.int32), np.zeros(4), np.ones(4), observation)
    batch = ReplaySample(SampleInfo(np.ones(4), np.full(4, 4), np.ones(4), np.ones(4, np.int32)), data)
    state = SgdState({}, {}, (), jax.random.PRNGKey(0), jnp.int32(0))
    output = agent.make_loss(network, agent.Config(vmin=-1.0, vmax=1.0, num_atoms=3))({}, state, batch, state.key)
    assert output.metrics["q"] == 0.0 and output.metrics["at_edge"] == 0.0
