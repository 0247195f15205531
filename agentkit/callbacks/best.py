"""Keeps the best policy of a run in its folder, and reads it back.

``RUN/best`` holds one checkpoint (see `agentkit.checkpoint`) of the parameters that were evaluated. The folder itself
is the memory: a killed run that goes on finds its best there, whenever its last checkpoint was written.
"""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, final

import numpy as np

from agentkit import checkpoint, nests
from agentkit.callbacks.base import Callback, Episode, RunView, Stop, check_evaluates, has
from agentkit.errors import CheckpointError, ConfigError, unknown_name
from agentkit.files import allowing_no_locks, open_lock

try:
    import fcntl
except ImportError:  # Windows, where there is one evaluator, in the one process.
    _HAS_LOCKS = False
else:
    _HAS_LOCKS = True

FOLDER = "best"

_SURE = 5
"""Episodes that say how good a policy is, where nobody has said how many to play."""


Score = Callable[[Sequence[Mapping[str, Any]]], float]
"""From the records of an evaluation's episodes to a number; more is better."""


class Rank(NamedTuple):
    """Orders evaluations: of two, one of too few episodes is behind, whatever its score.

    Attributes:
        is_sure: whether the score is of as many episodes as were asked for.
        score: more is better.
    """

    is_sure: bool
    score: float


class Evaluated(NamedTuple):
    """Holds an evaluation: its number of episodes, its score, and of a function's score the episodes' records."""

    episodes: int
    score: float
    records: list[dict[str, float]]


METRICS = ("episode_return", "episode_return_min", "episode_return_max", "episode_length", "evaluation_episodes")
"""What an evaluation has where no callback adds more."""


def _may_add(callback: Callback) -> bool:
    """Returns whether a callback may add metrics to an evaluation: one that sees its episodes, or somebody's own."""
    own = not type(callback).__module__.startswith("agentkit.")
    return has(callback, "on_evaluation_episode") or (own and has(callback, "on_evaluation"))


@final
@dataclasses.dataclass
class KeepBest(Callback):
    """Keeps the policy of the best evaluation; see `keep_best`."""

    score: str | Score = "episode_return"
    min_episodes: int | None = None
    best: Rank | None = dataclasses.field(default=None, init=False)
    _episodes: list[dict[str, float]] = dataclasses.field(default_factory=list, init=False, repr=False)
    _least: int = dataclasses.field(default=1, init=False, repr=False)
    _recent: list[Evaluated] = dataclasses.field(default_factory=list, init=False, repr=False)
    _restored: bool = dataclasses.field(default=False, init=False, repr=False)

    def __post_init__(self) -> None:
        """Refuses a score that is none."""
        if not isinstance(self.score, str) and not callable(self.score):
            raise ConfigError(f"keep_best: expected the name of a metric or a function as score, found {self.score!r}.")
        number = self.min_episodes
        if number is not None and (isinstance(number, bool) or not isinstance(number, int) or number < 1):
            raise ConfigError(f"keep_best: expected min_episodes of at least 1, found {number!r}.")

    def check(self, experiment: Any) -> None:
        """Refuses an experiment without run folder or evaluations, and a score that none of these will have."""
        check_evaluates(experiment, "keep_best")
        others = [each for each in experiment.callbacks if each is not self]
        if isinstance(self.score, str) and self.score not in METRICS and not any(map(_may_add, others)):
            raise unknown_name("metric of an evaluation", self.score, METRICS)
        if experiment.run_directory is None:
            raise ConfigError("keep_best keeps the policy in the run folder: give the experiment a run_directory.")

    def on_start(self, run: RunView, environment: Any) -> Stop | None:
        """Finds the best so far, and forgets another run that it was given to."""
        assert run.run_directory is not None, "check has seen it"
        if not self._restored:
            self._recent = []
        self._restored, self._episodes = False, []
        try:
            self.best = self._rank_in(run.run_directory)
        except CheckpointError:
            self.best = None  # The look before it is written decides.
        asked = (getattr(run.experiment, name, None) for name in ("evaluation_period", "evaluation_episodes"))
        self._least = self.min_episodes or (1 if any(number is not None for number in asked) else _SURE)
        return None

    def on_evaluation_episode(self, run: RunView, episode: Episode) -> Stop | None:
        """Keeps the numbers of its record, where a function is to judge them."""
        if callable(self.score):
            if episode.record.get("episodes") == 1:  # Each evaluation counts its own: the one before was broken off.
                self._episodes = []
            numbers = {key: value for key, value in episode.record.items() if _is_number(value)}
            # As JSON has them, which keeps a launched program's states.
            self._episodes.append({k: v.item() if isinstance(v, np.number) else v for k, v in numbers.items()})
        return None

    def on_evaluation(self, run: RunView, record: dict[str, Any]) -> Stop | None:
        """Writes the policy, if this is the best evaluation. A disk that refuses it is a warning."""
        rank = self._judge(record)
        if np.isnan(rank.score) or not (self.best is None or rank > self.best):
            return None
        assert run.run_directory is not None, "check has seen it"
        directory = run.run_directory / FOLDER
        try:
            with _locked(directory):  # Several evaluators of a launched program take turns here.
                found = self._rank_in(run.run_directory)
                if found is None or rank > found:
                    checkpoint.write(directory, run.steps, _state(run, record, rank, self._name), max_to_keep=1)
                    self.best = rank
                else:
                    self.best = found
        except (CheckpointError, OSError) as error:
            warnings.warn(
                f"{error} The best policy is not kept; training goes on.", checkpoint.CheckpointWarning, stacklevel=2
            )
        return None

    def save(self) -> dict[str, Any]:
        """Returns the newest evaluations, over which the score is taken, and its name."""
        recent = {
            str(number): {
                "episodes": each.episodes,
                "score": each.score,
                "records": {str(i): row for i, row in enumerate(each.records)},
            }
            for number, each in enumerate(self._recent)
        }
        return {"score_name": self._name, "recent": recent}

    def restore(self, state: dict[str, Any]) -> None:
        """Restores the state that `save` returned, but for evaluations by another score, which a resume may ask for.

        A checkpoint of before scores had a name has the evaluations alone, and one of before that has none.
        """
        recent = state
        if "score_name" in state:
            recent = state.get("recent", {}) if state["score_name"] == self._name else {}
        self._recent = [
            Evaluated(int(each["episodes"]), float(each["score"]), list(each["records"].values()))
            for each in recent.values()
        ]
        self._restored = True

    @property
    def _name(self) -> str:
        score: Any = getattr(self.score, "func", self.score)  # Of a partial.
        return score if isinstance(score, str) else f"{score.__module__}:{getattr(score, '__qualname__', 'score')}"

    def _judge(self, record: Mapping[str, Any]) -> Rank:
        """Returns the evaluation's own score, or that of the newest ones together, whichever is less."""
        if isinstance(self.score, str):
            if self.score not in record:
                raise unknown_name("metric of an evaluation", self.score, [key for key in record if key != "steps"])
            new = Evaluated(int(record.get("evaluation_episodes", self._least)), float(record[self.score]), [])
        else:
            played = self._episodes[: record.get("evaluation_episodes", len(self._episodes))]
            new = Evaluated(len(played), float(self.score(played)), played)
        self._episodes = []
        if np.isnan(new.score):
            return Rank(False, new.score)
        self._recent.append(new)
        while sum(each.episodes for each in self._recent[1:]) >= self._least:
            del self._recent[0]
        number = sum(each.episodes for each in self._recent)
        if isinstance(self.score, str):
            score = sum(each.score * each.episodes for each in self._recent) / max(number, 1)
        else:
            score = float(self.score([row for each in self._recent for row in each.records]))
        return Rank(number >= self._least, min(score, new.score))

    def _rank_in(self, run_directory: pathlib.Path) -> Rank | None:
        """Returns the rank of what is kept in a run folder; None where that is nothing, damaged or of another score.

        Raises:
            CheckpointError: it may be whole, and the disk does not answer just now.
        """
        try:
            found = read_best(run_directory)
        except CheckpointError as error:
            if isinstance(error.__cause__, OSError):
                raise
            warnings.warn(f"{error} The best policy is kept anew.", checkpoint.CheckpointWarning, stacklevel=2)
            return None
        return None if found is None or _name(found) != self._name else _rank(found)


