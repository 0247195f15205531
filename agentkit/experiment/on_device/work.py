"""The work of a run on the device: a step is a chunk of the compiled loop."""

from __future__ import annotations

import pathlib
import time
from collections.abc import Callable, Sequence
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np

from agentkit.errors import CheckpointError, tell_not_finite
from agentkit.experiment.config.evaluation_plan import evaluation_plan
from agentkit.experiment.config.experiment_config import ExperimentConfig
from agentkit.experiment.on_device.loop import MOST_ROUNDS, DeviceLoop, Report, State
from agentkit.experiment.on_device.transitions import Store
from agentkit.experiment.runs.logs import RunLogs
from agentkit.experiment.training.training_loop import next_multiple
from agentkit.files import open_new, read_npz
from agentkit.learning import Learner
from agentkit.types import TableInfo

_FILE = "arrays.npz"
CHUNK_SECONDS = 0.25
"""How long a chunk may take: so late may Ctrl-C and the progress line be."""


@final
class ActAndLearnOnDevice:
    """Runs chunks that end where something is due: an evaluation, a checkpoint, a film, the end (decision 103).

    A round that is whole is beyond that by less than `DeviceLoop.rows` steps. Chunks are as long as takes
    `CHUNK_SECONDS`; results do not depend on their lengths.
    """

    def __init__(self, experiment: ExperimentConfig, loop: DeviceLoop, learner: Learner, key: jax.Array, logs: RunLogs):
        """Makes the first states; runs nothing yet.

        Args:
            experiment: says what is due when.
            loop: to run.
            learner: holds the training state.
            key: PRNG key ``uint32[2]``, of environments and policy.
            logs: of the run.
        """
        self._experiment, self._loop, self._learner, self._logs = experiment, loop, learner, logs
        self._state = loop.start(key)
        self._num_steps = self._num_episodes = 0
        self._num_rounds = 1
        self._has_compiled = False
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
        begun = time.monotonic()
        learner = self._learner
        chunk = self._loop.run(learner.state, self._state, learner.tally, self._target(), self._num_rounds)
        num_rounds = int(chunk.num_rounds)  # Waits for the device.
        seconds = time.monotonic() - begun
        self._state = chunk.state
        report: Report = jax.tree.map(lambda x: np.asarray(x)[:num_rounds], chunk.report)
        self._num_steps, self._num_episodes = int(report.num_steps[-1]), int(report.num_episodes[-1])
        self._write_episodes(report)
        self._look_at(report)
        learner.take(chunk.training, chunk.state.metrics, chunk.tally)
        if self._has_compiled:
            fits = int(CHUNK_SECONDS * num_rounds / max(seconds, 1e-9))
            self._num_rounds = min(max(fits, 1), 2 * self._num_rounds, MOST_ROUNDS)
        self._has_compiled = True

    def _target(self) -> int:
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
        taken = self._learner.num_updates_done * plan.batch_size
        ring = _ring_of(self._state)
        if ring is None:
            return TableInfo(plan.table, 0, plan.batch_size, taken, taken)
        return TableInfo(plan.table, int(ring.size), ring.capacity, int(ring.num_inserted), taken)

    def save(self) -> dict[str, Any]:
        """Returns the state of environments, policy and counts, by number: a user's environment may have any pytree."""
        leaves = jax.tree.leaves(jax.device_get(_without_items(self._state)))
        return {"acting": {str(i): np.array(leaf) for i, leaf in enumerate(leaves)}}

    def restore(self, state: dict[str, Any]) -> None:
        """Restores the state that `save` returned.

        Raises:
            CheckpointError: it is not of this environment, agent and `num_envs`.
        """
        leaves, structure = jax.tree.flatten(_without_items(self._state))
        saved = state["acting"]
        found = [saved.get(str(i)) for i in range(len(saved))]
        _check_form(leaves, found)
        restored: State = jax.tree.unflatten(structure, [jnp.array(leaf) for leaf in found])
        ring = _ring_of(self._state)
        if ring is not None:
            whole = _ring_of(restored)._replace(items=ring.items, marks=ring.marks)
            restored = restored._replace(store=restored.store._replace(ring=whole))
        self._state = restored
        self._num_steps, self._num_episodes = int(restored.acting.num_steps), int(restored.acting.num_episodes)

    @property
    def contents(self) -> dict[str, Callable[[pathlib.Path], None]]:
        """Returns what writes a checkpoint's folders: the replay's, where there is one."""
        return {} if _ring_of(self._state) is None else {"replay": self._save_replay}

    def _save_replay(self, folder: pathlib.Path) -> None:
        ring = _ring_of(self._state)
        assert ring is not None, "contents has asked"
        size = int(ring.size)
        leaves = jax.tree.leaves(jax.device_get(ring._replace(num_inserted=())))
        with open_new(folder / _FILE) as file:
            cut = {str(i): x[:size] if x.shape[:1] == (ring.capacity,) else x for i, x in enumerate(leaves)}
            np.savez(file, **cut)

    def restore_replay(self, folder: pathlib.Path) -> None:
        """Restores the replay that a checkpoint has in a folder; nothing where a run keeps none.

        Raises:
            CheckpointError: it cannot be read, or its items have another form.
        """
        ring = _ring_of(self._state)
        if ring is None:
            return
        try:
            saved = read_npz(folder / _FILE)
        except (OSError, ValueError) as error:
            raise CheckpointError(f"No readable replay in {folder}: {error}. Restore another one.") from error
        leaves, structure = jax.tree.flatten(ring._replace(num_inserted=()))
        found = [saved.get(str(i), np.zeros(0)) for i in range(len(saved))]
        _check_form([leaf[: len(x)] if x.ndim else leaf for leaf, x in zip(leaves, found, strict=False)], found)
        whole = [
            jnp.zeros_like(leaf).at[: len(x)].set(x) if x.ndim else jnp.array(x)
            for leaf, x in zip(leaves, found, strict=True)
        ]
        ring = jax.tree.unflatten(structure, whole)._replace(num_inserted=ring.num_inserted)
        self._state = self._state._replace(store=self._state.store._replace(ring=ring))


def _ring_of(state: State) -> Any:
    return state.store.ring if isinstance(state.store, Store) else None


def _without_items(state: State) -> State:
    """Returns the state without what a checkpoint has in its replay's folder."""
    ring = _ring_of(state)
    if ring is None:
        return state
    return state._replace(store=state.store._replace(ring=ring._replace(items=(), marks=())))


def _check_form(expected: Sequence[Any], found: Sequence[Any]) -> None:
    forms = [[(np.shape(x), getattr(x, "dtype", None)) for x in each] for each in (expected, found)]
    if forms[0] != forms[1]:
        raise CheckpointError(
            "The saved state of the environments does not fit: an environment or a policy has other arrays now. "
            "Resume with the code that it was saved with."
        )
