"""The devices that a learner shares its batches among, what to call them, and how many cores there are."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import final

import jax

from agentkit.counting import count_of
from agentkit.errors import ConfigError
from agentkit.learning.learner import Publisher
from agentkit.types import Nest


def learner_devices(num_devices: int | None) -> list[jax.Device] | None:
    """Returns this process's first `num_devices` JAX devices, for `Learner`; None for JAX's default device.

    Raises:
        ConfigError: there are fewer.
    """
    if num_devices is None:
        return None
    found = local_devices()
    if len(found) < num_devices:
        raise ConfigError(
            f"Expected at least devices={num_devices} JAX devices in this process, found {len(found)}: {found}. Lower "
            "devices, or on a CPU set XLA_FLAGS=--xla_force_host_platform_device_count."
        )
    return found[:num_devices]


def describe_devices(num_devices: int | None) -> str:
    """Returns a line on what a learner computes with: "CPU, 8 cores", "GPU (2 of 4): NVIDIA A100-SXM4-80GB".

    Args:
        num_devices: as for `learner_devices`.
    """
    found = local_devices()
    used = found[: num_devices or 1]
    number = "" if len(found) == 1 else f" ({len(used)} of {len(found)})"
    if used[0].platform != "cpu":
        return f"{used[0].platform.upper()}{number}: {used[0].device_kind}"
    cores = num_cores()
    return f"CPU{number}, {count_of(cores, 'core')}"


def local_devices() -> list[jax.Device]:
    """Returns `jax.local_devices()`, with which JAX begins.

    Raises:
        ConfigError: a platform that was asked for is not there.
    """
    try:
        return jax.local_devices()
    except (RuntimeError, AssertionError) as error:  # The latter of CUDA, with no word to it.
        platforms = os.environ.get("JAX_PLATFORMS")
        if not platforms:
            raise
        why = f" ({str(error).splitlines()[0]})" if str(error) else ""
        raise ConfigError(
            f"JAX cannot begin with JAX_PLATFORMS={platforms}{why}. Unset it, or install what it needs."
        ) from error


def num_cores() -> int:
    """Returns how many cores this process may use; those of the machine where the system (macOS) does not say."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@final
class FirstDevicePublisher:
    """Publishes the first device's copy of the parameters.

    Who acts in the learner's own process would else compute the same action on all devices.
    """

    def __init__(self, publisher: Publisher):
        """Takes the publisher to pass the copy on to."""
        self._publisher = publisher

    def publish(self, version: int, variables: Mapping[str, Nest]) -> None:
        """Makes the first device's copy of `variables` the newest."""
        self._publisher.publish(version, jax.tree.map(lambda leaf: leaf.addressable_data(0), dict(variables)))


_SMALL_STATE = 100_000


def choose_dispatch(state: Nest) -> None:
    """Starts JAX so that small updates on a CPU run in the thread that asks for them; must be its first use.

    Waking another thread costs about 50 us, as much as acting with a small network, and the next action
    needs the result at once. Measured a step of DQN, 64x64 units: 360 us instead of 410; with
    updates_per_call=8, 240 instead of 340. A SAC of 256x256 units gains 10 % by the opposite: there the
    environment steps while the update runs. Without effect where the process has used JAX before.

    Args:
        state: shapes of the training state.

    Raises:
        ConfigError: see `local_devices`.
    """
    size = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(state))
    jax.config.update("jax_cpu_enable_async_dispatch", size > _SMALL_STATE)
    local_devices()
