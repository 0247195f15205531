"""Prior data in every batch: symmetric sampling of RLPD (Ball et al. 2023, 2302.02948, section 4.1).

Half of each batch is drawn from data of others, half from the agent's own experience, for as long as the run lasts.
The data have a replay table of their own, which is filled before the first step and which nothing leaves; with
`Sequences` it is R2D3's second replay (Gulcehre et al. 2019, 1909.01387), whose demonstration ratio is `share`.

RLPD's other parts are settings of the agent: layer normalisation in the critics, an ensemble of them and many updates
per step, as in `redq` and `droq`.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Sequence
from typing import Any, final

from agentkit.agents.common.agent import Agent, Networks
from agentkit.agents.common.experience import Sequences, Transitions
from agentkit.core import Adder, BatchPlan
from agentkit.datasets import Episode
from agentkit.datasets.episode_files import lasting_path
from agentkit.datasets.episodes import as_episodes
from agentkit.errors import ConfigError
from agentkit.replay import MinSize, Replay, Table
from agentkit.specs import EnvironmentSpec
from agentkit.types import Nest

TABLE = "prior_data"

_NO_LIMIT = 2**31 - 1


def with_prior_data(
    agent: Agent[Networks], data: str | pathlib.Path | Sequence[Episode], share: float = 0.5
) -> Agent[Networks]:
    """Returns the agent with a share of each of its batches drawn from data.

    Batches stay as large, and updates as frequent: `min_replay_size` and `updates_per_step` count the agent's own
    steps. For runs in one process.

    Args:
        agent: one that draws transitions or sequences uniformly from replay.
        data: a file or folder for `datasets.read_episodes`, read where a run begins, or episodes with the agent's own
            actions. Observations are as the run's wrappers give them.
        share: of a batch, above 0 and below 1.

    Raises:
        ConfigError: the agent draws by priority or has no replay, or the share leaves one of the two without an item.
    """
    experience = agent.experience
    if not isinstance(experience, Transitions | Sequences):
        raise ConfigError(
            "Prior data need an agent that keeps transitions or sequences in replay, such as sac, dqn or r2d2; found "
            f"the experience {type(experience).__name__}."
        )
    config = experience.config
    if config.prioritized:
        raise ConfigError(
            "Prior data are drawn uniformly, and so are the agent's own steps beside them; found prioritized=True. "
            "Set prioritized=False."
        )
    num_prior = round(config.batch_size * share) if 0 < share < 1 else 0
    if not 0 < num_prior < config.batch_size:
        raise ConfigError(
            f"share must be above 0 and below 1, and a batch of {config.batch_size} items must have some of either "
            f"kind; found {share!r}."
        )
    kept = lasting_path("data", data) if isinstance(data, str | pathlib.Path) else tuple(as_episodes(data, "data"))
    smaller: Any = dataclasses.replace(config, batch_size=config.batch_size - num_prior)
    own = dataclasses.replace(experience, config=smaller)
    return dataclasses.replace(agent, experience=PriorData(own, kept, num_prior))


@final
@dataclasses.dataclass(frozen=True)
class PriorData:
    """Keeps an agent's experience in one table and data of others in a second one, and draws each batch from both.

    Attributes:
        experience: of the agent, with the batch size of its own steps.
        data: see `with_prior_data`.
        num_prior: items of a batch that are drawn from the data.
    """

    experience: Transitions | Sequences
    data: str | tuple[Episode, ...]
    num_prior: int

    @property
    def batch_plan(self) -> BatchPlan:
        """See `Experience`."""
        plan = self.experience.batch_plan
        return plan._replace(batch_size=plan.batch_size + self.num_prior, prior_table=TABLE, num_prior=self.num_prior)

    def with_num_envs(self, num_envs: int) -> PriorData:
        """See `Experience`."""
        return dataclasses.replace(self, experience=self.experience.with_num_envs(num_envs))

    def make_tables(self, environment_spec: EnvironmentSpec, extras_spec: Nest) -> list[Table]:
        """See `Experience`."""
        (own,) = self.experience.make_tables(environment_spec, extras_spec)
        return [own, Table(TABLE, own.layout, _NO_LIMIT, rate_limiter=MinSize(1))]

    def make_adder(
        self, replay: Replay, environment_spec: EnvironmentSpec, extras_spec: Nest, num_envs: int | None = None
    ) -> Adder:
        """See `Experience`; for the agent's own steps."""
        return self.experience.make_adder(replay, environment_spec, extras_spec, num_envs)

    def make_prior_adder(self, replay: Replay, environment_spec: EnvironmentSpec, extras_spec: Nest) -> Adder:
        """Makes the adder of the data."""
        experience = dataclasses.replace(self.experience, table=TABLE)
        return experience.make_adder(replay, environment_spec, extras_spec)
