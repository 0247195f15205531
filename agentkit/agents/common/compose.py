"""Makes an agent of the functions that a hand-written loop calls for its parts."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any, final

from agentkit.actors.batches import SplitAdder
from agentkit.agents.common.agent import Agent
from agentkit.core import Actor, ActorParts, Adder, BatchPlan, Learner, LearnerParts, Saveable
from agentkit.errors import ConfigError, SpecError, says_what_was_meant
from agentkit.replay import Replay, Table
from agentkit.specs import EnvironmentSpec
from agentkit.types import Nest

MakeTables = Callable[[EnvironmentSpec], Sequence[Table]]
"""``environment_spec -> replay tables``."""

MakeAdder = Callable[[Replay, EnvironmentSpec], Adder]
"""``(replay, environment_spec) -> adder`` of one environment, with a writer of its own."""


@final
@dataclasses.dataclass(frozen=True)
class OwnExperience:
    """Keeps experience by a user's own functions; see `Experience`.

    Attributes:
        batch_plan: how the learner draws its data.
        tables: makes the replay tables.
        adder: makes the adder of one environment.
    """

    batch_plan: BatchPlan
    tables: MakeTables
    adder: MakeAdder

    def with_num_envs(self, num_envs: int) -> OwnExperience:
        """Returns itself: each environment has an adder of its own."""
        del num_envs
        return self

    def make_tables(self, environment_spec: EnvironmentSpec, extras_spec: Nest) -> Sequence[Table]:
        """Returns the tables.

        Raises:
            ConfigError: a run asks for columns, for which there is no place in them; or none has the plan's name.
            SpecError: they are no list of tables.
        """
        if extras_spec != ():
            raise ConfigError(
                "columns: make_tables of your own knows nothing of them. Leave columns out, or give the agent an "
                "experience of agentkit.agents, such as Transitions."
            )
        found = self.tables(environment_spec)
        tables = list(found) if isinstance(found, Iterable) else []
        if not tables or not all(isinstance(table, Table) for table in tables):
            raise SpecError(
                f"make_tables: expected a list of tables of it, found {found!r:.80}. Return [replay.Table(...)]."
            )
        names = [table.name for table in tables]
        if self.batch_plan.table not in names:
            raise ConfigError(
                f"batch_plan: expected one of make_tables' names {names}, found {self.batch_plan.table!r}."
            )
        return tables

    def make_adder(
        self, replay: Replay, environment_spec: EnvironmentSpec, extras_spec: Nest, num_envs: int | None = None
    ) -> Adder:
        """Makes an adder, or one of each environment.

        Raises:
            SpecError: it is none, or one that a checkpoint cannot hold.
        """
        del extras_spec

        def make() -> Adder:
            adder = self.adder(replay, environment_spec)
            if not isinstance(adder, Adder) or not isinstance(adder, Saveable):
                raise SpecError(
                    f"make_adder: expected a core.Adder with save and restore, as all of agentkit.adders are, found "
                    f"{adder!r:.80}."
                )
            return adder

        return make() if num_envs is None else SplitAdder([make() for _ in range(num_envs)])


@says_what_was_meant
def compose(
    *,
    make_actor: Callable[[ActorParts], Actor],
    make_learner: Callable[[LearnerParts], Learner],
    make_tables: MakeTables,
    make_adder: MakeAdder,
    batch_plan: BatchPlan,
    config: Any = None,
) -> Agent[Any]:
    """Returns the agent of these parts, which `agentkit.run` and `agentkit.launch` take as any other.

    At the top of a module, the functions can be named in a run's folder, which then knows its agent again.

    Args:
        make_actor: makes what acts; see `core.ActorParts`.
        make_learner: makes what learns; see `core.LearnerParts`.
        make_tables: ``environment_spec -> replay tables``.
        make_adder: ``(replay, environment_spec) -> adder`` of one environment, with a writer of its own; of an
            environment of N, each has one.
        batch_plan: which table the learner draws from, and how many items.
        config: settings, for the run's config.json; the functions do not get them.
    """
    return Agent(
        config, OwnExperience(batch_plan, make_tables, make_adder), make_actor=make_actor, make_learner=make_learner
    )
