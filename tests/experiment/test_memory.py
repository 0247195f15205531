"""A replay that cannot fit into the machine is refused before the run begins, and one that can is not."""

from typing import Any

import numpy as np
import pytest

from agentkit import specs
from agentkit.agents import r2d2, sac
from agentkit.agents.addons import with_prior_data
from agentkit.errors import ConfigError
from agentkit.experiment import ExperimentConfig
from agentkit.experiment.checks import agent_fits

NUM_BYTES = 1_000
SCALAR = specs.Array((), np.float32)


def spec_of(actions: Any) -> specs.EnvironmentSpec:
    discount = specs.BoundedArray((), np.float32, 0, 1)
    return specs.EnvironmentSpec(specs.Array((NUM_BYTES,), np.uint8), actions, SCALAR, discount)


CHOICES, NUMBERS = spec_of(specs.DiscreteArray(2)), spec_of(specs.BoundedArray((1,), np.float32, -1, 1))


def check(monkeypatch: pytest.MonkeyPatch, agent: Any, spec: specs.EnvironmentSpec, num_steps: int, there: int) -> None:
    monkeypatch.setattr(agent_fits.os, "sysconf", {"SC_PAGE_SIZE": 1, "SC_PHYS_PAGES": there}.__getitem__)
    agent_fits.check_memory(ExperimentConfig(agent, "agentkit:catch", num_steps), spec)


@pytest.mark.parametrize("period", [1, 20])
@pytest.mark.parametrize(("replay_size", "num_steps"), [(100, 10**9), (10**6, 5_000)])
def test_sequences_need_the_memory_of_the_steps_that_they_are_of(
    monkeypatch: pytest.MonkeyPatch, period: int, replay_size: int, num_steps: int
) -> None:
    """Each item brings `period` steps; never more steps than the run takes."""
    config = r2d2.Config(replay_size=replay_size, min_replay_size=10, sequence_period=period, sequence_length=40)
    at_least = NUM_BYTES * min(num_steps, replay_size * period)
    with pytest.raises(ConfigError, match=r"will hold [\d,]+ steps of .* Lower replay_size"):
        check(monkeypatch, r2d2.make_agent(config), CHOICES, num_steps, at_least)
    check(monkeypatch, r2d2.make_agent(config), CHOICES, num_steps, 4 * at_least)  # The core's state is beside them.


def test_a_table_of_data_is_as_large_as_they_are_whatever_the_number_of_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    agent = with_prior_data(sac.make_agent(sac.Config(replay_size=1_000, min_replay_size=10)), "data.hdf5")
    check(monkeypatch, agent, NUMBERS, 10**9, 3_000 * NUM_BYTES)
    with pytest.raises(ConfigError, match="'transitions' will hold 1,000 steps"):
        check(monkeypatch, agent, NUMBERS, 10**9, 900 * NUM_BYTES)
