"""The work of a run on the device: a step is a chunk of the compiled loop."""

from __future__ import annotations

import time
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np

from agentkit.errors import CheckpointError, tell_not_finite
from agentkit.experiment.config.evaluation_plan import evaluation_plan
from agentkit.experiment.config.experiment_config import ExperimentConfig
from agentkit.experiment.on_device.loop import MOST_ROUNDS, DeviceLoop, Report
from agentkit.experiment.runs.logs import RunLogs
from agentkit.experiment.training.training_loop import next_multiple
from agentkit.learning import Learner
from agentkit.types import TableInfo

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
        self._acting = loop.start(key)
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
        chunk = self._loop.run(learner.state, self._acting, learner.tally, self._target(), self._num_rounds)
        num_rounds = int(chunk.num_rounds)  # Waits for the device.
        seconds = time.monotonic() - begun
        self._acting = chunk.acting
        report: Report = jax.tree.map(lambda x: np.asarray(x)[:num_rounds], chunk.report)
        self._num_steps, self._num_episodes = int(report.num_steps[-1]), int(report.num_episodes[-1])
        self._write_episodes(report)
        self._look_at(report, first_bad=int(chunk.tally[1]))
        learner.take(chunk.training, chunk.metrics, chunk.tally, num_rounds * self._loop.updates)
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

    def _look_at(self, report: Report, first_bad: int) -> None:
        """Tells of what an environment gave, unless an earlier update was bad: then its actions are why."""
        if report.is_finite.all() or not self._was_finite:
            return
        number = int(np.argmin(report.is_finite))
        if 0 <= first_bad <= self._learner.num_updates_done + number * self._loop.updates:
            return
        self._was_finite = False  # To warn once is enough.
        tell_not_finite(
            f"By step {report.num_steps[number]:,} the environment gave a reward or an observation that is NaN or "
            "infinite.",
            self._experiment.on_nan,
        )

    def table(self) -> TableInfo:
        """Returns the counters of a queue of segments, which are all taken when a round ends."""
        plan = self._experiment.agent.batch_plan
        taken = self._learner.num_updates_done * plan.batch_size
        return TableInfo(plan.table, 0, plan.batch_size, taken, taken)

    def save(self) -> dict[str, Any]:
        """Returns the state of environments, policy and counts, by number: a user's environment may have any pytree."""
        leaves = jax.tree.leaves(jax.device_get(self._acting))
        return {"acting": {str(i): np.array(leaf) for i, leaf in enumerate(leaves)}}

    def restore(self, state: dict[str, Any]) -> None:
        """Restores the state that `save` returned.

        Raises:
            CheckpointError: it is not of this environment, agent and `num_envs`.
        """
        leaves, structure = jax.tree.flatten(self._acting)
        saved = state["acting"]
        found = [saved.get(str(i)) for i in range(len(saved))]
        expected, there = ([(x.shape, x.dtype) for x in each] for each in (leaves, found))
        if expected != there:
            raise CheckpointError(
                "The saved state of the environments does not fit: an environment or a policy has other arrays now. "
                "Resume with the code that it was saved with."
            )
        self._acting = jax.tree.unflatten(structure, [jnp.array(leaf) for leaf in found])
        self._num_steps, self._num_episodes = int(self._acting.num_steps), int(self._acting.num_episodes)
