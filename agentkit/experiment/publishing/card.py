"""Writes a model card, in the form of the Hugging Face hub, about a policy: what it is, how good, how to load it."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from agentkit.agents import registry
from agentkit.counting import count_of
from agentkit.errors import DISTRIBUTION
from agentkit.experiment.config.identity import describe_agent
from agentkit.experiment.evaluation.evaluate import evaluate
from agentkit.experiment.multi_agent.assigning.by_episode import RETURN_BY
from agentkit.experiment.multi_agent.config import is_of_several_agents
from agentkit.experiment.multi_agent.judging.evaluation import evaluate_multi_agent
from agentkit.experiment.multi_agent.loading import agents_of
from agentkit.experiment.runs.config_json import read_record
from agentkit.files import write_new
from agentkit.loggers import read_csv
from agentkit.types import AgentId
from agentkit.version import __version__

NAME = "README.md"
_OTHER_NAME = "policy-card.md"
_LIBRARY = "library_name: agentkit"

_ACT = "action, state = policy(observation, state)  # None begins an episode"
_USES = {
    "policy": f'import agentkit\n\npolicy = agentkit.load("{{file}}")\n{_ACT}',
    "numpy": f'from numpy_policy import Policy\n\npolicy = Policy("{{file}}")\n{_ACT}',
    "stablehlo": 'import pathlib\n\nimport jax.export\n\ncontent = bytearray(pathlib.Path("{file}").read_bytes())\n'
    "policy = jax.export.deserialize(content)\narrays = policy.call({{{inputs}}})",
    "onnx": 'import onnxruntime\n\nsession = onnxruntime.InferenceSession("{file}")\n'
    "arrays = session.run(None, {{{inputs}}})",
    "savedmodel": 'import tensorflow as tf\n\npolicy = tf.saved_model.load("{file}").signatures["serving_default"]\n'
    "tensors = policy({keywords})",
}
_NEEDS = {
    "policy": f"pip install '{DISTRIBUTION}=={__version__}'",
    "numpy": "pip install numpy",
    "stablehlo": "pip install jax",
    "onnx": "pip install onnxruntime",
    "savedmodel": "pip install tensorflow",
}


class Returns(NamedTuple):
    """Holds how good a policy is.

    Attributes:
        mean: of the episodes' returns.
        spread: their standard deviation, or None where it is not known.
        least: of them; None for several agents, where a mean is that of each of the policy's agents.
        greatest: likewise.
        num_episodes: how many there were.
        steps: environment steps (or updates, of a run from data) that the policy was trained for.
    """

    mean: float
    spread: float | None
    least: float | None
    greatest: float | None
    num_episodes: int
    steps: int


def returns_of(
    run: str | pathlib.Path, num_episodes: int | None = None, imports: Sequence[str] = (), policy: str | None = None,
    steps: int | None = None,
) -> Returns | None:  # fmt: skip
    """Returns what an evaluation of the run found, or None without one; plays where `num_episodes` says how many.

    It is that at the policy's `steps`, or else the newest. Exported policies do not explore, so none is found where
    the run's evaluations do, and episodes are played without. Of a run of several agents they are the returns of those
    that play by `policy`.
    """
    if is_of_several_agents(run):
        return _returns_of_agents(run, num_episodes, imports, policy, steps)
    if num_episodes is not None:
        found = evaluate(run, num_episodes, imports=imports, evaluation_samples=False)
        played = np.asarray(found["episode_return"], np.float64)
        return Returns(
            float(played.mean()), float(played.std()), played.min(), played.max(), num_episodes, found["steps"]
        )
    if read_record(run).get("evaluation_samples"):
        return None
    try:
        row = _evaluation(run, steps)
        mean, least, greatest = (float(row[f"episode_return{end}"]) for end in ("", "_min", "_max"))
        return Returns(mean, None, least, greatest, int(float(row["evaluation_episodes"])), int(float(row["steps"])))
    except (OSError, LookupError, TypeError, ValueError):  # None yet, or a row that is being written.
        return None


def _returns_of_agents(
    run: str | pathlib.Path, num_episodes: int | None, imports: Sequence[str], policy: str | None, steps: int | None
) -> Returns | None:
    agent_ids = agents_of(run, policy, imports)
    if num_episodes is not None:
        return _mean_of_agents(evaluate_multi_agent(run, num_episodes, imports=imports), agent_ids, policy)
    try:
        return _mean_of_agents(_evaluation(run, steps), agent_ids, policy)
    except (OSError, LookupError, TypeError, ValueError):  # None yet, or a row that is being written.
        return None


def _mean_of_agents(row: Mapping[str, Any], agent_ids: Sequence[AgentId], policy: str | None) -> Returns:
    names = [f"{RETURN_BY}{policy}"]  # Where policies change by episode: agents play by others, too.
    if row.get(names[0]) in (None, ""):
        names = [f"episode_return/{agent_id}" for agent_id in agent_ids]
    mean = float(np.mean([float(row[name]) for name in names]))
    return Returns(mean, None, None, None, int(float(row["evaluation_episodes"])), int(float(row["steps"])))


def _evaluation(run: str | pathlib.Path, steps: int | None) -> Mapping[str, Any]:
    """Returns the run's evaluation after so many steps; the newest where it has none."""
    rows = read_csv(pathlib.Path(run) / "logs" / "evaluation.csv")[1]
    return next((row for row in rows[::-1] if row["steps"] == str(steps)), rows[-1])


