"""A sampler's process as a Ray actor, on whatever machine of the cluster."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from typing import Any, final

from agentkit.child import environment_of_child
from agentkit.distributed.ray_cluster import check_fits, first_line, join_or_start
from agentkit.experiment.evaluation.remote_sampler import SamplerProcessError, SamplingServer

_PLACE_SECONDS = 120.0
_END_SECONDS = 10.0


@final
class RayChannel:
    """Starts a Ray actor in which a `SamplingServer` answers.

    It is in the cluster that this process is part of (``ray.init``), where it takes a CPU; else in a private Ray on
    this machine, which the samplers of this process share, and whose last one ends it.

    Attributes:
        process_id: the actor's, on its machine.
    """

    def __init__(self) -> None:
        """Starts it.

        Raises:
            MissingExtraError: Ray is not installed.
            ConfigError: no machine of the cluster has a CPU for it.
            SamplerProcessError: none has become free, or it does not start.
        """
        self._stack = contextlib.ExitStack()
        try:
            self._ray, is_private = self._stack.enter_context(join_or_start())
            demand = {} if is_private else {"CPU": 1.0}
            check_fits(self._ray, "sampler", demand, [])
            self._actor = self._ray.remote(_Server).options(
                num_cpus=demand.get("CPU", 0.0), max_restarts=0, max_task_retries=0,
                runtime_env={"env_vars": {"JAX_PLATFORMS": environment_of_child()["JAX_PLATFORMS"]}},
            ).remote()  # fmt: skip
            self._stack.callback(self._ray.kill, self._actor, no_restart=True)
            begun = self._actor.begin.remote([path for path in sys.path if path])
            self.process_id: int = self._get(begun, _PLACE_SECONDS)
        except BaseException:
            self._stack.close()
            raise

    def ask(self, message: bytes) -> bytes:
        """Returns the answer; see `Channel`."""
        answer: bytes = self._get(self._actor.answer.remote(message))
        return answer

    def _get(self, reference: Any, timeout: float | None = None) -> Any:
        try:
            return self._ray.get(reference, timeout=timeout)
        except self._ray.exceptions.GetTimeoutError as error:
            raise SamplerProcessError(
                f"The sampler's Ray actor has not started within {timeout:g} s: no machine of the cluster has a free "
                "CPU for it, or none can import agentkit. Close other samplers, or add machines."
            ) from error
        except self._ray.exceptions.RayError as error:
            raise SamplerProcessError(
                f"The sampler's Ray actor has ended: {first_line(error)} Make the sampler anew."
            ) from error

    def close(self) -> None:
        """Ends the actor; see `Channel`. May be called twice."""
        with self._stack.pop_all(), contextlib.suppress(self._ray.exceptions.RayError):
            self._ray.get(self._actor.close.remote(), timeout=_END_SECONDS)


class _Server:
    """What runs in the actor's process."""

    def begin(self, search_path: Sequence[str]) -> int:
        sys.path.extend(path for path in search_path if path not in sys.path)
        self._server = SamplingServer()
        return os.getpid()

    def answer(self, message: bytes) -> bytes:
        return self._server.answer(message)

    def close(self) -> None:
        self._server.close()
