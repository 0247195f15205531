"""What the mutation runner changes, and which tests it runs then."""

import ast
import importlib
import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
SOURCE = '''"""Says 1 < 2."""

LIMIT: int = 3


@decorated(depth=1)
class Config:
    size: int = 3

    def grow(self, by: int = 2, *, most: float | None = None) -> int:
        """Adds 1."""
        if by < 0 and not self.fixed:
            raise ValueError(f"{by + 1} is below {0}")
        self.size += by
        self.seen = max(self.size, by)
        note(self.size, strict=True)
        return -self.size
'''


@pytest.fixture(autouse=True)
def modules(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    yield {name: importlib.import_module(name) for name in ("mutations", "mutants")}
    for name in ("mutations", "mutants"):
        sys.modules.pop(name)


def test_each_mutant_is_one_change_of_what_behaviour_hangs_on(modules):
    found = modules["mutations"].mutants_of("a.py", SOURCE)
    assert {(mutant.line, mutant.change) for mutant in found} == {
        (3, "3 -> 4"),
        (3, "3 -> 2"),
        (10, "2 -> 3"),
        (10, "2 -> 1"),
        (12, "by < 0 and (not self.fixed) -> by < 0 or not self.fixed"),
        (12, "by < 0 and (not self.fixed) -> not (by < 0 and (not self.fixed))"),
        (12, "by < 0 -> by <= 0"),
        (12, "0 -> 1"),
        (12, "0 -> -1"),
        (12, "not self.fixed -> self.fixed"),
        (13, "delete raise ValueError(f'{by + 1} is below {0}')"),
        (14, "self.size += by -> self.size -= by"),
        (14, "delete self.size += by"),
        (15, "delete self.seen = max(self.size, by)"),
        (15, "max(self.size, by): max -> min"),
        (16, "delete note(self.size, strict=True)"),
        (16, "drop strict=True of note(...)"),
        (16, "True -> False"),
        (17, "-self.size -> self.size"),
    }
    trees = {ast.dump(ast.parse(mutant.source)) for mutant in found}
    assert len(trees) == len(found) and ast.dump(ast.parse(SOURCE)) not in trees


def test_the_nearest_tests_are_there(modules):
    mutants = modules["mutants"]
    for folder in mutants.FOLDERS:
        paths = [path.relative_to(ROOT).as_posix() for path in (ROOT / "agentkit" / folder).rglob("*.py")]
        near = {path: mutants.tests_of(path) for path in paths if not path.endswith("__init__.py")}
        assert [path for path, tests in near.items() if not tests] == []
        assert [name for tests in near.values() for name in tests if not (ROOT / "tests" / name).exists()] == []


@pytest.mark.full
def test_a_seed_gives_one_order(modules):
    def names(seed):
        return [mutant.name for mutant in modules["mutants"].sample("learning", seed)]

    assert names(0) == names(0) != names(1) and sorted(names(0)) == sorted(names(1))
