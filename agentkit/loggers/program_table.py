"""What a launched program is doing: one live table on a terminal, plain lines elsewhere, and rows for logs.

Everything here is made from a status, the plain nest of dicts that `agentkit.distributed.RunStore.status` gives:
``nodes`` by name, ``totals`` by count, and among ``values`` the replay ``tables``, the target ``num_steps`` and
the newest ``evaluation``. What is absent is left out, so that programs of a user's own are shown as well.
"""

from __future__ import annotations

import collections
import contextlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TextIO, final

from agentkit.errors import ConfigError
from agentkit.loggers import live
from agentkit.loggers.base import Number
from agentkit.loggers.live import Grid, LiveDisplay
from agentkit.loggers.progress import duration

Status = Mapping[str, Any]

_RATE_SECONDS = 30.0  # Rates are over about this much of the past.
_SETTLE_SECONDS = 5.0  # Before this, starting up hides how fast a program is, and no time left is shown.
_SILENT_SECONDS = 5.0  # A ready node that has not been heard of for longer is named.
_LOST_SECONDS = 15.0  # After this it does not count as running.
_ERROR_WIDTH = 100
# A role's speed is that of the first of these that its nodes count.
_SPEEDS = ("steps", "updates", "episodes", "actions")
# The order of the roles that agentkit makes; a user's own come after them.
_ROLES = ("replay", "learner", "inference", "actor", "evaluator")
_ROLE_COLUMNS = ("role", "running", "restarts", "speed", "parameters")
_TABLE_COLUMNS = ("table", "items", "inserted", "sampled", "samples/insert", "waiting")
# A gauge that only grows while a node lives, so that it has a speed, as counts do: the share of its time.
_WAITED = "waited_for_data_seconds"


class Picture(NamedTuple):
    """Holds a status in words: a line on progress, a grid of roles, lines for those in trouble, a grid of tables."""

    progress: str
    roles: Grid
    troubles: list[str]
    tables: Grid


@final
class Speeds:
    """Measures how fast counts grow, from the statuses of the last half minute.

    A restarted node counts from 0 again, so growth is added up node by node. A total that is seen for the
    first time may be a resumed run's: it has grown by nothing yet.
    """

    def __init__(self) -> None:
        self._last: dict[tuple[str, str], float] = {}
        self._grown: dict[tuple[str, str], float] = collections.defaultdict(float)
        self._points: collections.deque[tuple[float, dict[tuple[str, str], float]]] = collections.deque()

    def add(self, status: Status, now: float) -> None:
        """Takes a status and the monotonic time in seconds at which it was made."""
        for name, node in status["nodes"].items():
            waited = {_WAITED: node["gauges"][_WAITED]} if _WAITED in node["gauges"] else {}
            for count, value in {**node["counts"], **waited}.items():
                last = self._last.get((name, count), 0 if self._points else value)
                self._grown[node["role"], count] += value - last if value >= last else value
                self._last[name, count] = value
        for count, value in status["totals"].items():
            self._grown["", count] += max(value - self._last.get(("", count), value), 0)
            self._last["", count] = value
        self._points.append((now, dict(self._grown)))
        while len(self._points) > 2 and now - self._points[1][0] > _RATE_SECONDS:
            self._points.popleft()

    def per_second(self, role: str, count: str) -> float | None:
        """Returns how fast a role's `count` grows, or the program's total for role ""; None if not known."""
        if len(self._points) < 2:
            return None
        (first_time, first), (last_time, last) = self._points[0], self._points[-1]
        if (role, count) not in last or last_time <= first_time:
            return None
        return (last[role, count] - first.get((role, count), 0.0)) / (last_time - first_time)

    def seconds(self) -> float:
        """Returns the time between the oldest and the newest status kept."""
        return self._points[-1][0] - self._points[0][0] if self._points else 0.0


def picture(status: Status, speeds: Speeds | None = None) -> Picture:
    """Puts a status in words; without `speeds`, nothing is said about how fast anything is."""
    speeds = Speeds() if speeds is None else speeds
    by_role: dict[str, list[tuple[str, Status]]] = collections.defaultdict(list)
    for name, node in status["nodes"].items():
        by_role[node["role"]].append((name, node))
    order = [*(role for role in _ROLES if role in by_role), *sorted(by_role.keys() - set(_ROLES))]
    calls = _announced_calls(status)
    roles = Grid(_ROLE_COLUMNS, [_role_row(role, by_role[role], speeds, calls) for role in order])
    troubles = [trouble for role in order if (trouble := _trouble(by_role[role]))]
    table_rows = [_table_row(name, table) for name, table in all_tables(status).items()]
    return Picture(_progress(status, speeds), roles, troubles, Grid(_TABLE_COLUMNS, table_rows))


