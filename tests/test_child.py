"""A process that was forked too late says so, where it would hang; a signal is heard wherever it comes."""

import os
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest

import agentkit
from agentkit import child
from agentkit.actors.compiled import compiled
from agentkit.agents import dqn
from agentkit.child import check_not_forked, set_by_signals
from agentkit.envs.jax.catch import Catch
from agentkit.envs.jax.dm_environment import DmEnvironment
from agentkit.errors import ConfigError
from agentkit.experiment import ExperimentConfig
from agentkit.experiment.policies.agent_parts import make_parts
from tests.experiment.deploy.policies import policy_of


def forked(function):
    """What a function raises in a forked process."""
    reader, writer = os.pipe()
    if (pid := os.fork()) == 0:
        try:
            function()
        except BaseException as error:
            os.write(writer, f"{type(error).__name__}: {error}".encode())
        finally:
            os._exit(0)
    os.close(writer)
    os.waitpid(pid, 0)
    with os.fdopen(reader) as pipe:
        return pipe.read()


@pytest.mark.filterwarnings("ignore:os.fork")
def test_a_process_forked_after_the_first_use_is_refused_and_one_from_before_is_not(monkeypatch):
    monkeypatch.setattr(child, "_used_by", None)
    assert forked(check_not_forked) == ""
    check_not_forked()
    assert forked(check_not_forked).startswith(
        f"{ConfigError.__name__}: "
    ) and f"forked from process {os.getpid()}, which had used JAX" in forked(check_not_forked)
    check_not_forked()


def test_all_that_uses_jax_refuses_a_forked_process(monkeypatch):
    """Each by itself, since each may be the first that such a process does."""
    make_policy = lambda: policy_of("dqn", "agentkit:catch", hidden_sizes=(2,))  # noqa: E731
    policy, agent = make_policy(), dqn.make_agent()
    monkeypatch.setattr(child, "_used_by", -1)
    for use in (
        lambda: agentkit.run(ExperimentConfig(agent, "agentkit:catch", 1)),
        lambda: make_parts(agent, policy.environment_spec),
        lambda: compiled(policy.pure_policy),
        make_policy,
        lambda: policy(np.zeros(policy.observation_spec.shape, np.float32)),
        lambda: DmEnvironment(Catch()),
    ):
        with pytest.raises(ConfigError, match="was forked from process -1, which had used JAX"):
            use()


def test_a_handler_sets_an_event_whose_lock_the_code_that_it_interrupts_holds():
    event = threading.Event()
    with set_by_signals(event) as set_event:
        with event._cond:  # As `Event.wait` does for a moment: here `event.set()` would wait for ever.
            set_event()
        assert event.wait(10.0)


SENDER = "import os, random, sys, time\nfor _ in sys.stdin: time.sleep(random.random() / 1_000); os.kill(PID, SIGNAL)"


@pytest.mark.full
def test_a_signal_is_heard_in_whatever_line_of_a_wait_it_comes():
    code = SENDER.replace("PID", str(os.getpid())).replace("SIGNAL", str(int(signal.SIGUSR1)))
    previous = signal.getsignal(signal.SIGUSR1)
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, text=True, bufsize=1) as sender:
        try:
            for _ in range(5_000):
                event = threading.Event()
                with set_by_signals(event) as set_event:
                    signal.signal(signal.SIGUSR1, lambda *_, heard=set_event: heard())
                    assert sender.stdin is not None
                    sender.stdin.write("once\n")
                    while not event.wait(1e-5):
                        pass
        finally:
            signal.signal(signal.SIGUSR1, previous)
            assert sender.stdin is not None
            sender.stdin.close()
