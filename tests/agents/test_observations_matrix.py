"""The table of docs/environments.md: what DQN, R2D2, PPO and SAC do with each kind of observation.

Each cell is tested for what it says. "learns": a task that nobody solves who misses one part of what is seen. "sees
all": networks and replay are made as before a run, and no two observations of the task are alike to the networks.
"refused": in words, before the run folder is made.
"""

from __future__ import annotations

import functools
import itertools
import re
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest

from agentkit import networks, specs
from agentkit.agents import dqn, ppo, r2d2, sac
from agentkit.agents.common import drq
from agentkit.errors import SpecError
from agentkit.experiment import ExperimentConfig, run
from agentkit.experiment.checks.agent_fits import check_fit, check_memory
from agentkit.networks.torsos import describe_input
from agentkit.specs import make_environment_spec
from agentkit.testing.learning import learns
from tests.agents.images import run_once
from tests.agents.observations import EPISODE, KINDS, UNSUITABLE, Sum, all_observations

PAGE = Path(__file__).resolve().parents[2] / "docs" / "environments.md"
AGENTS = ("DQN", "R2D2", "PPO", "SAC")
STATES = {"learns", "sees all", "refused"}


class Row(NamedTuple):
    kind: str
    seen_as: str
    states: dict[str, str]


def read_table() -> dict[str, Row]:
    """The table's rows by their kind of observation."""
    section = PAGE.read_text().partition("\n### What each agent does with it\n")[2].partition("\n#")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    assert lines[0] == f"| an observation | a network sees | {' | '.join(AGENTS)} |"
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]]
    return {kind: Row(kind, seen, dict(zip(AGENTS, states, strict=True))) for kind, seen, *states in rows}


TABLE = read_table()


def cells(state: str) -> list[tuple[str, str]]:
    return [(row.kind, agent) for row in TABLE.values() for agent in AGENTS if row.states[agent] == state]


def task(kind: str, agent: str) -> Any:
    return functools.partial(Sum, kind=kind, continuous=agent == "SAC")


def make_agent(agent: str, kind: str) -> Any:
    """Small networks, and no return beyond a step: each is a question of its own."""
    leaves = jax.tree.leaves(task(kind, agent)(0).observation_spec(), is_leaf=specs.is_spec)
    has_image = any(networks.is_image(leaf.shape) for leaf in leaves)
    common: dict[str, Any] = {"discount": 0.0, "hidden_sizes": (32,)}
    # XLA's convolutions are slow in a loop.
    replay = common | {"learning_rate": 3e-3, "updates_per_call": 1 if has_image else 8, "updates_per_step": 1.0}
    transitions = replay | {"batch_size": 32, "min_replay_size": 64, "n_step": 1}
    if agent == "DQN":
        return dqn.make_agent(dqn.Config(**transitions, epsilon=0.5))
    if agent == "SAC":
        return sac.make_agent(sac.Config(**transitions, num_random_steps=100, initial_temperature=0.05))
    if agent == "PPO":
        epochs = {"segment_length": 32, "num_epochs": 4, "num_minibatches": 2, "learning_rate": 1e-2}
        return ppo.make_agent(ppo.Config(**common, **epochs))
    sequences = {"sequence_length": 6, "sequence_period": 6, "burn_in": 0, "batch_size": 16, "min_replay_size": 16}
    plain = {"prioritized": False, "rescale_values": False, "n_step": 1, "core_size": 16}
    return r2d2.make_agent(r2d2.Config(**replay, **sequences, **plain, epsilon=0.5))


@pytest.mark.full
@pytest.mark.parametrize(("kind", "agent"), cells("learns"))
def test_it_learns_a_task_that_needs_every_part(kind: str, agent: str) -> None:
    num_steps, num_envs = (4_000, 8) if agent == "PPO" else (900, None)
    learns(make_agent(agent, kind), task(kind, agent), num_steps, 0.75 * EPISODE, seeds=(0,), num_envs=num_envs)


def outputs(made: Any, observation: Any) -> Any:
    """What a policy's network says of observations ``[B, ...]``, at its initial parameters."""
    key = jax.random.PRNGKey(0)
    if isinstance(made, drq.Networks):
        return made.agent.policy.apply(
            made.agent.policy.init(key), made.encoder.apply(made.encoder.init(key), observation)
        )
    if isinstance(made, networks.RecurrentNetwork):
        state = jax.tree.map(lambda x: np.zeros((8, *x.shape), np.float32), made.initial_state)
        return made.step(made.init(key), observation, state)[0]
    made = getattr(made, "policy", made)
    return made.apply(made.init(key), observation)


@pytest.mark.full
@pytest.mark.parametrize(("kind", "agent"), cells("sees all"))
def test_it_sees_every_part(kind: str, agent: str) -> None:
    """Convolutions of large images take too long to be learned by here."""
    make = task(kind, agent)
    spec = make_environment_spec(make(0))
    experiment = ExperimentConfig(make_agent(agent, kind), make, num_steps=1_000)
    check_memory(experiment, spec)
    made = check_fit(experiment, spec).networks
    seen = run_once(functools.partial(outputs, made), all_observations(kind))
    rows = np.concatenate([np.reshape(leaf, (8, -1)) for leaf in jax.tree.leaves(seen)], axis=1)
    for one, other in itertools.combinations(rows, 2):
        assert np.max(np.abs(one - other)) > 1e-6


@pytest.mark.parametrize(("kind", "agent"), cells("refused"))
def test_it_is_refused_in_words_before_the_run(kind: str, agent: str, tmp_path: Path) -> None:
    found = TABLE[kind].seen_as.removeprefix("“").removesuffix("”")
    experiment = ExperimentConfig(
        make_agent(agent, kind), task(kind, agent), num_steps=10, run_directory=tmp_path / "run"
    )
    with pytest.raises(SpecError, match=re.escape(found)):
        run(experiment)
    assert not (tmp_path / "run").exists()


def test_the_table_has_every_kind_and_says_how_it_is_seen() -> None:
    assert list(TABLE) == [*KINDS, *UNSUITABLE]
    for kind, row in TABLE.items():
        assert set(row.states.values()) <= STATES
        if kind in KINDS:
            leaves = jax.tree.leaves(Sum(0, kind).observation_spec(), is_leaf=specs.is_spec)
            assert row.seen_as == "; ".join(describe_input(leaf) for leaf in leaves)


@pytest.mark.parametrize("kind", KINDS)
def test_the_task_needs_every_part(kind: str) -> None:
    """Of any two observations that differ in one bit one array differs, and all arrays do somewhere."""
    leaves = jax.tree.leaves(all_observations(kind))
    assert all(np.any(leaf != leaf[:1]) for leaf in leaves)
    for i, j in itertools.combinations(range(8), 2):
        if (i ^ j).bit_count() == 1:
            assert sum(bool(np.any(leaf[i] != leaf[j])) for leaf in leaves) == 1
