"""A process that was forked too late says so, where it would hang."""

import os

import pytest

from agentkit import child
from agentkit.child import check_not_forked
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
