from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentkit import envs, losses, specs
from agentkit.agents import gumbel_muzero
from agentkit.agents.gumbel_muzero import Config, make_agent
from agentkit.testing.agent import AgentContract
from agentkit.testing.chain import Chain, values
from agentkit.testing.learning import learns
from agentkit.types import ReplaySample, SampleInfo, Step
from tests.agents import settings
from tests.agents.target_state import state_of_targets

KEY = jax.random.PRNGKey(0)


@pytest.mark.full
class TestGumbelMuZero(AgentContract):
    unsuitable_environment = "agentkit:point_mass"
    num_steps = 130
    refused: ClassVar = {
        **settings.OFF_POLICY_REFUSED,
        "target_update_period": 0,
        "num_atoms": 1,
        "vmin": 9.0,
        "num_simulations": 0,
        "max_num_considered_actions": 0,
        "unroll_length": 0,
        "model_size": 0,
        "value_cost": 0.0,
        "sequence_length": 0,
        "sequence_period": 50,
        "replay_size": 1,
    }
    changes: ClassVar = {
        **settings.OFF_POLICY_CHANGES,
        "model_size": 16,
        "num_atoms": 7,
        "vmin": -1.0,
        "vmax": 1.0,
        "rescale_values": False,
        "num_simulations": 2,
        "max_num_considered_actions": 2,
        "unroll_length": 1,
        "value_cost": 2.0,
        "learning_rate": 1e-1,
        "max_grad_norm": 1e-3,
        "target_update_period": 1,
        "sequence_length": 10,
        "sequence_period": 2,
        "min_replay_size": 5,
        "updates_per_step": 0.5,
    }

    def make_agent(self, **changes: Any) -> Any:
        small = {
            **settings.SMALL,
            "model_size": 8,
            "num_atoms": 11,
            "vmin": -2.0,
            "vmax": 2.0,
            "num_simulations": 4,
            "unroll_length": 2,
            "n_step": 3,
            "target_update_period": 3,
            "sequence_length": 5,
            "sequence_period": 5,
            "min_replay_size": 4,
            "updates_per_step": 0.2,
        }
        return make_agent(Config(**{**small, **changes}))

    def make_environment(self, seed: int) -> Any:
        return envs.make("agentkit:catch", seed=seed)


def _sequence(length: int, starts: tuple[int, ...], rewards: list[float], discounts: list[float]) -> Step:
    """One sequence of a chain of states, its policy always certain of action 0."""
    rows = length + 1
    start = np.zeros(rows, bool)
    start[list(starts)] = True
    return Step(
        observation=np.eye(4, dtype=np.float32)[np.arange(rows) % 4],
        action=np.zeros(rows, np.int32),
        reward=np.float32(rewards),
        discount=np.float32(discounts),
        start_of_episode=start,
        extras=np.tile(np.float32([1, 0]), (rows, 1)),
    )


def _batch(*sequences: Step) -> ReplaySample:
    stacked = jax.tree.map(lambda *rows: np.stack(rows), *sequences)
    ones = np.ones(len(sequences))
    return ReplaySample(SampleInfo(ones, ones, ones, ones), stacked)


def _learner(**changes: Any) -> tuple[Any, Any, Any]:
    usual = {"hidden_sizes": (32,), "model_size": 16, "num_atoms": 21, "vmin": 0.0, "vmax": 5.0, "discount": 0.8}
    usual["rescale_values"] = False
    agent = make_agent(Config(**{**usual, "learning_rate": 3e-3, "target_update_period": 20, **changes}))
    networks = agent.make_networks(specs.make_environment_spec(Chain(True, num_actions=2)))
    return agent, networks, agent.make_update(networks)


@pytest.mark.full
@pytest.mark.parametrize("terminates", [True, False])
def test_it_finds_the_values_and_rewards_of_a_chain(terminates: bool) -> None:
    """An episode that terminates after four states, or that is cut off somewhere on a ring."""
    if terminates:
        rewards, discounts, starts = [0, 0, 0, 1, 0, 0, 0, 0, 1], [1, 1, 1, 0, 0, 1, 1, 1, 0], (0, 5)
        observation = np.array([0, 1, 2, 3, 0, 0, 1, 2, 3])  # The fifth is the final one.
    else:
        rewards, discounts, starts = [1, 1, 1, 1, 1, 1, 0, 1, 1], [1, 1, 1, 1, 1, 1, 0, 1, 1], (0, 7)
        observation = np.array([0, 1, 2, 3, 0, 1, 2, 2, 3])  # The seventh is cut off.
    sequence = _sequence(8, starts, rewards, discounts)._replace(observation=np.eye(4, dtype=np.float32)[observation])
    _, networks, update = _learner(n_step=3, unroll_length=3)
    state, step = jax.jit(update.init)(KEY), jax.jit(update.update)
    for _ in range(600):
        state, _ = step(state, _batch(sequence))
    hidden = networks.represent(state.params, np.eye(4, dtype=np.float32))
    found = gumbel_muzero._value(networks, state.params, np.eye(4, dtype=np.float32))
    np.testing.assert_allclose(found, values(0.8, terminates), atol=0.1)
    reward, _ = networks.step(state.params, hidden, jnp.zeros(4, jnp.int32))
    expected = [0, 0, 0, 1] if terminates else [1, 1, 1, 1]
    np.testing.assert_allclose(gumbel_muzero.nets.categorical_mean(reward, networks.atoms), expected, atol=0.1)