def keep_best(score: str | Score = "episode_return", min_episodes: int | None = None) -> KeepBest:
    """Keeps the policy of the evaluation with the highest score in ``RUN/best``, which a kill leaves whole.

    `agentkit.load(run, checkpoint="best")` and ``agentkit evaluate RUN --checkpoint best`` read it. Of equal scores
    the first stays.

    Args:
        score: a column of the evaluations' log, such as "episode_return" (the mean of its episodes) or
            "episode_return_min"; or a function of the records of an evaluation's episodes, each with
            ``episode_return``, ``episode_length`` and what callbacks add, whose value does not grow with their number,
            such as a mean. More is better.
        min_episodes: an evaluation of fewer episodes may be lucky. So it counts as no better than with those just
            before it, as many as have so many episodes in all; and what is kept gives way to the first with enough.
            None for 5, or for 1 where the run says how often or how long it evaluates.

    Raises:
        ConfigError: the score is no such thing, or `min_episodes` is below 1.
    """
    return KeepBest(score, min_episodes)


def read_best(run_directory: str | pathlib.Path) -> checkpoint.Checkpoint | None:
    """Returns what `keep_best` has kept in a run folder; None if there is nothing.

    ``state["best"]`` has ``policy``, the parameters by path, and ``evaluation``, the record. After a kill there may be
    two: the better one is meant.

    Raises:
        CheckpointError: everything there is damaged.
    """
    found = checkpoint.read_all(pathlib.Path(run_directory) / FOLDER)
    return max(found, key=_rank, default=None)


def _rank(found: checkpoint.Checkpoint) -> Rank:
    best = found.state["best"]
    if "score" not in best:  # Of before there were others.
        return Rank(True, float(best["evaluation"]["episode_return"]))
    return Rank(bool(best["is_sure"]), float(best["score"]))


def _name(found: checkpoint.Checkpoint) -> str:
    return str(found.state["best"].get("score_name", "episode_return"))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.number) and not isinstance(value, bool)


def _state(run: RunView, record: dict[str, Any], rank: Rank, name: str) -> dict[str, Any]:
    params = nests.flatten_to_paths(run.get_params())
    best = {
        "score": rank.score,
        "is_sure": rank.is_sure,
        "score_name": name,
        "num_updates": int(run.updates),
        "evaluation": {name: value for name, value in record.items() if isinstance(value, int | float)},
        "policy": {path: np.array(leaf) for path, leaf in params.items()},
    }
    if run.experiment.agent.make_learner is not None:  # Else the agent's update says what its parameters look like.
        best["structure"] = checkpoint.structure_of(run.get_params())
    return {"experiment": run.experiment.describe(), "best": best}


@contextlib.contextmanager
def _locked(directory: pathlib.Path) -> Iterator[None]:
    directory.mkdir(exist_ok=True)  # No new run folder in the place of one that was removed.
    with open_lock(directory / ".lock") as file:
        if _HAS_LOCKS:
            with allowing_no_locks():
                fcntl.flock(file, fcntl.LOCK_EX)
        yield
