"""Postprocessing: a function of yours changes whole episodes before an agent stores them."""

from __future__ import annotations

import dataclasses
from typing import final

from agentkit.actors.batches import SplitAdder
from agentkit.adders import Postprocess, PostprocessingAdder
from agentkit.agents.addons.prior_data import PriorData
from agentkit.agents.common.agent import Agent, Experience, Networks
from agentkit.agents.common.experience import Segments
from agentkit.agents.common.experience_wrappers import DroppingExtras, WithRateLimiter
from agentkit.core import Adder, BatchPlan
from agentkit.errors import ConfigError
from agentkit.replay import Replay, Table
from agentkit.specs import EnvironmentSpec
from agentkit.types import Nest


def with_postprocessing(agent: Agent[Networks], postprocess: Postprocess) -> Agent[Networks]:
    """Returns the agent with a function between acting and storing, which sees each episode as a whole.

    ``with_postprocessing(sac.make_agent(), lambda episode: episode._replace(reward=shape(episode)))``. It is RLlib's
    `postprocess_trajectory`. An episode is stored when it ends; other add-ons go around the agent before.

    Args:
        agent: of any kind of experience but segments of T rows, which are learned from before an episode ends.
        postprocess: from a `Trajectory` to the one that is stored, or to None, which leaves the episode out. The
            actors' processes call it, so it is to be a function of a module.

    Raises:
        ConfigError: the agent learns from segments that are no whole episodes, or has data of its own beside its steps.
    """
    _check(agent.experience)
    return dataclasses.replace(agent, experience=PostprocessedEpisodes(agent.experience, postprocess))


def _check(experience: Experience) -> None:
    if isinstance(experience, WithRateLimiter | DroppingExtras):
        _check(experience.experience)
    elif isinstance(experience, Segments) and not experience.completes_episodes:
        raise ConfigError(
            "Postprocessing waits for the end of an episode, and this agent learns from segments of T steps before. "
            'Set batch_mode="complete_episodes", or change the data in the update.'
        )
    elif isinstance(experience, PriorData) or getattr(experience, "scale_rewards", False):
        # A run looks for the two at the agent itself, to fill a table and to scale the rewards of a data set.
        raise ConfigError(
            "Postprocessing changes the steps that an agent acts out; found an agent that has prior data or scales the "
            "rewards of its data (iql). Change the data before, with numpy."
        )


@final
@dataclasses.dataclass(frozen=True)
class PostprocessedEpisodes:
    """Keeps what an agent's experience keeps, of episodes that a function has changed.

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
        return list(self.experience.make_tables(environment_spec, extras_spec))

    def make_adder(
        self, replay: Replay, environment_spec: EnvironmentSpec, extras_spec: Nest, num_envs: int | None = None
    ) -> Adder:
        """See `Experience`. Each environment has an adder of its own."""

        def make() -> PostprocessingAdder:
            adder = self.experience.make_adder(replay, environment_spec, extras_spec)
            return PostprocessingAdder(adder, environment_spec, self.postprocess, extras_spec)

        return make() if num_envs is None else SplitAdder([make() for _ in range(num_envs)])
