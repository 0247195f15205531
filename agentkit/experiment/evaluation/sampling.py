"""Samples steps or episodes of a policy, as arrays, without a learner: `agentkit.sample`, `agentkit.Sampler`."""

from __future__ import annotations

import dataclasses
import inspect
import pathlib
from collections.abc import Collection
from typing import Any, Literal, Self, final, get_args

import numpy as np

from agentkit.errors import (
    ConfigError,
    SaysWhatWasMeant,
    accepts_old_words,
    our_name,
    says_what_was_meant,
    unknown_name,
)
from agentkit.experiment.config.experiment_config import ExperimentConfig
from agentkit.experiment.evaluation.remote_sampler import Channel, RemoteSampler
from agentkit.experiment.evaluation.samples import Samples
from agentkit.experiment.evaluation.sampling_worker import SamplingWorker, Travelling, find_acting
from agentkit.experiment.policies.loaded_policy import LoadedPolicy
from agentkit.types import Nest

Where = Literal["here", "process", "ray"]

_FIELDS = (
    "agent", "columns", "data", "devices", "environment", "environment_settings", "evaluation_max_steps",
    "evaluation_period", "num_envs", "on_device", "on_nan", "ready", "replay", "seed", "workers", "wrappers",
)  # fmt: skip
"""Of `ExperimentConfig`: what samples depend on, or what the experiment of a run must be made again with."""


@final
class Sampler(metaclass=SaysWhatWasMeant):
    """Keeps a policy and its environments, and gives steps or episodes of it at each call. A context manager.

    ``with Sampler(experiment, num_envs=8, where="process") as sampler: samples = sampler.sample(num_steps=2_000)``

    In processes of their own several samplers play at the same time, each asked by a thread:
    ``list(ThreadPoolExecutor().map(lambda sampler: sampler.sample(num_steps=500), samplers))``, with a `seed` each.
    """

    def __init__(
        self,
        source: str | pathlib.Path | LoadedPolicy | ExperimentConfig,
        *,
        num_envs: int | None = None,
        where: Where = "here",
        seed: int = 0,
        explore: bool = False,
        checkpoint: str | int = "newest",
        environment: Any = None,
        **options: Any,
    ):
        """Makes the environments.

        Args:
            source: a run folder; a policy of `agentkit.load`, or its file; or an experiment: that of its run folder's
                checkpoint, or without a run folder the policy that its training would begin with.
            num_envs: environments that step together; None for one.
            where: "here", in this process; "process", in one of its own; or "ray", in a Ray actor, of the cluster that
                this process is part of (``ray.init``), or else of a private Ray on this machine. Each gives the same.
            seed: of the environments and of what the policy draws.
            explore: whether to act as in training (samples of a stochastic policy, exploration), in the environment
                as it is in training; else as in evaluation (the mode). A policy that is handed in acts as it was
                loaded.
            checkpoint: of a run: "newest", "best", or a step that has one.
            environment: to play in, with the run's wrappers around it; None for the run's. A policy of a file needs
                one.
            **options: fields of `ExperimentConfig` to replace that samples depend on, such as `environment_settings` or
                `wrappers`; for a folder `imports`, too: see `experiment.read_config`.

        Raises:
            ConfigError: no run folder, or one that cannot be rebuilt; no environment; a checkpoint of what has none;
                a field that no sample depends on.
            CheckpointError: the run has no readable checkpoint.
            SpecError: the environment is not one that the policy was made for.
            MissingExtraError: Ray is not installed.
        """
        if where not in get_args(Where):
            raise unknown_name("place of a sampler", str(where), get_args(Where))
        _check_settings(options)
        if environment is not None:
            options["environment"] = environment
        settings: dict[str, Any] = {"num_envs": num_envs, "seed": seed, "explore": explore}
        self._worker: SamplingWorker | RemoteSampler
        if where == "here":
            self._worker = SamplingWorker(find_acting(source, checkpoint, explore, options), **settings)
            return
        sent: Any = source
        if isinstance(source, LoadedPolicy):
            acting = find_acting(source, checkpoint, explore, options)
            sent, options = Travelling(acting.experiment, source.arrays, source.explore, source.num_steps), {}
        self._worker = RemoteSampler(_make_channel(where), sent, checkpoint, options, **settings)

    def sample(self, *, num_steps: int | None = None, num_episodes: int | None = None) -> Samples:
        """Returns steps or episodes that the policy plays.

        Args:
            num_steps: N steps, exactly. They go on where those of the call before have ended, in mid-episode, too:
                `Samples.t` goes on, and `Samples.episode` counts from 0 in each call. Or
            num_episodes: N whole episodes, all of which begin in this call. Of several environments each plays its
                share, so that none is favoured for being short. One is cut off, as truncated, after
                `evaluation_max_steps`, which is a warning.

        Raises:
            ConfigError: not exactly one of `num_steps` and `num_episodes`, or no whole number of them.
        """
        _check_number(num_steps, num_episodes)
        return self._worker.sample(num_steps, num_episodes)

    def set_parameters(self, parameters: Nest | LoadedPolicy) -> None:
        """Lets the policy act with other parameters from the next call on.

        Args:
            parameters: what a learner publishes as "policy", or a policy of an equal agent, whose parameters are taken.

        Raises:
            SpecError: they have another structure, shape or dtype than those before.
        """
        self._worker.set_parameters(parameters.arrays if isinstance(parameters, LoadedPolicy) else parameters)

    def close(self) -> None:
        """Closes the environments, and ends a process of its own."""
        self._worker.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


