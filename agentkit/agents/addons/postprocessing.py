"""Postprocessing: a function of yours changes whole episodes, or steps of segments, before an agent stores them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, cast, final

import numpy as np

from agentkit import specs
from agentkit.actors.batches import SplitAdder
from agentkit.adders import Postprocess, PostprocessingAdder, PostprocessingWriter, Trajectory, with_columns
from agentkit.agents.addons.prior_data import PriorData
from agentkit.agents.common.agent import Agent, Experience, Networks
from agentkit.agents.common.experience import Segments
from agentkit.agents.common.experience_wrappers import DroppingExtras, WithRateLimiter
from agentkit.core import Adder, BatchPlan
from agentkit.envs.columns import IDS, stored_as
from agentkit.errors import ConfigError
from agentkit.replay import Replay, Table
from agentkit.specs import EnvironmentSpec
from agentkit.types import Nest


def with_postprocessing(
    agent: Agent[Networks], postprocess: Postprocess, columns: Mapping[str, Any] | None = None
) -> Agent[Networks]:
    """Returns the agent with a function between acting and storing, which sees each episode as a whole.

    ``with_postprocessing(sac.make_agent(), lambda episode: episode._replace(reward=shape(episode)))``. It is RLlib's
    `postprocess_trajectory`. An episode is stored when it ends. Agents that learn from segments of T rows do not wait
    for that: the function sees the steps of an episode that are in a segment, and returns as many. Other add-ons go
    around the agent before.

    Args:
        agent: of any kind of experience.
        postprocess: from a `Trajectory` to the one that is stored, or to None, which leaves the episode out. The
            actors' processes call it, so it is to be a function of a module.
        columns: what `postprocess` adds to each step, by name, with a value of its shape and dtype for one step:
            ``{"return_to_go": 0.0}``. It returns ``episode.with_columns(return_to_go=...)``, and the loss finds them
            where it finds those of `ExperimentConfig.columns`.

    Raises:
        ConfigError: the agent has data of its own beside its steps, or views of segments; or a column is no number and
            no array of numbers.
    """
    if columns:
        postprocess = AddsColumns(postprocess, tuple(_declare(name, value) for name, value in columns.items()))
    _cuts_episodes(agent.experience)
    return dataclasses.replace(agent, experience=PostprocessedEpisodes(agent.experience, postprocess))


class Column(NamedTuple):
    """Declares a column of one step: its name, dtype and shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]


def _declare(name: str, value: Any) -> Column:
    """Returns the declaration of a column by one of its values."""
    array = np.asarray(value)
    if array.dtype.kind not in "biuf" or name in IDS or name.startswith("info."):
        raise ConfigError(
            f"columns: expected a name other than those of ExperimentConfig.columns and a number or an array of "
            f'numbers, such as {{"return_to_go": 0.0}}, found {name!r}: {value!r:.80}.'
        )
    spec = stored_as(name, array)
    return Column(name, spec.dtype.name, spec.shape)


@final
@dataclasses.dataclass(frozen=True)
class AddsColumns:
    """Holds a function of steps with what it adds to them, as a value that can be compared, pickled and named."""

    postprocess: Postprocess
    columns: tuple[Column, ...]

    def __call__(self, trajectory: Trajectory) -> Trajectory | None:
        """Returns what the function returns."""
        return self.postprocess(trajectory)


def _added(postprocess: Postprocess) -> dict[str, specs.Array]:
    """Returns the specs of the columns that a function adds."""
    columns = postprocess.columns if isinstance(postprocess, AddsColumns) else ()
    return {name: specs.Array(shape, dtype, name) for name, dtype, shape in columns}


def _cuts_episodes(experience: Experience) -> bool:
    """Returns whether episodes are stored in segments of T rows; refuses what cannot be postprocessed."""
    if isinstance(experience, WithRateLimiter | DroppingExtras):
        return _cuts_episodes(experience.experience)
    if isinstance(experience, PriorData) or getattr(experience, "scale_rewards", False):
        # A run looks for the two at the agent itself, to fill a table and to scale the rewards of a data set.
        raise ConfigError(
            "Postprocessing changes the steps that an agent acts out; found an agent that has prior data or scales the "
            "rewards of its data (iql). Change the data before, with numpy."
        )
    if not isinstance(experience, Segments) or experience.completes_episodes:
        return False
    if experience.reach is not None:
        raise ConfigError(
            "Postprocessing changes a segment when it is whole, found views, which show steps of the segment before, "
            "too. Leave with_views out, or change the data in the update."
        )
    return True


@final
@dataclasses.dataclass(frozen=True)
class PostprocessedEpisodes:
    """Keeps what an agent's experience keeps, of episodes, or their steps in a segment, that a function has changed.

    Attributes:
        experience: of the agent.
        postprocess: the function.
    """

    experience: Experience
    postprocess: Postprocess

    @property
    def batch_plan(self) -> BatchPlan:
        """See `Experience`."""
        return self.experience.batch_plan

    def with_num_envs(self, num_envs: int) -> PostprocessedEpisodes:
        """See `Experience`."""
        return dataclasses.replace(self, experience=self.experience.with_num_envs(num_envs))

    def make_tables(self, environment_spec: EnvironmentSpec, extras_spec: Nest) -> list[Table]:
        """See `Experience`."""
        stored = with_columns(extras_spec, _added(self.postprocess))
        return list(self.experience.make_tables(environment_spec, stored))

    def make_adder(
        self, replay: Replay, environment_spec: EnvironmentSpec, extras_spec: Nest, num_envs: int | None = None
    ) -> Adder:
        """See `Experience`. Whole episodes take an adder for each environment; segments are changed when written."""
        columns, inner = _added(self.postprocess), self.experience

        def make() -> PostprocessingAdder:
            adder = inner.make_adder(replay, environment_spec, with_columns(extras_spec, columns))
            return PostprocessingAdder(adder, environment_spec, self.postprocess, extras_spec, columns)

        def writer(history: int) -> PostprocessingWriter:
            written = replay.writer(history)
            return PostprocessingWriter(written, environment_spec, self.postprocess, extras_spec, columns)

        if _cuts_episodes(inner):
            return inner.make_adder(cast(Replay, _Writers(writer)), environment_spec, extras_spec, num_envs)
        return make() if num_envs is None else SplitAdder([make() for _ in range(num_envs)])


class _Writers(NamedTuple):
    """Stands for a replay where an adder is made, which asks it for a writer and nothing else."""

    writer: Callable[[int], PostprocessingWriter]
