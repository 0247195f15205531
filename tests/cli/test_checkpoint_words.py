"""The step of a checkpoint is written as any other number, wherever it is asked for."""

import argparse

import pytest

from agentkit import checkpoint
from agentkit.cli.values.initial_state import parse_initial_state
from agentkit.errors import ConfigError
from agentkit.experiment.policies.restore_policy import find_checkpoint


@pytest.fixture
def run(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    for step in (9_999, 10_000, 10_001):
        checkpoint.write(tmp_path / "checkpoints", step, {}, max_to_keep=3)
    return tmp_path


def initial(run, word):
    return parse_initial_state(argparse.Namespace(init_from=str(run), init_checkpoint=word))["init_checkpoint"]


@pytest.mark.parametrize("word", ["10000", "10_000", "10k", "1e4", "0.01M"])
def test_numbers_are_written_as_help_promises(word, run):
    assert find_checkpoint(run, word).step == initial(run, word) == 10_000


@pytest.mark.parametrize("word", ["10_", "_", "bets", "1.5", "nan", "10kk", "\N{SUPERSCRIPT TWO}"])
def test_what_is_no_step_is_refused(word, run):
    for find in (find_checkpoint, initial):
        with pytest.raises(ConfigError, match=f"a step, found '{word}'"):
            find(run, word)


def test_no_step_is_below_zero(run):
    with pytest.raises(ConfigError, match="a step, found -1"):
        find_checkpoint(run, -1)


def test_the_newest_is_taken_where_nothing_is_said(run):
    assert find_checkpoint(run, "newest").step == 10_001 and initial(run, None) == "newest"
