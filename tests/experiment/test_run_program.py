"""`run_program`: what a program of one's own is told at its end."""

import logging

import pytest

from agentkit.distributed import Program, ProgramError, RestartPolicy, Role
from agentkit.distributed.threads import ThreadEngine
from agentkit.experiment import run_program
from agentkit.experiment.launching.run import check_saved

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


def be_seen_ready(context):
    context.ready()
    while context.store.status()["nodes"][context.name]["state"] != "ready":
        context.wait(0.02)


def die_once(context, was_ready):
    if was_ready or context.incarnation:
        be_seen_ready(context)
    if context.incarnation == 0:
        raise TimeoutError("no parameters")


def stop_meanwhile(context, state):
    context.ready()
    while context.store.status()["nodes"]["learner-0"]["state"] != state:
        context.wait(0.02)
    context.store.command("stop", reason="stopped by SIGINT")


@pytest.mark.parametrize(("was_ready", "state"), [(True, "restarting"), (False, "restarting"), (True, "done")])
def test_a_stop_while_the_learner_is_to_be_started_again_is_not_said_to_have_saved(was_ready, state):
    """One that was never ready has nothing to save, and one that came back has saved."""
    program = Program("test")
    slow = RestartPolicy(first_delay_seconds=60.0 if state == "restarting" else 0.0)
    program.add_role(Role("learner", stop_order=1, finishes=True, restart=slow))
    program.add_role(Role("other"))
    program.add_node("learner", die_once, was_ready)
    program.add_node("other", stop_meanwhile, state)
    status = run_program(program, engine=ThreadEngine())
    assert status["stop"] == "stopped by SIGINT"
    if was_ready and state == "restarting":
        with pytest.raises(ProgramError, match=r"its last checkpoint was not written: .*no parameters"):
            check_saved(status)
    else:
        check_saved(status)


def start_slowly(context):
    if context.incarnation == 0:
        be_seen_ready(context)
        raise TimeoutError("no parameters")
    context.wait(60.0)


def test_nor_is_one_while_it_starts():
    """Such a one is killed: it owns nothing yet, but the one before it did."""
    program = Program("test")
    program.add_role(Role("learner", stop_order=1, finishes=True, restart=RestartPolicy(first_delay_seconds=0.0)))
    program.add_role(Role("other"))
    program.add_node("learner", start_slowly)
    program.add_node("other", stop_restarted)
    with pytest.raises(ProgramError, match=r"its last checkpoint was not written: .*no parameters"):
        check_saved(run_program(program, engine=ThreadEngine()))


def stop_restarted(context):
    context.ready()
    while (node := context.store.status()["nodes"]["learner-0"])["state"] != "starting" or not node["restarts"]:
        context.wait(0.02)
    context.store.command("stop", reason="stopped by SIGINT")
