"""``--view``: what it makes of its words, and what it refuses before anything starts."""

import argparse
import re

import pytest

from agentkit.agents.addons import View
from agentkit.cli import main
from agentkit.cli.values.views import find_views
from agentkit.errors import ConfigError


def views_of(*words: str) -> dict[str, View]:
    return find_views(argparse.Namespace(view=list(words) or None))


def test_words_become_views() -> None:
    assert views_of() == {}
    assert views_of(
        "window=observation:-50:0", "last=action:-1,fill=-1", "some=observation.camera:-4,-2,-1,fill=first"
    ) == {
        "window": View("observation", "-50:0"),
        "last": View("action", -1, -1),
        "some": View("observation.camera", (-4, -2, -1), "first"),
    }


@pytest.mark.parametrize(
    "words, message",
    [
        (["window"], "expected NAME=COLUMN:SHIFT"),
        (["window=observation"], "expected NAME=COLUMN:SHIFT"),
        (["w=action:-1,fill="], "expected NAME=COLUMN:SHIFT"),
        (["w=action:-1", "w=action:-2"], "--view w is given twice"),
        (["w=action:x"], "--view w: A range of shifts is '-50:-1'"),
        (["w=observation:1"], "--view w: A view of 'observation' has shifts of at most 0"),
    ],
)
def test_other_words_are_refused(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        views_of(*words)


def test_show_says_what_the_network_gets(capsys: pytest.CaptureFixture[str]) -> None:
    """The parts by the views' names, and a first layer as wide as they are together."""
    command = ["show", "dqn", "--env", "agentkit:memory_chain", "--view", "window=observation:-6:0"]
    assert main([*command, "--view", "last=action:-1,fill=-1"]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"window +float32 7x3 .*21 numbers", printed), printed
    assert re.search(r"last +int32 .*a choice as 2 indicators", printed), printed
    assert re.search(r"linear +23 ", printed), printed
