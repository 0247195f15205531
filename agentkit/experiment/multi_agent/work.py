"""Several agents act and learn in turns: the `Work` of a run in one process."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, final

from agentkit.counting import Counter
from agentkit.datasets import ReplayDataset
from agentkit.errors import AgentkitError, CheckpointError
from agentkit.experiment.multi_agent.assigning.by_episode import LoopByEpisode, PoliciesByEpisode
from agentkit.experiment.multi_agent.assigning.changing import ChangingActor
from agentkit.experiment.multi_agent.batched_loop import BatchedMultiAgentLoop
from agentkit.experiment.multi_agent.players import AnyPlayer, Trained
from agentkit.experiment.multi_agent.self_play import GivesSeats, SelfPlay, SelfPlayLoop
from agentkit.experiment.training.in_turns import learn_what_is_due
from agentkit.experiment.training.own_learner import OwnLearner
from agentkit.learning import Learner
from agentkit.multi_agent_loop import MultiAgentLoop
from agentkit.replay import Replay
from agentkit.types import AgentId, TableInfo

AnyLoop = MultiAgentLoop | BatchedMultiAgentLoop


def told_of_episodes(
    loop: AnyLoop, self_play: GivesSeats | None, by_episode: PoliciesByEpisode | None
) -> AnyLoop | SelfPlayLoop | LoopByEpisode:
    """Returns the loop as one that says when an episode begins: to self-play, or to who says who plays by what."""
    if self_play is not None:
        return SelfPlayLoop(loop, self_play)
    return loop if by_episode is None else LoopByEpisode(loop, by_episode)


@final
@dataclasses.dataclass
class Learning:
    """Holds what one policy learns with.

    Attributes:
        trained: the policy.
        replay: its tables.
        dataset: its batches.
        learner: updates it.
    """

    trained: Trained
    replay: Replay
    dataset: ReplayDataset
    learner: Learner | OwnLearner

    @property
    def table(self) -> str:
        """Returns the name of the table that the learner draws from."""
        return self.trained.agent.batch_plan.table


class Learners:
    """Makes one learner of several, for a training's logs and checkpoints."""

    def __init__(self, learners: Mapping[str, Learner | OwnLearner]):
        """Takes the learners by policy id."""
        self._learners = dict(learners)

    @property
    def num_updates_done(self) -> int:
        """Counts the updates of all of them."""
        return sum(learner.num_updates_done for learner in self._learners.values())

    def log(self) -> None:
        """Logs of each what is new."""
        for learner in self._learners.values():
            learner.log()

    def check_finite(self) -> None:
        """Looks for numbers that are not finite, see `learning.Learner.check_finite`."""
        for learner in self._learners.values():
            learner.check_finite()

    def save(self) -> dict[str, Any]:
        """Returns the state of each by policy id."""
        return {policy_id: learner.save() for policy_id, learner in self._learners.items()}

    def restore(self, state: dict[str, Any]) -> None:
        """Restores the state that `save` returned.

        Raises:
            CheckpointError: it is of other policies.
        """
        if state.keys() != self._learners.keys():
            raise CheckpointError(
                f"The checkpoint has the policies {', '.join(state)}; found {', '.join(self._learners)}. Resume with "
                "those that it was saved with."
            )
        for policy_id, learner in self._learners.items():
            learner.restore(state[policy_id])


