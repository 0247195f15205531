"""Shows the table of a `Profile` as text, as a CSV file, and as advice."""

from __future__ import annotations

import csv
import io
import os
import pathlib
import warnings
from typing import TYPE_CHECKING, Any

from agentkit.agents.common.agent import Agent
from agentkit.files import write_new

if TYPE_CHECKING:
    from agentkit.experiment.profiling.profile import Profile, Row

_EVEN = 0.3  # A part below this share is the longest without being what holds the run up.

_ADVICE = {
    "environment": "a faster simulator (envpool:...), or more processes that step it (agentkit launch --actors)",
    "acting": "more environments per actor (--num-envs), or a smaller network",
    "adding": "more environments per actor (--num-envs), smaller observations, or a smaller n_step",
    "sampling": "smaller batches or observations, or uniform instead of prioritised replay",
    "waiting": "--replay in_process, or Reverb with more CPU cores to itself",
    "evaluation": "a larger --eval-every, or a smaller --eval-episodes",
    "saving": "a larger --checkpoint-every, a smaller replay_size, or a faster disk",
    "logging": "no --tensorboard, or run folders (--out) on a faster disk",
    "rest": "more environments per actor (--num-envs); what is left is Python between the parts",
}


def describe(profile: Profile, agent: Agent | None = None) -> str:
    """Returns the table for people, with the bottleneck and a remedy; one line if no step was timed.

    Args:
        profile: after its run.
        agent: whose settings the advice may name.
    """
    if not profile.num_steps:
        return "Profile: no step was taken, so there is nothing to tell."
    rows = profile.rows()
    stepwise = [row for row in rows if row.share or row.microseconds_per_step]
    once = [row for row in rows if row.seconds and row not in stepwise]
    seconds = sum(row.seconds for row in stepwise)
    lines = [
        f"Where the time of {profile.num_steps:,} steps and {profile.num_updates:,} updates went",
        f"  {'part':12} {'calls':>10} {'us a call':>12} {'us a step':>12} {'share':>7}",
    ]
    lines += [_line(row) for row in stepwise]
    total = sum(row.microseconds_per_step for row in stepwise)
    lines.append(f"  {'sum':36} {total:12,.1f} {1:6.1%}  ({profile.num_steps / seconds:,.0f} steps/s)")
    apart = ", ".join(f"{row.part} {row.seconds:.2f} s" for row in once)
    lines.append(f"  Besides: {apart}; {sum(row.seconds for row in rows):.2f} s in all.")
    lines.append(bottleneck(profile, agent))
    lines += _notes(profile)
    return "\n".join(lines)


def bottleneck(profile: Profile, agent: Agent | None = None) -> str:
    """Returns one sentence: which part takes longest, and how to change that."""
    row = max(profile.rows(), key=lambda row: row.share)
    advice = _update_advice(agent) if row.part == "update" else _ADVICE[row.part]
    name = row.part.capitalize()
    if row.share < _EVEN:
        return f"No bottleneck: no part takes more than {row.part}, {row.share:.0%}. To shorten that: {advice}."
    return f"Bottleneck: {row.part}. {name} takes {row.share:.0%} of the time. Shorter: {advice}."


def write_table(profile: Profile, path: pathlib.Path) -> None:
    """Writes the rows to a CSV file, in place of those of an earlier profile; warns where that cannot be done."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    rows = profile.rows()
    writer.writerow((*rows[0]._fields, "steps"))
    writer.writerows((*row, profile.num_steps) for row in rows)
    temporary = path.with_name(path.name + ".tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_new(temporary, text.getvalue())
        os.replace(temporary, path)
    except OSError as error:
        warnings.warn(f"{path} was not written: {error}. The run itself is not affected.", stacklevel=2)


def _line(row: Row) -> str:
    calls = f"{row.calls:,}" if row.calls else ""
    per_call = f"{row.microseconds_per_call:,.1f}" if row.calls else ""
    return f"  {row.part:12} {calls:>10} {per_call:>12} {row.microseconds_per_step:12,.1f} {row.share:6.1%}"


def _update_advice(agent: Agent | None) -> str:
    settings: Any = None if agent is None else agent.config
    ways = ["smaller networks or batches", "a GPU"]
    if hasattr(settings, "num_epochs"):
        ways.insert(0, "fewer --set num_epochs or num_minibatches")
    elif settings is None or hasattr(settings, "updates_per_call"):
        ways.insert(0, "a larger --set updates_per_call")
    return ", ".join(ways[:-1]) + f", or {ways[-1]}"


def _notes(profile: Profile) -> list[str]:
    """Says how far the figures are those of a run that is not profiled."""
    timers = f"The timers add about {profile.overhead_microseconds:.0f} us a step."
    if profile.num_updates:
        blocked = 1e6 * profile.blocked_seconds / profile.num_updates
        notes = [
            f"Each update was waited for, {blocked:,.0f} us on average after its call had returned: a run without a "
            "profile",
            f"can take its next steps in that time, and is faster by up to as much. {timers}",
        ]
    else:
        notes = [f"Learning had not begun. {timers}"]
    if profile.traced:
        notes.append(
            f"JAX's trace is in {profile.trace_directory}: open it with xprof or https://ui.perfetto.dev. Its steps "
            "are in the table, too."
        )
    elif profile.trace_directory is not None:
        notes.append("There is no JAX trace: learning was not under way for long enough. Train for more --steps.")
    return notes
