import pytest

from agentkit.distributed import Handle, Program, RestartPolicy, Role
from agentkit.distributed.program import resolve
from agentkit.errors import ConfigError, UnknownNameError

pytestmark = pytest.mark.both_stacks


def target(context, *args, **kwargs):
    pass


def make():
    program = Program("test")
    program.add_role(Role("a"))
    program.add_role(Role("b"))
    return program


def test_nodes_are_numbered_within_their_role_and_know_what_they_depend_on():
    program = make()
    first = program.add_node("a", target)
    second = program.add_node("a", target, 1, other=[{"deep": (first,)}])
    third = program.add_node("b", target, first, second)
    assert [first.node, second.node, third.node] == ["a-0", "a-1", "b-0"]
    assert program.nodes["a-0"].dependencies() == set()
    assert program.nodes["a-1"].dependencies() == {"a-0"}
    assert program.nodes["b-0"].dependencies() == {"a-0", "a-1"}


def test_handles_become_endpoints_wherever_they_are():
    value = [Handle("x"), {"k": (Handle("y"), 3)}, "Handle"]
    assert resolve(value, lambda name: name.upper()) == ["X", {"k": ("Y", 3)}, "Handle"]


def test_what_does_not_fit_is_refused():
    program = make()
    with pytest.raises(ConfigError, match="role 'a' already"):
        program.add_role(Role("a"))
    with pytest.raises(UnknownNameError, match="role 'aa'"):
        program.add_node("aa", target)
    with pytest.raises(UnknownNameError, match="stranger-0"):
        program.add_node("a", target, Handle("stranger-0"))


def test_the_delay_before_a_restart_doubles_up_to_its_limit():
    policy = RestartPolicy(first_delay_seconds=0.5, max_delay_seconds=3.0)
    assert [policy.delay(n) for n in (0, 1, 2, 3, 50)] == [0.5, 1.0, 2.0, 3.0, 3.0]
    with pytest.raises(ConfigError, match="max_restarts must not be negative"):
        RestartPolicy(max_restarts=-1)