@accepts_old_words(steps="num_steps", episodes="num_episodes")
@says_what_was_meant
def sample(
    source: str | pathlib.Path | LoadedPolicy | ExperimentConfig,
    *,
    num_steps: int | None = None,
    num_episodes: int | None = None,
    **settings: Any,
) -> Samples:
    """Returns steps or episodes that a policy plays; the same call gives the same arrays.

    It is one call of a `Sampler`, which keeps its environments.

    Args:
        source: a run folder, a policy, its file, or an experiment: see `Sampler`.
        num_steps: N steps, exactly; or
        num_episodes: N whole episodes: see `Sampler.sample`.
        **settings: of the `Sampler`: `num_envs`, `seed`, `explore`, `checkpoint`, `environment`, and fields of
            `ExperimentConfig` to replace.

    Raises:
        ConfigError: not exactly one of `num_steps` and `num_episodes`, or no whole number of them; no run folder, or
            one that cannot be rebuilt; no environment.
        CheckpointError: the run has no readable checkpoint.
        SpecError: the environment is not one that the policy was made for.
    """
    _check_settings(settings)
    _check_number(num_steps, num_episodes)
    with Sampler(source, **settings) as sampler:
        return sampler.sample(num_steps=num_steps, num_episodes=num_episodes)


def _make_channel(where: Where) -> Channel:
    if where == "process":
        from agentkit.experiment.evaluation.sampler_process import ProcessChannel

        return ProcessChannel()
    from agentkit.experiment.evaluation.sampler_ray import RayChannel

    return RayChannel()


def _check_settings(settings: Collection[str]) -> None:
    """Refuses names of no use to a `Sampler`, before numbers that are missing for them."""
    known = {*inspect.signature(Sampler).parameters, "num_steps", "num_episodes", "imports"} - {"source", "options"}
    known |= set(_FIELDS)
    unused = {field.name for field in dataclasses.fields(ExperimentConfig)} - {"run_directory"}
    for name in sorted(set(settings) - known):
        if (ours := our_name(name, known)) is not None:
            raise ConfigError(f"{name}: agentkit.sample calls it {ours!r}.")
        if name in unused:
            raise ConfigError(
                f"{name}: agentkit.sample has no use for it. Leave it out; of an experiment's fields it takes: "
                f"{', '.join(_FIELDS)}."
            )
        raise unknown_name("argument of agentkit.sample", name, known)


def _check_number(num_steps: int | None, num_episodes: int | None) -> None:
    if (num_steps is None) == (num_episodes is None):
        raise ConfigError(f"Expected either num_steps=N or num_episodes=N, found {num_steps=} and {num_episodes=}.")
    number = num_steps if num_episodes is None else num_episodes
    if isinstance(number, bool) or not isinstance(number, int | np.integer) or number < 1:
        what = "steps" if num_episodes is None else "episodes"
        raise ConfigError(f"Expected a whole number of {what}, found {number!r}.")
