"""Runs one job of `jobs.JobProcesses`; the process that it has to itself."""

from __future__ import annotations

import os
import pickle
import sys
import traceback
from typing import NoReturn

from agentkit.child import die_with
from agentkit.distributed.worker import exit_with
from agentkit.errors import AgentkitError
from agentkit.experiment.local import run
from agentkit.experiment.policies.result import Result
from agentkit.experiment.sweeps.jobs import FAILED, FINISHED, STOPPED, Job, Outcome, write_outcome

_MAX_ERROR = 300


def main() -> NoReturn:
    """Runs the job that the parent, and nobody else, can write to standard input; dies with the parent."""
    die_with(int(sys.argv[1]))
    job: Job = pickle.loads(sys.stdin.buffer.read())
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)  # Frees what was read.
    outcome = run_job(job)
    write_outcome(job.directory, outcome)
    exit_with(1 if outcome.state == FAILED else 0)


def run_job(job: Job) -> Outcome:
    """Runs a job to its end, or goes on with it, and returns how it ended; an error is printed, too."""
    num_steps = job.experiment.num_steps
    try:
        result = run(job.experiment, resume=(job.directory / "config.json").exists())
    except AgentkitError as error:  # It says itself what is wrong, in a line.
        print(f"agentkit: {error}", file=sys.stderr)
        return failure(error, num_steps)
    except KeyboardInterrupt:
        return Outcome(STOPPED, num_steps)
    except BaseException as error:  # SystemExit, too: nothing ends a job unsaid.
        traceback.print_exc()
        return failure(error, num_steps)
    return outcome_of(result, num_steps)


def outcome_of(result: Result, num_steps: int) -> Outcome:
    """Returns the outcome of a run that no error has ended."""
    state = STOPPED if result.interrupted else FINISHED
    stopped_by = (result.stopped_by or "") if result.steps < num_steps else ""
    return Outcome(state, num_steps, "", result.steps, stopped_by)


def failure(error: BaseException, num_steps: int) -> Outcome:
    """Returns the outcome of a run that an error has ended, with a line on it."""
    text = " ".join(str(error).split())
    named = text if isinstance(error, AgentkitError) else f"{type(error).__name__}: {text}"
    return Outcome(FAILED, num_steps, named if len(named) <= _MAX_ERROR else f"{named[:_MAX_ERROR]} ...")
