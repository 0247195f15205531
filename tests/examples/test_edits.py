"""The research edits: few lines each, nothing copied, and a run of each goes on from its folder as itself."""

import ast
import importlib
import json
from pathlib import Path

import pytest

from agentkit import experiment
from agentkit.agents import dqn, ppo, sac, td3
from agentkit.envs.catch import Catch
from agentkit.envs.point_mass import PointMass

EDITS = Path(__file__).resolve().parents[2] / "examples" / "edits"
REPLAY = {"hidden_sizes": (8,), "min_replay_size": 20, "batch_size": 8}
SEGMENTS = {"hidden_sizes": (8,), "segment_length": 8, "num_epochs": 2, "num_minibatches": 2}

# The most lines that an edit may have, and a small config of the agent that it is of.
BUDGETS = {
    "sac_extra_critic_loss": (8, sac.Config(**REPLAY)),
    "sac_auxiliary_model": (20, sac.Config(**REPLAY)),
    "sac_mean_target": (9, sac.Config(**REPLAY)),
    "sac_learning_rates": (2, sac.Config(**REPLAY)),
    "sac_temperature_loss": (6, sac.Config(**REPLAY)),
    "td3_optimizers": (1, td3.Config(**REPLAY)),
    "ppo_batch_advantages": (1, ppo.Config(**SEGMENTS)),
    "ppo_kl_penalty": (6, ppo.Config(**SEGMENTS)),
    "ppo_adamw": (1, ppo.Config(**SEGMENTS)),
    "ppo_returns_to_go": (8, ppo.Config(**SEGMENTS)),
    "dqn_rmsprop": (1, dqn.Config(**REPLAY)),
    "dqn_boltzmann": (8, dqn.Config(**REPLAY)),
}

# What a run folder names of edits that have no function of their own.
NAMED = {
    "ppo_batch_advantages": "",
    "ppo_adamw": "optax._src.alias:adamw",
    "td3_optimizers": "optax._src.alias:adamw",
    "dqn_rmsprop": "optax._src.alias:rmsprop",
    "sac_learning_rates": "agentkit.learning.optimizers:adam",
}


class _KilledError(Exception):
    """Stands for kill -9: nothing of agentkit catches it."""


def lines_of_code(source: str) -> int:
    """Lines of what is defined, one statement or bracket after the other; `make_agent` counts if it is all there is.

    Imports, docstrings, comments and blank lines do not count, nor does how long lines are wrapped.
    """
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module) and ast.get_docstring(node) is not None:
            node.body = node.body[1:]
    defined = [node for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    edits = [node for node in defined if node.name != "make_agent"]
    if not edits:
        (make_agent,) = defined
        return len(make_agent.body)
    return sum(bool(line.strip()) for node in edits for line in ast.unparse(node).splitlines())


@pytest.mark.both_stacks
def test_the_edits_are_those_that_have_a_budget() -> None:
    assert {path.stem for path in EDITS.glob("*.py")} - {"__init__"} == set(BUDGETS)


@pytest.mark.both_stacks
@pytest.mark.parametrize("name", BUDGETS)
def test_an_edit_is_few_lines(name: str) -> None:
    assert lines_of_code((EDITS / f"{name}.py").read_text()) <= BUDGETS[name][0]


@pytest.mark.both_stacks
def test_lines_are_counted() -> None:
    source = '"""Says."""\nimport x\n\ndef f(a):\n    """Returns."""\n    # why\n    return g(\n        a,\n    )\n'
    assert lines_of_code(source) == 2
    assert lines_of_code(source + "\ndef make_agent():\n    return f(1)\n") == 2
    assert lines_of_code("def make_agent():\n    x = 1\n    return x\n") == 2


@pytest.mark.full
@pytest.mark.parametrize("name", BUDGETS)
def test_a_killed_run_of_an_edit_goes_on_from_its_folder_as_itself(name, tmp_path, monkeypatch) -> None:
    agent = importlib.import_module(f"examples.edits.{name}").make_agent(BUDGETS[name][1])
    environment, simulator = ("point_mass", PointMass) if name.startswith(("sac", "td3")) else ("catch", Catch)
    plan = experiment.ExperimentConfig(
        agent, f"agentkit:{environment}", 120, evaluation_period=0, checkpoint_period=40, run_directory=tmp_path / "run"
    )
    steps, step = iter(range(70)), simulator.step

    def die(self, action):
        if next(steps, None) is None:
            raise _KilledError
        return step(self, action)

    with monkeypatch.context() as patch:
        patch.setattr(simulator, "step", die)
        with pytest.raises(_KilledError):
            experiment.run(plan)

    assert experiment.read_config(tmp_path / "run").describe() == plan.describe()
    described = json.loads((tmp_path / "run" / "config.json").read_text())
    named = NAMED.get(name, f"examples.edits.{name}")
    assert named in json.dumps(described["agent_parts"])
    result = experiment.resume(tmp_path / "run")
    assert result.steps == 120 and result.updates > 0
    assert experiment.evaluate(tmp_path / "run", num_episodes=1)["steps"] == 120


@pytest.mark.parametrize("name", BUDGETS)
def test_the_page_shows_the_edit_as_it_is(name: str) -> None:
    source = (EDITS / f"{name}.py").read_text()
    code = source[source.index('"""', 3) + 3 :].strip()
    assert f"```python\n{code}\n```" in (EDITS.parents[1] / "docs" / "composing.md").read_text()
