"""Looks after a program's nodes: starts, watches, restarts and stops them. Engines only start and kill.

A node goes waiting -> starting (loading, then waiting for those it depends on) -> ready, back to
restarting when it dies, and ends as done or failed. The program ends when its stop was asked for, when
every node is done, or at the first fault that no restart mends; then nodes stop role by role, lowest
`Role.stop_order` first. Who has work at the end (`Role.finishes`) gets ready first, if a node asked for the stop.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import pathlib
import secrets
import signal
import time
from collections.abc import Callable
from typing import Any

from agentkit.distributed.address_file import write_address_file
from agentkit.distributed.context import AFTER_CALL_SECONDS
from agentkit.distributed.engine import Engine, Running
from agentkit.distributed.program import Node, Program, Role
from agentkit.distributed.pulse import Pulse, diagnose
from agentkit.distributed.restarts import FROM_OUTSIDE, Restarts, TooManyRestartsError, describe_end
from agentkit.distributed.run_store import RunStore
from agentkit.distributed.stop_signals import signals_ask_to_stop
from agentkit.distributed.worker import EXIT_DONE, EXIT_ERROR, EXIT_FATAL, EXIT_SIGNALLED, RunAddress
from agentkit.errors import AgentkitError, ConfigError, unknown_name
from agentkit.files import write_whole

TICK_SECONDS = 0.05

STALL_SECONDS = 5.0
"""A supervisor that has not looked for this long was stopped itself (SIGSTOP, a machine that slept)."""

PASSING_ERRORS = (errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM)
"""What the system says where it is short of something for a while: a start is tried again, as after a death."""


class ProgramError(AgentkitError, RuntimeError):
    """Says that a fault stopped a program: names the node, its error, and where its log is."""


@dataclasses.dataclass
class Watched:
    """Holds a node, as the supervisor sees it: what runs now, since when, and how far it has come."""

    node: Node
    role: Role
    state: str = "waiting"
    running: Running | None = None
    incarnation: int = -1
    started: float = 0.0
    start_at: float = 0.0
    kill_at: float | None = None
    leaving: bool = False
    unsaved: bool = False  # It was ready, and has not ended in order since.
    counted: int = 0
    pulse: Pulse = dataclasses.field(default_factory=Pulse)

    def __post_init__(self) -> None:
        self.restarts = Restarts(self.role.restart)


class Supervisor:
    """Runs one program on one engine; a context manager.

    Attributes:
        store: the program's run store.
        run_id: the run's secret.
    """

    def __init__(
        self,
        program: Program,
        engine: Engine,
        *,
        run_directory: pathlib.Path | None = None,
        run_id: str | None = None,
        store_port: int = 0,
    ):
        """Opens the run store; starts nothing yet.

        Args:
            program: what to run.
            engine: where; closed with this.
            run_directory: gets ``board.json`` (address and run id, readable by its owner alone) and
                ``nodes/``, the nodes' logs.
            run_id: the run's secret; None makes one.
            store_port: 0 finds a free one.

        Raises:
            ConfigError: the port is taken, or the folder cannot be written to; the engine is closed.
        """
        self._program, self._engine = program, engine
        self._directory = run_directory
        self.run_id = run_id or secrets.token_hex(16)
        self._first_error: str | None = None
        self._stopping = False
        self._waits = False  # For those that have work at the end: nobody who asked for the stop is in a hurry.
        self._polled = self._awake_since = time.monotonic()
        with contextlib.ExitStack() as opened:
            opened.callback(engine.close)
            self.store = RunStore(self.run_id, host=engine.store_host, port=store_port, program=program.name)
            opened.callback(self.store.close)
            self._nodes = {name: Watched(node, program.roles[node.role]) for name, node in program.nodes.items()}
            for watched in self._nodes.values():
                self._note(watched)
            if run_directory is not None:
                write_address_file(run_directory, self.store.address, self.run_id)
            opened.pop_all()  # From here on `close` closes them.

    def run(self, on_tick: Callable[[dict[str, Any]], None] | None = None, tick_seconds: float = 0.5) -> str:
        """Runs the program to its end.

        SIGINT (Ctrl-C), SIGTERM or SIGHUP stops it in order, a second one kills it.

        Args:
            on_tick: called with the run store's status every `tick_seconds`, and once at the end.
            tick_seconds: seconds.

        Returns:
            Why it ended: "done", or the reason that was given.

        Raises:
            ProgramError: a node failed in a way that no restart mends, or too often.
            KeyboardInterrupt: killed by a second signal.
        """
        next_tick = 0.0
        with signals_ask_to_stop(self.store):
            while not self._finished():
                self._poll()
                if on_tick is not None and time.monotonic() >= next_tick:
                    on_tick(self.store.status())
                    next_tick = time.monotonic() + tick_seconds
                time.sleep(TICK_SECONDS)
        if on_tick is not None:
            on_tick(self.store.status())
        if self._first_error is not None:
            raise ProgramError(self._first_error)
        return self.store.stop_reason or "done"

    def scale(self, role: str, count: int) -> None:
        """Makes a role have `count` nodes: copies of the program's first one are added, or its last ones stopped.

        Raises:
            UnknownNameError: no such role, or one without nodes in the program.
            ConfigError: `count` is negative.
        """
        first = next((node for node in self._program.nodes.values() if node.role == role), None)
        if first is None:
            raise unknown_name("role with nodes", role, {node.role for node in self._program.nodes.values()})
        if count < 0:
            raise ConfigError(f"A role cannot have {count} nodes; expected 0 or more.")
        mine = [w for w in self._nodes.values() if w.node.role == role]
        staying = [w for w in mine if not w.leaving]
        for watched in staying[count:]:
            if watched.running is None:  # It waits for its restart, say.
                self._forget(watched)
            else:
                watched.leaving = True
                self._ask_to_stop(watched)
        taken = {w.node.index for w in mine}
        for _ in range(count - len(staying)):
            index = next(i for i in range(len(taken) + 1) if i not in taken)
            taken.add(index)
            node = dataclasses.replace(first, name=f"{role}-{index}", index=index)
            self.store.allow_node(node.name)
            self._nodes[node.name] = watched = Watched(node, self._program.roles[role])
            self._note(watched)

    def kill_all(self) -> None:
        """Ends every node at once."""
        for watched in self._nodes.values():
            if watched.running is not None:
                watched.running.kill()
                watched.running = None

    def close(self) -> None:
        """Kills nodes that still run, and closes store and engine."""
        self.kill_all()
        self.store.close()
        self._engine.close()
        if self._directory is not None:
            (self._directory / "board.json").unlink(missing_ok=True)

    def __enter__(self) -> Supervisor:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    # --- one look round --------------------------------------------------------------------------

    def _finished(self) -> bool:
        if any(w.running is not None or self._awaited(w) for w in self._nodes.values()):
            return False
        return self._stopping or all(w.state == "done" for w in self._nodes.values())

    def _poll(self) -> None:
        now = time.monotonic()
        if now - self._polled > STALL_SECONDS:
            self._awake_since = now  # Nobody could be heard meanwhile: their silence counts from here.
        self._polled = now
        self._process_commands()
        if self.store.stop_reason is not None:
            self._stopping = True
        for watched in list(self._nodes.values()):
            if watched.running is not None:
                self._check(watched)
            elif self._due(watched) and (not self._stopping or self._awaited(watched)):
                self._start(watched)
        if self._stopping:
            self._stop_in_order()

    def _process_commands(self) -> None:
        while not self.store.commands.empty():
            name, arguments = self.store.commands.get()
            if name == "stop":
                self._waits = "node" in arguments and (self._waits or self.store.stop_reason is None)
                self.store.stop(str(arguments.get("reason") or "asked to stop"))
            elif name == "scale":
                # Whoever asked has gone on; what they asked for ends no program, also where it is no number.
                with contextlib.suppress(AgentkitError, TypeError, ValueError, OverflowError):
                    self.scale(str(arguments.get("role")), int(arguments.get("count", 0)))

    def _due(self, watched: Watched) -> bool:
        return watched.state in ("waiting", "restarting") and time.monotonic() >= watched.start_at

    def _dependencies_ready(self, watched: Watched) -> bool:
        """Returns whether a node may be timed: it is started at once, so that its imports take no time later."""
        return all(
            self._nodes[name].state in ("ready", "done") for name in watched.node.dependencies() if name in self._nodes
        )

    def _start(self, watched: Watched) -> None:
        watched.incarnation += 1
        run_address = RunAddress(
            self.store.address,
            self.run_id,
            None if self._directory is None else str(self._directory),
            watched.incarnation,
            watched.role.stop_seconds,
            watched.role.preload,
        )
        try:
            watched.running = self._engine.start(watched.node, watched.role, run_address)
        except Exception as error:
            if isinstance(error, OSError) and error.errno in PASSING_ERRORS:
                self._ended(watched, None, f"{watched.node.name} could not be started: {error.strerror}")
                return
            # Whatever it is, its kind is the same at the next try.
            self._fail(watched, f"could not be started: {type(error).__name__}: {error}")
            return
        watched.state, watched.started, watched.kill_at = "starting", time.monotonic(), None
        watched.pulse = Pulse()
        self._note(watched, incarnation=watched.incarnation, beat_time=None)  # The old beats are not its own.

    def _check(self, watched: Watched) -> None:
        assert watched.running is not None
        code, now = watched.running.poll(), time.monotonic()
        if code is not None:
            self._ended(watched, code)
            return
        call = self.store.get(f"busy/{watched.node.name}")
        busy = watched.pulse.is_busy(call if call and call["incarnation"] == watched.incarnation else None, now)
        if busy and watched.kill_at is not None:
            watched.kill_at = max(watched.kill_at, now + AFTER_CALL_SECONDS)
        if watched.kill_at is not None and now >= watched.kill_at:
            self._lost(watched, f"did not stop within {watched.role.stop_seconds:g} s and was killed")
            return
        if watched.state == "starting":
            endpoint = self.store.get(f"endpoint/{watched.node.name}")
            if endpoint is not None and endpoint["incarnation"] == watched.incarnation:
                watched.state, watched.started, watched.unsaved = "ready", now, True
                self._note(watched)
            elif busy or not self._dependencies_ready(watched):
                watched.started = now
            elif now - watched.started > watched.role.start_seconds:
                self._lost(watched, f"was not ready within {watched.role.start_seconds:g} s")
                return
        if not busy:
            self._check_pulse(watched, now)

    def _check_pulse(self, watched: Watched, now: float) -> None:
        """Takes a node for dead that is silent, or whose main loop stands still."""
        heard = self.store.last_heartbeat(watched.node.name)
        silence, idle = now - watched.started, 0.0
        if heard is not None and heard[0] == watched.incarnation:
            silence, idle = heard[1], heard[2]
        elif watched.state == "starting":
            return  # Its interpreter has not come up yet: there is another limit for that.
        assert watched.running is not None
        silence = min(silence, now - self._awake_since)
        still = watched.pulse.stillness(silence, watched.running, now)
        why = diagnose(watched.role, watched.state == "ready", silence, still, idle)
        if why is not None:
            self._lost(watched, why)

    def _lost(self, watched: Watched, why: str) -> None:
        assert watched.running is not None
        watched.running.kill()
        self._ended(watched, watched.running.poll(), why)

    def _ended(self, watched: Watched, code: int | None, why: str | None = None) -> None:
        """Decides whether a node that has ended is done, to be restarted, or the program's end."""
        asked, watched.running, watched.kill_at = watched.kill_at is not None, None, None
        lost = why is not None
        if watched.leaving and not self._stopping:
            self._forget(watched)
            return
        record = self.store.get(f"error/{watched.node.name}")
        if record is not None and record["incarnation"] != watched.incarnation:
            record = None
        left = code == EXIT_ERROR and record is None  # In order, as it had lost the run store.
        if watched.state == "ready" and not lost and (left or code in (EXIT_DONE, EXIT_SIGNALLED)):
            watched.unsaved = False
        # A signal to all processes at once, as of a reboot, may be here before this has asked; one that is starting
        # dies of it.
        told = code == EXIT_SIGNALLED and (asked or self._stopping)
        early = watched.state == "starting" and (asked or (self._stopping and code == -signal.SIGTERM))
        if why is None and (code == EXIT_DONE or told or early):
            watched.state = "done"
            self._note(watched)
            return
        why = why or describe_end(watched.node.name, code, record)
        if self._stopping and not self._awaited(watched):
            watched.state = "failed"
            self._note(watched, last_error=why)
            if code == EXIT_FATAL and self._first_error is None:
                self._first_error = f"{why}{self._log_hint(watched)}"
            return
        if code == EXIT_FATAL:
            self._fail(watched, why, record)
            return
        self._restart_or_fail(watched, why, record, from_outside=code in FROM_OUTSIDE and not lost)

    def _forget(self, watched: Watched) -> None:
        self.store.forget_node(watched.node.name)
        del self._nodes[watched.node.name]

    def _restart_or_fail(
        self, watched: Watched, why: str, record: dict[str, Any] | None = None, from_outside: bool = False
    ) -> None:
        counts = self.store.status()["nodes"][watched.node.name]["counts"]
        counted = sum(counts.values())
        progress = watched.state == "ready" and (not counts or counted > watched.counted)
        watched.counted = counted
        try:
            watched.start_at = watched.restarts.add(time.monotonic(), progress=progress, from_outside=from_outside)
        except TooManyRestartsError as error:
            self._fail(watched, f"{why}; {error}" if str(error) else why, record)
            return
        watched.state = "restarting"
        self._note(watched, last_error=why)

    def _log_hint(self, watched: Watched) -> str:
        """Returns where a node's log is, where it has one."""
        log = None if self._directory is None else self._directory / "nodes" / f"{watched.node.name}.log"
        return "" if log is None or not log.exists() else f" (its log: {log})"

    def _fail(self, watched: Watched, why: str, record: dict[str, Any] | None = None) -> None:
        """Ends the program; of several reasons the first is what the user is told."""
        watched.state = "failed"
        self._note(watched, last_error=why)
        if not why.startswith(watched.node.name):
            why = f"{watched.node.name} {why}"
        if self._first_error is None:
            # An error of agentkit's own says in words what is wrong, and where; the log has its traceback. Threads
            # have none, and one on another host is not seen.
            hint = self._log_hint(watched)
            is_told = record is None or (record.get("says_all", False) and hint)
            trace = "" if record is None or is_told else "\n" + record["traceback"].rstrip()
            self._first_error = f"{why}{hint}{trace}"
            if record is not None and self._directory is not None:
                path = self._directory / "nodes" / f"{watched.node.name}.error.json"
                with contextlib.suppress(OSError):  # A full disk; the user is told all the same.
                    path.parent.mkdir(exist_ok=True)  # No new run folder in the place of one that was removed.
                    write_whole(path, json.dumps(record, indent=1) + "\n")
        self.store.stop(why)
        self._stopping, self._waits = True, False

    # --- the end -----------------------------------------------------------------------------------

    def _awaited(self, watched: Watched) -> bool:
        return self._waits and watched.role.finishes and watched.state in ("waiting", "starting", "restarting")

    def _stop_in_order(self) -> None:
        """Asks the nodes of the lowest order that still run to stop; the next order waits for them."""
        awaited = [w.node for w in self._nodes.values() if self._awaited(w)]
        kept = {name for node in awaited for name in (node.name, *node.dependencies())}
        running = [w for w in self._nodes.values() if w.running is not None]
        if running:
            order = min(w.role.stop_order for w in running)
            for watched in running:
                if watched.role.stop_order == order and watched.node.name not in kept:
                    self._ask_to_stop(watched)

    def _ask_to_stop(self, watched: Watched) -> None:
        if watched.running is not None and watched.kill_at is None:
            watched.kill_at = time.monotonic() + watched.role.stop_seconds
            self.store.stop_node(watched.node.name)
            if watched.state == "starting":  # It owns nothing yet.
                watched.running.kill()
            else:
                watched.running.terminate()

    def _note(self, watched: Watched, **changes: Any) -> None:
        self.store.node(
            watched.node.name,
            role=watched.node.role,
            index=watched.node.index,
            state=watched.state,
            restarts=watched.restarts.number,
            unsaved=watched.unsaved,
            supervised=True,
            **changes,
        )