@pytest.mark.full
def test_rescaled_atoms_hold_small_and_large_returns() -> None:
    """Rewards of 100 a step, gamma 0.8: the default support finds values of 100 and more, and 0 and 1 beside them."""
    sequence = _sequence(8, (0,), [100.0] * 9, [1] * 9)
    _, networks, update = _learner(
        n_step=3, unroll_length=3, vmin=-1_000.0, vmax=1_000.0, num_atoms=121, rescale_values=True
    )
    state, step = jax.jit(update.init)(KEY), jax.jit(update.update)
    for _ in range(600):
        state, _ = step(state, _batch(sequence))
    found = gumbel_muzero._value(networks, state.params, np.eye(4, dtype=np.float32))
    np.testing.assert_allclose(found, [500.0] * 4, rtol=0.15)


def test_rescaled_values_are_read_back_as_they_were() -> None:
    networks = _learner(vmin=-1_000.0, vmax=1_000.0, num_atoms=121, rescale_values=True)[1]
    values = np.float32([-900.0, -1.0, 0.0, 0.5, 99.0])
    atoms, rows = np.asarray(networks.atoms), np.arange(len(values))
    x = np.asarray(jax.jit(losses.signed_hyperbolic)(values))
    place = np.searchsorted(atoms, x, side="right") - 1
    share = (x - atoms[place]) / (atoms[place + 1] - atoms[place])
    probabilities = np.full((len(values), 121), 1e-30, np.float32)
    probabilities[rows, place] += 1.0 - share
    probabilities[rows, place + 1] += share
    np.testing.assert_allclose(jax.jit(networks.to_value)(np.log(probabilities)), values, rtol=1e-3, atol=1e-3)


@pytest.mark.full
def test_the_model_knows_what_follows_its_own_predictions() -> None:
    """Unrolled from the first state alone it predicts the chain's rewards to the end."""
    sequence = _sequence(4, (0,), [0, 0, 0, 1, 0], [1, 1, 1, 0, 0])
    _, networks, update = _learner(n_step=4, unroll_length=4)
    state, step = jax.jit(update.init)(KEY), jax.jit(update.update)
    for _ in range(400):
        state, _ = step(state, _batch(sequence))
    hidden = networks.represent(state.params, np.eye(4, dtype=np.float32)[:1])
    rewards = []
    for _ in range(4):
        reward, hidden = networks.step(state.params, hidden, jnp.zeros(1, jnp.int32))
        rewards.append(float(gumbel_muzero.nets.categorical_mean(reward, networks.atoms)[0]))
    np.testing.assert_allclose(rewards, [0, 0, 0, 1], atol=0.1)


@pytest.mark.full
def test_the_model_predicts_what_each_action_leads_to() -> None:
    """Rewards that are the action taken one step before: only a state that remembers it can say so."""
    actions = np.array([[0, 0, 0], [0, 1, 0], [1, 0, 0], [1, 1, 0]], np.int32)
    plain = _sequence(2, (0,), [0, 0, 0], [1, 0, 0])
    sequences = [plain._replace(action=a, reward=np.float32([0, a[0], 0])) for a in actions]
    _, networks, update = _learner(n_step=2, unroll_length=2, learning_rate=1e-2)
    state, step = jax.jit(update.init)(KEY), jax.jit(update.update)
    for _ in range(300):
        state, _ = step(state, _batch(*sequences))
    for action in (0, 1):
        hidden = networks.represent(state.params, np.eye(4, dtype=np.float32)[:1])
        _, hidden = networks.step(state.params, hidden, jnp.full(1, action))
        reward, _ = networks.step(state.params, hidden, jnp.zeros(1, jnp.int32))
        np.testing.assert_allclose(gumbel_muzero.nets.categorical_mean(reward, networks.atoms), [action], atol=0.1)


