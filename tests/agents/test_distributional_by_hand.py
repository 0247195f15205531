"""Losses of the agents that learn distributions, in plain numpy, with tables in place of networks."""

from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentkit import networks as nets
from agentkit.agents import c51, iqn, qr_dqn, rainbow
from agentkit.types import ReplaySample, SampleInfo, Transition
from tests.agents.target_state import state_of_targets

KEY = jax.random.PRNGKey(0)
NUM_STATES, NUM_ACTIONS, NUM_ATOMS = 6, 3, 5
ATOMS = np.linspace(-2.0, 2.0, NUM_ATOMS, dtype=np.float32)

O_TM1, O_T = np.array([0, 1, 2, 0]), np.array([3, 4, 5, 5])  # Nothing that is acted in is also bootstrapped from.
A_TM1 = np.array([1, 0, 2, 0], np.int32)
R_T, DISCOUNT_T = np.array([0.3, -1.7, 0.0, 1.25], np.float32), np.array([0.9, 0.81, 0.5, 0.0], np.float32)
INFO = SampleInfo(np.array([0.4, 0.1, 0.2, 0.3]), np.full(4, 10), (), ())
BATCH = ReplaySample(INFO, Transition(O_TM1, A_TM1, R_T, DISCOUNT_T, O_T))
WEIGHTS = np.sqrt([0.25, 1.0, 0.5, 1 / 3])  # Of INFO's probabilities, with the exponent 1/2.
SETTINGS: dict[str, Any] = {"prioritized": True, "importance_exponent": 0.5}


