import dataclasses
from typing import Any, Literal

import pytest

from agentkit.cli.values.fields import parse_settings, parse_value, parse_whole, type_name, value_text
from agentkit.errors import ConfigError, UnknownNameError
from agentkit.learning import Cosine, Linear, Piecewise, Schedule
from agentkit.networks import CoreName, GTrXL

RATE = float | Schedule


@dataclasses.dataclass(frozen=True)
class _Config:
    rate: float | Schedule = 0.1
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
        *((word, bool, True) for word in ("true", "True", "TRUE", "yes", "on", "1")),
        *((word, bool, False) for word in ("false", "False", "FALSE", "no", "off", "0")),
        ("256,128", tuple[int, ...], (256, 128)),
        ("(256, 128)", tuple[int, ...], (256, 128)),
        ("64", tuple[int, ...], (64,)),
        ("", tuple[int, ...], ()),
        ("0,2.5", tuple[float, float], (0.0, 2.5)),
        ("none", float | None, None),
        ("0", float | None, 0.0),
        ("b", Literal["a", "b"], "b"),
        ("a=b", str, "a=b"),
        ("0.1", RATE, 0.1),
        ("linear(3e-4, 0, 1_000_000)", RATE, Linear(3e-4, 0, 1_000_000)),
        (' linear(1, -0.5, 10, by="updates")', RATE, Linear(1, -0.5, 10, by="updates")),
        ("cosine(start=1.0, end=0.1, duration=50)", RATE | None, Cosine(1.0, 0.1, 50)),
        ("piecewise((1e-3, 1e-4), (50_000,))", RATE, Piecewise((1e-3, 1e-4), (50_000,))),
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
        ("rate=abc", "--set rate (float | schedule): expected a number, found 'abc' (or a schedule such as linear("),
        ("rate=square(1, 2, 3)", "expected one of linear(...), cosine(...), piecewise(...), found 'square(1, 2, 3)'"),
        ("rate=linear(1, 2", "expected a schedule such as linear(1e-3, 0, 100_000), found 'linear(1, 2'"),
        ("rate=linear(1, 2)", "missing 1 required positional argument: 'duration'"),
        ("rate=linear(1, 2, 0)", "above 0, found 0"),
        ("rate=linear(1, 2, 3, by='hours')", "found 'hours'"),
        ("rate=linear('a', 2, 3)", "linear('a', 2, 3): must be real number, not str"),
        ("rate=linear(open('x'), 2, 3)", "malformed node"),
        ("rate=piecewise(1, 2)", "not iterable"),
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
    assert parse_settings(["double=false", "batch_size=8"], _Config, "sac") == {"double": False, "batch_size": 8}
    assert parse_settings(["batch_size=8", "clip=0.5"], _Config, "sac") == {"batch_size": 8, "clip": 0.5}


@pytest.mark.parametrize("text", ["1.5", "abc", "nan", "1e400", ""])
def test_what_is_not_whole(text):
    with pytest.raises(ValueError, match="expected a whole number"):
        parse_whole(text)


@pytest.mark.parametrize(
    "schedule",
    [Linear(1.0, 0.05, 5_000), Cosine(1e-3, 0.0, 10, by="updates"), Piecewise((1.0, 2.0), (3,), by="updates")],
)
def test_a_schedule_is_shown_as_it_is_written(schedule):
    assert parse_value(value_text(schedule), RATE) == schedule
    assert value_text(Linear(1.0, 0.05, 5_000)) == "linear(1.0, 0.05, 5000)"
    assert type_name(RATE | None) == "float | schedule | None"


@pytest.mark.parametrize("core", ["gru", GTrXL(), GTrXL(memory_length=4, gate_bias=1.5)])
def test_another_dataclass_is_shown_as_it_is_written(core):
    annotation = CoreName | GTrXL
    text = core if isinstance(core, str) else value_text(core)
    assert parse_value(text, annotation) == core
    assert text in ("gru", "gtrxl()", "gtrxl(memory_length=4, gate_bias=1.5)")
    with pytest.raises(ValueError, match=r"of lstm, gru, gtrxl, found 'gr' \(or gtrxl\(memory_length=16\)\)"):
        parse_value("gr", annotation)
    with pytest.raises(ValueError, match=r"memory_length of gtrxl must be .* found 0"):
        parse_value("gtrxl(memory_length=0)", annotation)