@pytest.mark.full
def test_rows_behind_the_end_of_an_episode_teach_nothing_about_it() -> None:
    """With the model unrolled over it, what stands in an episode's final row has no part in the loss."""
    agent, networks, _ = _learner(unroll_length=4, n_step=4)
    loss, params = gumbel_muzero.make_loss(networks, agent.config), jax.jit(networks.init)(KEY)
    whole = _sequence(4, (0,), [0, 1, 0, 0, 0], [1, 0, 0, 0, 0])
    final = whole._replace(start_of_episode=np.array([True, False, False, True, False]))  # Row 2 is a final one.
    changed = final._replace(action=np.array([0, 0, 1, 0, 0], np.int32), extras=np.array(final.extras))
    changed.extras[2] = [0, 1]

    def gradient(sequence: Step) -> list[jax.Array]:
        return jax.tree.leaves(
            jax.grad(lambda p: loss(p, state_of_targets(params), _batch(sequence), KEY).loss)(params)
        )

    for before, after in zip(gradient(final), gradient(changed), strict=True):
        np.testing.assert_array_equal(before, after)
    pairs = zip(gradient(whole), gradient(final), strict=True)
    assert any(np.any(a != b) for a, b in pairs)  # Without the end between them, it had.


def test_positions_behind_a_termination_are_worth_nothing_and_have_no_policy() -> None:
    """Three rows act, of which one is an episode's last; with even predictions losses count what they are taken of."""
    agent, networks, _ = _learner(unroll_length=2, n_step=1, num_atoms=3, vmin=-1.0, vmax=1.0)
    seen, sure = [], jnp.log(jnp.array([0.2, 0.5, 0.3]))  # Of -1, 0 and 1.
    plain = networks._replace(
        represent=lambda params, observation: jnp.zeros((len(observation), 1)),
        predict=lambda params, hidden: (jnp.zeros((len(hidden), 2)), jnp.tile(sure, (len(hidden), 1))),
        step=lambda params, hidden, action: seen.append(action) or (jnp.tile(sure, (len(hidden), 1)), hidden),
        to_value=lambda logits: jnp.zeros(logits.shape[:-1]),
    )
    loss = gumbel_muzero.make_loss(plain, agent.config)

    def found(*discounts: float) -> dict[str, float]:
        sequence = _sequence(4, (0, 2), [1, 0, 1, 1, 0], [*discounts, 1])
        return {k: float(x) for k, x in loss((), state_of_targets(()), _batch(sequence), KEY).metrics.items()}

    terminated, truncated, lost_a_life = found(0, 0, 1, 1), found(1, 0, 1, 1), found(1, 0, 0, 0)
    one, nothing = -sure[2], -sure[1]
    for name in ("value_loss", "reward_loss"):  # Each row's own, that of the row after the third, and what is behind.
        np.testing.assert_allclose(truncated[name], one + one / 3, rtol=1e-5)
        np.testing.assert_allclose(terminated[name], one + one / 3 + nothing / 3, rtol=1e-5)
        np.testing.assert_allclose(lost_a_life[name], truncated[name], rtol=1e-5)  # The episode went on.
    np.testing.assert_allclose(terminated["policy_loss"], np.log(2) * 4 / 3, rtol=1e-5)
    batch, behind = _batch(_sequence(4, (0, 2), [0] * 5, [0, 0, 1, 1, 1])), set()
    for i in range(12):
        loss((), state_of_targets(()), batch, jax.random.PRNGKey(i))
        behind.add(int(seen[-1][0]))
    assert behind == {0, 1}, "random actions lead there"


@pytest.mark.full
def test_the_models_states_reach_from_zero_to_one() -> None:
    spec = specs.make_environment_spec(envs.make("agentkit:catch"))
    networks = gumbel_muzero.make_networks(spec, Config(hidden_sizes=(8,), model_size=6))
    params = jax.jit(networks.init)(jax.random.PRNGKey(0))
    hidden = networks.represent(params, jax.random.normal(jax.random.PRNGKey(1), (4, *spec.observations.shape)))
    _, after = networks.step(params, hidden, jnp.array([0, 1, 2, 0]))
    for states in (hidden, after):
        np.testing.assert_allclose(jnp.min(states, axis=-1), 0.0, atol=1e-6)
        assert np.all((np.max(states, axis=-1) > 0.99) & (np.max(states, axis=-1) < 1.0))


@pytest.mark.full
def test_the_search_prefers_what_the_model_says_is_better() -> None:
    """A network that knows of two actions and nothing else: the search finds the one with the reward."""
    agent, networks, _ = _learner(num_simulations=8)
    params = jax.jit(networks.init)(KEY)

    def step(params: Any, hidden: jax.Array, action: jax.Array) -> tuple[jax.Array, jax.Array]:
        best = jax.nn.one_hot(jnp.where(action == 1, 20, 0), 21) * 50.0  # Reward 5 for action 1, and 0 for the other.
        return best, hidden

    knowing = networks._replace(step=step)
    observation = np.zeros(4, np.float32)
    for evaluation in (False, True):
        policy = gumbel_muzero.make_policy(knowing, agent.config, evaluation)
        action, _, searched = policy.act(params, KEY, observation, ())
        assert action == 1
        if evaluation:
            assert searched == () == policy.extras_spec
        else:
            assert searched[1] > 0.9 and np.isclose(np.sum(searched), 1.0)
            policy.extras_spec.validate(np.asarray(searched))


