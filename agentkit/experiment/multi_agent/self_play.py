"""Self-play: at the start of each episode some agents are given earlier parameters, by which they play as opponents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, final

import dm_env

from agentkit.core import Adder
from agentkit.experiment.multi_agent.batched_loop import BatchedMultiAgentLoop
from agentkit.experiment.multi_agent.players import Trained
from agentkit.experiment.multi_agent.pools import Earlier, Pools
from agentkit.experiment.policies.pool import Pool
from agentkit.multi_agent_loop import MultiAgentLoop
from agentkit.types import AgentId, Nest
from agentkit.variables import VariableClient


@final
class Seat:
    """Gives an agent's actor the parameters to play by, see `core.Parameters`: the newest, or earlier ones.

    Attributes:
        held: the earlier ones; None where the agent plays by the newest, and learns.
    """

    def __init__(self, client: VariableClient):
        """Takes the client that has the newest."""
        self._client = client
        self.held: Nest | None = None

    @property
    def params(self) -> Nest:
        """Returns the parameters to act with."""
        return self._client.params if self.held is None else self.held

    def update(self, wait: bool = False) -> None:
        """Fetches newer ones where it is time."""
        self._client.update(wait)


@final
class SeatAdder(Adder):
    """Records an agent's episodes where it plays to learn, and no others."""

    def __init__(self, adder: Any, seat: Seat):
        """Takes the adder that records, which is closed with this."""
        self._adder, self._seat = adder, seat

    def add_first(self, timestep: dm_env.TimeStep) -> None:
        """See `core.Adder`."""
        if self._seat.held is None:
            self._adder.add_first(timestep)

    def add(self, action: Nest, next_timestep: dm_env.TimeStep, extras: Nest = ()) -> None:
        """See `core.Adder`."""
        if self._seat.held is None:
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

    def begin(self, num_steps: int) -> None:
        """Begins an episode, after so many steps."""

    def end(self, returns: Mapping[AgentId, float]) -> None:
        """Ends it with the returns of the agents that have seats."""


@final
class SelfPlayLoop:
    """Runs a `MultiAgentLoop` whose agents are given other parameters at the start of each episode."""

    def __init__(self, loop: MultiAgentLoop | BatchedMultiAgentLoop, self_play: GivesSeats):
        """Takes the loop, and who gives seats to its agents."""
        assert isinstance(loop, MultiAgentLoop), "the config refuses a pool with num_envs"
        self._loop, self._self_play = loop, self_play

    @property
    def num_steps(self) -> int:
        """Counts as the loop does."""
        return self._loop.num_steps

    def step(self) -> dict[str, float] | None:
        """Takes a step, as the loop does; begins and ends episodes."""
        if self._loop.between_episodes:
            self._self_play.begin(self._loop.num_steps)
        record = self._loop.step()
        if record is not None:
            self._self_play.end({agent_id: record[f"episode_return/{agent_id}"] for agent_id in self._self_play.seats})
        return record


@final
class SelfPlay:
    """Gives seats out of pools of its own, in the process in which the policies learn.

    Attributes:
        pools: the earlier parameters.
        seats: of the agents that learn.
    """

    def __init__(self, config: Pool, seed: int, trained: Sequence[Trained]):
        """Begins with empty pools; arguments and errors are those of `Pools`."""
        self.pools = Pools(config, seed, trained)
        self._trained = trained
        self.seats = {agent_id: Seat(each.client) for each in trained for agent_id in each.agent_ids}
        self._playing: dict[AgentId, Earlier] = {}

    def begin(self, num_steps: int) -> None:
        """Begins an episode: keeps parameters where it is time, and tells each seat by which to play."""
        if self.pools.is_due(num_steps):
            self.pools.keep(num_steps, {each.policy_id: VariableClient(each.store).params for each in self._trained})
        self._playing = self.pools.draw()
        self._tell()

    def _tell(self) -> None:
        for agent_id, seat in self.seats.items():
            seat.held = self._playing[agent_id].params if agent_id in self._playing else None

    def end(self, returns: Mapping[AgentId, float]) -> None:
        """Counts how the episode went, see `Pools.count`."""
        self.pools.count(self._playing, returns)

    def save(self) -> dict[str, Any]:
        """Returns pools and games, and who plays by what; the actors are saved by themselves."""
        return {
            **self.pools.save(),
            "playing": {agent_id: earlier.step for agent_id, earlier in self._playing.items()},
        }

    def restore(self, state: Mapping[str, Any], mid_episode: bool) -> None:
        """Restores the state that `save` returned.

        Args:
            state: see there.
            mid_episode: whether the unfinished episode goes on.

        Raises:
            CheckpointError: it has other policies' parameters.
        """
        self.pools.restore(state, self._trained)
        self._playing = {}
        for agent_id, step in (state["playing"] if mid_episode else {}).items():
            earlier = self.pools.find(agent_id, int(step))
            assert earlier is not None, "Who plays by earlier parameters was saved with them."
            self._playing[agent_id] = earlier
        self._tell()
