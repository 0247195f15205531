import json

import numpy as np
import pytest

from agentkit import specs
from agentkit.errors import ConfigError
from agentkit.replay import FromInline, FromStep, Layout, Prioritized, Select
from agentkit.testing.replay import pair_layout, pair_table, sequence_layout

pytestmark = pytest.mark.both_stacks

STEP = {"a": specs.Array((2,), np.float32), "b": specs.Array((), np.int32)}


@pytest.mark.parametrize(
    "kwargs, words",
    [
        ({"data": FromStep(0, Select.ALL)}, "length >= 1"),
        ({"data": FromStep(0, Select.ALL), "length": 0}, "length"),
        ({"data": FromStep(0, Select.LAST), "length": 0}, "length"),
        ({"data": {"x": FromStep(2, Select.LAST)}}, "'x' takes column 2 of 2"),
        ({"data": FromStep(-1, Select.LAST)}, "column -1"),
        ({"data": FromInline(0)}, "column 0 of 0"),
        ({"data": [FromStep(0, Select.LAST), 3]}, "found 3"),
    ],
)
def test_layouts_that_make_no_item_are_refused(kwargs, words):
    with pytest.raises(ConfigError, match=words):
        Layout(step=STEP, **kwargs)


@pytest.mark.parametrize("exponent", [-0.1, float("nan"), float("inf")])
def test_exponents(exponent):
    with pytest.raises(ConfigError, match="exponent"):
        Prioritized(exponent)


def test_signature():
    signature = sequence_layout(3).signature
    assert signature["observation"].shape == (3, 2) and signature["action"].shape == (3,)
    assert pair_layout().signature.value.dtype == np.float32


def test_fingerprints_are_json_and_tell_layouts_apart():
    swapped = Layout(STEP, (FromStep(0, Select.FIRST), FromStep(0, Select.LAST)))
    straight = Layout(STEP, (FromStep(0, Select.LAST), FromStep(0, Select.FIRST)))
    from agentkit.replay import Table

    prints = [Table("t", layout, 5).fingerprint() for layout in (swapped, straight, pair_layout())]
    assert prints[0]["signature"] == prints[1]["signature"]
    assert prints[0] != prints[1] != prints[2]
    assert json.loads(json.dumps(pair_table().fingerprint())) == pair_table().fingerprint()
