"""What the registry says of the agents is so."""

import numpy as np
import pytest

from agentkit import specs
from agentkit.agents import registry
from agentkit.errors import AgentkitError, UnknownNameError

SPACES = {
    "discrete": specs.DiscreteArray(3, dtype=np.int32, name="action"),
    "continuous": specs.BoundedArray((2,), np.float32, -1.0, 1.0, name="action"),
    "team": {"a": specs.DiscreteArray(3, dtype=np.int32), "b": specs.DiscreteArray(2, dtype=np.int32)},
    "continuous team": {"a": specs.DiscreteArray(3, np.int32), "b": specs.BoundedArray((2,), np.float32, -1.0, 1.0)},
    "joint": {"turn": specs.DiscreteArray(3, dtype=np.int32), "push": specs.BoundedArray((2,), np.float32, -1.0, 1.0)},
}


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("name", registry.names())
def test_an_agent_takes_the_action_spaces_that_are_named_and_no_other(name, space):
    scalar = specs.Array((), np.float32)
    seen = specs.Array((4,), np.float32)
    spec = specs.EnvironmentSpec({"agents": {"a": seen, "b": seen}}, SPACES[space], scalar, scalar)
    agent = registry.make(name)
    takes = registry.about(name).actions
    if space in takes or (space.endswith("team") and "joint" in takes):  # Its actions are a dictionary, too.
        agent.make_networks(spec)
        return
    with pytest.raises(AgentkitError, match=r"(?is)(expected|takes|needs|wants).*found"):
        agent.make_networks(spec)


def test_an_agent_of_ones_own_is_shown_the_way_to_python() -> None:
    with pytest.raises(UnknownNameError, match=r"trained from Python: docs/compose_an_agent.md"):
        registry.make("my_module:make_agent")


@pytest.mark.parametrize("ask", [registry.about, registry.file, registry.describe, registry.module])
def test_an_unknown_name_is_refused_with_the_nearest(ask):
    with pytest.raises(UnknownNameError, match="Did you mean 'sac'"):
        ask("sca")
