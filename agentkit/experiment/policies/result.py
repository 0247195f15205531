"""Holds how a run ended, and its policies."""

from __future__ import annotations

import dataclasses
from typing import Any

from agentkit.counting import count_of
from agentkit.errors import ConfigError
from agentkit.experiment.policies.loaded_policy import OTHER_WORDS_TO_ACT, LoadedPolicy
from agentkit.experiment.policies.loading import Policies


@dataclasses.dataclass(frozen=True)
class Result:
    """Holds how a run ended.

    Attributes:
        steps: environment steps in all, earlier runs of a resumed one included; updates, of a run from data alone.
        updates: learner updates in all.
        evaluations: the record of each evaluation of this run (``steps``, ``episode_return``, ...).
        interrupted: True if it stopped before `num_steps`, and no callback has stopped it.
        stopped_by: the reason that a callback gave, where one stopped it; else None.
        policies: where `policy` and `best_policy` come from.
    """

    steps: int
    updates: int
    evaluations: list[dict[str, float]]
    interrupted: bool
    stopped_by: str | None = None
    policies: Policies | None = dataclasses.field(default=None, repr=False, compare=False)

    def __repr__(self) -> str:
        """Returns the counts and the last evaluation: a notebook shows this."""
        parts = [f"steps={self.steps:_}", f"updates={self.updates:_}"]
        if self.evaluations:
            last = self.evaluations[-1]["episode_return"]
            parts.append(f"{count_of(len(self.evaluations), 'evaluation')}, the last with return {last:.1f}")
        parts += ["interrupted=True"] * self.interrupted
        parts += [] if self.stopped_by is None else [f"stopped_by={self.stopped_by!r}"]
        return f"{type(self).__name__}({', '.join(parts)})"

    def __getattr__(self, name: str) -> Any:
        """Says that what a policy can do is asked of `policy`."""
        if name in OTHER_WORDS_TO_ACT or (not name.startswith("_") and hasattr(LoadedPolicy, name)):
            ours = "select_action" if name in OTHER_WORDS_TO_ACT else name
            raise AttributeError(f"A Result has no {name!r}; its policy acts. Give: result.policy.{ours}(...)")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    @property
    def policy(self) -> LoadedPolicy:
        """Returns the newest policy, as `agentkit.load` does; made when it is first asked for.

        Raises:
            ConfigError: the run was launched without a run folder, and its parameters are gone with the learner; or the
                result was pickled.
        """
        return self._policies().newest

    @property
    def best_policy(self) -> LoadedPolicy:
        """Returns the policy that `callbacks.keep_best` has kept in the run folder.

        Raises:
            ConfigError: it was not among the callbacks.
        """
        return self._policies().best

    def _policies(self) -> Policies:
        if self.policies is None:
            raise ConfigError(
                "This result was pickled or copied, and has no policy. Take agentkit.load(the run folder), or return "
                "result.policy beside it, which can be pickled."
            )
        return self.policies

    def __getstate__(self) -> dict[str, Any]:
        """Returns what is pickled: counts and evaluations, without the policies."""
        return {**self.__dict__, "policies": None}
