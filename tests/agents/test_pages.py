"""The pages of docs/agents: one for each agent, with its metrics, its settings and its row in the table."""

import dataclasses
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentkit import envs, specs
from agentkit.agents import registry
from agentkit.types import ReplaySample, SampleInfo
from tests import form

PAGES = Path(__file__).resolve().parents[2] / "docs" / "agents"
SECTIONS = ["Paper", "Differences from the paper", "Settings that matter", "Metrics", "Run it", "Results"]
ENVIRONMENTS = {
    "discrete": "agentkit:catch",
    "continuous": "agentkit:point_mass",
    "team": "team:agentkit:two_step_game",
}
NEEDS = {"gumbel_muzero": "mctx"}


def text_of(name):
    return (PAGES / f"{name}.md").read_text(encoding="utf-8")


def section(text, title):
    """The lines under a heading, up to the next one."""
    return re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", text, re.M | re.S)[1]


def rows(text):
    """A table's cells, without its titles."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def metrics_said(text):
    return [cells[0].strip("`") for cells in rows(section(text, "Metrics"))]


def settings_said(text):
    """Names in `code` where settings are explained; wherever `name=value` is written; and those of the snippet."""
    names = re.findall(r"`([a-z]\w*)(?:=[^`]*)?`", section(text, "Settings that matter"))
    names += re.findall(r"(?:`|--set )([a-z]\w*)=", text)
    for arguments in re.findall(r"\.Config\(([^)]*)\)", text):
        names += re.findall(r"(\w+)=", arguments)
    return set(names)


def metrics_emitted(name):
    """Of one update on a batch as the agent's table would give it. Shapes only: nothing is computed or compiled."""
    emitted = set()
    for kind in set(registry.about(name).actions) & set(ENVIRONMENTS):
        agent = registry.make(name)
        if hasattr(agent, "with_num_envs"):
            agent = agent.with_num_envs(4)
        spec = specs.make_environment_spec(envs.make(ENVIRONMENTS[kind]))
        (table,) = (t for t in agent.make_tables(spec) if t.name == agent.batch_plan.table)
        size = agent.batch_plan.batch_size
        info = SampleInfo(*(np.zeros(size, np.float32) for _ in SampleInfo._fields))
        batch = ReplaySample(info, specs.zeros(specs.add_leading(table.layout.signature, size)))
        update = agent.make_update(agent.make_networks(spec))
        _, output = jax.eval_shape(lambda b, u=update: u.update(u.init(jax.random.PRNGKey(0)), b), batch)
        assert all(metric.shape == () for metric in output.metrics.values())
        assert all(jnp.issubdtype(metric.dtype, jnp.number) for metric in output.metrics.values())
        emitted |= set(output.metrics)
    return emitted


def row_of(name):
    """What the table of all agents is to say."""
    about = registry.about(name)
    paper = re.search(r"\(([^(),]* \d{4})", registry.describe(name))[1]
    recurrent = "yes" if about.recurrent else "no"
    return [f"[{name}]({name}.md)", paper, ", ".join(about.actions), about.data, recurrent]


def test_every_agent_has_a_page_and_no_other_agent_has():
    assert {path.stem for path in PAGES.glob("*.md")} - {"README"} == set(registry.names())


@pytest.mark.parametrize("name", registry.names())
def test_a_page_has_the_sections_of_all_and_a_command(name):
    headings = re.findall(r"^## (.*)$", text_of(name), re.M)
    form.ask_for(headings == SECTIONS, f"{name}.md has the headings {headings}, others {SECTIONS}.")
    assert f"agentkit train {name} " in text_of(name) or f"agentkit offline {name} " in text_of(name)


@pytest.mark.parametrize("name", registry.names())
def test_a_page_explains_the_metrics_that_the_update_emits(name):
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    said = metrics_said(text_of(name))
    assert len(said) == len(set(said))
    assert set(said) == metrics_emitted(name)


@pytest.mark.parametrize("name", registry.names())
def test_the_settings_that_a_page_names_exist(name):
    fields = {field.name for field in dataclasses.fields(registry.config_class(name))}
    said = settings_said(text_of(name))
    assert said & fields, "no setting is explained"
    assert said - fields - set(metrics_said(text_of(name))) == set()


@pytest.mark.parametrize("name", [*registry.names(), "README"])
def test_a_page_points_to_files_that_exist_and_its_python_compiles(name):
    for target in re.findall(r"\]\(([^)#]+)\)", text_of(name)):
        assert "://" in target or (PAGES / target).exists(), target
    for block in re.findall(r"^```python\n(.*?)^```", text_of(name), re.M | re.S):
        compile(block, f"{name}.md", "exec")


def test_the_table_of_all_agents_is_the_registry():
    assert rows(section(text_of("README"), "All agents")) == [row_of(name) for name in registry.names()]


def test_what_is_wrong_on_a_page_is_found():
    text = "## Settings that matter\n`gone`: no; `--steps`; `a=1`.\n## Metrics\n|name|x|\n|-|-|\n|`loss`|y|\n"
    text += "## Run it\n    agentkit train x --set b=2\nx.Config(c=3)\n"
    assert settings_said(text) == {"gone", "a", "b", "c"}
    assert metrics_said(text) == ["loss"]
