"""The work of a run on the device: a step is a chunk of the compiled loop."""

from __future__ import annotations

import functools
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np

from agentkit.core import BatchPlan
from agentkit.envs import given
from agentkit.errors import CheckpointError, SpecError, tell_not_finite
from agentkit.experiment.config.evaluation_plan import evaluation_plan
from agentkit.experiment.config.experiment_config import ExperimentConfig
from agentkit.experiment.on_device.chunks import Chunks, DeviceLearner
from agentkit.experiment.on_device.loop import Report, State
from agentkit.experiment.on_device.replay.store import ONLY, Store, change_stores, stores_of
from agentkit.experiment.runs.logs import RunLogs
from agentkit.experiment.training.training_loop import next_multiple
from agentkit.files import open_new, read_npz
from agentkit.types import TableInfo

_FILE = "arrays.npz"


@final
class ActAndLearnOnDevice:
    """Runs chunks that end where something is due: an evaluation, a checkpoint, a film, the end (decision 103).

    A round that is whole is beyond that by less than `DeviceLoop.rows` steps. Results do not depend on chunks' lengths.

    Attributes:
        learner: holds the training state.
    """

    def __init__(
        self,
        experiment: ExperimentConfig,
        chunks: Chunks,
        learner: DeviceLearner,
        logs: RunLogs,
        plans: Mapping[str, BatchPlan],
        agent_steps: int = 0,
        describe: Callable[[State], dict[str, Any]] = lambda state: {},
    ):
        """Runs nothing yet.

        Args:
            experiment: says what is due when.
            chunks: runs them.
            learner: holds the training state.
            logs: of the run.
            plans: how each policy that learns draws its data, by id; that of a single agent as `ONLY`.
            agent_steps: steps of agents that a step is, for the log; 0 of a single agent, whose log has none.
            describe: returns what a checkpoint has of a state beside it, for those who read it.
        """
        self._experiment, self._chunks, self.learner, self._logs = experiment, chunks, learner, logs
        self._plans, self._agent_steps, self._describe = dict(plans), agent_steps, describe
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
            SpecError: a choice or a discount is out of its range.
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
                **({"agent_steps": int(report.num_steps[i]) * self._agent_steps} if self._agent_steps else {}),
                "episode_return": float(episodes.total_return[i]) / count,
                **{f"episode_return/{agent_id}": float(x[i]) / count for agent_id, x in episodes.by_agent.items()},
                "episode_length": int(episodes.total_length[i]) / count,
            }
            self._logs.write_episode(record)

    def _look_at(self, report: Report) -> None:
        """Tells of what an environment gave that is not finite, and refuses what is out of its range."""
        out_of_range = np.flatnonzero(report.episodes.num_out_of_range)
        if len(out_of_range):
            raise SpecError(
                f"By step {report.num_steps[out_of_range[0]]:,} the environment "
                f"{given.name_of(self._experiment.environment)} gave a choice beyond those of its observation_spec, a "
                "discount beyond 0 to 1 (from -1 on where its spec says so), an action_mask that allows nothing to who "
                "is to act, or from step a time step that is neither MID nor LAST. Mend the environment or its spec; "
                "without on_device (--on-device) a run ends at the first one and says which it is."
            )
        if report.is_finite.all() or not self._was_finite:
            return
        number = int(np.argmin(report.is_finite))
        self._was_finite = False  # To warn once is enough.
        tell_not_finite(
            f"By step {report.num_steps[number]:,} the environment gave a reward or an observation that is NaN or "
            "infinite.",
            self._experiment.on_nan,
        )

    def table(self, policy_id: str | None = None) -> TableInfo:
        """Returns the counters of a ring; or of a queue of segments, which are all taken when a round ends.

        Args:
            policy_id: whose; None for the first one.
        """
        name = next(iter(self._plans)) if policy_id is None else policy_id
        plan, tally, counts = self._plans[name], self.learner.tally, self._chunks.counts()
        taken = int((tally[name] if isinstance(tally, dict) else tally)[0]) * plan.batch_size
        if name not in counts:
            return TableInfo(plan.table, 0, plan.batch_size, taken, taken)
        capacity, inserted = counts[name]
        return TableInfo(plan.table, min(inserted, capacity), capacity, inserted, taken)

    def save(self) -> dict[str, Any]:
        """Returns the state of environments, policy and counts, by number: a user's environment may have any pytree."""
        state = self._chunks.state
        leaves = jax.tree.leaves(jax.device_get(_without_items(state)))
        return {"acting": {str(i): np.array(leaf) for i, leaf in enumerate(leaves)}, **self._describe(state)}

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
        held = stores_of(now.store)
        kept = change_stores(restored.store, lambda name, store: store.with_items(held[name].items()))
        self._chunks.state = restored._replace(store=kept)
        self._num_steps, self._num_episodes = int(restored.acting.num_steps), int(restored.acting.num_episodes)

    @property
    def contents(self) -> dict[str, Callable[[pathlib.Path], None]]:
        """Returns what writes a checkpoint's folders: of each policy's replay, where it has one."""
        return {_folder_of(name): functools.partial(self._save_replay, name) for name in self._chunks.counts()}

    def _save_replay(self, name: str, folder: pathlib.Path) -> None:
        store = stores_of(self._chunks.state.store)[name]
        leaves = jax.tree.leaves(jax.device_get(store.items()))
        with open_new(folder / _FILE) as file:
            np.savez(file, **{str(i): x[:n] for i, (x, n) in enumerate(zip(leaves, store.num_filled(), strict=True))})

    def restore_replay(self, checkpoint: pathlib.Path) -> None:
        """Restores the replays that a checkpoint has in its folder; nothing where a run keeps none.

        Raises:
            CheckpointError: one cannot be read, or its items have another form.
        """
        now = self._chunks.state
        if not stores_of(now.store):
            return
        kept = change_stores(now.store, lambda name, store: _read_replay(checkpoint / _folder_of(name), store))
        self._chunks.state = now._replace(store=kept)


