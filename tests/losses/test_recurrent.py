"""Losses on sequences against loops in plain numpy, episode by episode."""

import functools
from typing import Any

import jax
import numpy as np
import pytest
import rlax

from agentkit import losses
from agentkit.types import has_action

GAMMA = 0.9

# Eagerly each of their operations would be a program of its own.
signed_hyperbolic, signed_parabolic = jax.jit(losses.signed_hyperbolic), jax.jit(losses.signed_parabolic)
n_step_double_q_learning_error = jax.jit(losses.n_step_double_q_learning_error, static_argnames=("n", "rescaled"))
loss_mask, sequence_priorities = jax.jit(losses.loss_mask, static_argnums=1), jax.jit(losses.sequence_priorities)


def h(x: Any) -> Any:
    """In float64 (Pohlen et al. 2018, proposition A.2)."""
    x = np.float64(x)
    return np.sign(x) * (np.sqrt(np.abs(x) + 1) - 1) + 1e-3 * x


def inverse(y: Any) -> Any:
    """In float64, by the paper's formula."""
    y = np.float64(y)
    return np.sign(y) * (((np.sqrt(1 + 4e-3 * (np.abs(y) + 1 + 1e-3)) - 1) / 2e-3) ** 2 - 1)


def test_rescaling_and_its_inverse() -> None:
    x = np.concatenate([-np.geomspace(1e-4, 1e5, 50), [0.0], np.geomspace(1e-4, 1e5, 50)]).astype(np.float32)
    np.testing.assert_allclose(signed_hyperbolic(x), h(x), rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(inverse(h(x)), x, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(signed_parabolic(signed_hyperbolic(x)), x, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(signed_parabolic(x / 100), inverse(x / 100), rtol=1e-5, atol=1e-6)
    assert signed_parabolic(np.float32(0.0)) == 0.0


class Sequence:
    """One sequence of episodes, given as (number of actions, discount at the end; None where the sequence ends)."""

    def __init__(self, episodes: list[tuple[int, float | None]], seed: int = 0):
        rng = np.random.default_rng(seed)
        self.start: list[bool] = []
        self.discount: list[float] = []
        self.spans: list[tuple[int, int]] = []  # Of rows with an action.
        for num_actions, end in episodes:
            first = len(self.start)
            self.start += [True] + [False] * (num_actions - 1 + (end is not None))
            self.discount += [1.0] * (num_actions - 1) + [1.0 if end is None else end] + [0.0] * (end is not None)
            self.spans.append((first, first + num_actions))
        T = self.length = len(self.start)
        # What follows is an episode's first row where the last one has ended.
        self.start.append(episodes[-1][1] is not None)
        self.reward, self.q, self.target, self.selector = (rng.normal(size=shape).astype(np.float32) for shape in (
            T, (T, 3), (T, 3), (T, 3)))  # fmt: skip
        self.action = rng.integers(3, size=T)
        self.reward[np.array(self.start[1:])] = 0.0

    def errors(self, n: int, rescaled: bool) -> tuple[np.ndarray, np.ndarray]:
        mask = has_action(np.array([self.start]))
        discount = np.float32(GAMMA) * np.array([self.discount], np.float32)
        found = n_step_double_q_learning_error(
            self.q[None], self.action[None], self.reward[None], discount, self.target[None], self.selector[None],
            mask, n=n, rescaled=rescaled,
        )  # fmt: skip
        return np.asarray(found[0]), np.asarray(mask[0])

    def by_hand(self, n: int, rescaled: bool) -> dict[int, float]:
        """A loop forward over each episode alone: `target` of row t is of the observation after it."""
        there, back = (h, inverse) if rescaled else (lambda x: x, lambda x: x)
        found = {}
        for first, stop in self.spans:
            for t in range(first, stop):
                total, weight, k = 0.0, 1.0, t
                while True:
                    total += weight * self.reward[k]
                    weight *= GAMMA * self.discount[k]
                    k += 1
                    if k == stop or k == t + n:
                        break
                value = self.target[k - 1, np.argmax(self.selector[k - 1])]
                found[t] = there(total + weight * back(value)) - self.q[t, self.action[t]]
        return found


@pytest.mark.parametrize("rescaled", [True, False])
@pytest.mark.parametrize("n", [1, 2, 3, 20])
@pytest.mark.parametrize(
    "episodes",
    [[(10, None)], [(9, 0.0)], [(9, 1.0)], [(3, 0.0), (3, 1.0), (2, None)], [(1, 1.0), (1, 0.0), (4, 1.0), (1, None)]],
)
def test_n_step_errors(episodes: list[tuple[int, float | None]], n: int, rescaled: bool) -> None:
    for seed in range(3):
        sequence = Sequence(episodes, seed)
        found, mask = sequence.errors(n, rescaled)
        expected = sequence.by_hand(n, rescaled)
        assert [t for t, m in enumerate(mask) if m] == sorted(expected)
        np.testing.assert_allclose([found[t] for t in sorted(expected)], [expected[t] for t in sorted(expected)],
                                   rtol=1e-4, atol=1e-5)  # fmt: skip


def test_without_ends_they_are_rlaxs() -> None:
    s = Sequence([(10, None)])
    best = np.argmax(s.selector, axis=-1)
    theirs = functools.partial(
        rlax.transformed_n_step_q_learning, n=3, stop_target_gradients=True, tx_pair=rlax.SIGNED_HYPERBOLIC_PAIR
    )
    expected = jax.jit(theirs)(s.q, s.action, s.target, best, s.reward, np.full(10, GAMMA, np.float32))
    np.testing.assert_allclose(s.errors(3, True)[0], expected, rtol=1e-3, atol=1e-3)


def test_gradients_reach_the_values_of_taken_actions_and_no_target() -> None:
    s = Sequence([(3, 1.0), (4, None)])
    mask = has_action(np.array([s.start]))

    def total(q: Any, target: Any, selector: Any) -> Any:
        errors = n_step_double_q_learning_error(
            q[None], s.action[None], s.reward[None], np.float32([s.discount]), target[None], selector[None], mask,
            n=2, rescaled=True,
        )  # fmt: skip
        return errors.sum()

    by_q, *others = jax.jit(jax.grad(total, argnums=(0, 1, 2)))(s.q, s.target, s.selector)
    np.testing.assert_array_equal(by_q, -np.eye(3)[s.action])
    assert all(np.all(x == 0) for x in others)


@pytest.mark.parametrize(
    ("start", "burn_in", "expected"),
    [
        ("....", 0, "111"),
        ("....", 2, "001"),
        ("s...", 2, "111"),
        (".s..", 2, "011"),
        ("...s", 2, "000"),  # The last row is an episode's final one.
        ("..s.", 1, "001"),  # Row 1 is final; row 0 is burnt in.
        ("s.s.s", 3, "1010"),
        (".....", 3, "0001"),
    ],
)
def test_rows_that_teach(start: str, burn_in: int, expected: str) -> None:
    found = loss_mask(np.array([[c == "s" for c in start]]), burn_in)
    assert "".join(str(int(x)) for x in found[0]) == expected


def test_priorities() -> None:
    error = np.float32([[1.0, -3.0, 100.0], [2.0, 2.0, 2.0], [5.0, 5.0, 5.0]])
    mask = np.float32([[1, 1, 0], [1, 1, 1], [0, 0, 0]])
    found = sequence_priorities(error, mask, 0.9)
    np.testing.assert_allclose(found, [0.9 * 3 + 0.1 * 2, 2.0, 0.0], rtol=1e-6)
    np.testing.assert_allclose(sequence_priorities(error, mask, 0.0), [2.0, 2.0, 0.0], rtol=1e-6)
    unknown = np.where(mask > 0, error, np.float32(np.nan))
    np.testing.assert_array_equal(sequence_priorities(unknown, mask, 0.9), found)