@final
@dataclasses.dataclass
class PlayAndLearn:
    """Takes a step of the environment where each replay has room, then does all the learning that is due.

    Attributes:
        learning: of each policy that learns.
        actors: of each agent id, those that learn nothing included.
        loop: in which they meet the environment.
        counter: of steps and episodes.
        self_play: says who plays by earlier parameters; None where nobody does.
        by_episode: says who plays an episode by which policy; None where that is so for the whole run.
        launched: of a run that was launched before, for when it is launched again: where its actors stood, and how many
            of all agents' actions are not those of this process.
    """

    learning: list[Learning]
    actors: Mapping[AgentId, AnyPlayer | ChangingActor]
    loop: AnyLoop
    counter: Counter
    self_play: SelfPlay | None = None
    by_episode: PoliciesByEpisode | None = None
    launched: dict[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        """Tells who is to know it when an episode begins."""
        self._stepped = told_of_episodes(self.loop, self.self_play, self.by_episode)

    @property
    def num_steps(self) -> int:
        """Returns the steps so far, of the environment or of agents, as the run counts them."""
        return self.loop.num_steps

    @property
    def num_episodes(self) -> int | None:
        """Returns the episodes that have ended so far; None of a run that was launched, in which some were cut off."""
        return None if self.launched else self.counter.get("episodes")

    def step(self) -> None:
        """Takes an environment step if all replays have room, else an update of those that have none; then learns."""
        full = [each for each in self.learning if not each.replay.can_insert(each.table)]
        for each in full:
            each.learner.step()
        if not full:
            try:
                self._stepped.step()
            except AgentkitError:
                raise
            except Exception:
                for each in self.learning:  # An environment may fail at an action that is NaN: say why it was.
                    each.learner.check_finite()
                raise
        for each in self.learning:
            learn_what_is_due(each.learner, each.dataset)
            each.trained.client.update()

    def table(self) -> TableInfo:
        """Returns the counters of the first policy's table."""
        return self.learning[0].replay.info(self.learning[0].table)

    def save(self) -> dict[str, Any]:
        """Returns the state of counter, actors, pools and loop; the replays write files of their own."""
        mid_episode = self.loop.resumable and all(each.replay.resumable for each in self.learning)
        state: dict[str, Any] = {
            "counter": self.counter.save(),
            "mid_episode": mid_episode,
            "num_agent_steps": self.loop.num_agent_steps,
            "actors": {agent_id: actor.save(mid_episode) for agent_id, actor in self.actors.items()},
            **self.launched,
        }
        if self.self_play is not None:
            state["self_play"] = self.self_play.save()
        if self.by_episode is not None:
            state["by_episode"] = self.by_episode.save()
        return {**state, "loop": self.loop.save()} if self.loop.resumable else state

    def restore(self, state: dict[str, Any]) -> None:
        """Takes back a checkpoint: bit for bit with in-process replay and a resumable environment.

        Otherwise the unfinished episodes are dropped and new ones begin.
        """
        self.counter.restore(state["counter"])
        self.launched = {name: state[name] for name in ("explored", "steps_of_others") if name in state}
        if "actors" in state:  # Else it is of a launched run, whose actors are others.
            for agent_id, actor in self.actors.items():
                actor.restore(state["actors"][agent_id])
        if self.self_play is not None and "self_play" in state:  # A launched run may have ended before it kept any.
            self.self_play.restore(state["self_play"], state["mid_episode"])
        if "loop" in state:
            self.loop.restore(state["loop"], state["mid_episode"])
        else:  # Episodes that had not ended are dropped; their steps are not.
            self.counter.increment(steps=max(int(state["num_steps"]) - self.counter.get("steps"), 0))
        self.loop.num_steps = int(state["num_steps"])
        self.loop.num_agent_steps = int(state.get("num_agent_steps", self.loop.num_agent_steps))
        if self.by_episode is not None:
            self._restore_by_episode(self.by_episode, state)
        for each in self.learning:
            each.trained.client.update()

    def _restore_by_episode(self, by_episode: PoliciesByEpisode, state: dict[str, Any]) -> None:
        num_ended = self.counter.get("episodes")
        if "actors" not in state:  # Of a launched run, whose episodes were others.
            saved: Any = {"episodes": {}, "totals": {name: state["totals"].get(name, 0) for name in by_episode.steps()}}
        else:  # Older checkpoints are of one environment, and had no need of it.
            saved = state.get("by_episode", {"episodes": {"0": num_ended}, "totals": {}})
        by_episode.restore(saved, num_ended, self.loop.beginning)
