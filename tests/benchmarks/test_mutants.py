"""What the mutation runner changes, and which tests it runs then."""

import ast
import importlib
import json
import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
NAMES = ("mutations", "nearest_tests", "mutants")
SOURCE = '''"""Says 1 < 2."""

LIMIT: int = 3
Kind = TypeVar("Kind", bound=Base)
if TYPE_CHECKING:
    import_for(1)


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
        self.pairs = zip(by, by, strict=True)
        _LOGGER.info("grown by %d", by + 1)
        warnings.warn("it grew", stacklevel=2)
        return -self.size

    def __str__(self) -> str:
        return str(self.size + 1)
'''


@pytest.fixture(autouse=True)
def modules(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks" / "changes"))
    yield {name: importlib.import_module(name) for name in NAMES}
    for name in NAMES:
        sys.modules.pop(name)


def test_each_mutant_is_one_change_of_what_behaviour_hangs_on(modules):
    found = modules["mutations"].mutants_of("a.py", SOURCE)
    assert {(mutant.line, mutant.change) for mutant in found} == {
        (3, "3 -> 4"),
        (3, "3 -> 2"),
        (13, "2 -> 3"),
        (13, "2 -> 1"),
        (15, "by < 0 and (not self.fixed) -> by < 0 or not self.fixed"),
        (15, "by < 0 and (not self.fixed) -> not (by < 0 and (not self.fixed))"),
        (15, "by < 0 -> by <= 0"),
        (15, "0 -> 1"),
        (15, "0 -> -1"),
        (15, "not self.fixed -> self.fixed"),
        (16, "delete raise ValueError(f'{by + 1} is below {0}')"),
        (17, "self.size += by -> self.size -= by"),
        (17, "delete self.size += by"),
        (18, "delete self.seen = max(self.size, by)"),
        (18, "max(self.size, by): max -> min"),
        (19, "delete note(self.size, strict=True)"),
        (19, "drop strict=True of note(...)"),
        (19, "True -> False"),
        (20, "delete self.pairs = zip(by, by, strict=True)"),
        (22, "delete warnings.warn('it grew', stacklevel=2)"),
        (23, "-self.size -> self.size"),
    }
    trees = {ast.dump(ast.parse(mutant.source)) for mutant in found}
    assert len(trees) == len(found) and ast.dump(ast.parse(SOURCE)) not in trees


def test_the_nearest_tests_are_there(modules):
    nearest_tests = modules["nearest_tests"]
    assert [name for name in nearest_tests.PUT_TOGETHER if not (ROOT / "tests" / name).exists()] == []
    for folder in modules["mutants"].FOLDERS:
        paths = [path.relative_to(ROOT).as_posix() for path in (ROOT / "agentkit" / folder).rglob("*.py")]
        near = {path: nearest_tests.nearest(path) for path in paths if not path.endswith("__init__.py")}
        assert [path for path, tests in near.items() if not tests] == []
        assert [name for tests in near.values() for name in tests if not (ROOT / "tests" / name).exists()] == []


def test_the_wider_tests_are_those_of_the_folder_but_for_other_agents(modules):
    wider = modules["nearest_tests"].wider
    assert {"actors/test_actor.py", "agents/test_composition.py"} - set(wider("agentkit/losses/value.py")) == {
        "actors/test_actor.py"
    }
    of_sac = wider("agentkit/agents/sac.py")
    assert "agents/test_action_masks.py" in of_sac and "agents/test_td3.py" not in of_sac
    assert "agents/test_td3.py" in wider("agentkit/agents/common/agent.py")


class Repository:
    """Stands for the tests: what each step says, with a mutant and without."""

    def __init__(self, monkeypatch, mutants, says, path):
        self.asked, self._says = [], says
        self._source, self._path = "x = 1\n", path
        monkeypatch.setattr(mutants, "outcome", self._outcome)
        path.write_text(self._source)

    def _outcome(self, copy, tests, step, left_out=frozenset()):
        original = self._path.read_text() == self._source
        self.asked.append((original, tests if len(tests) == 1 else step.options[:1], sorted(left_out)))
        return self._says(original, tests, step, left_out)


def examined(modules, monkeypatch, folder, says, row=None):
    mutants = modules["mutants"]
    mutant = modules["mutations"].Mutant("actors.py", 1, "1 -> 2", "x = 2\n")
    monkeypatch.setattr(mutants.nearest_tests, "nearest", lambda path: ("near.py", "own.py"))
    monkeypatch.setattr(mutants.nearest_tests, "wider", lambda path: ("far.py", "farther.py"))
    repository = Repository(monkeypatch, mutants, says, folder / "actors.py")
    row = {"mutant": mutant.name, "diff": ["-x = 1", "+x = 2"], "steps": {}} if row is None else row
    for _ in mutants.examine(folder, mutant, row, set()):
        pass
    return row, repository.asked


def test_a_mutant_meets_the_steps_until_one_notices_it(modules, monkeypatch, tmp_path):
    def says(original, tests, step, left_out):
        noticed = "--full" in step.options and not original
        return "far.py::test_values" if noticed else "passed"

    row, asked = examined(modules, monkeypatch, tmp_path, says)
    assert [step["outcome"] for step in row["steps"].values()] == ["passed", "passed", "far.py::test_values"]
    assert row["steps"]["full"]["tests"] == ("near.py", "own.py", "far.py", "farther.py")
    assert modules["mutants"].noticed_by(row) == "full"
    again, more = examined(modules, monkeypatch, tmp_path, says, row)
    assert more == [] and again is row
    del row["steps"]["full"]
    _, more = examined(modules, monkeypatch, tmp_path, says, row)
    assert more == asked[2:] and modules["mutants"].noticed_by(row) == "full"


def test_a_failure_that_has_other_causes_is_left_out(modules, monkeypatch, tmp_path):
    def says(original, tests, step, left_out):
        if tests in (("far.py::test_a_clock",), ("far.py::test_a_file",)):  # Alone: one passes, one always fails.
            return "passed" if tests == ("far.py::test_a_clock",) else tests[0]
        left = [name for name in ("far.py::test_a_clock", "far.py::test_a_file") if name not in left_out]
        return left[0] if left else "passed"

    row, asked = examined(modules, monkeypatch, tmp_path, says)
    assert {step["outcome"] for step in row["steps"].values()} == {"passed"}
    assert modules["mutants"].noticed_by(row) == "nothing"
    # With the mutant, alone with it, and alone without it, by either test, and then both are left out. The one that
    # fails without a mutant is not asked for again in the next step.
    assert [original for original, *_ in asked[:7]] == [False, False, True, False, False, True, False]
    assert [left_out for *_, left_out in asked[6:8]] == [
        ["far.py::test_a_clock", "far.py::test_a_file"],
        ["far.py::test_a_file"],
    ]


def test_results_are_gone_on_with_and_counted(modules, tmp_path):
    mutants, Mutant = modules["mutants"], modules["mutations"].Mutant

    def step(outcome):
        return {"outcome": outcome, "seconds": 1, "tests": ["actors/test_actor.py"]}

    source = (ROOT / "agentkit/errors.py").read_text()
    all_of_them = [Mutant("agentkit/errors.py", number, "a -> b", f"{source}{number}\n") for number in range(5)]
    rows = mutants.rows_of({"actors": all_of_them}, {}, again=False)
    survived = {"nearest": step("passed"), "wider": step("too long"), "full": step("passed")}
    found = [
        {"nearest": step("actors/test_actor.py::test_a")},
        survived,
        survived,
        survived | {"full": step("crashed")},
    ]
    for row, steps in zip(rows["actors"], [*found, {"nearest": step("undecided: a clock")}], strict=True):
        row["steps"] = dict(steps)
    rows["actors"][2]["equivalent"] = "only a text"
    text = mutants.report(rows)
    assert "| all | 3 | 1 (33%) | 2 (67%) | 1 | 1 |" in text
    nothing = text.split("noticed by nothing: 1")[1].split("noticed by --full only: 1")[0]
    assert "agentkit/errors.py:1 a -> b" in nothing and "+1\n" in nothing and "actors/test_actor.py" in nothing
    assert "because only a text" in text.split("equivalent: 1")[1]

    mutants.write(tmp_path / "a.json", rows)
    earlier = json.loads((tmp_path / "a.json").read_text())
    resumed = mutants.rows_of({"actors": all_of_them}, earlier, again=False)["actors"]
    assert [list(row["steps"]) for row in resumed] == [["nearest"], *[["nearest", "wider", "full"]] * 3, []]
    again = mutants.rows_of({"actors": all_of_them}, earlier, again=True)["actors"]
    assert [len(row["steps"]) for row in again] == [1, 0, 3, 3, 0]
    with pytest.raises(SystemExit, match="has 1 mutants that are not of this sample"):
        mutants.rows_of({"actors": all_of_them[1:]}, earlier, again=False)


def test_a_number_is_split_over_the_folders(modules):
    numbers, folders = modules["mutants"].numbers, modules["mutants"].FOLDERS
    assert numbers(list(folders), 60) == {name: 6 * part for name, part in folders.items()}
    assert sum(numbers(list(folders), 7).values()) == 7 and numbers(["agents"], 3) == {"agents": 3}


@pytest.mark.full
def test_a_seed_gives_one_order(modules):
    def names(seed):
        return [mutant.name for mutant in modules["mutants"].sample("learning", seed)]

    assert names(0) == names(0) != names(1) and sorted(names(0)) == sorted(names(1))
