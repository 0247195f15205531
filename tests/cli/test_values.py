import dataclasses
from typing import Any, Literal

import pytest

from agentkit.cli.values import parse_settings, parse_value, parse_whole
from agentkit.errors import ConfigError, UnknownNameError


@dataclasses.dataclass(frozen=True)
class _Config:
    learning_rate: float = 1e-3
    batch_size: int = 256
    double: bool = True
    name: str = "x"
    hidden_sizes: tuple[int, ...] = (256, 256)
    clip: float | None = None
    kind: Literal["a", "b"] = "a"
    limits: tuple[float, float] = (0.0, 1.0)
    thing: Any = None


@pytest.mark.parametrize(
    ("text", "annotation", "expected"),
    [
        ("3e-4", float, 3e-4),
        ("1", float, 1.0),
        ("1_000", int, 1000),
        ("1e5", int, 100_000),
        ("-3", int, -3),
        ("False", bool, False),
        ("on", bool, True),
        ("0", bool, False),
        ("256,128", tuple[int, ...], (256, 128)),
        ("(256, 128)", tuple[int, ...], (256, 128)),
        ("64", tuple[int, ...], (64,)),
        ("", tuple[int, ...], ()),
        ("0,2.5", tuple[float, float], (0.0, 2.5)),
        ("none", float | None, None),
        ("0", float | None, 0.0),
        ("b", Literal["a", "b"], "b"),
        ("a=b", str, "a=b"),
    ],
)
def test_values_have_their_fields_type(text, annotation, expected):
    value = parse_value(text, annotation)
    assert value == expected and type(value) is type(expected)


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("learning_rate=abc", "--set learning_rate (float): expected a number, found 'abc'"),
        ("batch_size=1.5", "--set batch_size (int): expected a whole number, found '1.5'"),
        ("batch_size=inf", "expected a whole number, found 'inf'"),
        ("batch_size=", "expected a whole number, found ''"),
        ("double=maybe", "expected true or false, found 'maybe'"),
        ("hidden_sizes=64,x", "expected a whole number, found 'x'"),
        ("limits=1", "expected 2 values separated by commas"),
        ("clip=abc", "expected a number, found 'abc' (or none)"),
        ("kind=c", "expected one of a, b, found 'c'"),
        ("thing=1", "cannot be given on the command line"),
        ("learning_rate", "expected NAME=VALUE"),
        ("=3", "expected NAME=VALUE"),
    ],
)
def test_bad_values_say_what_was_expected(word, message):
    with pytest.raises(ConfigError) as error:
        parse_settings([word], _Config, "sac")
    assert message in str(error.value) and "\n" not in str(error.value)


def test_an_unknown_field_gets_the_nearest_one():
    with pytest.raises(UnknownNameError, match=r"'learning_rat'\. Did you mean 'learning_rate'"):
        parse_settings(["learning_rat=1"], _Config, "sac")


def test_a_field_twice():
    with pytest.raises(ConfigError, match="given twice"):
        parse_settings(["name=a", "name=b"], _Config, "sac")


def test_several_fields():
    assert parse_settings(["batch_size=8", "clip=0.5"], _Config, "sac") == {"batch_size": 8, "clip": 0.5}


@pytest.mark.parametrize("text", ["1.5", "abc", "nan", "1e400", ""])
def test_what_is_not_whole(text):
    with pytest.raises(ValueError, match="expected a whole number"):
        parse_whole(text)
