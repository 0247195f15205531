"""The state of a checkpoint as that of the other kind of run: of one process, or launched.

Both have the learner's state, and have it alike. Who acts is another one: the actors' episodes end with the switch,
their schedules go on, and their seeds are new ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from agentkit import checkpoint
from agentkit.callbacks.base import has
from agentkit.errors import CheckpointError
from agentkit.experiment.policies.restore_policy import steps_explored
from agentkit.experiment.runs.learner_folders import newest_contents
from agentkit.experiment.training.hooks import Hooks


class Start(NamedTuple):
    """Holds what an actor begins with.

    Attributes:
        seed: of its environments and keys, in [0, 2**31).
        num_steps: that it goes on from; those of all its environments together.
    """

    seed: int
    num_steps: int


def start_from(entropy: Sequence[int], num_steps: int) -> Start:
    """Returns what an actor begins with, with a seed of some numbers >= 0."""
    return Start(int(np.random.SeedSequence(entropy).generate_state(1)[0] >> 1), num_steps)


_STREAM = 5  # Of seeds, see `exploring.find_start`: no actor of a launched program has it.


def as_launched(state: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the state of a checkpoint as that of a launched run; of one that is, itself.

    The first actor goes on where that of one process stands, as do all others, who begin where the furthest one stands.
    States of callbacks are given to the nodes that have any. Of several agents, where an actor stands is in actions of
    one of them, on average.
    """
    if state.get("launched"):
        return dict(state)
    steps, callbacks = int(state["num_steps"]), state.get("callbacks", {})
    totals, learners = {"steps": steps}, [state["learner"]]
    if "counter" in state:
        totals["episodes"] = int(state["counter"]["counts"].get("episodes", 0))
    if "actors" in state:  # Of several agents.
        learners = list(state["learner"].values())
        totals["agent_steps"] = int(state["num_agent_steps"])
        totals |= state["by_episode"]["totals"] if "by_episode" in state else _actions_by_policy(state["actors"])
    totals["updates"] = sum(int(learner["num_updates"]) for learner in learners)
    nodes = ("evaluator-0", *(f"learner-{number}" for number in range(len(learners))))
    return {
        **state,
        "totals": totals,
        "explored": {**state.get("explored", {}), "actor-0": steps_explored(state, steps)},
        "callbacks": dict.fromkeys(nodes, callbacks) if callbacks else {},
    }


def _actions_by_policy(actors: Mapping[str, Any]) -> dict[str, int]:
    """Returns the totals of older checkpoints, in which only each agent's actor has them, and only by episode."""
    totals: dict[str, int] = {}
    for actor in actors.values():
        for policy_id, count in actor.get("num_actions", {}).items():
            totals[f"agent_steps/{policy_id}"] = totals.get(f"agent_steps/{policy_id}", 0) + int(count)
    return totals


def as_of_one_process(
    found: checkpoint.Checkpoint | None, seed: int, hooks: Hooks
) -> tuple[checkpoint.Checkpoint | None, Start]:
    """Returns a checkpoint as that of one process, and what an actor begins with that has no state in it.

    A launched run's has none; its path is then that of the newest contents of replay. That of several
    agents is one that `carrying.carry` wrote, with the contents of all replays.

    Args:
        found: the checkpoint; None of a run that begins.
        seed: the experiment's.
        hooks: of the run in one process.

    Raises:
        CheckpointError: no checkpoint has replay's contents.
    """
    directory = hooks.run.run_directory
    if found is None or directory is None or not found.state.get("launched"):
        return found, Start(seed, 0 if found is None else steps_explored(found.state, found.step))
    of_several = "policies" in found.state.get("experiment", {})
    contents = found if of_several else newest_contents(directory, "replay")
    if contents is None:
        raise CheckpointError(
            f"No checkpoint in {directory} has the contents of replay, which the launched run was cut off from. Go on "
            "with agentkit launch --resume, which begins with an empty one."
        )
    explored = found.state.get("explored", {}).values()
    start = start_from([seed, _STREAM, found.step], max(map(int, explored), default=found.step))
    callbacks = _of_all_nodes(found.state.get("callbacks", {}), hooks)
    state = {
        **found.state,
        "counter": {"counts": {"steps": found.step, "episodes": int(found.state.get("totals", {}).get("episodes", 0))}},
        "callbacks": callbacks,
        "steps_of_others": int(found.state.get("num_agent_steps", found.step)) - start.num_steps,
    }
    return checkpoint.Checkpoint(found.step, contents.path, state), start


def _of_all_nodes(by_node: Mapping[str, Any], hooks: Hooks) -> dict[str, Any]:
    """Returns the state of each callback from the node that it is called on: evaluations are the evaluators'."""
    states = {}
    for name, callback in hooks.named():
        nodes = ["learner-0", "evaluator-0"]
        if has(callback, "on_evaluation") or has(callback, "on_evaluation_episode"):
            nodes.reverse()
        found = [by_node[node][name] for node in nodes if name in by_node.get(node, {})]
        if found:
            states[name] = found[0]
    return states
