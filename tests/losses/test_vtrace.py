"""V-trace against a loop over the paper's equation 1, episode by episode."""

from typing import Any

import jax
import numpy as np
import pytest

from agentkit import losses
from agentkit.types import has_action

GAMMA = 0.9

vtrace = jax.jit(losses.vtrace)  # Eagerly each of its operations would be a program of its own.


class Segment:
    """Episodes as (number of actions, discount at the end; None where the segment ends), and a policy's ratios."""

    def __init__(self, episodes: list[tuple[int, float | None]], seed: int = 0):
        rng = np.random.default_rng(seed)
        self.start: list[bool] = []
        self.discount: list[float] = []
        self.spans: list[tuple[int, int]] = []
        for num_actions, end in episodes:
            first = len(self.start)
            self.start += [True] + [False] * (num_actions - 1 + (end is not None))
            self.discount += [1.0] * (num_actions - 1) + [1.0 if end is None else end] + [0.0] * (end is not None)
            self.spans.append((first, first + num_actions))
        T = len(self.start)
        self.start.append(episodes[-1][1] is not None)
        self.reward, self.log_ratio = (rng.normal(size=T).astype(np.float32) for _ in range(2))
        self.values = rng.normal(size=T + 1).astype(np.float32)
        final = np.array(self.start[1:])
        self.reward[final] = 0.0
        self.log_ratio[final] = 200.0  # Whose exponential is infinite in float32.

    def mask(self) -> Any:
        return has_action(np.array([self.start]))

    def found(self, values: Any = None, **settings: Any) -> losses.VTrace:
        rows = [np.float32(x)[None] for x in (self.reward, GAMMA * np.array(self.discount))]
        values = self.values[None] if values is None else values
        return vtrace(*rows, values, self.log_ratio[None], self.mask(), **settings)

    def by_hand(self, lambda_: float, rho_clip: float, policy_rho_clip: float) -> dict[int, tuple[float, float]]:
        """Target and advantage of each row with an action; sums and products as they stand in the paper."""
        found = {}
        for first, stop in self.spans:
            ratio = {t: np.exp(np.float64(self.log_ratio[t])) for t in range(first, stop)}
            discount = {t: GAMMA * self.discount[t] for t in range(first, stop)}
            v = {stop: float(self.values[stop])}
            for s in range(first, stop):
                v[s] = float(self.values[s])
                for t in range(s, stop):
                    weight = np.prod([discount[i] * lambda_ * min(1.0, ratio[i]) for i in range(s, t)])
                    error = self.reward[t] + discount[t] * self.values[t + 1] - self.values[t]
                    v[s] += weight * min(rho_clip, ratio[t]) * error
            for s in range(first, stop):
                following = lambda_ * v[s + 1] + (1 - lambda_) * self.values[s + 1]
                q = self.reward[s] + discount[s] * following
                found[s] = (v[s], min(policy_rho_clip, ratio[s]) * (q - self.values[s]))
        return found


EPISODES: list[list[tuple[int, float | None]]] = [
    [(10, None)],
    [(9, 0.0)],
    [(9, 1.0)],
    [(3, 0.0), (3, 1.0), (2, None)],
    [(1, 1.0), (1, 0.0), (4, 1.0), (1, None)],
]


PUBLISHED = {"lambda_": 1.0, "rho_clip": 1.0, "policy_rho_clip": 1.0}


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"lambda_": 1.0, "rho_clip": 0.5, "policy_rho_clip": 2.0},
        {"lambda_": 0.6, "rho_clip": 3.0, "policy_rho_clip": 0.7},
    ],
)
@pytest.mark.parametrize("episodes", EPISODES)
def test_targets_and_advantages(episodes: list[tuple[int, float | None]], settings: dict[str, float]) -> None:
    for seed in range(3):
        segment = Segment(episodes, seed)
        found = segment.found(**settings)
        mask, expected = segment.mask()[0] > 0, segment.by_hand(**(PUBLISHED | settings))
        assert np.flatnonzero(mask).tolist() == sorted(expected)
        pairs = np.stack([found.target[0], found.advantage[0]], axis=1)
        np.testing.assert_allclose(pairs[mask], [expected[t] for t in sorted(expected)], rtol=1e-4, atol=1e-5)
        assert np.all(np.isfinite(pairs))
        np.testing.assert_allclose(pairs[~mask, 0], segment.values[:-1][~mask])  # Their values' errors are 0.


@pytest.mark.parametrize("episodes", EPISODES)
def test_on_policy_it_is_generalized_advantages(episodes: list[tuple[int, float | None]]) -> None:
    """The paper's remark 1: with ratios of 1 the target is the n-step return."""
    segment = Segment(episodes)
    segment.log_ratio[:] = 0.0
    mask = segment.mask()
    rows = [np.float32(x)[None] for x in (segment.reward, GAMMA * np.array(segment.discount), segment.values)]
    expected = jax.jit(losses.generalized_advantages)(*rows, mask, 1.0)
    found = segment.found()
    for x in (found.target - segment.values[None, :-1], found.advantage):
        np.testing.assert_allclose(x * mask, expected * mask, rtol=1e-4, atol=1e-5)


def test_no_gradient_goes_through_targets_or_advantages() -> None:
    segment = Segment(EPISODES[3])
    grad = jax.jit(jax.grad(lambda values: sum(x.sum() for x in segment.found(values))))(segment.values[None])
    assert np.all(grad == 0)
