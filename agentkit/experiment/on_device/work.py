"""The work of a run on the device: a step is a chunk of the compiled loop."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Sequence
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np

from agentkit.errors import CheckpointError, tell_not_finite
from agentkit.experiment.config.evaluation_plan import evaluation_plan
from agentkit.experiment.config.experiment_config import ExperimentConfig
from agentkit.experiment.on_device.chunks import Chunks
from agentkit.experiment.on_device.loop import Report, State
from agentkit.experiment.on_device.replay.replay_rounds import Store
from agentkit.experiment.runs.logs import RunLogs
from agentkit.experiment.training.training_loop import next_multiple
from agentkit.files import open_new, read_npz
from agentkit.learning import Learner
from agentkit.types import TableInfo

_FILE = "arrays.npz"


@final
class ActAndLearnOnDevice:
    """Runs chunks that end where something is due: an evaluation, a checkpoint, a film, the end (decision 103).

    A round that is whole is beyond that by less than `DeviceLoop.rows` steps. Results do not depend on chunks' lengths.

    Attributes:
        learner: holds the training state.
    """

    def __init__(self, experiment: ExperimentConfig, chunks: Chunks, learner: Learner, logs: RunLogs):
        """Runs nothing yet.

        Args:
            experiment: says what is due when.
            chunks: runs them.
            learner: holds the training state.
            logs: of the run.
        """
        self._experiment, self._chunks, self.learner, self._logs = experiment, chunks, learner, logs
        self._num_steps = self._num_episodes = 0
        self._was_finite = True

    @property
    def num_steps(self) -> int:
        """Returns the environment steps so far."""
        return self._num_steps

    @property
    def num_episodes(self) -> int:
        """Returns the episodes that have ended so far."""
        return self._num_episodes

    def step(self) -> None:
        """Runs a chunk, and logs a row of each round in which episodes have ended.

        Raises:
            NonFiniteError: a reward, an observation or the training state is NaN or infinite.
        """
        ran = self._chunks.next(self.learner, self.target())
        report = ran.report
        self._num_steps, self._num_episodes = int(report.num_steps[-1]), int(report.num_episodes[-1])
        self._write_episodes(report)
        self._look_at(report)
        self.learner.take(ran.training, ran.metrics, ran.tally)

    def target(self) -> int:
        """Returns the next step at which something is due."""
        experiment, steps = self._experiment, self._num_steps
        periods = (evaluation_plan(experiment).period, experiment.checkpoint_period, experiment.video_period)
        return int(min(experiment.num_steps, *(next_multiple(steps, period) for period in periods)))

    def _write_episodes(self, report: Report) -> None:
        episodes = report.episodes
        for i in np.flatnonzero(episodes.count):
            count = int(episodes.count[i])
            record = {
                "steps": int(report.num_steps[i]),
                "episodes": int(report.num_episodes[i]),
                "episode_return": float(episodes.total_return[i]) / count,
                "episode_length": int(episodes.total_length[i]) / count,
            }
            self._logs.write_episode(record)

    def _look_at(self, report: Report) -> None:
        """Tells of what an environment gave that is not finite."""
        if report.is_finite.all() or not self._was_finite:
            return
        number = int(np.argmin(report.is_finite))
        self._was_finite = False  # To warn once is enough.
        tell_not_finite(
            f"By step {report.num_steps[number]:,} the environment gave a reward or an observation that is NaN or "
            "infinite.",
            self._experiment.on_nan,
        )

    def table(self) -> TableInfo:
        """Returns the counters of the ring; or of a queue of segments, which are all taken when a round ends."""
        plan = self._experiment.agent.batch_plan
        taken = self.learner.num_updates_done * plan.batch_size
        counts = self._chunks.counts()
        if counts is None:
            return TableInfo(plan.table, 0, plan.batch_size, taken, taken)
        capacity, inserted = counts
        return TableInfo(plan.table, min(inserted, capacity), capacity, inserted, taken)

    def save(self) -> dict[str, Any]:
        """Returns the state of environments, policy and counts, by number: a user's environment may have any pytree."""
        leaves = jax.tree.leaves(jax.device_get(_without_items(self._chunks.state)))
        return {"acting": {str(i): np.array(leaf) for i, leaf in enumerate(leaves)}}

    def restore(self, state: dict[str, Any]) -> None:
        """Restores the state that `save` returned.

        Raises:
            CheckpointError: it is not of this environment, agent and `num_envs`.
        """
        now = self._chunks.state
        leaves, structure = jax.tree.flatten(_without_items(now))
        saved = state["acting"]
        found = [saved.get(str(i)) for i in range(len(saved))]
        _check_form(leaves, found)
        restored: State = jax.tree.unflatten(structure, [jnp.array(leaf) for leaf in found])
        if isinstance(now.store, Store):
            restored = restored._replace(store=restored.store.with_items(now.store.items()))
        self._chunks.state = restored
        self._num_steps, self._num_episodes = int(restored.acting.num_steps), int(restored.acting.num_episodes)

    @property
    def contents(self) -> dict[str, Callable[[pathlib.Path], None]]:
        """Returns what writes a checkpoint's folders: the replay's, where there is one."""
        return {} if self._chunks.counts() is None else {"replay": self._save_replay}

    def _save_replay(self, folder: pathlib.Path) -> None:
        store = self._chunks.state.store
        leaves = jax.tree.leaves(jax.device_get(store.items()))
        with open_new(folder / _FILE) as file:
            np.savez(file, **{str(i): x[:n] for i, (x, n) in enumerate(zip(leaves, store.num_filled(), strict=True))})

    def restore_replay(self, folder: pathlib.Path) -> None:
        """Restores the replay that a checkpoint has in a folder; nothing where a run keeps none.

        Raises:
            CheckpointError: it cannot be read, or its items have another form.
        """
        now = self._chunks.state
        if not isinstance(now.store, Store):
            return
        try:
            saved = read_npz(folder / _FILE)
        except (OSError, ValueError) as error:
            raise CheckpointError(f"No readable replay in {folder}: {error}. Restore another one.") from error
        leaves, structure = jax.tree.flatten(now.store.items())
        found = [saved.get(str(i), np.zeros(0)) for i in range(len(saved))]
        _check_form([leaf[: len(x)] for leaf, x in zip(leaves, found, strict=False)], found)
        whole = [jnp.zeros_like(leaf).at[: len(x)].set(x) for leaf, x in zip(leaves, found, strict=True)]
        self._chunks.state = now._replace(store=now.store.with_items(jax.tree.unflatten(structure, whole)))


def _without_items(state: State) -> State:
    """Returns the state without what a checkpoint has in its replay's folder."""
    if not isinstance(state.store, Store):
        return state
    nothing = jax.tree.map(lambda leaf: (), state.store.items())
    return state._replace(store=state.store.with_items(nothing))


def _check_form(expected: Sequence[Any], found: Sequence[Any]) -> None:
    forms = [[(np.shape(x), getattr(x, "dtype", None)) for x in each] for each in (expected, found)]
    if forms[0] != forms[1]:
        raise CheckpointError(
            "The saved state of the environments does not fit: an environment or a policy has other arrays now. "
            "Resume with the code that it was saved with."
        )
