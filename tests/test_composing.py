"""docs/composing.md: every edit is as short as DESIGN asks, trains as it stands, and makes a difference."""

import re
import sys
import types
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import agentkit
from agentkit import envs, specs
from agentkit.agents import sac
from agentkit.experiment import ExperimentConfig
from agentkit.types import ReplaySample, SampleInfo

pytestmark = pytest.mark.one_stack

TEXT = (Path(__file__).resolve().parents[1] / "docs" / "composing.md").read_text()
BUDGETS = {  # Lines, with the one that makes the agent.
    "An extra critic loss in SAC": 8,
    "An auxiliary model with its own parameters in SAC": 20,
    "Another critic target in SAC": 9,
    "Separate learning rates in SAC": 3,
    "PPO's advantages normalised per batch": 1,
    "A KL penalty in PPO": 6,
    "Another optimiser for DQN": 5,
    "Other exploration": 7,
}
EDITS = [title for title in BUDGETS if title != "Separate learning rates in SAC"]
LEARNING = [title for title in EDITS if title != "Other exploration"]


def sections(text: str) -> dict[str, str]:
    """The text under each heading; under "" what comes before the first."""
    parts = re.split(r"^## (.*)$", text, flags=re.M)
    return {"": parts[0], **dict(zip(parts[1::2], parts[2::2], strict=True))}


def block(text: str, language: str = "python") -> str:
    """The one code block of a section."""
    (found,) = re.findall(rf"^```{language}\n(.*?)^```", text, re.M | re.S)
    return found


def lines_of(code: str) -> int:
    """Lines that say something."""
    return sum(1 for line in code.splitlines() if line.strip() and not line.strip().startswith("#"))


def edited(title: str) -> dict[str, Any]:
    """The names that the page's imports and an edit define."""
    names: dict[str, Any] = {}
    exec(block(sections(TEXT)[""]) + block(sections(TEXT)[title]), names)
    return names


def patched(source: str, diff: str) -> str:
    """A file's text with each line behind "-" replaced by the line behind "+" that follows it."""
    changes = re.findall(r"^-(.*)\n\+(.*)$", diff, re.M)
    assert changes
    for old, new in changes:
        assert source.count(f"{old}\n") == 1, f"{old} is not a line of the file, or more than one"
        source = source.replace(f"{old}\n", f"{new}\n")
    return source


def test_each_edit_is_within_its_lines():
    assert {title for title in sections(TEXT) if title} == {*BUDGETS, "Running it"}
    for title in EDITS:
        assert lines_of(block(sections(TEXT)[title])) <= BUDGETS[title], title
    diff = block(sections(TEXT)["Separate learning rates in SAC"], "diff")
    assert len(re.findall(r"^\+", diff, re.M)) == BUDGETS["Separate learning rates in SAC"]


@pytest.mark.parametrize("title", EDITS)
def test_an_edit_trains(title, monkeypatch):
    results = []
    run = agentkit.run
    monkeypatch.setattr(agentkit, "run", lambda experiment: results.append(run(experiment)), raising=False)
    names = edited(title)
    exec(block(sections(TEXT)["Running it"]), names)
    (result,) = results
    assert result.steps == 300


def computation(agent: Any) -> str:
    """What an update of the agent computes, as JAX writes it down; addresses of functions left out."""
    environment = "agentkit:point_mass" if hasattr(agent.config, "target_entropy") else "agentkit:catch"
    spec = specs.make_environment_spec(envs.make(environment, seed=0))
    agent = ExperimentConfig(agent, environment, num_steps=1).agent
    (table,) = agent.make_tables(spec)
    size = agent.batch_plan.batch_size
    info = SampleInfo(*(np.ones(size, np.float32) for _ in SampleInfo._fields))
    batch = ReplaySample(info, specs.zeros(specs.add_leading(table.layout.signature, size)))
    update = agent.make_update(agent.make_networks(spec))
    state = jax.eval_shape(update.init, jax.random.PRNGKey(0))
    return re.sub("0x[0-9a-f]+", "", str(jax.make_jaxpr(update.update)(state, batch)))


@pytest.mark.parametrize("title", LEARNING)
def test_an_edit_changes_the_update(title):
    names = edited(title)
    kind = next(kind for kind in ("sac", "dqn", "ppo") if kind.upper() in title)
    stock = names[kind].make_agent(names[f"{kind}_config"])
    assert computation(stock) == computation(stock)
    assert computation(names["agent"]) != computation(stock)


def test_separate_learning_rates_are_three_lines_of_sacs_file(monkeypatch):
    source = Path(sac.__file__).read_text()
    module = types.ModuleType("edited_sac")
    monkeypatch.setitem(sys.modules, "edited_sac", module)  # Dataclasses look their module up.
    exec(patched(source, block(sections(TEXT)["Separate learning rates in SAC"], "diff")), module.__dict__)
    stock = computation(sac.make_agent(sac.Config()))
    assert computation(module.make_agent(module.Config(critic_learning_rate=3e-4))) == stock
    assert computation(module.make_agent(module.Config(critic_learning_rate=1e-2))) != stock


def test_other_exploration_is_for_training_only():
    names = edited("Other exploration")
    agent, stock = names["agent"], names["dqn"].make_agent(names["dqn_config"])
    spec = specs.make_environment_spec(envs.make("agentkit:catch", seed=0))
    networks = agent.make_networks(spec)
    params = networks.init(jax.random.PRNGKey(0))
    observation = specs.zeros(spec.observations)

    def actions(policy: Any) -> list[int]:
        keys = jax.random.split(jax.random.PRNGKey(1), 30)
        return np.asarray(
            jax.vmap(lambda key: policy.act(params, key, observation, policy.init(key))[0])(keys)
        ).tolist()

    assert actions(agent.make_policy(networks, True)) == actions(stock.make_policy(networks, True))
    assert len(set(actions(agent.make_policy(networks)))) > 1
    assert len(set(actions(agent.make_policy(networks, True)))) == 1


def test_a_patch_that_does_not_fit_is_found():
    assert patched("a\nb\n", "-a\n+c\n") == "c\nb\n"
    with pytest.raises(AssertionError, match="is not a line"):
        patched("a\nb\n", "-d\n+c\n")
    with pytest.raises(AssertionError):
        patched("a\n", "+c\n")
