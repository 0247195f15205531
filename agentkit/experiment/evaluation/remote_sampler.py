"""A sampler's worker that is elsewhere, as its owner asks it, and what answers there."""

from __future__ import annotations

import pickle
import traceback
from typing import Any, Protocol, final

import cloudpickle
import jax
import numpy as np

from agentkit.errors import AgentkitError
from agentkit.experiment.evaluation.samples import Samples
from agentkit.experiment.evaluation.sampling_worker import SamplingWorker, find_acting
from agentkit.types import Nest


@final
class SamplerProcessError(AgentkitError, RuntimeError):
    """Says that a sampler's process has ended, or what was raised in it."""


class Channel(Protocol):
    """Declares the way to a process in which a `SamplingServer` answers."""

    def ask(self, message: bytes) -> bytes:
        """Returns the answer.

        Raises:
            SamplerProcessError: the process has ended.
        """
        ...

    def close(self) -> None:
        """Ends the process, which closes its environments first if it can within seconds."""
        ...


@final
class RemoteSampler:
    """Asks a `SamplingWorker` at the other end of a channel.

    Attributes:
        channel: the way there; closed with this.
    """

    def __init__(self, channel: Channel, source: Any, checkpoint: str | int, options: dict[str, Any], **settings: Any):
        """Lets the worker make its environments; the other arguments are those of `sampling.Sampler`."""
        self.channel = channel
        try:
            self._ask(cloudpickle.dumps((source, checkpoint, options, settings)))
        except BaseException:
            self.close()
            raise

    def sample(self, num_steps: int | None = None, num_episodes: int | None = None) -> Samples:
        """See `sampling.Sampler.sample`."""
        found: Samples = self._ask(pickle.dumps(("sample", (num_steps, num_episodes))))
        return found

    def set_parameters(self, parameters: Nest) -> None:
        """See `sampling.Sampler.set_parameters`."""
        self._ask(pickle.dumps(("set_parameters", (jax.tree.map(np.asarray, parameters),))))

    def _ask(self, message: bytes) -> Any:
        is_error, value = pickle.loads(self.channel.ask(message))
        if is_error:
            raise value
        return value

    def close(self) -> None:
        """Closes the channel."""
        self.channel.close()


@final
class SamplingServer:
    """Makes a worker of the first message of a `RemoteSampler`, and lets it do what the others say."""

    def __init__(self) -> None:
        self._worker: SamplingWorker | None = None

    def answer(self, message: bytes) -> bytes:
        """Returns what was asked for, or the error."""
        try:
            if self._worker is None:
                source, checkpoint, options, settings = pickle.loads(message)
                acting = find_acting(source, checkpoint, settings["explore"], options)
                self._worker, value = SamplingWorker(acting, **settings), None
            else:
                method, arguments = pickle.loads(message)
                value = getattr(self._worker, method)(*arguments)
        except Exception as error:
            return pickle.dumps((True, _as_sent(error)))
        return pickle.dumps((False, value))

    def close(self) -> None:
        """Closes the worker's environments."""
        if self._worker is not None:
            self._worker.close()


def _as_sent(error: Exception) -> Exception:
    """Returns an error as the owner raises it: agentkit's as it is, another with its traceback as text."""
    try:
        if isinstance(error, AgentkitError) and type(pickle.loads(pickle.dumps(error))) is type(error):
            return error
    except Exception:  # Whatever its class raises.
        pass
    found = SamplerProcessError(f"The sampler's process raised {type(error).__name__}: {error}")
    found.add_note("In the process:\n" + "".join(traceback.format_exception(error)))
    return found
