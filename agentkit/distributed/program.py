"""A program as data: nodes, grouped by role, and the edges between them. It knows nothing about RL.

    program = Program("counting")
    program.add_role(Role("server", stop_order=1))
    program.add_role(Role("worker"))
    server = program.add_node("server", serve)           # a Handle
    for _ in range(4):
        program.add_node("worker", work, server)         # an edge: the handle is passed on

A node's function is called as ``target(context, *args, **kwargs)`` in a process of its own, with each
handle replaced by what that node gave to `NodeContext.ready`. Whoever runs it is an engine's business.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from agentkit.errors import ConfigError, unknown_name

ONE_CORE: Mapping[str, str] = {
    "JAX_PLATFORMS": "cpu",
    "NPROC": "1",  # jaxlib's name for its number of threads
    "OMP_NUM_THREADS": "1",
    "TF_NUM_INTRAOP_THREADS": "1",
    "TF_NUM_INTEROP_THREADS": "1",
}
"""Environment variables of a process that is to take one core and no accelerator.

Processes that each take all cores slow each other many times over.
"""


@dataclasses.dataclass(frozen=True)
class RestartPolicy:
    """Says when a node that died is started again.

    Attributes:
        max_restarts: of one node within `window_seconds`; one more stops the whole program. 0: none.
        window_seconds: how long a restart counts.
        first_delay_seconds: wait before a restart; doubles with each restart that still counts.
        max_delay_seconds: the longest wait.
        max_in_vain: restarts in a row, however far apart, after which the node came no further (it was not ready, or
            counted nothing more); one more stops the program. A node that others killed (SIGKILL) is not counted.
    """

    max_restarts: int = 20
    window_seconds: float = 600.0
    first_delay_seconds: float = 0.5
    max_delay_seconds: float = 15.0
    max_in_vain: int = 5

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if not getattr(self, field.name) >= 0:
                raise ConfigError(f"{field.name} must not be negative, found {getattr(self, field.name)}.")

    def delay(self, num_recent: int) -> float:
        """Returns the seconds to wait before a restart that `num_recent` others precede."""
        return min(self.first_delay_seconds * 2.0 ** min(num_recent, 30), self.max_delay_seconds)


@dataclasses.dataclass(frozen=True)
class Role:
    """Says which needs the nodes of one kind have, and how they are looked after.

    Attributes:
        name: e.g. "actor".
        restart: when a node that died is started again.
        stop_order: at the end, roles of a lower number stop first.
        stop_seconds: how long a node may take to save and stop before it is killed.
        finishes: its nodes have work to do at the end, such as a last checkpoint or evaluation. Where a node has asked
            for the program's stop, those that are not ready yet are waited for, with all that they depend on still
            there.
        heartbeat_seconds: a node that is not heard of for this long is killed and restarted, unless its process is seen
            to work.
        held_seconds: so is a ready one that works and is not heard of for this long: a call holds its interpreter.
        idle_seconds: so is one whose main loop has not called `NodeContext.heartbeat` for this long.
        start_seconds: how long a node may take to be ready, once those it depends on are.
        num_cpus: cores to reserve, where the engine can.
        num_gpus: accelerators to reserve, where the engine can.
        resources: other amounts to reserve by name (Ray's custom resources).
        environment: variables of its processes.
        preload: modules that its processes import while they wait for the nodes they depend on.
    """

    name: str
    restart: RestartPolicy = RestartPolicy()
    stop_order: int = 0
    stop_seconds: float = 20.0
    finishes: bool = False
    heartbeat_seconds: float = 20.0
    held_seconds: float = 300.0
    idle_seconds: float = 300.0
    start_seconds: float = 120.0
    num_cpus: float = 1.0
    num_gpus: float = 0.0
    resources: Mapping[str, float] = dataclasses.field(default_factory=dict)
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    preload: tuple[str, ...] = ()


class Handle(NamedTuple):
    """Refers to the node whose endpoint is wanted: an edge of the program."""

    node: str


@dataclasses.dataclass(frozen=True)
class Node:
    """Holds one function to run, with its arguments.

    Attributes:
        name: unique in its program, e.g. "actor-3"; also of its log file.
        role: a role's name.
        index: number of this node within its role, from 0.
        target: ``(context, *args, **kwargs) -> None``.
        args: positional arguments; handles in them are resolved.
        kwargs: keyword arguments; likewise.
    """

    name: str
    role: str
    index: int
    target: Callable[..., None]
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def dependencies(self) -> set[str]:
        """Returns the names of the nodes that must be ready first."""
        return {handle.node for handle in _handles((*self.args, *self.kwargs.values()))}


class Program:
    """Describes roles and nodes. Building a program runs nothing."""

    def __init__(self, name: str, roles: Iterable[Role] = ()):
        """Makes a `Program` without nodes; `name` is for people."""
        self.name = name
        self.roles: dict[str, Role] = {}
        self.nodes: dict[str, Node] = {}
        for role in roles:
            self.add_role(role)

    def add_role(self, role: Role) -> None:
        """Adds a role; its nodes come after.

        Raises:
            ConfigError: the name is taken.
        """
        if role.name in self.roles:
            raise ConfigError(f"The program has a role {role.name!r} already. Give the new one another name.")
        self.roles[role.name] = role

    def add_node(self, role: str, target: Callable[..., None], *args: Any, **kwargs: Any) -> Handle:
        """Adds a node.

        Args:
            role: the name of a role that was added.
            target: ``(context, *args, **kwargs) -> None``, run in a process of its own.
            *args: arguments; handles among them (in tuples, lists and dicts too) become endpoints.
            **kwargs: likewise.

        Returns:
            The node's handle, for nodes that are added later.

        Raises:
            UnknownNameError: no such role, or a handle of another program.
        """
        if role not in self.roles:
            raise unknown_name("role", role, self.roles)
        index = sum(node.role == role for node in self.nodes.values())
        node = Node(f"{role}-{index}", role, index, target, args, kwargs)
        for name in node.dependencies():
            if name not in self.nodes:  # So a program has no cycles.
                raise unknown_name("node", name, self.nodes)
        self.nodes[node.name] = node
        return Handle(node.name)


def resolve(value: Any, endpoint: Callable[[str], Any]) -> Any:
    """Returns `value` with each handle in its tuples, lists and dicts replaced by ``endpoint(name)``."""
    if isinstance(value, Handle):
        return endpoint(value.node)
    if type(value) in (tuple, list):
        return type(value)(resolve(child, endpoint) for child in value)
    if type(value) is dict:
        return {key: resolve(child, endpoint) for key, child in value.items()}
    return value


def _handles(values: Iterable[Any]) -> Iterator[Handle]:
    for value in values:
        if isinstance(value, Handle):
            yield value
        elif type(value) in (tuple, list):
            yield from _handles(value)
        elif type(value) is dict:
            yield from _handles(value.values())
