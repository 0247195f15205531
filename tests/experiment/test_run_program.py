"""`run_program`: what a program of one's own is told at its end."""

import logging

import pytest

from agentkit.distributed import Program, Role
from agentkit.distributed.threads import ThreadEngine
from agentkit.experiment import run_program

pytestmark = pytest.mark.both_stacks


def judge(context):
    context.ready()
    while not context.wait(0.05):
        pass
    raise TimeoutError("no parameters")


def stop(context, judges):
    context.ready()
    context.request_stop("enough")


@pytest.mark.parametrize("finishes", [True, False])
def test_work_for_the_end_that_fails_is_told(caplog, finishes):
    program = Program("test")
    program.add_role(Role("judge", stop_order=1, finishes=finishes))
    program.add_role(Role("other"))
    program.add_node("other", stop, program.add_node("judge", judge))
    with caplog.at_level(logging.WARNING, "agentkit"):
        status = run_program(program, engine=ThreadEngine())
    assert status["stop"] == "enough" and status["nodes"]["judge-0"]["state"] == "failed"
    told = [text for text in caplog.messages if "lost its work for the end" in text and "no parameters" in text]
    assert len(told) == finishes