def tables(*shape: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns what the online and the target network have for each state."""
    rng = np.random.default_rng(1)
    online, target = rng.normal(size=(2, NUM_STATES, *shape)).astype(np.float32)
    return online, target


def check_output(output: Any, per_item: np.ndarray) -> None:
    np.testing.assert_allclose(output.priorities, per_item + 1e-6, rtol=2e-4, atol=1e-6)
    np.testing.assert_allclose(output.loss, np.mean(WEIGHTS * per_item), rtol=2e-4)


def check_gradients(loss: Any, online: np.ndarray, target: np.ndarray) -> None:
    """Refuses a gradient into what is bootstrapped from, and none into what is learned."""
    gradients = jax.jit(jax.grad(lambda x, y: loss(x, state_of_targets(y), BATCH, KEY).loss, argnums=(0, 1)))
    of_online, of_target = map(np.asarray, gradients(online, target))
    assert not np.any(of_target) and not np.any(of_online[3:])
    assert all(np.any(of_online[state]) for state in O_TM1)


def projected(reward: float, discount: float, probabilities: np.ndarray) -> np.ndarray:
    """Returns the probabilities of ATOMS after the Bellman operator (Bellemare et al. 2017, algorithm 1)."""
    found = np.zeros(NUM_ATOMS)
    for atom, probability in zip(ATOMS, probabilities, strict=True):
        place = (np.clip(reward + discount * atom, ATOMS[0], ATOMS[-1]) - ATOMS[0]) / (ATOMS[1] - ATOMS[0])
        low = int(np.floor(place))
        found[low] += probability * (1.0 - (place - low))
        found[min(low + 1, NUM_ATOMS - 1)] += probability * (place - low)
    return found


@pytest.mark.one_case
@pytest.mark.parametrize("module", [c51, rainbow], ids=lambda module: module.__name__.rpartition(".")[2])
def test_categorical_losses_and_priorities(module: ModuleType) -> None:
    """C51 takes its target's best action, Rainbow the online network's, which is another one here."""
    online, target = tables(NUM_ACTIONS, NUM_ATOMS)
    config = module.Config(**SETTINGS, vmin=-2.0, vmax=2.0, num_atoms=NUM_ATOMS)
    network = nets.CategoricalNetwork(lambda key: None, lambda params, *inputs: params[inputs[-1]], ATOMS)
    loss = module.make_loss(network, config)

    def softmax(logits: np.ndarray) -> np.ndarray:
        return np.exp(logits) / np.sum(np.exp(logits), axis=-1, keepdims=True)

    selector = target if module is c51 else online
    best = np.argmax(softmax(selector)[O_T] @ ATOMS, axis=1)
    assert np.any(best != np.argmax(softmax(online if module is c51 else target)[O_T] @ ATOMS, axis=1))
    per_item = []
    for i in range(4):
        wanted = projected(R_T[i], DISCOUNT_T[i], softmax(target)[O_T[i], best[i]])
        predicted = softmax(online)[O_TM1[i], A_TM1[i]]
        per_item.append(np.sum(wanted * np.log(np.where(wanted > 0, wanted, 1.0) / predicted)))
    check_output(jax.jit(loss)(online, state_of_targets(target), BATCH, KEY), np.array(per_item))
    check_gradients(loss, online, target)


def quantile_losses(
    quantiles: np.ndarray, taus: np.ndarray, targets: np.ndarray, best: np.ndarray, delta: float
) -> np.ndarray:
    """Returns the losses ``[B]`` of quantiles ``[B, N, A]`` at ``[B, N]``, to targets ``[B, N', A]``."""
    found = []
    for i in range(4):
        wanted = R_T[i] + DISCOUNT_T[i] * targets[i, :, best[i]]  # [N']
        errors = wanted[None] - quantiles[i, :, A_TM1[i], None]  # [N, N']
        size = np.abs(errors)
        huber = np.where(size <= delta, 0.5 * errors**2, delta * (size - 0.5 * delta)) / delta
        found.append(np.sum(np.mean(np.abs(taus[i, :, None] - (errors < 0)) * huber, axis=1)))
    return np.array(found)


@pytest.mark.full
def test_qr_dqns_loss_and_priorities() -> None:
    num_quantiles, delta = 4, 0.7
    online, target = tables(num_quantiles, NUM_ACTIONS)
    config = qr_dqn.Config(**SETTINGS, num_quantiles=num_quantiles, huber_delta=delta)
    loss = qr_dqn.make_loss(nets.Network(lambda key: None, lambda params, o: params[o]), config)
    best = np.argmax(np.mean(target[O_T], axis=1), axis=1)
    assert np.any(best != np.argmax(np.mean(online[O_T], axis=1), axis=1))
    taus = np.tile([0.125, 0.375, 0.625, 0.875], (4, 1))
    per_item = quantile_losses(online[O_TM1], taus, target[O_T], best, delta)
    check_output(jax.jit(loss)(online, state_of_targets(target), BATCH, KEY), per_item)
    check_gradients(loss, online, target)


@pytest.mark.full
def test_iqns_loss_and_priorities() -> None:
    """Quantiles are straight lines in tau; which fractions were drawn for which network is seen in its calls."""
    online, target = tables(2, NUM_ACTIONS)
    num_drawn = {"online": 4, "target": 7, "selector": 5}
    config = iqn.Config(
        **SETTINGS, num_quantiles=4, num_target_quantiles=7, num_policy_quantiles=5, risk_level=0.5, huber_delta=0.7
    )
    drawn: dict[int, tuple[Any, np.ndarray]] = {}

    def quantiles(params: Any, observation: Any, taus: Any) -> Any:
        return params[observation][:, :1] + taus[..., None] * params[observation][:, 1:]

    def apply(params: Any, observation: Any, taus: jax.Array) -> jax.Array:
        drawn[taus.shape[1]] = (params, taus)
        return quantiles(params, observation, taus)

    loss = iqn.make_loss(nets.Network(lambda key: None, apply), config)
    of_online, of_target = jnp.asarray(online), jnp.asarray(target)
    output = loss(of_online, state_of_targets(of_target), BATCH, KEY)
    taus = {name: np.asarray(drawn[num][1]) for name, num in num_drawn.items()}
    assert [drawn[num][0] is of_online for num in num_drawn.values()] == [True, False, False]
    assert np.max(taus["selector"]) < 0.5 < min(np.max(taus["online"]), np.max(taus["target"]))
    assert not np.any(np.isin(taus["online"], taus["target"]))
    best = np.argmax(np.mean(quantiles(target, O_T, taus["selector"]), axis=1), axis=1)
    of_target_t = quantiles(target, O_T, taus["target"])
    per_item = quantile_losses(quantiles(online, O_TM1, taus["online"]), taus["online"], of_target_t, best, 0.7)
    check_output(output, per_item)
    check_gradients(loss, of_online, of_target)
