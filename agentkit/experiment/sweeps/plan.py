"""Describes a sweep as data: which settings, how many trials, and what makes one better than another."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

from agentkit.agents.common.ranges import Count, CountFromZero, check_ranges, whole
from agentkit.errors import ConfigError, unknown_name
from agentkit.experiment.config.experiment_config import ExperimentConfig
from agentkit.experiment.multi_agent.config import MultiAgentConfig
from agentkit.experiment.sweeps.seeds import check_seeds
from agentkit.experiment.sweeps.space import Choice, Interval, Parameters, Space, draw, grid

METHODS = ("grid", "random", "tpe")
METRICS = ("last", "best", "mean")
PRUNERS = ("median", "halving", "none")
PRUNING = ("pruner", "startup_trials", "prune_after")
"""Settings of "tpe", which alone gives up trials."""
MAX_GRID = 100_000


@dataclasses.dataclass(frozen=True)
class SweepPlan:
    """Describes a sweep for `run_sweep`.

    Attributes:
        space: the values to search, by the names of settings.
        make_experiment: makes the experiment of some settings; it has no run folder, and evaluates.
        method: "grid" tries every combination, "random" draws, "tpe" asks Optuna, which learns from earlier trials.
        num_trials: trials in all; None for a whole grid.
        seeds: of each trial, whose value is the mean over them.
        metric: of the evaluations' returns, the greater the better: the "last", the "best" or their "mean".
        return_of: the agent whose returns these are, of several agents; None for the sum of all.
        pruner: which trials of "tpe" are given up early: those below the "median" of the others at the same step, all
            but the best quarter at each of several "halving" rungs, or "none".
        startup_trials: of "tpe", before which Optuna draws at random and nothing is given up.
        prune_after: environment steps of a run before which nothing is given up.
        seed: what is drawn follows from it.
        on_device: whether all runs train together in one compiled program (`ExperimentConfig.on_device`), and so begin
            together; of "grid" and "random", and not of several agents, whose runs have a program each.
        key: describes all of this as plain values, to compare with what is in the folder.
    """

    space: Space
    make_experiment: Callable[[Parameters], ExperimentConfig | MultiAgentConfig]
    method: str = "random"
    num_trials: Count | None = None
    seeds: Sequence[int] = (0,)
    metric: str = "last"
    return_of: str | None = None
    pruner: str = "median"
    startup_trials: CountFromZero = 5
    prune_after: CountFromZero = 0
    seed: Annotated[int, whole("a whole number in [0, 2**31)", lambda value: 0 <= value < 2**31)] = 0
    on_device: bool = False
    key: dict[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuses what is impossible."""
        check_ranges(self)
        for name, known in (("method", METHODS), ("metric", METRICS), ("pruner", PRUNERS)):
            if getattr(self, name) not in known:
                raise unknown_name(name, str(getattr(self, name)), known)
        if not self.space:
            raise ConfigError("A sweep needs at least one setting to search.")
        for name, values in self.space.items():
            if not isinstance(values, Choice | Interval):
                raise ConfigError(f"Expected a Choice or an Interval to search, found {values!r}.")
            if self.method == "grid":
                _check_points(name, values)
        object.__setattr__(self, "seeds", tuple(check_seeds(self.seeds)))
        if self.on_device and self.method == "tpe":
            raise ConfigError(
                'method "tpe" with on_device (--on-device): trials of one compiled program begin together, and tpe '
                'learns from earlier ones. Take "grid" or "random".'
            )
        if self.method != "grid" and self.num_trials is None:
            raise ConfigError(f"trials is missing: how many does the method {self.method!r} try?")
        usual = {field.name: field.default for field in dataclasses.fields(self) if field.name in PRUNING}
        given = {name: getattr(self, name) for name in PRUNING}
        refuse_pruning(self.method, {name: value for name, value in given.items() if value != usual[name]})

    def total(self) -> int:
        """Returns the number of trials."""
        if self.method != "grid":
            return int(self.num_trials or 0)
        size = math.prod(len(values.points()) for values in self.space.values())
        if size > MAX_GRID:
            raise ConfigError(
                f"The grid has {size:,} points; at most {MAX_GRID:,} can be. Take fewer values, or random."
            )
        return size if self.num_trials is None else min(size, self.num_trials)

    def first_values(self) -> Parameters:
        """Returns the first value of each setting, or the least one of an interval."""
        return {
            name: values.values[0] if isinstance(values, Choice) else values.low for name, values in self.space.items()
        }

    def last_values(self) -> Parameters:
        """Returns the last value of each setting, or the greatest one of an interval."""
        return {
            name: values.values[-1] if isinstance(values, Choice) else values.high
            for name, values in self.space.items()
        }

    def trials(self) -> list[Parameters]:
        """Returns the settings of every trial, by number; of "grid" and "random", which know them before the first."""
        if self.method == "grid":
            return list(itertools.islice(grid(self.space), self.total()))
        return [draw(self.space, self.seed, number) for number in range(self.total())]


def refuse_pruning(method: str, settings: Mapping[str, Any]) -> None:
    """Raises ConfigError where some of `settings` say which trials to give up, and the method gives up none."""
    for name in PRUNING:
        if method in ("grid", "random") and settings.get(name, "none") != "none":
            raise ConfigError(
                f'{name} is of method "tpe", which alone gives up trials; found method "{method}". Leave {name} out.'
            )


def _check_points(name: str, values: Choice | Interval) -> None:
    try:
        values.points()
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from error
