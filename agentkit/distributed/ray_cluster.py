"""Imports Ray, which no other file does; connects to a private one or a cluster, and checks what it can hold."""

from __future__ import annotations

import contextlib
import logging
import os
import pathlib
import re
import secrets
import signal
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agentkit.errors import AgentkitError, ConfigError, missing_extra
from agentkit.scratch import make_scratch, remove_scratch

_OBJECT_STORE_BYTES = 256 << 20
_OLDEST = (2, 52)  # The first with a token: before it, any web page could run code on a Ray machine.


def import_ray() -> Any:
    """Imports the package, with the settings that it reads at that time.

    Raises:
        MissingExtraError: it is not installed.
        ConfigError: it is too old.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    # A node that asks for no GPU sees those there are, as on the other engines; Ray would hide them.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
        import ray.util.scheduling_strategies
    except ImportError as error:
        raise missing_extra("ray", "ray") from error
    if tuple(int(number) for number in re.findall(r"\d+", ray.__version__)[:2]) < _OLDEST:
        raise ConfigError(f"Ray {ray.__version__} has no authentication; expected 2.52 or newer: pip install -U ray.")
    return ray


class RayStartError(AgentkitError, RuntimeError):
    """Says that Ray could not be started on this machine."""


def start_private(ray: Any, namespace: str, num_cpus: int | None) -> pathlib.Path:
    """Starts a Ray of this process's own, with a token, whose servers listen on 127.0.0.1 alone.

    Args:
        ray: the package.
        namespace: where its named actors are.
        num_cpus: CPUs that it shares out; None where nobody asks for any.

    Returns:
        The folder that it keeps its files in, for `remove_scratch` after ``ray.shutdown()``.

    Raises:
        RayStartError: it did not come up.
    """
    if not _has_token():
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    os.environ["RAY_AUTH_MODE"] = "token"
    # As important as any other process, as on the other engines: Ray would give way to all (15), and next to a busy
    # program its nodes would take minutes to start.
    os.environ.setdefault("RAY_worker_niceness", "0")
    # A folder of its own: in /tmp/ray, other programs' address="auto" would find this Ray. A short path, as it
    # holds sockets, whose paths are limited; so not TMPDIR. The next one removes what kill -9 leaves behind.
    folder = make_scratch("ray", "/tmp" if os.path.isdir("/tmp") else None)
    try:
        with _own_sigterm_handler(), _on_loopback(ray):
            ray.init(
                address="local",
                num_cpus=1 if num_cpus is None else num_cpus,  # Ray starts as many processes in advance.
                object_store_memory=_OBJECT_STORE_BYTES,
                include_dashboard=False,
                namespace=namespace,
                log_to_driver=False,
                logging_level=logging.ERROR,
                _temp_dir=str(folder),
                _node_ip_address="127.0.0.1",
            )
    except BaseException as error:  # Too slow a start on a busy machine, or Ctrl-C meanwhile.
        ray.shutdown()
        remove_scratch(folder)
        if not isinstance(error, Exception):
            raise
        raise RayStartError(
            f"A Ray of this program's own did not start: {error} A machine without free cores or memory is too "
            "slow for it. Try again, or start one with 'ray start --head' and name its address (--ray-address)."
        ) from error
    return folder


_lock = threading.Lock()
_private_uses = 0
_private_folder: pathlib.Path | None = None


@contextlib.contextmanager
def join_or_start() -> Iterator[tuple[Any, bool]]:
    """Yields Ray, and whether it is private: what this process is part of already, or one that its users here share.

    Whoever leaves the private one last ends it.

    Raises:
        MissingExtraError: Ray is not installed.
        RayStartError: the private one did not come up.
    """
    global _private_uses, _private_folder
    ray = import_ray()
    with _lock:
        is_private = _private_uses > 0 or not ray.is_initialized()
        if is_private and not _private_uses:
            _private_folder = start_private(ray, f"agentkit-{secrets.token_hex(16)}", None)
        _private_uses += is_private
    try:
        yield ray, is_private
    finally:
        with _lock:
            _private_uses -= is_private
            if is_private and not _private_uses and _private_folder is not None:
                ray.shutdown()
                remove_scratch(_private_folder)


def connect(ray: Any, address: str, namespace: str) -> None:
    """Makes this process part of a cluster.

    Raises:
        ConfigError: nobody answers there, there is no token or a wrong one, or the versions differ.
    """
    if os.environ.setdefault("RAY_AUTH_MODE", "token") == "token" and not _has_token():
        raise ConfigError(
            "No Ray token found. Put the cluster's into RAY_AUTH_TOKEN, RAY_AUTH_TOKEN_PATH or ~/.ray/auth_token "
            "(`ray get-auth-token --generate` makes one). RAY_AUTH_MODE=disabled does without: then whoever "
            "reaches the cluster's ports runs code on its machines."
        )
    try:
        with _own_sigterm_handler():
            ray.init(address=address, namespace=namespace, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError, TimeoutError, ray.exceptions.RayError) as error:
        raise ConfigError(
            f"No connection to the Ray cluster at {address}: {first_line(error)} Expected: this machine is part "
            "of that cluster, both have the same Ray and Python, and the token here is the cluster's."
        ) from error


def check_same(ray: Any, address: str | None) -> None:
    """Refuses a cluster other than the one that this process is part of already."""
    current = ray.get_runtime_context().gcs_address
    if address != current:
        asked = "a private Ray" if address is None else address
        raise ConfigError(
            f"This process is connected to the Ray at {current} already, and {asked} was asked for. "
            f"Give address={current!r}, or call ray.shutdown() before."
        )


def check_address(address: str) -> None:
    """Refuses an address that is not explicit, and one where nobody listens (Ray would try for a minute)."""
    match = re.fullmatch(r"\[?([^\[\]/]+)\]?:(\d+)", address)
    if match is None:
        raise ConfigError(
            f"Expected the address of a Ray cluster's head as host:port, found {address!r}. 'auto' may join somebody "
            "else's cluster, and a ray:// client cannot host the run store: run this on a machine of the cluster."
        )
    try:
        socket.create_connection((match[1], int(match[2])), timeout=5.0).close()
    except (OSError, OverflowError) as error:
        raise ConfigError(f"No Ray cluster answers at {address}: {error}. Is its head running (ray start)?") from error


def check_fits(ray: Any, role: str, demand: Mapping[str, float], taken: Sequence[Mapping[str, float]]) -> None:
    """Refuses demands that no machine, or not all machines together, can meet: Ray would wait for ever.

    Args:
        ray: the package.
        role: whose node it is.
        demand: what it asks for, by resource.
        taken: what the program's other nodes hold.

    Raises:
        ConfigError: it says what was asked for and what there is.
    """
    machines = [machine["Resources"] for machine in ray.nodes() if machine["Alive"]]
    if not any(all(m.get(name, 0.0) >= amount for name, amount in demand.items()) for m in machines):
        raise ConfigError(
            f"No machine of the Ray cluster can hold a node of role {role!r}, which asks for {_say(demand)}. "
            f"The machines have: {'; '.join(sorted(map(_say, machines))) or 'none is alive'}. Ask for less in its "
            "Role, or start Ray with more (ray start --num-cpus, --num-gpus, --resources)."
        )
    for name, amount in demand.items():
        held = sum(other.get(name, 0.0) for other in taken)
        total = sum(machine.get(name, 0.0) for machine in machines)
        if held + amount > total:
            raise ConfigError(
                f"The Ray cluster has {name} {total:g} in all. This program's nodes hold {held:g} of them, and "
                f"one more of role {role!r} asks for {amount:g}. Launch fewer nodes, lower what their roles ask "
                "for, or add machines."
            )


def first_line(error: BaseException) -> str:
    """Returns the first line of an error's message; Ray's run over many."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _has_token() -> bool:
    if any(os.environ.get(name) for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")):
        return True
    return pathlib.Path("~/.ray/auth_token").expanduser().is_file()


@contextlib.contextmanager
def _on_loopback(ray: Any) -> Iterator[None]:
    """Lets Ray take 127.0.0.1 for this machine's address: its servers listen there alone then.

    On Linux it takes the address by which the machine reaches the internet instead, unless it is told that it runs
    no clusters, as it is by itself on macOS. The variable is for the processes that it starts, and for this one where
    it was not imported yet; the constant is for this one where it was (decision 90).
    """
    constants, variable = ray._private.ray_constants, "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
    before, set_before = constants.ENABLE_RAY_CLUSTER, os.environ.get(variable)
    constants.ENABLE_RAY_CLUSTER, os.environ[variable] = False, "0"
    try:
        yield
    finally:
        constants.ENABLE_RAY_CLUSTER = before
        if set_before is None:
            del os.environ[variable]
        else:
            os.environ[variable] = set_before


@contextlib.contextmanager
def _own_sigterm_handler() -> Iterator[None]:
    """Keeps this process's SIGTERM handler, which ray.init replaces."""
    previous = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, previous)


def _say(resources: Mapping[str, float]) -> str:
    own = ("node:", "accelerator", "memory", "object_store_memory")  # Ray's own, of no use here.
    kept = {name: amount for name, amount in resources.items() if not name.startswith(own)}
    return ", ".join(f"{name} {amount:g}" for name, amount in sorted(kept.items())) or "nothing"