def test_without_mctx_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    from agentkit.errors import MissingExtraError

    monkeypatch.setitem(sys.modules, "mctx", None)
    agent, networks, _ = _learner()
    with pytest.raises(MissingExtraError, match=r"agentkit-rl\[planning\]"):
        agent.make_policy(networks)


@pytest.mark.full
def test_it_learns_catch() -> None:
    config = Config(
        hidden_sizes=(32,), model_size=32, num_atoms=21, vmin=-1.5, vmax=1.5, rescale_values=False,
        num_simulations=8, min_replay_size=10, updates_per_step=0.5, learning_rate=3e-3, target_update_period=20,
    )  # fmt: skip
    learns(make_agent(config), "agentkit:catch", num_steps=6_000, threshold=0.6)


@pytest.mark.full
def test_the_losses_are_those_of_the_targets() -> None:
    """The reported losses, from scratch for one sequence: cross-entropies at every row, and nothing else."""
    agent, networks, _ = _learner(unroll_length=1, n_step=2)
    params, target_params = jax.jit(networks.init)(KEY), jax.jit(networks.init)(jax.random.PRNGKey(1))
    sequence = _sequence(3, (0,), [1, 2, 0.5, 0], [1, 1, 1, 1])
    output = jax.jit(gumbel_muzero.make_loss(networks, agent.config))(
        params, state_of_targets(target_params), _batch(sequence), KEY
    )
    v = np.array(gumbel_muzero._value(networks, target_params, sequence.observation))
    targets = [1 + 0.8 * 2 + 0.64 * v[2], 2 + 0.8 * 0.5 + 0.64 * v[3], 0.5 + 0.8 * v[3]]
    hidden = networks.represent(params, sequence.observation[:3])
    policy, value = networks.predict(params, hidden)
    reward, _ = networks.step(params, hidden, sequence.action[:3])
    expected = {
        "policy_loss": -np.mean(jax.nn.log_softmax(policy)[:, 0]),
        "value_loss": np.mean(losses.two_hot_cross_entropy(value, jnp.array(targets), networks.atoms)),
        "reward_loss": np.mean(losses.two_hot_cross_entropy(reward, jnp.array([1, 2, 0.5]), networks.atoms)),
    }
    for name, number in expected.items():
        np.testing.assert_allclose(output.metrics[name], number, rtol=1e-5)


@pytest.mark.full
def test_each_step_of_the_model_halves_the_gradient_and_later_losses_share_a_weight() -> None:
    """A model whose state is its parameter, and that never changes it: three rows with 3, 2 and 1 losses ahead."""
    agent, networks, _ = _learner(unroll_length=3, n_step=1, value_cost=2.0)
    atoms, first = len(networks.atoms), np.eye(len(networks.atoms), dtype=np.float32)[0]
    plain = networks._replace(
        represent=lambda params, observation: jnp.full((len(observation), 1), params),
        predict=lambda params, hidden: (jnp.zeros((len(hidden), 2)), hidden * first[None]),
        step=lambda params, hidden, action: (jnp.zeros((len(hidden), atoms)), hidden),
    )
    batch, h = _batch(_sequence(3, (0,), [0, 0, 0, 0], [0, 0, 0, 0])), 0.7  # All targets are 0, the first atom.
    loss = gumbel_muzero.make_loss(plain, agent.config)

    def total(x: jax.Array) -> tuple[jax.Array, Any]:
        output = loss(x, state_of_targets(x), batch, KEY)
        return output.loss, output

    (found, output), gradient = jax.value_and_grad(total, has_aux=True)(h)
    value_loss = np.log(atoms - 1 + np.exp(h)) - h
    weight = 1 + 2 / 3 / 2 + 1 / 3 / 2  # Of rows that have one so far ahead, and half for each of the two ahead.
    expected = {"policy_loss": np.log(2), "value_loss": value_loss, "reward_loss": np.log(atoms)}
    for name, number in expected.items():
        np.testing.assert_allclose(output.metrics[name], weight * number, rtol=1e-5)
    np.testing.assert_allclose(found, weight * (np.log(2) + 2.0 * value_loss + np.log(atoms)), rtol=1e-5)
    slope = np.exp(h) / (atoms - 1 + np.exp(h)) - 1
    np.testing.assert_allclose(gradient, 2.0 * slope * (1 + 2 / 3 / 2 / 2 + 1 / 3 / 2 / 4), rtol=1e-5)
