"""The contract of agents can fail, and takes what agents may have."""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentkit import envs
from agentkit.agents.common.agent import Agent
from agentkit.learning import Update
from agentkit.testing import programs
from tests.agents.test_dqn import TestDqn as _DqnContract


class _SavedBetweenEpisodes(_DqnContract):
    __test__ = False
    num_steps = 36  # Half of it is two episodes of 9 steps.


class _KilledBetweenEpisodes(_DqnContract):
    __test__ = False
    num_steps = 24


@pytest.mark.parametrize(("contract", "step"), [(_SavedBetweenEpisodes, 18), (_KilledBetweenEpisodes, 18)])
def test_what_is_saved_or_killed_between_episodes_shows_nothing_of_resuming(
    contract: type[_DqnContract], step: int, tmp_path: Path
) -> None:
    with pytest.raises(AssertionError, match=f"step {step} ends an episode: set another num_steps"):
        contract()._train(tmp_path)


class _OfOneStep(_DqnContract):
    __test__ = False
    num_steps = 18  # Before any update.

    def make_environment(self, seed: int) -> Any:
        return envs.make("agentkit:catch", seed=seed, rows=2)


class _EndsAtHalf(_DqnContract):
    __test__ = False
    num_steps = 18


def test_where_all_episodes_are_of_one_step_no_num_steps_is_asked_for(tmp_path: Path) -> None:
    assert _OfOneStep()._train(tmp_path).result.steps == 18


def test_what_is_not_resumed_may_end_an_episode_anywhere(tmp_path: Path) -> None:
    assert _EndsAtHalf()._train(tmp_path / "other", seed=1).result.steps == 18
    assert _EndsAtHalf()._train(tmp_path / "part", num_steps=15).result.steps == 15


class _WithMask(_DqnContract):
    """Keeps a mask of its weights in the learner's state, as agents do that prune them."""

    __test__ = False

    def make_agent(self, **settings: Any) -> Agent:
        agent = super().make_agent(**settings)

        def make_update(networks: Any) -> Update:
            init, update, variables, *_ = agent.make_update(networks)
            return Update(
                lambda key: (init(key), jax.random.bernoulli(key, shape=(8, 8))),
                lambda state, batch: ((update(state[0], batch)[0], state[1]), update(state[0], batch)[1]),
                lambda state: variables(state[0]),
            )

        return dataclasses.replace(agent, make_update=make_update)


def test_a_state_may_have_matrices_of_booleans(tmp_path: Path) -> None:
    contract = _WithMask()
    trained = contract._train(tmp_path / "trained", num_steps=contract.steps_before_learning)
    contract.test_different_seeds_differ_in_parameters_and_actions(trained, tmp_path)


@pytest.mark.parametrize("error", [TypeError, jax.errors.JaxRuntimeError])
def test_programs_are_compiled_where_jax_or_xla_lacks_the_quick_option(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def jit(function: Any, **options: Any) -> Any:
        if options:
            raise error("No such compile option")
        return function

    monkeypatch.setattr(jax, "jit", jit)
    assert programs._quick_settings.__wrapped__() == {}


def test_what_is_quickly_compiled_may_be_traced() -> None:
    """JAX refuses options of a compiled function that is part of another program."""
    square, x = programs.quickly_compiled(lambda nest: nest["x"] ** 2), {"x": jnp.arange(3.0)}
    assert jax.eval_shape(square, x).shape == (3,)
    np.testing.assert_array_equal(jax.grad(lambda x: square(x).sum())(x)["x"], [0.0, 2.0, 4.0])
    np.testing.assert_array_equal(jax.vmap(square)(x), [0.0, 1.0, 4.0])
    np.testing.assert_array_equal(jax.lax.scan(lambda carry, x: (carry, square(x)), 0, x)[1], square(x))
