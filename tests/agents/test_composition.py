"""An algorithm is one file: few functions between an update and its gradients, and no flow shared between siblings."""

import ast
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from agentkit import envs, specs
from agentkit.agents import registry
from agentkit.types import ReplaySample, SampleInfo
from tests.agents.spaces import environment_of

AGENTS = Path(registry.__file__).parent
MOST_FUNCTIONS, MOST_FILES, MOST_EQUAL_LINES = 3, 2, 7

Function = tuple[str, str]
"""A file, and the outermost function in it."""


def functions_before_gradients(agent: Any, environment: str) -> list[list[Function]]:
    """For each gradient of an update, the functions of agentkit that are entered after `make_update`, itself left out.

    Closures count as the function that they are in, as do the functions of jax's own that are in between.
    """
    spec = specs.make_environment_spec(envs.make(environment, seed=0))
    update = agent.make_update(agent.make_networks(spec))
    (table,) = agent.make_tables(spec)
    size = agent.batch_plan.batch_size
    data = jax.tree.map(lambda x: jax.ShapeDtypeStruct((size, *x.shape), x.dtype), table.layout.signature)
    info = SampleInfo(*(jax.ShapeDtypeStruct((size,), np.float32) for _ in SampleInfo._fields))
    found: list[list[Function]] = []

    def note(function: Any, *arguments: Any, **settings: Any) -> Any:
        frame, path = sys._getframe(1), []
        while frame is not None:
            name = frame.f_code.co_filename
            if "/agentkit/" in name and "/tests/" not in name:
                path.append((name, frame.f_code.co_qualname.split(".")[0]))
            frame = frame.f_back
        found.append(list(dict.fromkeys(reversed(path))))
        return function(*arguments, **settings)

    with pytest.MonkeyPatch.context() as patch:
        for name in ("grad", "value_and_grad"):
            plain = getattr(jax, name)
            patch.setattr(jax, name, lambda *arguments, plain=plain, **settings: note(plain, *arguments, **settings))
        state = jax.eval_shape(update.init, jax.ShapeDtypeStruct((2,), np.uint32))
        jax.eval_shape(update.update, state, ReplaySample(info, data))
    return [[step for step in path if step[1] != "make_update"] for path in found]


@pytest.mark.parametrize("name", registry.names())
def test_few_functions_are_between_an_update_and_its_gradients(name: str) -> None:
    paths = functions_before_gradients(registry.make(name), environment_of(name))
    assert paths
    for path in paths:
        assert len(path) <= MOST_FUNCTIONS, path
        assert len({file for file, _ in path} | {str(registry.file(name))}) <= MOST_FILES, path


def bodies(source: str) -> Iterator[tuple[str, str]]:
    """Name and body, without its docstring, of each function in a file, those inside of others included."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef):
            body = node.body[1:] if ast.get_docstring(node) is not None else node.body
            yield node.name, "\n".join(map(ast.unparse, body))


def equal_bodies(files: dict[str, str]) -> list[str]:
    """Functions of 8 lines or more whose bodies two of the files share."""
    seen: dict[str, str] = {}
    found = []
    for file, source in files.items():
        for name, body in bodies(source):
            if body.count("\n") + 1 > MOST_EQUAL_LINES:
                other = seen.setdefault(body, f"{file}:{name}")
                if not other.startswith(f"{file}:"):
                    found.append(f"{other} = {file}:{name}")
    return found


def test_no_two_agents_share_a_function_body() -> None:
    assert equal_bodies({name: registry.file(name).read_text() for name in registry.names()}) == []


def test_shared_bodies_are_found() -> None:
    body = "\n".join(f"    x{i} = {i}" for i in range(8))
    files = {"a": f'def f():\n    """Says one thing."""\n{body}\n', "b": f'def g():\n    """Another."""\n{body}\n'}
    assert equal_bodies(files) == ["a:f = b:g"]
    assert equal_bodies({"a": files["a"], "b": textwrap.dedent(files["b"]).replace("x7 = 7", "x7 = 8")}) == []
