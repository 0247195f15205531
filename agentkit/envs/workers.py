"""Many environments in processes of their own, stepped together or whichever are ready first."""

from __future__ import annotations

import collections
import os
import pickle
import select
import sys
import time
import weakref
from collections.abc import Sequence
from typing import Any, final

import dm_env
import numpy as np

from agentkit.envs.batched import Batch, common_spec
from agentkit.envs.given import name_of
from agentkit.envs.members import Members
from agentkit.envs.shared_columns import SharedColumns, open_shared
from agentkit.envs.worker_handle import EnvironmentWorkerError as EnvironmentWorkerError
from agentkit.envs.worker_handle import WorkerHandle
from agentkit.envs.worker_process import RESET, STEP, Share
from agentkit.errors import CheckpointError, ConfigError
from agentkit.types import Nest

CLOSE_SECONDS = 5.0
"""How long the workers may take to end a step and to close theirs; then they are killed."""

_MAX_GROUPS = 256


def check_workers(environment: Any, num_envs: int | None, workers: int, ready: int | None) -> int:
    """Returns `num_envs`, if so many environments can be shared out to so many workers.

    Raises:
        ConfigError: it says which of the numbers is impossible, and why.
    """
    is_envpool = isinstance(environment, str) and environment.startswith("envpool:")
    if workers == 0 and is_envpool:
        check_ready(num_envs or 1, ready)
        return num_envs or 1
    if workers == 0:
        raise ConfigError(
            f"ready={ready}: acting for whoever is ready first is for environments in workers. Give --workers N, too."
        )
    if num_envs is None:
        raise ConfigError(f"workers={workers}: there is one environment only. Give --num-envs N, too.")
    if not 1 <= workers <= num_envs:
        raise ConfigError(
            f"workers: expected 1 to num_envs={num_envs}, found {workers}. Each worker has at least one of the "
            "environments of --num-envs N."
        )
    if is_envpool:
        raise ConfigError(f"workers: {environment} steps its environments in threads of its own. Leave --workers out.")
    if isinstance(environment, str) and environment.startswith("gymnasium_vector:"):
        raise ConfigError(f"workers: {environment} steps its environments itself. Leave --workers out.")
    check_ready(num_envs, ready)
    if ready is not None and -(-num_envs // workers) > _MAX_GROUPS:
        raise ConfigError(f"ready: expected at most {_MAX_GROUPS} environments for each worker. Raise --workers.")
    return num_envs


def check_ready(num_envs: int, ready: int | None) -> None:
    """Refuses to act for more environments at a time than can be ready before the last one is.

    Raises:
        ConfigError: `ready` is out of its range; None is in it.
    """
    if ready is None or 1 <= ready < num_envs:
        return
    if num_envs == 1:
        raise ConfigError(f"ready={ready}: there is one environment only. Give --num-envs N, too.")
    raise ConfigError(
        f"ready: expected 1 to {num_envs - 1} of num_envs={num_envs}, found {ready}. Without it, all are stepped "
        "together."
    )


@final
class WorkerBatchedEnvironment(Batch):
    """Runs N environments in worker processes, by the convention of `agentkit.envs.batched.BatchedEnvironment`.

    Worker w has about N / workers of them, in the order of their numbers, and steps them one after the other. Seeds,
    time steps and saved states are those of a `BatchedEnvironment` with the same arguments, bit for bit: a run may be
    resumed with another number of workers, or with none. Decision 73 says what gymnasium's AsyncVectorEnv lacks.

    With `ready` M, `async_reset`, `recv` and `send` serve the M environments that are ready first (EnvPool's names).
    Which these are depends on the machine: nothing then repeats, and nothing is saved (`resumable` is False).

    The processes are new interpreters, in which JAX, if an environment uses it, has the CPU only. They end with this
    process, however it ends. Time steps and actions are in memory that has no name, so that none is left behind.

    Args:
        members: makes the environments.
        num_envs: N.
        workers: processes, 1 to N.
        ready: M, 1 to N - 1; None for all N at each step.

    Raises:
        ConfigError: a number is impossible, or the environment cannot be sent to another process.
        EnvironmentWorkerError: an environment could not be made. Errors of agentkit's are raised as they are.
    """

    def __init__(self, members: Members, num_envs: int, workers: int, ready: int | None = None):
        if sys.platform == "win32":  # Not before: what was trained elsewhere is evaluated there, without workers.
            raise ConfigError("workers: environments in processes need Linux or macOS. Leave --workers out.")
        self._name = name_of(members.name)
        message = members.to_bytes()
        shares = [range(int(part[0]), int(part[-1]) + 1) for part in np.array_split(np.arange(num_envs), workers)]
        self.num_envs = num_envs
        self.num_ready = ready
        descriptor = open_shared()
        try:
            self._workers: list[WorkerHandle] = []
            self._finalizer = weakref.finalize(self, _kill, self._workers)
            for number, share in enumerate(shares):
                self._workers.append(WorkerHandle(number, share, descriptor))
            for worker, share in zip(self._workers, shares, strict=True):
                groups = (share,) if ready is None else tuple(range(i, i + 1) for i in share)
                worker.send(pickle.dumps(Share(message, groups, num_envs)))
            made = [worker.receive_ready() for worker in self._workers]
            self._spec = common_spec((share.start, other.spec) for share, other in zip(shares, made, strict=True))
            self._columns = SharedColumns(descriptor, self._spec, num_envs)
        except BaseException:
            self._finalizer()
            raise
        finally:
            os.close(descriptor)
        self.resumable = ready is None and all(other.resumable for other in made)
        self._has_raw_return = all(other.has_raw_return for other in made)
        self._worker_of = [worker for worker in self._workers for _ in worker.share]
        self._arrived: collections.deque[int] = collections.deque()
        self._poll = select.poll()
        self._by_descriptor = {worker.fileno(): worker for worker in self._workers}
        for number in self._by_descriptor:
            self._poll.register(number, select.POLLIN)

    @property
    def environments(self) -> list[Any]:
        """Returns what stands for each environment here: it has the attributes of that in the worker, to be read."""
        return [InWorker(self, i) for i in range(self.num_envs)]

    @property
    def process_ids(self) -> list[int]:
        """Returns the workers' process ids."""
        return [worker.process_id for worker in self._workers]

    def describe_wait(self) -> str:
        """Returns whose answer is waited for now, for messages; "" if nobody's."""
        return "; ".join(worker.describe() for worker in self._workers if worker.is_silent())

    def describe_silent(self, numbers: np.ndarray) -> str:
        """Returns which of these environments have not answered, with their workers' others; "" for none."""
        asked = set(numbers.tolist()) - set(self._arrived)
        silent = {self._worker_of[number] for number in asked if self._worker_of[number].is_silent()}
        return "; ".join(worker.describe() for worker in self._workers if worker in silent)

    def reset(self) -> dm_env.TimeStep:
        """Starts an episode in every environment."""
        return self._all(RESET)

    def step(self, actions: Nest) -> dm_env.TimeStep:
        """Takes actions, leaves ``[N, ...]``; elements that were LAST start an episode instead."""
        self._columns.write_actions(slice(None), actions)
        return self._all(STEP)

    def _all(self, request: bytes) -> dm_env.TimeStep:
        self._check_idle()
        for worker in self._workers:
            worker.request(request, range(1 if self.num_ready is None else len(worker.share)))
        for worker in self._workers:
            while worker.num_awaited:
                worker.receive_done()
        return self._columns.read_timestep(slice(None))

    def async_reset(self) -> None:
        """Asks every environment to start an episode; `recv` gives the first time steps.

        Raises:
            ConfigError: it was made without `ready`.
        """
        if self.num_ready is None:
            raise ConfigError("async_reset: expected environments made with ready=M. Use reset and step.")
        self._check_idle()
        for worker in self._workers:
            worker.request(RESET, range(len(worker.share)))

    def recv(self) -> tuple[np.ndarray, dm_env.TimeStep]:
        """Waits until M environments are ready; returns their numbers int64 ``[M]``, ascending, and time steps ``[M]``.

        They are those that were ready first, so that none is passed over for long. `send` must follow for each.
        """
        if self.num_ready is None:
            raise ConfigError("recv: expected environments made with ready=M. Use reset and step.")
        for worker in self._workers:
            for group in worker.take_unawaited_replies():
                self._arrived.append(worker.share.start + group)
        while len(self._arrived) < self.num_ready:
            for number, _ in self._poll.poll():
                worker = self._by_descriptor[number]
                self._arrived.append(worker.share.start + worker.receive_done())
        numbers = np.array(sorted(self._arrived.popleft() for _ in range(self.num_ready)))
        return numbers, self._columns.read_timestep(numbers)

    def send(self, actions: Nest, numbers: np.ndarray) -> None:
        """Lets environments take actions, leaves ``[M, ...]``; those that were LAST start an episode instead."""
        self._columns.write_actions(numbers, actions)
        for number in numbers.tolist():
            worker = self._worker_of[number]
            worker.request(STEP, (number - worker.share.start,))

    def _check_idle(self) -> None:
        broken = [
            worker.describe() for worker in self._workers if worker.num_awaited or worker.is_called or worker.has_failed
        ]
        if broken:
            raise EnvironmentWorkerError(
                f"An earlier step or reset of {'; '.join(broken)} has not ended well. Make the batch anew."
            )

    @property
    def info_columns(self) -> dict[str, np.ndarray]:
        """Returns the newest values of the info's columns, ``[N, ...]``; of whoever works, nothing can be said."""
        return self._columns.read_info()

    @property
    def raw_return(self) -> np.ndarray | None:
        """Returns what `BatchedEnvironment.raw_return` does; of whoever works, nothing can be said."""
        return self._columns.read_raw_return() if self._has_raw_return else None

    def reseed(self, seed: int) -> None:
        """Reseeds environment i with a seed made of (`seed`, i)."""
        self._call_all("reseed", [seed] * len(self._workers))

    def render(self) -> np.ndarray:
        """Returns the image of the first environment."""
        image: np.ndarray = self._workers[0].call("render")
        return image

    def get(self, number: int, name: str) -> Any:
        """Returns a copy of an attribute of an environment in its worker.

        Raises:
            AttributeError: it has none of this name, or a method.
            EnvironmentWorkerError: the value cannot be sent.
        """
        has_it, value = self._worker_of[number].call("get", number, name)
        if not has_it:
            raise AttributeError(
                f"Environment {number}, which is in a worker, has no attribute {name!r} that can be read here; its "
                "methods cannot be called."
            )
        return value

    def save(self) -> dict[str, Any]:
        """Returns the state of every environment, by its number, as `BatchedEnvironment.save` does.

        Raises:
            CheckpointError: if an environment cannot be saved.
        """
        if not self.resumable:
            raise CheckpointError(
                "The environments of this batch cannot be saved in mid-episode: they can only be repeated where each "
                "has reseed(seed), and all are stepped together (without ready)."
            )
        self._check_idle()
        states = self._call_all("save", None)
        return {number: state for each in states for number, state in each.items()}

    def restore(self, state: dict[str, Any]) -> dm_env.TimeStep | None:
        """Restores every environment.

        Returns:
            The current time step, or None if the batch was saved before its first reset.

        Raises:
            CheckpointError: if the state is of another number of environments or does not fit.
        """
        if set(state) != {str(i) for i in range(self.num_envs)}:
            raise CheckpointError(
                f"Expected the state of {self.num_envs} environments, found {sorted(state)}. "
                "Make the batch as when it was saved."
            )
        parts = [{str(i): state[str(i)] for i in worker.share} for worker in self._workers]
        in_episode = self._call_all("restore", parts)
        return self._columns.read_timestep(slice(None)) if all(in_episode) else None

    def _call_all(self, method: str, arguments: Sequence[Any] | None) -> list[Any]:
        """Calls a method of every worker, with an argument for each; they work at the same time."""
        for i, worker in enumerate(self._workers):
            worker.begin_call(method, () if arguments is None else (arguments[i],))
        return [worker.receive_value() for worker in self._workers]

    def close(self) -> None:
        """Lets the workers close their environments, and ends them. May be called twice.

        Each first ends the step that it is in; one that has been silent for `CLOSE_SECONDS` is killed.
        """
        if not self._finalizer.alive:
            return
        end = time.monotonic() + CLOSE_SECONDS
        ends = [end - worker.silent_seconds() for worker in self._workers]
        for worker in self._workers:
            worker.begin_close()
        for worker, end in zip(self._workers, ends, strict=True):
            worker.wait(max(end - time.monotonic(), 0.0))
        self._finalizer()


@final
class InWorker:
    """Stands for an environment that is in a worker: has its public attributes, to be read between two steps."""

    def __init__(self, batch: Any, number: int):
        """Takes the batch, or what stands for it and watches its `get`, and the environment's number in it."""
        self._batch = batch
        self._number = number

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return self._batch.get(self._number, name)


def _kill(workers: list[WorkerHandle]) -> None:
    for worker in workers:
        worker.kill()
