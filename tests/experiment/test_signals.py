"""Which signal asks a training to stop, and which one stops it at once."""

import os
import signal
import threading
from types import SimpleNamespace

import pytest

from agentkit import child
from agentkit.experiment.training import signals
from agentkit.experiment.training.signals import StopOnSignal

pytestmark = pytest.mark.both_stacks


def stops_at_once(number):
    try:
        signal.raise_signal(number)
    except KeyboardInterrupt:
        return True
    return False


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_first_signal_after_a_stop_that_others_asked_for_is_a_first_one(number):
    """A callback's, or the run store's: the last checkpoint is being written then."""
    asked = threading.Event()
    with StopOnSignal(asked) as stop:
        asked.set()
        assert stop.requested and not stop.signalled
        assert not stops_at_once(number)
        assert stop.signalled


def test_a_signals_echo_is_no_second_one(monkeypatch):
    with StopOnSignal() as stop:
        assert not any(map(stops_at_once, (signal.SIGTERM, signal.SIGTERM, signal.SIGINT)))
        assert stop.requested
        monkeypatch.setattr(signals, "ECHO_SECONDS", 0.0)  # As if as much time had passed.
        assert stops_at_once(signal.SIGTERM)


def test_a_closed_terminals_signals_and_one_more_stop_nothing_at_once(monkeypatch):
    monkeypatch.setattr(signals, "ECHO_SECONDS", 0.0)
    with StopOnSignal():
        assert not any(map(stops_at_once, (signal.SIGHUP, signal.SIGHUP, signal.SIGTERM)))
        assert stops_at_once(signal.SIGTERM)


def test_a_closed_terminals_echo_is_the_one_that_it_may_send(monkeypatch):
    with StopOnSignal():
        assert not any(map(stops_at_once, (signal.SIGHUP, signal.SIGTERM)))  # At once, within the real ECHO_SECONDS.
        monkeypatch.setattr(signals, "ECHO_SECONDS", 0.0)  # As if as much time had passed.
        assert stops_at_once(signal.SIGTERM)


def test_a_job_saves_though_its_parent_passes_the_signal_on_that_it_had_itself(monkeypatch):
    """As systemd and Slurm signal all processes of a service."""
    monkeypatch.setattr(signals, "ECHO_SECONDS", 0.0)
    monkeypatch.setattr(child, "_dying", None)
    system = SimpleNamespace(prctl=lambda *given: 0)  # This process goes on without the one before it.
    monkeypatch.setattr(child.ctypes, "CDLL", lambda name: system)
    child.die_with(os.getppid())
    with StopOnSignal() as stop:
        assert not any(map(stops_at_once, (signal.SIGTERM, signal.SIGTERM, signal.SIGINT)))
        assert stop.requested
