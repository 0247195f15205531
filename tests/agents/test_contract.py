"""The contract of agents can fail."""

from pathlib import Path

import pytest

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
