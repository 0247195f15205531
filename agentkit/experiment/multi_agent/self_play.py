"""Self-play: at the start of each episode some agents are given earlier parameters, by which they play as opponents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, final

import dm_env

from agentkit.core import Adder
from agentkit.experiment.multi_agent.batched_loop import BatchedMultiAgentLoop, Waiting
from agentkit.experiment.multi_agent.players import Trained
from agentkit.experiment.multi_agent.pools import Earlier, Pools, read_pool
from agentkit.experiment.policies.pool import Pool
from agentkit.multi_agent_loop import MultiAgentLoop
from agentkit.types import AgentId, Nest
from agentkit.variables import VariableClient


@final
class Seat:
    """Gives an agent's actor the parameters to play by, see `core.Parameters`: the newest, or earlier ones.

    Attributes:
        held: the earlier ones, of each environment; None where the agent plays by the newest, and learns.
        number: of the environment in which the agent acts just now.
    """

    def __init__(self, client: VariableClient, num_envs: int = 1):
        """Takes the client that has the newest, for so many environments."""
        self._client = client
        self.held: list[Nest | None] = [None] * num_envs
        self.number = 0

    @property
    def params(self) -> Nest:
        """Returns the parameters to act with."""
        held = self.held[self.number]
        return self._client.params if held is None else held

    def update(self, wait: bool = False) -> None:
        """Fetches newer ones where it is time."""
        self._client.update(wait)


@final
class SeatAdder(Adder):
    """Records an agent's episodes in one environment where it plays to learn, and no others."""

    def __init__(self, adder: Any, seat: Seat, number: int = 0):
        """Takes the adder that records, which is closed with this, and the environment's number."""
        self._adder, self._seat, self._number = adder, seat, number

    def add_first(self, timestep: dm_env.TimeStep) -> None:
        """See `core.Adder`."""
        if self._seat.held[self._number] is None:
            self._adder.add_first(timestep)

    def add(self, action: Nest, next_timestep: dm_env.TimeStep, extras: Nest = ()) -> None:
        """See `core.Adder`."""
        if self._seat.held[self._number] is None:
            self._adder.add(action, next_timestep, extras)

    def reset(self) -> None:
        """See `core.Adder`."""
        self._adder.reset()

    def close(self) -> None:
        """See `core.Adder`."""
        self._adder.close()

    def save(self) -> dict[str, Any]:
        """Returns the state of the adder inside; `SelfPlay` knows who is playing."""
        found: dict[str, Any] = self._adder.save()
        return found

    def restore(self, state: dict[str, Any]) -> None:
        """See `core.Saveable`."""
        self._adder.restore(state)


class GivesSeats(Protocol):
    """Gives seats their parameters at the start of each episode, and is told how it went.

    Attributes:
        seats: of the agents that learn.
    """

    seats: dict[AgentId, Seat]

    def begin(self, num_steps: int, number: int = 0) -> None:
        """Begins an episode in the environment of this number, after so many steps."""

    def end(self, returns: Mapping[AgentId, float], number: int = 0) -> None:
        """Ends it with the returns of the agents that have seats."""


@final
class SelfPlayLoop:
    """Runs a loop of several agents, which are given other parameters at the start of each episode."""

    def __init__(self, loop: MultiAgentLoop | BatchedMultiAgentLoop, self_play: GivesSeats):
        """Takes the loop, and who gives seats to its agents."""
        self._loop: Any = loop  # Of one environment or of N, which differ in what they give and take.
        self._self_play = self_play

    @property
    def num_steps(self) -> int:
        """Counts as the loop does."""
        return int(self._loop.num_steps)

    def step(self) -> Any:
        """Takes a step, as the loop does; begins and ends episodes."""
        for number in self._loop.beginning:
            self._self_play.begin(self._loop.num_steps, number)
        seen = self._loop.begin_step()
        found = self._loop.end_step({agent_id: self._choose(agent_id, given) for agent_id, given in seen.items()})
        ended = [found] if isinstance(found, dict) else found or []
        for number, record in zip(self._loop.beginning, ended, strict=True):
            returns = {agent_id: record[f"episode_return/{agent_id}"] for agent_id in self._self_play.seats}
            self._self_play.end(returns, number)
        return found

    def _choose(self, agent_id: AgentId, given: Any) -> Any:
        """Returns the action of an agent, or those in the environments that wait: with a call for each parameters."""
        seat = self._self_play.seats.get(agent_id)
        if seat is None or not isinstance(given, Waiting):
            return self._loop.choose(agent_id, given)
        by_params: dict[int, list[int]] = {}
        for row, number in enumerate(given.numbers.tolist()):
            by_params.setdefault(id(seat.held[number]), []).append(row)
        chosen: list[Nest] = [None] * len(given.numbers)
        for rows in by_params.values():
            seat.number = int(given.numbers[rows[0]])
            for row, action in zip(rows, self._loop.choose(agent_id, given.some(rows)), strict=True):
                chosen[row] = action
        return chosen