def card_path(folder: pathlib.Path) -> pathlib.Path:
    """Returns where the card goes: README.md, unless somebody else's is there."""
    readme = folder / NAME
    if readme.exists() and _LIBRARY not in readme.read_text(errors="replace"):
        return folder / _OTHER_NAME
    return readme


def write_card(
    path: pathlib.Path, run: str | pathlib.Path, returns: Returns | None, file: str, format: str, inputs: Sequence[str],
    policy: str | None = None, steps: int | None = None,
) -> None:  # fmt: skip
    """Writes a run's card; the hub's own figure is there only if the returns are those of this very policy.

    Args:
        path: see `card_path`.
        run: the run folder.
        returns: see `returns_of`.
        file: the policy's.
        format: its format.
        inputs: names of its observations.
        policy: of a run of several agents, the policy's id; None for the only one that learned.
        steps: that the policy was trained for; None where that is not known.
    """
    record = _record_of(run, policy)
    agent, environment = record["agent"] or "own agent", record["environment"] or "own environment"
    its_own = None if returns is None or steps not in (None, returns.steps) else returns
    lines = [*_header(agent, environment, its_own), *_body(record, agent, environment, returns, steps)]
    write_new(path, "\n".join([*lines, *_how_to(file, format, inputs), *_settings(record)]) + "\n")


def _record_of(run: str | pathlib.Path, policy: str | None) -> dict[str, Any]:
    """Returns a run's record; of several agents with the agent that has learned a policy."""
    record = read_record(run)
    if "policies" not in record:
        return record
    learned = {policy_id: agent for policy_id, agent in record["policies"].items() if "frozen" not in agent}
    only = next(iter(learned.values()))  # Where each agent has a policy of its own, all are as this one.
    return {**record, **learned.get(policy or "", only), "policy": policy}


def _header(agent: str, environment: str, returns: Returns | None) -> list[str]:
    """Returns the YAML that the hub reads; strings as JSON has them are YAML's, too."""
    lines = [
        "---",
        _LIBRARY,
        "pipeline_tag: reinforcement-learning",
        "tags:",
        *(f"- {json.dumps(tag)}" for tag in ("reinforcement-learning", "agentkit", agent, environment)),
    ]
    if returns is not None:
        lines += [
            "model-index:",
            f"- name: {json.dumps(f'{agent} on {environment}')}",
            "  results:",
            "  - task:",
            "      type: reinforcement-learning",
            "    dataset:",
            f"      name: {json.dumps(environment)}",
            f"      type: {json.dumps(environment)}",
            "    metrics:",
            "    - type: mean_reward",
            f"      value: {json.dumps(_mean(returns))}",
            "      name: mean return of an episode",
        ]
    return [*lines, "---", ""]


def _mean(returns: Returns) -> str:
    return f"{returns.mean:.2f}" + ("" if returns.spread is None else f" +/- {returns.spread:.2f}")


def _range(returns: Returns) -> str:
    if returns.least is None or returns.greatest is None:
        return "for each of its agents"
    return f"(from {returns.least:.2f} to {returns.greatest:.2f})"


def _how_good(returns: Returns | None, seed: int, steps: int | None) -> str:
    if returns is None:
        return "This policy has not been evaluated."
    other = "" if steps in (None, returns.steps) else f"It is that of step {steps:,}, which has no evaluation. "
    return other + (
        f"Over {count_of(returns.num_episodes, 'episode')} at step {returns.steps:,} it reached a return of "
        f"{_mean(returns)} {_range(returns)}, of one training with seed {seed}."
    )


def _body(
    record: dict[str, Any], agent: str, environment: str, returns: Returns | None, steps: int | None
) -> list[str]:
    how_good = _how_good(returns, record.get("seed", 0), steps)
    rows = {"Agent": agent, "Environment": environment, "Seed of the training": record.get("seed", 0)}
    if record.get("policy") is not None:
        rows["Policy, of several agents"] = record["policy"]
    if record.get("environment_settings"):
        rows["Settings of the environment"] = json.dumps(record["environment_settings"])
    rows |= {f"Version of {name}": version for name, version in record.get("versions", {}).items()}
    return [
        f"# {agent} on {environment}",
        "",
        f"A policy trained with [agentkit](https://pypi.org/project/{DISTRIBUTION}/). {how_good}",
        "",
        "| | |",
        "|---|---|",
        *(f"| {name} | {value} |" for name, value in rows.items()),
        "",
    ]


def _how_to(file: str, format: str, inputs: Sequence[str]) -> list[str]:
    arrays = ", ".join(f'"{name}": {name.replace("/", "_")}' for name in inputs)
    keywords = ", ".join(f"{name.replace('/', '_')}=..." for name in inputs)
    return [
        "## How to load it",
        "",
        f"It needs `{_NEEDS[format]}`. Observations and actions are the environment's own.",
        "",
        "```python",
        _USES[format].format(file=file, inputs=arrays, keywords=keywords),
        "```",
        "",
    ]


def _settings(record: dict[str, Any]) -> list[str]:
    """Returns the settings that are not the defaults."""
    name, config = record["agent"], record["agent_config"]
    usual = describe_agent(registry.make(name), 1)["agent_config"] if name in registry.names() else {}
    changed = {key: value for key, value in config.items() if usual.get(key, ...) != value}
    if not changed:
        return ["## Settings", "", "All are the agent's defaults."]
    rows = [f"| `{key}` | `{json.dumps(value)}` |" for key, value in sorted(changed.items())]
    return ["## Settings that differ from the defaults", "", "| setting | value |", "|---|---|", *rows]