def as_text(status: Status, speeds: Speeds | None = None) -> str:
    """Returns a status as plain text of several lines, for `agentkit status` and files."""
    return live.as_text(as_table(status, speeds))


def as_line(status: Status, speeds: Speeds | None = None) -> str:
    """Returns a status as one line, for output that is kept: a scheduler's log."""
    shown = picture(status, speeds)
    parts = [shown.progress, ", ".join(f"{role} {running}" for role, running, *_ in shown.roles.rows)]
    restarts = sum(node["restarts"] for node in status["nodes"].values())
    if restarts:
        parts.append(f"{restarts:,} restart{'s' if restarts > 1 else ''}")
    for name, items, _, _, ratio, waiting in shown.tables.rows:
        parts.append(f"{name}: {items} items, {ratio} samples/insert, waiting: {waiting}")
    return " | ".join(part for part in parts if part)


def as_table(status: Status, speeds: Speeds | None = None) -> Any:
    """Returns a status as a rich renderable."""
    from rich.console import Group
    from rich.text import Text

    shown = picture(status, speeds)
    parts: list[Any] = [Text(shown.progress, style="bold")]
    if shown.roles.rows:
        parts += [Text(), shown.roles.table(wrap=True)]
    if shown.troubles:
        parts += [Text(), *(Text(trouble, style="red") for trouble in shown.troubles)]
    if shown.tables.rows:
        parts += [Text(), shown.tables.table(wrap=True)]
    return Group(*parts)


def all_tables(status: Status) -> dict[str, Status]:
    """Returns the replay tables by name; those of a second replay node, such as another shard, as ``replay-1/NAME``.

    Where several learners have tables, such as those of several policies, they are ``LEARNER/NAME``, and those of its
    shards ``LEARNER/replay-1/NAME``.
    """
    found: dict[str, Status] = {}
    places = {key: key.split("/")[1:] for key in sorted(status["values"]) if key.split("/")[0] == "tables"}
    learners = [place[0] for place in places.values() if len(place) == 2]
    for key, place in places.items():
        if len(place) == 2:
            learner_id, node = place
            place = [learner_id] * (len(set(learners)) > 1) + [node] * (learners.count(learner_id) > 1)
        found.update({"/".join([*place, name]): table for name, table in status["values"][key].items()})
    return found


def program_row(status: Status, speeds: Speeds | None = None, roles: Sequence[str] = ()) -> dict[str, Number | None]:
    """Returns a status as one row of numbers, for CSV and TensorBoard: the content of the table, by name.

    Args:
        status: the newest.
        speeds: of it and those before it; None knows no speed.
        roles: those that have columns also where no node of theirs has joined yet.

    Returns:
        ``steps``, ``updates``, ``episodes`` and what else is counted; the first two per second;
        ``parameter_age_seconds``, the oldest of any node. For each role ``ROLE_running`` and ``ROLE_restarts``, and
        ``learner_waiting``, the share of its time that the learner waited for data; the mean of several. For each table
        its size, inserts, samples, samples per insert and their target, and 1 or 0 for whether its writers or its
        samplers wait.
    """
    speeds = Speeds() if speeds is None else speeds
    row: dict[str, Number | None] = {"steps": 0, "updates": 0, "episodes": None, **status["totals"]}
    row["steps_per_second"] = speeds.per_second("", "steps")
    row["updates_per_second"] = speeds.per_second("", "updates")
    ages = [node["gauges"].get("parameter_age_seconds") for node in status["nodes"].values()]
    row["parameter_age_seconds"] = max((age for age in ages if age is not None), default=None)
    for role in sorted({*roles, *(node["role"] for node in status["nodes"].values())}):
        nodes = [node for node in status["nodes"].values() if node["role"] == role]
        row[f"{role}_running"] = sum(map(_runs, nodes))
        row[f"{role}_restarts"] = sum(node["restarts"] for node in nodes)
        if role == "learner":
            waited = speeds.per_second(role, _WAITED)  # Told twice a second: over a short while it can exceed 1.
            row["learner_waiting"] = None if waited is None else min(waited / max(len(nodes), 1), 1.0)
    for name, table in all_tables(status).items():
        for key in ("size", "num_inserted", "num_sampled", "samples_per_insert", "samples_per_insert_target"):
            value = table.get(key)
            row[f"{name}_{key}"] = value if value is not None and math.isfinite(value) else None
        row[f"{name}_writers_wait"] = int(table.get("waiting") == "writers")
        row[f"{name}_samplers_wait"] = int(table.get("waiting") == "samplers")
    return row


