"""A process that was forked too late says so, where it would hang; a signal is heard wherever it comes."""

import os
import signal
import subprocess
import sys
import threading

import pytest

from agentkit import child
from agentkit.child import check_not_forked, set_by_signals
from agentkit.errors import ConfigError


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
