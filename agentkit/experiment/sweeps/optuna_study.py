"""Asks Optuna for settings, and whether a trial is worth going on with; the one file that imports it.

The study is in ``optuna.log``, a journal that several processes and machines may write: see Optuna's `JournalStorage`,
by which its dashboard shows it, too.
"""

from __future__ import annotations

import math
import os
import pathlib
import warnings
from typing import IO, Any, final

import numpy as np

from agentkit.errors import missing_extra
from agentkit.experiment.sweeps.plan import SweepPlan
from agentkit.experiment.sweeps.space import Choice, Interval, Parameters
from agentkit.experiment.sweeps.trials import COMPLETE, PRUNED, TrialRecord
from agentkit.files import lock, open_lock

try:
    import optuna
    from optuna.storages.journal import JournalFileBackend
except ImportError as error:
    raise missing_extra("optuna", "sweep") from error

JOURNAL_FILE = "optuna.log"
STUDY = "agentkit"
_GIVEN_UP = "given_up_at"


@final
class _JournalLock:
    """Locks the journal for one process at a time; the system frees it where that is killed."""

    def __init__(self, path: pathlib.Path):
        self._path = path
        self._file: IO[str] | None = None

    def acquire(self) -> bool:
        self._file = open_lock(self._path)  # Held until `release`.
        lock(self._file, wait=True)
        return True

    def release(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


@final
class OptunaSuggester:
    """Proposes settings by Optuna's TPE sampler, and gives up trials by its pruners; a `trials.Suggester`."""

    def __init__(self, plan: SweepPlan, folder: pathlib.Path):
        """Opens the study in a sweep's folder, or makes it."""
        self._plan = plan
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._study = optuna.create_study(
            storage=open_storage(folder),
            study_name=STUDY,
            direction="maximize",
            load_if_exists=True,
            pruner=_make_pruner(plan),
            sampler=optuna.samplers.RandomSampler(seed=plan.seed),  # `propose` takes another.
        )

    def propose(self, taken: set[int]) -> tuple[int, Parameters] | None:
        """Returns the number and settings of a trial that is not `taken`.

        One that a killed process has asked for, and not begun, comes first. The sampler's seed follows from the number
        of trials: a sweep that was killed draws on where it was, and not what it has drawn before.
        """
        trials = self._study.get_trials(deepcopy=False)
        lost = [trial for trial in trials if not trial.state.is_finished() and trial.number not in taken]
        number_of_seed = lost[0].number if lost else len(trials)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            self._study.sampler = optuna.samplers.TPESampler(
                n_startup_trials=self._plan.startup_trials,
                constant_liar=True,  # Trials that run at the same time keep away from each other.
                seed=int(np.random.SeedSequence([self._plan.seed, number_of_seed]).generate_state(1)[0]),
            )
        trial = self._trial(lost[0].number) if lost else self._study.ask()
        return trial.number, {name: _suggest(trial, name, values) for name, values in self._plan.space.items()}

    def report(self, number: int, step: int, value: float) -> bool:
        """Takes a trial's return at a step, the same again or not; returns True if it is to be given up.

        Of one that is safe the pruner is asked, too: it may keep what it has seen to judge others by. A verdict is
        kept: asked again, as after a kill, halving knows a rung that a trial has been judged at and looks at the next.
        """
        trial, known = self._trial(number), self._frozen(number)
        if step >= known.user_attrs.get(_GIVEN_UP, math.inf):
            return True
        if step not in known.intermediate_values:
            trial.report(value, step)
        is_poor = bool(trial.should_prune())
        if not (is_poor and step >= self._plan.prune_after and number >= self._plan.startup_trials):
            return False
        if not known.state.is_finished():
            trial.set_user_attr(_GIVEN_UP, step)
        return True

    def tell(self, record: TrialRecord) -> None:
        """Takes how a trial ended, unless the study knows."""
        if self._frozen(record.number).state.is_finished():
            return
        states = {COMPLETE: optuna.trial.TrialState.COMPLETE, PRUNED: optuna.trial.TrialState.PRUNED}
        state = states.get(record.state, optuna.trial.TrialState.FAIL)
        self._study.tell(record.number, record.value if record.state == COMPLETE else None, state)

    def _frozen(self, number: int) -> Any:
        return self._study.get_trials(deepcopy=False)[number]

    def _trial(self, number: int) -> optuna.trial.Trial:
        return optuna.trial.Trial(self._study, self._frozen(number)._trial_id)


def open_storage(folder: pathlib.Path) -> optuna.storages.JournalStorage:
    """Opens the journal of a sweep's folder; takes off a last line that a kill has cut short."""
    path, lock = folder / JOURNAL_FILE, _JournalLock(folder / f"{JOURNAL_FILE}.lock")
    lock.acquire()
    try:
        if path.exists():
            content = path.read_bytes()
            if not content.endswith(b"\n"):
                os.truncate(path, content.rfind(b"\n") + 1)
    finally:
        lock.release()
    backend = JournalFileBackend(str(path), lock_obj=lock)  # type: ignore[arg-type, unused-ignore]
    return optuna.storages.JournalStorage(backend)


def _suggest(trial: optuna.trial.Trial, name: str, values: Choice | Interval) -> Any:
    if isinstance(values, Choice):
        texts = [repr(value) for value in values.values]  # Optuna knows no lists.
        return values.values[texts.index(trial.suggest_categorical(name, texts))]
    assert isinstance(values, Interval)
    if values.whole:
        return trial.suggest_int(name, int(values.low), int(values.high), log=values.log)
    return trial.suggest_float(name, values.low, values.high, log=values.log)


def _make_pruner(plan: SweepPlan) -> optuna.pruners.BasePruner:
    if plan.pruner == "median":
        return optuna.pruners.MedianPruner(n_startup_trials=plan.startup_trials, n_warmup_steps=plan.prune_after)
    if plan.pruner == "halving":
        return optuna.pruners.SuccessiveHalvingPruner(min_resource=plan.prune_after or "auto")
    return optuna.pruners.NopPruner()
