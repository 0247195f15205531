"""Goes on in one process with a launched run, and launched with a run in one process.

Checkpoints of both have the learner's state and the contents of agentkit's own replay, and have them alike: see
`switched_state`. Those of several agents are in other places, see `carrying`.
"""

from __future__ import annotations

import contextlib
import pathlib
import warnings
from collections.abc import Iterator
from shlex import quote

from agentkit import checkpoint
from agentkit.errors import AgentkitError, CheckpointError, ConfigError
from agentkit.experiment.runs.config_json import read_record
from agentkit.experiment.runs.lock import run_lock
from agentkit.experiment.runs.resume_checks import REPLAYS, ResumeError, check_command, command_of, why_not_switched
from agentkit.experiment.training.carrying import carry, drop_others


@contextlib.contextmanager
def switched(run_directory: str | pathlib.Path, command: str, replay: object) -> Iterator[None]:
    """Makes a run one that `command` goes on with, where its replay is asked for and another command began the run.

    What is inside goes on with it. Only ``config.json`` changes, and is as it was again where the run does not begin.
    Of several agents checkpoints of the new kind are written before, beside those that there are; they go likewise.

    Args:
        run_directory: the folder.
        command: "train" or "launch".
        replay: that the run is to go on with; another than that of `command` changes nothing here.

    Raises:
        ConfigError: no run folder; the run cannot go on so, and why; or it goes on now.
        ResumeError: of several agents, no checkpoint has what is to be carried, or the disk refuses.
        CheckpointError: the run is one of several learners, which go on together.
    """
    if replay != REPLAYS[command]:
        yield
        return
    record, directory = read_record(run_directory), pathlib.Path(run_directory)
    begun_by = command_of(record)
    check_command(begun_by, directory)  # Nor does one of several learners go on alone.
    if begun_by == command:
        if record.get("replay") != REPLAYS[command]:
            raise ConfigError(f"{directory} was begun with replay={record.get('replay')!r:.80}. Leave --replay out.")
        yield
        return
    if (why := why_not_switched(record)) is not None:
        raise ConfigError(
            f"{directory} goes on by agentkit {begun_by} --resume alone: {why}. Leave --replay (replay=) out there."
        )
    path = directory / "config.json"
    other = {name: value for name, value in record.items() if name != "launch"} | {"replay": REPLAYS[command]}
    if command == "launch":
        other["launch"] = {}
    of_several = "policies" in record
    with run_lock(directory):
        refuse_second_supervisor(directory)
        if of_several:
            try:
                carry(directory, record, command)
            except CheckpointError as error:
                raise ResumeError(str(error)) from error
        checkpoint.write_json(path, other)
    written = path.stat()
    try:
        yield
    except BaseException:
        with contextlib.suppress(ConfigError), run_lock(directory):  # Who has it now goes on with what is there.
            now = path.stat()  # What begins writes a file of its own.
            if (now.st_ino, now.st_mtime_ns) == (written.st_ino, written.st_mtime_ns):
                checkpoint.write_json(path, record)
                if of_several:
                    drop_others(directory, begun_by)
        raise


def refuse_second_supervisor(directory: pathlib.Path, on_cluster: bool = False) -> None:
    """Finds a program whose lock is not seen here, see `run_lock`; warns of one that is elsewhere, and is not asked.

    Args:
        directory: the run folder, which may come from a stranger: no other machine is connected to on its word.
        on_cluster: the caller has named a cluster, whose machines are asked, too.

    Raises:
        ConfigError: there is one.
    """
    from agentkit.distributed import connect_to_run  # A run in one process else needs no wire.
    from agentkit.distributed.address_file import ElsewhereError

    try:
        connect_to_run(directory, timeout=1.0, anywhere=on_cluster).close()
    except ElsewhereError as error:
        warnings.warn(f"{error} If it still runs, stop it first.", stacklevel=2)
        return
    except AgentkitError:
        return  # None is there, it was killed, or another run has its port now.
    raise ConfigError(
        f"A program runs in {directory} now (see: agentkit status {quote(str(directory))}). Stop it first."
    )
