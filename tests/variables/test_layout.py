import ast
import collections
import json
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentkit import nests
from agentkit.errors import SpecError, UnknownNameError
from agentkit.variables import layout

pytestmark = pytest.mark.both_stacks


class Pair(NamedTuple):
    mean: np.ndarray
    std: dict


def there_and_back(nest):
    description, leaves = layout.describe({"policy": nest})
    description = json.loads(json.dumps(description))
    assert [(leaf.dtype, leaf.shape) for leaf in leaves] == list(layout.arrays_of(description["policy"]))
    return layout.build(description["policy"], iter(leaves))


def test_every_kind_of_container_comes_back():
    nest = {
        "linear": {"w": np.ones((2, 3), np.float32), "b": np.zeros(3)},
        "list": [np.int32(1), (np.True_, None)],
        "empty": ({}, [], ()),
        "pair": Pair(np.arange(3), {"x": np.uint8(4)}),
        "number": 0.5,
    }
    found = there_and_back(nest)
    assert type(found["pair"]) is Pair and type(found["list"][1]) is tuple
    assert jax.tree.structure(found) == jax.tree.structure(nest)
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(nest), strict=True):
        np.testing.assert_array_equal(ours, theirs)
        assert isinstance(ours, np.ndarray | np.generic) and ours.dtype == np.asarray(theirs).dtype


def test_arrays_of_jax_come_back_as_numpy_also_where_their_dtype_is_not_numpys():
    nest = {"w": jnp.arange(4, dtype=jnp.bfloat16), "f": jnp.ones(2, jnp.float8_e4m3fn), "x": jnp.ones(2)}
    found = there_and_back(nest)
    assert found["w"].dtype == jnp.bfloat16 and found["f"].dtype == jnp.float8_e4m3fn
    assert type(found["w"]) is np.ndarray and found["w"].astype(np.float32).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("nest", "message"),
    [
        ({"a": {"b": "text"}}, r"policy/a/b: parameters are arrays of numbers, found dtype <U4"),
        ({"a": [np.array([None])]}, r"policy/a/0: .* dtype object"),
        ({"a": np.datetime64("2020-01-01")}, r"policy/a: .* dtype datetime64"),
        ({"a": {1: np.ones(2)}}, r"policy/a: keys are strings, found 1 of type int"),
        (collections.OrderedDict(a=1), r"policy: expected a dict.*found collections.OrderedDict.*dict\(x\)"),
        ({"a": {1, 2}}, r"policy/a: expected a dict.*found builtins.set"),
        ({"a": np.ones(2, ">f4")}, r"policy/a: .* dtype >f4"),
    ],
)
def test_what_cannot_travel_is_refused_with_its_place(nest, message):
    with pytest.raises(SpecError, match=message):
        layout.describe({"policy": nest})


def test_a_typed_key_is_refused_with_its_place():
    with pytest.raises(SpecError, match="policy/key: "):
        layout.describe({"policy": {"key": jax.random.key(0)}})


def test_a_named_tuple_that_is_not_loaded_is_not_imported():
    description, leaves = layout.describe({"policy": Pair(np.ones(1), {})})
    node = description["policy"]
    for place in (["antigravity", "Pair"], [node["namedtuple"][0], "Fair"], ["os", "stat_result"]):
        with pytest.raises(SpecError, match=r"not known here\. Import its module"):
            layout.build({**node, "namedtuple": place}, iter(leaves))
    with pytest.raises(SpecError, match="not known here"):  # loaded, with these fields, and no tuple
        layout.build({"namedtuple": ["ast", "Name"], "fields": dict.fromkeys(ast.Name._fields)}, iter([]))
    with pytest.raises(SpecError, match="not known here"):  # the class has other fields by now
        layout.build({"namedtuple": node["namedtuple"], "fields": {"mean": None}}, iter(leaves))


@pytest.mark.parametrize("name", ["object", "O", "U4", "nonsense", "bfloat", "finfo"])
def test_what_is_no_numeric_dtype_is_refused(name):
    with pytest.raises(SpecError, match="numeric dtype"):
        nests.numeric_dtype(name)


@pytest.mark.parametrize("node", [3, "x", {}, {"other": 1}])
def test_what_is_no_description_is_refused(node):
    with pytest.raises(SpecError, match="description of a nest"):
        layout.build(node, iter([]))


@pytest.mark.parametrize("shape", [[-1], [2.0], "ab"])
def test_what_is_no_shape_is_refused(shape):
    with pytest.raises(SpecError, match="shape"):
        list(layout.arrays_of({"array": ["<f4", shape]}))


def test_unknown_names():
    with pytest.raises(UnknownNameError, match="Did you mean 'policy'"):
        layout.check_names(["polcy"], {"policy": None})
