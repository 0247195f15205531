"""Messages that somebody who has the key, or a fault, has damaged: whoever reads one is told so, and lives on."""

import contextlib
import copy
import itertools
import json
import random
from typing import NamedTuple

import numpy as np
import pytest
import zmq

from agentkit.wire.message import PART_BYTES, SMALL_BYTES, MessageError, decode, encode


class Pair(NamedTuple):
    first: object
    second: object


NEST = {
    "do": "block",
    "small": [np.arange(3, dtype=np.int32), np.zeros((0, 2), bool), np.float64(2)],
    "large": np.zeros((2, SMALL_BYTES), np.uint8),
    "pair": Pair((None, True, 2.5), {"deep": [[["text"]]]}),
}

# Names of dtypes that are none or none of numbers, shapes that are none, sizes that are too large, other types.
ODD = [
    None, True, -1, 0, 1, 5, 2**31, 2**63, 10**40, 1.5, 1e300, float("nan"), float("inf"),
    "", "float32", "bfloat16", "finfo", "__doc__", "__path__", "object", "S5", "|a5", "<V999999999999", "M8[s]",
    "(2,)f4", "f4,f4", "f4,(", "{'names': 3}", "\ud800", "x" * 1000,
    [], [0], [-1], [1.0], ["1"], [[1]], [2**40], [2**62, 2**62], [0, 2**62], [1] * 100, [0] * 100,
    {}, {"array": None}, {"array": 5, "shape": []}, {"array": [], "shape": []}, {"array": "int8", "shape": {}},
    {"array": "int8", "shape": ""}, {"array": "int8", "shape": 3}, {"list": {}}, {"dict": []}, {"tuple": None},
    {"namedtuple": ["builtins", "tuple"], "fields": {}}, {"namedtuple": ["time", "struct_time"], "fields": {}},
    {"namedtuple": [None, 1], "fields": {}}, {"namedtuple": ["", ""], "fields": {"first": None}},
    {"namedtuple": [__name__, "Pair"], "fields": {"first": None, "second": {"array": 1}}},
]  # fmt: skip


def spots(node, at=()):
    """Where in a head something is: paths of keys."""
    yield at
    children = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, child in children:
        yield from spots(child, (*at, key))


def change(head, rng):
    """Replaces, removes, renames or doubles one thing in a head."""
    *way, key = rng.choice([at for at in spots(head) if at])
    parent = head
    for each in way:
        parent = parent[each]
    action = rng.choice(["replace", "replace", "remove", "add"])
    if action == "replace":
        parent[key] = copy.deepcopy(rng.choice(ODD))
    elif action == "remove":
        del parent[key]
    elif isinstance(parent, list):
        parent.insert(key, copy.deepcopy(rng.choice(ODD)))
    else:
        parent[rng.choice(["array", "list", "shape", "value", "x"])] = copy.deepcopy(parent[key])


def read(parts):
    """Returns whether the message is taken; anything but `MessageError` comes out."""
    with contextlib.suppress(MessageError):
        decode([zmq.Frame(bytes(part)) for part in parts])
        return True
    return False


@pytest.mark.parametrize("seed", range(4))
def test_a_changed_message_is_read_or_refused_and_nothing_else(seed):
    rng = random.Random(seed)
    valid = [bytes(part) for part in encode(7, NEST)]
    assert read(valid)
    taken = 0
    for _ in range(1000):
        head, *parts = valid
        if rng.random() < 0.8:
            head = json.loads(head)
            for _ in range(rng.choice([1, 1, 2, 5])):
                change(head, rng)
            head = json.dumps(head).encode()
        else:
            at = rng.randrange(len(head))
            head = head[:at] + rng.choice([b"", b"[", b"}", b'"', b"\xff", b"9"]) + head[at + rng.randrange(3) :]
        if rng.random() < 0.2:
            parts[rng.randrange(len(parts))] = bytes(rng.choice([0, 1, 15, SMALL_BYTES, 2 * SMALL_BYTES + 1]))
        if rng.random() < 0.1:
            parts = rng.choice([[], parts[:1], [*parts, b""], parts[::-1]])
        taken += read([head, *parts])
    assert taken < 500, "most changes are none"


def test_odd_things_in_each_place_are_refused_or_read():
    for odd, at in itertools.product(ODD, list(spots(json.loads(encode(7, NEST)[0])))[1:]):
        head, *parts = encode(7, NEST)
        head = parent = json.loads(head)
        for key in at[:-1]:
            parent = parent[key]
        parent[at[-1]] = odd
        read([json.dumps(head).encode(), *parts])


@pytest.mark.parametrize("parts", [[], [b""], [b"[" * 100_000], [b"1" * 5000], [b"[2, " + b"9" * 5000 + b", 0, null]"]])
def test_what_is_no_head_is_refused(parts):
    assert not read(parts)
    assert not read([*parts, bytes(PART_BYTES)])
