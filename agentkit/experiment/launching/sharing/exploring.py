"""Where a run's exploration stands: what an actor begins with, and what a checkpoint keeps of it.

The run store has each actor's steps, those of its earlier incarnations included, and beside them the steps at which
it joined; of several agents, the steps of one of them, on average. So an actor that was killed, one that `scale` adds,
and those of a resumed run go on with schedules (an epsilon, uniform actions at first) where the run stands, and draw
seeds that no earlier process had.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Mapping
from typing import Any

from agentkit.distributed.context import NodeContext
from agentkit.distributed.run_store_client import RunStoreError
from agentkit.experiment.launching.sharing.common import log
from agentkit.experiment.training.switched_state import Start, start_from

_JOINED_AT = "explored/"
AGENT_TURNS = "agent_turns"
"""What an actor of several agents counts beside its steps: actions of one of them, on average."""


def find_start(context: NodeContext, seed: int, stream: int) -> Start:
    """Returns what an actor begins with: at its own steps where it has any, else at those of the furthest actor.

    The first process of a name has a seed that follows from the experiment's. Any later one, whoever started it, draws
    a fresh one and writes it to its log: equal seeds would play the same episodes again.

    Args:
        context: the actor node's.
        seed: the experiment's.
        stream: tells kinds of nodes apart.
    """
    status = context.store.status()
    steps, key = explored(status), _JOINED_AT + context.name
    own = _taken(status, context.name)
    num_steps = steps.get(context.name, own) if own else max(steps.values(), default=0)
    entropy = [seed, stream, context.index, 0]
    if context.incarnation or key in status["values"]:
        entropy.append(secrets.randbits(64))
        log(context, f"goes on from step {num_steps:,} of its exploration, with seeds of entropy {entropy}")
    if not own:
        context.store.put(key, num_steps)
    return start_from(entropy, num_steps)


def find_episodes(context: NodeContext, num_actors: int) -> int:
    """Returns how many episodes an actor has ended so far, on average: there begins who starts, or starts anew."""
    return int(context.store.status()["totals"].get("episodes", 0)) // num_actors


def explored(status: Mapping[str, Any]) -> dict[str, int]:
    """Returns the steps at which each actor stands that has joined so far."""
    found = {}
    for key, joined_at in status["values"].items():
        if key.startswith(_JOINED_AT):
            name = key.removeprefix(_JOINED_AT)
            found[name] = int(joined_at) + _taken(status, name)
    return found


def _taken(status: Mapping[str, Any], name: str) -> int:
    counts = status["nodes"].get(name, {}).get("counts", {})
    return int(counts.get(AGENT_TURNS, counts.get("steps", 0)))


def save_explored(context: NodeContext, known: dict[str, int]) -> dict[str, int]:
    """Returns what a checkpoint keeps of it; what was `known` before where the run store does not answer."""
    with contextlib.suppress(RunStoreError):
        return explored(context.store.status())
    return known


def restored_values(state: Mapping[str, Any]) -> dict[str, int]:
    """Returns what belongs into the run store of a run that goes on from a checkpoint's state."""
    return {_JOINED_AT + name: int(steps) for name, steps in state.get("explored", {}).items()}