@final
class SelfPlay:
    """Gives seats out of pools of its own, in the process in which the policies learn.

    Attributes:
        pools: the earlier parameters.
        seats: of the agents that learn.
    """

    def __init__(self, config: Pool, seed: int, trained: Sequence[Trained], num_envs: int = 1):
        """Begins with empty pools, for so many environments; the rest, and errors, are those of `Pools`."""
        self.pools = Pools(config, seed, trained)
        self._trained = trained
        self.seats = {agent_id: Seat(each.client, num_envs) for each in trained for agent_id in each.agent_ids}
        self._playing: list[dict[AgentId, Earlier]] = [{} for _ in range(num_envs)]

    def begin(self, num_steps: int, number: int = 0) -> None:
        """Begins an episode: keeps parameters where it is time, and tells each seat by which to play."""
        if self.pools.is_due(num_steps):
            self.pools.keep(num_steps, {each.policy_id: VariableClient(each.store).params for each in self._trained})
        self._playing[number] = self.pools.draw()
        self._tell(number)

    def _tell(self, number: int) -> None:
        playing = self._playing[number]
        for agent_id, seat in self.seats.items():
            seat.held[number] = playing[agent_id].params if agent_id in playing else None

    def end(self, returns: Mapping[AgentId, float], number: int = 0) -> None:
        """Counts how the episode went, see `Pools.count`."""
        self.pools.count(self._playing[number], returns)

    def save(self) -> dict[str, Any]:
        """Returns pools and games, and who plays by what; the actors are saved by themselves."""
        left: dict[str, dict[str, Any]] = {each.policy_id: {} for each in self._trained}
        for agent_id, earlier in (item for playing in self._playing for item in playing.items()):
            if self.pools.find(agent_id, earlier.step) is None:  # Its pool was full since: it plays to the end.
                left[self.pools.plays[agent_id]][str(earlier.step)] = earlier.saved()
        return {
            **self.pools.save(),
            "left": left,
            "playing": {
                str(number): {agent_id: earlier.step for agent_id, earlier in playing.items()}
                for number, playing in enumerate(self._playing)
            },
        }

    def restore(self, state: Mapping[str, Any], mid_episode: bool) -> None:
        """Restores the state that `save` returned.

        Args:
            state: see there; without the unfinished episodes, that of `Pools.save` does.
            mid_episode: whether the unfinished episodes go on.

        Raises:
            CheckpointError: it has other policies' parameters.
        """
        self.pools.restore(state, self._trained)
        left = {
            each.policy_id: read_pool(state["left"][each.policy_id], each.parts.update, each.policy_id)
            for each in self._trained
            if "left" in state  # Older checkpoints are of one environment, in which nobody had left.
        }
        of_each: Mapping[str, Any] = {}
        if mid_episode:
            of_each = state["playing"] if "left" in state else {"0": state["playing"]}
        for number, playing in enumerate(self._playing):
            playing.clear()
            for agent_id, step in of_each.get(str(number), {}).items():
                kept = self.pools.find(agent_id, int(step))
                playing[agent_id] = kept or next(
                    each for each in left[self.pools.plays[agent_id]] if each.step == int(step)
                )
            self._tell(number)
