"""HER: hindsight experience replay (Andrychowicz et al. 2017, 1707.01495), for agents that learn from transitions."""

from __future__ import annotations

import dataclasses
from typing import final

from agentkit.actors.batches import SplitAdder
from agentkit.adders import Hindsight, HindsightAdder
from agentkit.agents.addons.postprocessing import PostprocessedEpisodes
from agentkit.agents.common.agent import Agent, Experience, Networks
from agentkit.agents.common.experience import Transitions
from agentkit.agents.common.experience_wrappers import DroppingExtras, WithRateLimiter
from agentkit.core import Adder, BatchPlan
from agentkit.errors import ConfigError
from agentkit.replay import Replay, Table
from agentkit.specs import EnvironmentSpec
from agentkit.types import Nest


def with_her(agent: Agent[Networks], hindsight: Hindsight) -> Agent[Networks]:
    """Returns the agent with hindsight: it learns from each step also as if other goals had been asked for.

    Its actors' steps become 1 + k items each, at the end of the episode. An agent's `updates_per_step` counts items,
    so 1 / (1 + k) of it is one update for a step.

    Args:
        agent: one that keeps `Transitions`, with ``n_step=1``.
        hindsight: which other goals, and what they make of a step.

    Raises:
        ConfigError: the agent sums several rewards, or keeps anything else than transitions as they are.
    """
    check_single_steps(agent, "Hindsight relabels")
    return dataclasses.replace(agent, experience=_with_hindsight(agent.experience, hindsight, agent.config.discount))


def _with_hindsight(experience: Experience, hindsight: Hindsight, discount: float) -> Experience:
    if isinstance(experience, WithRateLimiter | DroppingExtras):
        inside = _with_hindsight(experience.experience, hindsight, discount)
        return dataclasses.replace(experience, experience=inside)
    found = type(experience).__name__
    advice = "Take such an agent, without other add-ons that keep experience; one of your own goes around this one."
    if isinstance(experience, PostprocessedEpisodes):
        advice = "Write with_postprocessing(with_her(agent, hindsight), postprocess)."
    elif isinstance(experience, Transitions) and experience.reach is not None:
        found, advice = f"{found} with views", "Leave with_views out."
    elif isinstance(experience, Transitions) and experience.scale_rewards:
        found = f"{found} with scale_rewards=True"
        advice = "Set scale_rewards=False, which changes nothing but for data sets."
    elif isinstance(experience, Transitions):
        return HindsightTransitions(experience, hindsight, discount)
    raise ConfigError(
        "Hindsight writes an agent's steps by an adder of its own: expected one that keeps transitions as they are, as "
        f"DQN and SAC do, found {found}. {advice}"
    )


@final
@dataclasses.dataclass(frozen=True)
class HindsightTransitions:
    """Keeps one-step `Transition`s, each also with goals that its episode achieved later.

    Attributes:
        experience: of the agent, whose table holds the items.
        hindsight: which other goals, and what they make of a step.
        discount: gamma.
    """

    experience: Transitions
    hindsight: Hindsight
    discount: float

    @property
    def batch_plan(self) -> BatchPlan:
        """See `Experience`."""
        return self.experience.batch_plan

    def with_num_envs(self, num_envs: int) -> HindsightTransitions:
        """See `Experience`."""
        return dataclasses.replace(self, experience=self.experience.with_num_envs(num_envs))

    def make_tables(self, environment_spec: EnvironmentSpec, extras_spec: Nest) -> list[Table]:
        """See `Experience`."""
        layout = HindsightAdder.layout(environment_spec, extras_spec)
        (table,) = self.experience.make_tables(environment_spec, extras_spec)
        return [dataclasses.replace(table, layout=layout)]

    def make_adder(
        self, replay: Replay, environment_spec: EnvironmentSpec, extras_spec: Nest, num_envs: int | None = None
    ) -> Adder:
        """See `Experience`."""

        def make(number: int = 0) -> HindsightAdder:
            return HindsightAdder(
                replay.writer(HindsightAdder.history()),
                environment_spec,
                tables=self.batch_plan.table,
                discount=self.discount,
                hindsight=self.hindsight,
                extras_spec=extras_spec,
                compares_rewards=number == 0,  # Else many environments would warn as often.
            )

        return make() if num_envs is None else SplitAdder([make(number) for number in range(num_envs)])


def check_single_steps(agent: Agent[Networks], what: str) -> None:
    """Refuses an agent that sums several rewards.

    Raises:
        ConfigError: `what` is the beginning of its message.
    """
    n_step = getattr(agent.config, "n_step", 1)
    if n_step != 1:
        raise ConfigError(f"{what} single steps: expected an agent with n_step=1, found {n_step}. Set n_step=1.")
