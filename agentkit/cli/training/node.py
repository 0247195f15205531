"""Runs ``agentkit node``: one node of a program, for a scheduler or a shell loop to start and restart."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shlex
import sys
from pathlib import Path
from typing import Any, NamedTuple

from agentkit.cli.interrupts import INTERRUPTED
from agentkit.cli.screen import say
from agentkit.cli.training.launch import check_installed, chosen_replay
from agentkit.cli.training.new_run import changes_of_existing, in_new_folder, new_experiment
from agentkit.cli.values.callbacks import callbacks_for_resumed_run
from agentkit.cli.values.environments import import_packages
from agentkit.errors import ConfigError
from agentkit.ports import check_device

RUN_ID_VARIABLE = "AGENTKIT_RUN_ID"
DEFAULT_BOARD_PORT = 7700

_START_AGAIN = 1


class Meeting(NamedTuple):
    """Says where a run's nodes meet, as far as the command line says: its address ("host:port") and its secret."""

    address: str | None
    run_id: str | None


def node(arguments: argparse.Namespace) -> int:
    """Runs one node to its end.

    Returns:
        0 if the run is over, 1 if starting the node again may help, 2 if it cannot, 130 if a signal ended it.

    Raises:
        ConfigError: for missing or contradicting arguments.
    """
    from agentkit.distributed import RunStoreError, WrongRunError
    from agentkit.distributed.program import ONE_CORE

    if arguments.role != "learner":  # Before JAX and TensorFlow are loaded.
        for name, value in ONE_CORE.items():
            os.environ.setdefault(name, value)
    listen = getattr(arguments, "listen", None)
    check_device("lo" if listen is None else listen)
    try:
        meeting = find_meeting(arguments)
        return _host(arguments, meeting) if arguments.role == "replay" else _join(arguments, meeting)
    except WrongRunError:
        raise  # A wrong setting, which no restart mends.
    except (RunStoreError, FileNotFoundError) as error:
        say(f"agentkit: {' '.join(str(error).split())}", sys.stderr)
        return _START_AGAIN


def find_meeting(arguments: argparse.Namespace) -> Meeting:
    """Returns the run's address and secret from ``--connect``, ``--run-id``, ``--run-id-file`` and AGENTKIT_RUN_ID.

    Raises:
        ConfigError: the secret is too short to be one, the file holds none, or the address is none.
        FileNotFoundError: the file is not there: its run has not begun, or has ended.
    """
    address = getattr(arguments, "connect", None)
    run_id = arguments.run_id
    if arguments.run_id_file is not None:
        found = _read_file(Path(arguments.run_id_file))
        address, run_id = address or found.address, found.run_id
    if run_id is None:
        run_id = os.environ.get(RUN_ID_VARIABLE)
    if run_id is not None:
        from agentkit.wire import check_secret

        check_secret(run_id)
    if address is not None:
        from agentkit.distributed.run_store_client import is_address

        if not is_address(address):
            raise ConfigError(
                "--connect: expected HOST:PORT, a name or an IPv4 address with a port from 1 to 65535, "
                f"found {address!r}."
            )
    return Meeting(address, run_id)


def _read_file(path: Path) -> Meeting:
    try:
        text = path.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        raise FileNotFoundError(f"--run-id-file: {path} is not there: its run has not begun, or has ended.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--run-id-file: {path} cannot be read: {error}.") from error
    if text.startswith("{"):
        try:
            record = json.loads(text)
            return Meeting(str(record["address"]), str(record["run_id"]))
        except (ValueError, KeyError) as error:
            raise ConfigError(f"--run-id-file: {path} is no board.json of a run: {error!r}.") from error
    if not text or len(text.split()) > 1:
        raise ConfigError(f"--run-id-file: expected the run id alone, or a board.json, found neither in {path}.")
    return Meeting(None, text)


def _join(arguments: argparse.Namespace, meeting: Meeting) -> int:
    if meeting.address is None:
        raise ConfigError("--connect is missing: the address HOST:PORT that 'agentkit node replay' prints.")
    if meeting.run_id is None:
        raise ConfigError(
            f"The run id is missing. Set the variable {RUN_ID_VARIABLE}, or name a file with --run-id-file."
        )
    from agentkit.experiment.launching import external

    settings: dict[str, Any]
    if arguments.role == "learner":
        listen = arguments.listen or "lo"
        settings = {"listen": listen}
    else:
        settings = {"index": arguments.index}
    settings["imports"] = import_packages(arguments.imports)
    return external.join_run(arguments.role, connect=meeting.address, run_id=meeting.run_id, **settings)


def _host(arguments: argparse.Namespace, meeting: Meeting) -> int:
    """Hosts until the run is over, or a signal stops it: 0 or 130."""
    plan = _plan(arguments)
    from agentkit.experiment.config.identity import packages_of
    from agentkit.experiment.launching import external

    listen = arguments.listen or "lo"

    def on_start(address: str, run_id: str) -> None:
        del run_id  # A secret: the file is named, not what is in it.
        print(f"Others join with: agentkit node learner|actor|evaluator --connect {address}", end=" ")
        named = "".join(f" --import {package}" for package in packages_of(plan.describe()))
        print(f"--run-id-file {shlex.quote(str(Path(plan.run_directory) / 'run_id'))}{named}", flush=True)

    reason = external.host_run(
        plan,
        store_port=arguments.board_port or DEFAULT_BOARD_PORT,
        port=arguments.port,
        listen=listen,
        run_id=meeting.run_id,
        on_start=on_start,
    )
    print(f"Ended: {reason}", flush=True)
    return INTERRUPTED if reason.startswith("stopped by a signal") else 0


def _plan(arguments: argparse.Namespace) -> Any:
    """Returns the experiment to host, with its run folder; a run in it already goes on."""
    if arguments.run is None:
        plan = new_experiment(arguments, "node replay", **chosen_replay(arguments))
        check_installed(replay=plan.replay)
        plan, folder = in_new_folder(plan, arguments)
        print(f"Run folder: {folder.path}", flush=True)
        return plan
    if arguments.out is not None:
        raise ConfigError("--run is the run folder itself and --out the folder of a new one; give one of them.")
    if arguments.agent is None and (Path(arguments.run) / "config.json").is_file():
        from agentkit import experiment

        changes = changes_of_existing(arguments, f"--run {arguments.run} without AGENT")
        own = callbacks_for_resumed_run(arguments, arguments.run, changes["imports"])
        plan = experiment.read_config(arguments.run, callbacks=own, **changes)
    else:
        # A scheduler starts the very same command again: the checkpoint refuses other settings than its own.
        plan = new_experiment(arguments, "node replay", **chosen_replay(arguments))
    check_installed(replay=plan.replay)
    print(f"Run folder: {arguments.run}", flush=True)
    return dataclasses.replace(plan, run_directory=arguments.run)
