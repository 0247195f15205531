"""Values as JSON and back, and digests of source code."""

import dataclasses
import functools
import json
import pathlib
import re
from typing import Any, NamedTuple

import numpy as np
import pytest

from agentkit.errors import ConfigError
from agentkit.experiment.config.codes import parse
from agentkit.experiment.config.recipes import decode, encode, names_only
from agentkit.experiment.config.source_code import digest, normalise


@dataclasses.dataclass(frozen=True)
class Point:
    """A value whose fields have the names that codes use, too."""

    type: Any
    fields: Any = ()
    digest: Any = None
    function: Any = None


@dataclasses.dataclass
class Mutable:
    x: int = 1


@dataclasses.dataclass(frozen=True)
class Derived:
    x: int = 1
    y: int = dataclasses.field(init=False, default=2)


class Pair(NamedTuple):
    one: Any
    other: Any


def _same(saved, now):
    return parse(saved).same(parse(now))


def _changed(saved, now):
    return list(parse(saved).changed(parse(now)))


_LIMIT = 3


def helper(x):
    return x + _LIMIT


def calls_helper(x):
    return helper(x)


class Holder:
    @staticmethod
    def method(x):
        return x

    def bound(self):
        return self


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        3,
        0.5,
        "text",
        (1, (2, "b"), ()),
        [1, [2]],
        {"a": (1,), 2: [3]},
        {},
        pathlib.PurePosixPath("a/b"),
        helper,
        Holder,
        Holder.method,
        Pair(1, (2,)),
        Point("linear", (1, 2), "no digest", helper),
        Point({"type": "x:y"}, digest=Pair(Point(1), [])),
    ],
    ids=lambda value: type(value).__name__,
)
def test_values_come_back(value):
    code = json.loads(json.dumps(encode(value)))
    back = decode(code)
    assert (pathlib.PurePosixPath(back) if isinstance(value, pathlib.PurePath) else back) == value
    assert type(back) is type(value) or isinstance(value, pathlib.PurePath)
    assert list(parse(code).unnamed("it")) == [] and _same(code, encode(value)) and _changed(code, encode(value)) == []
    assert set(parse(code).modules()) <= {__name__}


def test_numpy_and_partials_come_back():
    assert type(decode(encode(np.float32(0.5)))) is float and decode(encode(np.int64(3))) == 3
    array = decode(json.loads(json.dumps(encode(np.arange(3, dtype=np.int16)))))
    assert array.dtype == np.int16 and array.tolist() == [0, 1, 2]
    back = decode(json.loads(json.dumps(encode(functools.partial(helper, 1, key=(2,))))))
    assert (back.func, back.args, back.keywords) == (helper, (1,), {"key": (2,)})


def test_the_agents_settings_are_referred_to():
    config = Point(1)
    code = encode(Pair(Point(1), Point(2)), config)
    assert code["fields"]["one"] == {"same_as": "config"} and "fields" in code["fields"]["other"]
    assert decode(code, config).one is config
    with pytest.raises(ConfigError, match="Expected a value"):
        decode(code)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (lambda: 0, "a lambda"),
        (Mutable(), "no frozen dataclass"),
        (Derived(), "__init__ does not take"),
        (Holder(), "a value of type .*Holder"),
        (Holder().bound, "another object is found"),
        (np.zeros(10_001), "10,001 numbers"),
        (np.array(["a"]), "a value of type numpy.ndarray"),
    ],
)
def test_what_has_no_name_says_why(value, reason):
    code = encode(Pair(1, [value]))
    ((path, found),) = parse(code).unnamed("it")
    assert path == "it.other[0]"
    assert re.search(reason, found)
    with pytest.raises(ConfigError, match="Expected a value"):
        decode(code)


def test_only_names_are_compared_and_only_digests_have_changed():
    saved, now = (encode(Point(1, (helper, calls_helper))) for _ in range(2))
    saved["fields"]["fields"][0]["digest"] = "0"
    assert _same(saved, now) and _changed(saved, now) == [f"{__name__}:helper"]
    assert not _same(saved, encode(Point(1, (helper, helper)))) and not _same(saved, encode(Point(2, saved)))
    assert not _same(encode(Point(1)), encode(Pair(1, 2))) and not _same(encode((1,)), encode((1, 2)))
    assert "digest" not in names_only(saved)["fields"]["fields"][0] and "digest" in names_only(saved)["fields"]


def test_what_was_unnamed_may_have_got_a_name_and_is_said_to_be_unknown():
    saved, now = encode((lambda: 0,)), encode((helper,))
    assert _same(saved, now) and len(_changed(saved, now)) == 1
    assert not _same(saved, encode((1,))) and not _same(now, saved)


def _digest_of(source, name, monkeypatch, tmp_path):
    """The digest of a function in a file with this source."""
    import importlib
    import sys

    (tmp_path / "digested.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    sys.modules.pop("digested", None)
    importlib.invalidate_caches()
    module = importlib.import_module("digested")
    try:
        return digest(getattr(module, name))
    finally:
        del sys.modules["digested"]


_SOURCE = '''
import math

RATE = 2

def unused(x):
    return x

class Scale:
    by = RATE

def f(x):
    """Doubles."""
    # Twice.
    return Scale.by * x
'''


@pytest.mark.parametrize(
    ("old", "new", "is_changed"),
    [
        ("Doubles.", "Triples.", False),
        ("# Twice.", "# Thrice.\n", False),
        ("def unused(x):", "def unused(y, x):", False),
        ("RATE = 2", "RATE = 3  ", True),
        ("by = RATE", "by = -RATE", True),
        ("Scale.by * x", "Scale.by + x", True),
        ("    return Scale.by", "    if x:\n        return Scale.by", True),
    ],
)
def test_a_digest_is_of_what_is_run(old, new, is_changed, monkeypatch, tmp_path):
    assert old in _SOURCE
    before = _digest_of(_SOURCE, "f", monkeypatch, tmp_path)
    after = _digest_of(_SOURCE.replace(old, new), "f", monkeypatch, tmp_path)
    assert before is not None and (before != after) == is_changed


def test_indentation_counts_and_what_has_no_source_has_no_digest():
    assert normalise("if a:\n    b()\n    c()") != normalise("if a:\n    b()\nc()")
    assert digest(len) is None and digest(np.tanh) is None