def events_between(before: Status | None, after: Status) -> list[str]:
    """Returns events worth a line of their own: new errors, restarts, nodes that gave up, evaluations."""
    found = []
    for name, node in after["nodes"].items():
        old = None if before is None else before["nodes"].get(name)
        restarts, state = (0, "") if old is None else (old["restarts"], old["state"])
        why = _named(name, node["last_error"])
        if node["state"] == "failed" and state != "failed":
            found.append(f"{why or name}; it has failed")
        elif node["restarts"] > restarts:
            found.append(f"{why or name}; restart {node['restarts']}")
        unwritten = _unwritten(name, node)
        if unwritten and unwritten != (old and _unwritten(name, old)):
            found.append(f"{unwritten}; nodes/{name}.log says why, and training goes on")
    evaluation = after["values"].get("evaluation")
    seen = None if before is None else before["values"].get("evaluation")
    if evaluation and (seen is None or seen["steps"] != evaluation["steps"]):
        found.append(f"step {evaluation['steps']:,}: evaluation return {evaluation['episode_return']:.1f}")
    if after["stop"] and not (before and before["stop"]):
        found.append(f"Stopping: {_shorten(after['stop'])}")
    return found


@final
class ProgramTable(contextlib.AbstractContextManager["ProgramTable"]):
    """Shows statuses as they come: a table redrawn in place on a terminal, elsewhere a line at intervals.

    No thread is used: the table moves when a status comes. Restarts, errors and evaluations are printed as
    lines of their own, and stay.

    Args:
        interval_seconds: between lines when the output is no terminal.
        stream: where to write; None for standard error.
        clock: seconds, monotonic; for tests.

    Raises:
        ConfigError: for an `interval_seconds` that is not positive.
    """

    def __init__(
        self,
        interval_seconds: float = 10.0,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        if not interval_seconds > 0:
            raise ConfigError(f"Expected interval_seconds > 0, found {interval_seconds}.")
        self._display = LiveDisplay(stream)
        self.message = self._display.message
        self._interval_seconds = interval_seconds
        self._clock = clock
        self._shown_at = -math.inf
        self._speeds = Speeds()
        self._status: Status | None = None

    def write(self, status: Status) -> None:
        """Takes the newest status, prints new events, and redraws if it is time."""
        now = self._clock()
        self._speeds.add(status, now)
        for event in events_between(self._status, status):
            self.message(event)
        self._status = status
        if self._display.console is not None:
            self._display.show(as_table(status, self._speeds))
        elif now - self._shown_at >= self._interval_seconds:
            self._shown_at = now
            self.message(as_line(status, self._speeds))

    def close(self) -> None:
        """Shows how it ended and gives the terminal back. May be called twice."""
        if self._status is not None and self._display.console is None:
            self.message(as_line(self._status, self._speeds))
        self._status = None
        self._display.close()

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def _progress(status: Status, speeds: Speeds) -> str:
    totals, values = status["totals"], status["values"]
    steps, target = totals.get("steps", 0), values.get("num_steps")
    parts = [f"{steps:,} steps" if not target else f"{min(steps / target, 1):.0%} {steps:,}/{target:,} steps"]
    if status["stop"]:
        parts.append(f"stopping: {_shorten(status['stop'])}")
    rate = speeds.per_second("", "steps")
    if rate is not None:
        parts.append(f"{rate:,.0f} steps/s")
        if target and target > steps and rate and not status["stop"] and speeds.seconds() >= _SETTLE_SECONDS:
            parts.append(f"{duration((target - steps) / rate)} left")
    if "updates" in totals:
        parts.append(f"{totals['updates']:,} updates")
    evaluation = values.get("evaluation")
    if evaluation:
        parts.append(f"evaluation return {evaluation['episode_return']:.1f} at step {evaluation['steps']:,}")
    return " | ".join(parts)


def _announced_calls(status: Status) -> dict[str, str]:
    """Returns what long calls nodes are in, by their names: saving a checkpoint, restoring replay."""
    found = {}
    for key, call in status["values"].items():
        name = key.removeprefix("busy/")
        if name != key and call["incarnation"] == status["nodes"].get(name, {}).get("incarnation"):
            found[name] = str(call["what"])
    return found


def _role_row(
    role: str, nodes: Sequence[tuple[str, Status]], speeds: Speeds, calls: Mapping[str, str]
) -> tuple[str, ...]:
    """Returns a role's row: how many run, their work, how often they were restarted, speed and age of data."""
    states = collections.Counter(node["state"] for _, node in nodes)
    running = f"{states.pop('ready', 0)}/{len(nodes)}"
    said = [f"{number} {state}" for state, number in sorted(states.items())]
    said += sorted({calls[name] for name, _ in nodes if name in calls})
    if said:
        running += f" ({', '.join(said)})"
    speed = ""
    for count in _SPEEDS:
        rate = speeds.per_second(role, count)
        if rate is not None:
            # An evaluator plays few episodes a second: no rounding to 0.
            speed = f"{rate:,.0f} {count}/s" if rate >= 10 or rate == 0 else f"{rate:.2g} {count}/s"
            break
    ages = [node["gauges"].get("parameter_age_seconds") for _, node in nodes]
    age = max((value for value in ages if value is not None), default=None)
    restarts = sum(node["restarts"] for _, node in nodes)
    parameters = "" if age is None else f"{age:.1f} s old"
    return role, running, f"{restarts:,}", speed, parameters


def _trouble(nodes: Sequence[tuple[str, Status]]) -> str:
    """Returns the worst that is known of a role's nodes: failure, silence, a mended error, lost checkpoints."""
    for name, node in nodes:
        if node["state"] == "failed":
            return _named(name, node["last_error"] or "failed")
    for name, node in nodes:
        age = node["beat_age_seconds"]
        if node["state"] == "ready" and age is not None and age > _SILENT_SECONDS:
            return f"{name}: silent for {age:.0f} s"
    known = [_named(name, node["last_error"]) for name, node in nodes if node["last_error"]]
    known += [_unwritten(name, node) for name, node in nodes]
    return next(filter(None, known), "")


def _unwritten(name: str, node: Status) -> str:
    """Returns how many checkpoints a learner could not write; nothing where it wrote all."""
    failures = int(node["gauges"].get("checkpoint_failures", 0))
    return f"{name} could not write {failures:,} checkpoint{'s' * (failures > 1)}" if failures else ""


def _table_row(name: str, table: Status) -> tuple[str, ...]:
    ratio, target = table.get("samples_per_insert"), table.get("samples_per_insert_target")
    shown = f"{ratio:.1f}" if ratio is not None and math.isfinite(ratio) else ""
    if target is not None:
        shown += f" of {target:.1f}"
    return (
        name,
        f"{table['size']:,}/{table['max_size']:,}",
        f"{table['num_inserted']:,}",
        f"{table['num_sampled']:,}",
        shown.strip(),
        str(table.get("waiting", "")),
    )


def _runs(node: Status) -> bool:
    """Returns whether a node runs, as far as it is heard: nobody sees an external one die."""
    return node["state"] == "ready" and (node["beat_age_seconds"] or 0.0) < _LOST_SECONDS


def _shorten(text: str) -> str:
    r"""Returns the line that says most, cut to fit a table: the first, or of a traceback the last.

    >>> _shorten("Traceback (most recent call last):\n  File ...\nValueError: no\n")
    'ValueError: no'
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()] or [""]
    line = lines[-1] if lines[0].startswith("Traceback") else lines[0]
    return line if len(line) <= _ERROR_WIDTH else f"{line[: _ERROR_WIDTH - 3]}..."


def _named(name: str, error: str | None) -> str:
    """Returns an error, shortened, with the node's name in front where it does not say it itself."""
    text = _shorten(error or "")
    return text if not text or text.startswith(name) else f"{name}: {text}"
