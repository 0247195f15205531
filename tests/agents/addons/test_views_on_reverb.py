"""Views where replay is a Reverb server: items refer to steps, and show the same as in process."""

import numpy as np
import pytest

pytest.importorskip("reverb")

from agentkit.replay.reverb.single_process import SingleProcessReverbReplay
from tests.agents.addons.test_views import AGENTS, WITH_REWARDS, check, drawing, random_views, recording_agent

# TensorFlow Probability, which rlax imports, where TensorFlow is there already: it compares versions with distutils.
pytestmark = [
    pytest.mark.reverb,
    pytest.mark.filterwarnings("ignore:distutils Version classes are deprecated:DeprecationWarning"),
]


@pytest.mark.parametrize("kind", AGENTS)
def test_acting_storing_and_learning_see_what_a_plain_loop_sees(kind: str) -> None:
    """Random declarations, over episodes of all lengths."""
    views = random_views(np.random.default_rng(len(kind)), rewards=True)
    agent = recording_agent(AGENTS[kind], views)
    with SingleProcessReverbReplay(agent.make_tables(WITH_REWARDS), in_turns=True) as replay:
        assert check(agent, WITH_REWARDS, views, replay, drawing(agent, replay)) >= 64