def _folder_of(policy_id: str) -> str:
    """Returns the folder of a checkpoint that has a policy's replay."""
    return "replay" if policy_id == ONLY else f"replay-{policy_id}"


def _read_replay(folder: pathlib.Path, store: Store) -> Store:
    """Returns a store with the items of a folder."""
    try:
        saved = read_npz(folder / _FILE)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"No readable replay in {folder}: {error}. Restore another one.") from error
    leaves, structure = jax.tree.flatten(store.items())
    found = [saved.get(str(i), np.zeros(0)) for i in range(len(saved))]
    del saved
    for i, (rows, leaf) in enumerate(zip(found, leaves, strict=False)):
        if not rows[len(leaf) :].any():  # Earlier versions saved sums of a tree that nothing was under.
            found[i] = rows[: len(leaf)]
    lengths = [len(rows) for rows in found] + [0] * max(len(leaves) - len(found), 0)
    _check_form([_first_rows(*each) for each in zip(leaves, lengths, strict=False)], found)
    return store.with_items(jax.tree.unflatten(structure, [_filled(leaf, found.pop(0)) for leaf in leaves]))


def _first_rows(leaf: jax.Array, length: int) -> jax.ShapeDtypeStruct:
    """Returns the shape and dtype of an array's first rows, which are not copied."""
    return jax.ShapeDtypeStruct((min(length, len(leaf)), *leaf.shape[1:]), leaf.dtype)


def _filled(leaf: jax.Array, rows: np.ndarray) -> jax.Array:
    """Returns an array of zeros with its first rows written.

    Args:
        leaf: of zeros, which is deleted first: a replay may fill the memory, so that there is no room for two.
        rows: its first ones.
    """
    whole = np.zeros(leaf.shape, leaf.dtype)
    whole[: len(rows)] = rows
    place = leaf.sharding
    leaf.delete()
    return jax.device_put(whole, place, may_alias=False)


def _without_items(state: State) -> State:
    """Returns the state without what a checkpoint has in its replays' folders."""

    def leave_out(_: str, store: Store) -> Store:
        return store.with_items(jax.tree.map(lambda leaf: (), store.items()))

    return state._replace(store=change_stores(state.store, leave_out))


def _check_form(expected: Sequence[Any], found: Sequence[Any]) -> None:
    forms = [[(np.shape(x), getattr(x, "dtype", None)) for x in each] for each in (expected, found)]
    if forms[0] != forms[1]:
        raise CheckpointError(
            "The saved state of the environments does not fit: an environment or a policy has other arrays now. "
            "Resume with the code that it was saved with."
        )
