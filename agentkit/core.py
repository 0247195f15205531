"""The interfaces of agentkit. Read this file first.

One process, written out (`agentkit.experiment.local` is this loop with evaluation and saving):

    environment = agentkit.envs.make("agentkit:catch", seed=0)
    spec = make_environment_spec(environment)
    replay = InProcessReplay(make_tables(spec), seed=0)       # where items live
    adder = make_adder(replay, spec)                          # such as an NStepAdder
    dataset = ReplayDataset(replay, BatchPlan("transitions", batch_size=64))
    variables = VariableStore()                               # where parameters are published
    learner = make_learner(LearnerParts(spec, dataset))       # such as a learning.Learner of an update
    actor = make_actor(ActorParts(spec, adder, VariableClient(variables)))  # such as a PolicyActor
    num_updates = 0
    variables.publish(num_updates, learner.variables())

    timestep = environment.reset()
    actor.observe_first(timestep)
    while True:
        action = actor.select_action(timestep.observation)
        timestep = environment.step(action)
        actor.observe(action, timestep)   # the adder writes to replay
        if timestep.last():               # the next episode
            timestep = environment.reset()
            actor.observe_first(timestep)
        while dataset.ready():            # replay's rate limit says whose turn it is
            learner.step()                # one call: K gradient steps, here one
            num_updates += 1
            variables.publish(num_updates, learner.variables())
        actor.update()                    # fetch the newest parameters

In a launched program the same objects sit in different processes: actors run the loop above
without the learner, the learner runs `while True: learner.step()`, and replay is a server.

What an algorithm contributes (networks, policy, update, and what is stored and drawn) is one value, an `agentkit.Agent`
(`agentkit/agents/common/agent.py`): each file of `agentkit.agents` makes one. Its actor and its learner can be any that
have the methods below: ``make_actor(ActorParts(...)) -> Actor`` and ``make_learner(LearnerParts(...)) -> Learner``, and
`agentkit.compose` makes an agent of the four functions above (docs/compose_an_agent.md).

Several agents in one environment are a `MultiAgentEnvironment`; `agentkit.multi_agent_loop` is their loop over the same
actors and adders, one of each for each agent.

None of these interfaces needs JAX.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import dm_env
import numpy as np

from agentkit.specs import EnvironmentSpec
from agentkit.types import AgentId, DrawnBatch, Nest


@runtime_checkable
class Saveable(Protocol):
    """Declares an object that a checkpoint can hold.

    `save` returns a nest of dicts with string keys whose leaves are numpy arrays, numbers,
    strings, bools or None (no pickle anywhere); `restore` takes the same back and must leave the
    object behaving bit for bit as the saved one. `restore` raises `CheckpointError` on state that
    does not fit.
    """

    def save(self) -> dict[str, Any]:
        """Returns the state, as a nest of dicts of arrays and plain values."""
        ...

    def restore(self, state: dict[str, Any]) -> None:
        """Restores the state that `save` returned."""
        ...


class Actor(abc.ABC):
    """Chooses actions and records their outcome.

    For one environment every argument is unbatched. An actor of a batch of N environments takes and
    returns leaves ``[N, ...]``, and time steps whose every field is ``[N]``.

    An actor that is also `Saveable` goes on in a resumed run of one process as what it was; one that is not is made
    anew, and so is each of a launched program: where exploration goes on, `ActorParts.num_steps` says. One that has a
    ``close()`` is told when the run ends. Its adder is saved and closed for it.
    """

    @abc.abstractmethod
    def select_action(self, observation: Nest) -> Nest:
        """Returns the action for `observation`, as numpy of the action spec's shape and dtype."""

    @abc.abstractmethod
    def observe_first(self, timestep: dm_env.TimeStep) -> None:
        """Records the first time step of an episode."""

    @abc.abstractmethod
    def observe(self, action: Nest, next_timestep: dm_env.TimeStep) -> None:
        """Records `action` and the time step it led to."""

    @abc.abstractmethod
    def update(self, wait: bool = False) -> None:
        """Fetches newer parameters where there are any and it is time; `wait` blocks until done."""


class ActorParts(NamedTuple):
    """Holds what an actor is made of, wherever it acts: ``make_actor(ActorParts(...)) -> Actor``.

    Attributes:
        environment_spec: of one environment.
        adder: takes what the actor observes; in evaluation an `adders.NullAdder`, which keeps nothing.
        variables: has the learner's newest "policy" as its `params`.
        seed: of the actor's choices, in [0, 2**31); another one for each actor.
        num_envs: N, of environments that step together, for leaves ``[N, ...]``; None for one, unbatched.
        evaluation: whether the actor is to be judged by, and not to explore.
        environment: that it will act in, for planners; None where a policy was loaded to act anywhere.
        make_policy_actor: makes the actor of the agent's own policy, with these parts; None where it has no policy.
        actor_id: which one it is of the actors that explore together, from 0.
        num_actors: how many those are.
        num_steps: that its environments have taken together before it was made, where its exploration goes on: of a
            run that is resumed, or an actor that is started again.
    """

    environment_spec: EnvironmentSpec
    adder: Adder
    variables: Parameters
    seed: int = 0
    num_envs: int | None = None
    evaluation: bool = False
    environment: Any = None
    make_policy_actor: Callable[[], Actor] | None = None
    actor_id: int = 0
    num_actors: int = 1
    num_steps: int = 0


class Adder(abc.ABC):
    """Turns a stream of time steps of one environment into items in replay tables.

    Call `add_first` once per episode, then `add` for every step until (and with) LAST. `reset`
    forgets an unfinished episode: what has been written stays, nothing more of it is.

    An adder of a batch of N environments takes leaves ``[N, ...]``, `add_first` once and then `add` at every
    step; an environment whose step type is FIRST has just been reset, and its action means nothing. Where a batch says
    that it `begins_apart`, each environment has an adder of its own, which is not called while it waits (`types.WAIT`).

    An agent's adder is `Saveable`, too, as all of `agentkit.adders` are: checkpoints hold its unfinished episode.
    """

    @abc.abstractmethod
    def add_first(self, timestep: dm_env.TimeStep) -> None:
        """Starts an episode."""

    @abc.abstractmethod
    def add(self, action: Nest, next_timestep: dm_env.TimeStep, extras: Nest = ()) -> None:
        """Adds an action, the policy's extras for it, and the time step it led to."""

    @abc.abstractmethod
    def reset(self) -> None:
        """Drops the unfinished episode."""

    @abc.abstractmethod
    def close(self) -> None:
        """Confirms everything written and frees the writer. May be called twice."""


class MultiAgentEnvironment(abc.ABC):
    """Gives time steps by agent id: of each agent that acts now, or has just ended, and of no other.

    Agents may act together, in turn, or some at a time; they may come late, leave early and come back. The rules:

    1. `reset` and `step` give a dm_env time step to each id that is to act now (FIRST or MID), and LAST to each that
       has just ended. The next `step` takes the actions of those that act, no more and no fewer.
    2. An episode is over when nobody is to act. By then each id that had a FIRST has had its LAST; `reset` comes next.
    3. The first time step of an id is FIRST, without reward and discount, however late it comes. After its LAST, an id
       may come back in the same episode, with a FIRST.
    4. An id that ends before it could act has LAST as its first one: its reward counts, and nobody learns from it.
    5. What is between two turns of an agent is one step of its own: reward r_1 + d_1 r_2 + ... and the product of the
       discounts, without gamma (`envs.multi_agent.base.BetweenTurns`). What an agent gets before its first turn is part
       of its first step's reward, so that returns are the game's own.
    6. Each id ends for itself: LAST with discount 0 where it terminated, above 0 where it was cut off (`types`). LAST
       of an id that terminated may have None for an observation.
    7. Observations with an `action_mask` allow one action at least where the id is to act.

    `agentkit.testing.multi_agent.MultiAgentEnvironmentContract` checks them, and so does the loop. A second LAST by
    mistake neither can tell from an id that has come back and ended before it could act: ``agents_lost`` in the logs
    counts both.

    An environment that has ``reseed(seed)`` (the next `reset` begins an episode that depends on `seed` alone) can be
    made resumable, see `envs.multi_agent.resumable`.
    """

    @abc.abstractmethod
    def agent_specs(self) -> Mapping[AgentId, EnvironmentSpec]:
        """Returns the specs of each agent that may ever come, by id, in a fixed order."""

    @abc.abstractmethod
    def reset(self) -> dict[AgentId, dm_env.TimeStep]:
        """Starts an episode; somebody is to act."""

    @abc.abstractmethod
    def step(self, actions: Mapping[AgentId, Nest]) -> dict[AgentId, dm_env.TimeStep]:
        """Takes the actions of the ids that are to act."""

    def state_spec(self) -> Nest | None:
        """Returns the spec of what a centralised critic may see; None where there is no such state."""
        return None

    def state(self) -> Nest:
        """Returns the state as it is now, a new array; only where there is a `state_spec`."""
        raise NotImplementedError(f"{type(self).__name__} has no state.")

    def close(self) -> None:
        """Frees what the environment holds."""
        return None


class Versioned(NamedTuple):
    """Holds parameters by name.

    Attributes:
        version: the number of learner updates they have seen.
        variables: by name.
        published: when, in seconds of the learner's clock since 1970; 0.0 where nobody wrote it down.
    """

    version: int
    variables: dict[str, Nest]
    published: float = 0.0


class VariableSource(abc.ABC):
    """Gives actors and evaluators their parameters.

    Versions go up while a learner lives. One that restarts from an older checkpoint begins again at a
    lower version, under a new generation (each publisher has its own). All of a new generation is
    newer than all of an old one: a source that reaches another process remembers the generation of
    what it last handed out, and compares versions only within it. So `newer_than` is the version of
    what this source last handed out for these names, and each `VariableClient` has a source of its own.
    """

    @abc.abstractmethod
    def get(self, names: Sequence[str], newer_than: int = -1) -> Versioned | None:
        """Returns the newest parameters of these names; None if none newer than version `newer_than`.

        Raises:
            UnknownNameError: if a name was never published.
            ConnectionError, TimeoutError: it cannot be reached now, and may be later. Not because
                nothing was published yet: that is None.
        """


class Parameters(Protocol):
    """Declares the part of a variable client (`agentkit.variables.VariableClient`) that an actor needs."""

    @property
    def params(self) -> Nest:
        """Returns the parameters to act with."""
        ...

    def update(self, wait: bool = False) -> None:
        """Fetches newer ones where it is time."""
        ...


class BatchPlan(NamedTuple):
    """Says how an agent's learner draws its data.

    Attributes:
        table: the replay table to sample.
        batch_size: B, items per update.
        num_updates: K, updates that one learner step runs in one compiled call; it draws K * B items.
        prior_table: a second table, of data that the run did not make; None for none.
        num_prior: items of each batch that are drawn from there; they follow those of `table`.
    """

    table: str
    batch_size: int
    num_updates: int = 1
    prior_table: str | None = None
    num_prior: int = 0

    @property
    def num_own(self) -> int:
        """Returns how many items of each batch are drawn from `table`."""
        return self.batch_size - self.num_prior


class Learner(Saveable, Protocol):
    """Declares what learns; `agentkit.learning.Learner` does so by JAX.

    `save` returns all that the training goes on from, and `restore` takes it back. Two more methods are called where
    a learner has them: ``metrics() -> {name: float}``, which goes into the learner's log, and ``close()``.
    """

    def step(self) -> None:
        """Draws the next batch and learns from it.

        Draw first: of a launched learner, `next` raises an error where there is no batch yet, and the step is tried
        again.
        """
        ...

    def variables(self) -> Mapping[str, Nest]:
        """Returns what actors may fetch, by name, as arrays in plain containers; "policy" is what they act with.

        It is called before the first step and after each, and what it returned is copied.
        """
        ...


class LearnerParts(NamedTuple):
    """Holds what a learner is made of: ``make_learner(LearnerParts(...)) -> Learner``.

    Attributes:
        environment_spec: of one environment.
        dataset: batches ``(keys [B], ReplaySample)`` for ever; leaves ``[K, B, ...]`` where the batch plan's
            `num_updates` K is above 1.
        seed: of the learner's choices, in [0, 2**31).
        write_priorities: ``(keys [B], priorities [B]) -> None``, for replay that draws by them; None for none.
    """

    environment_spec: EnvironmentSpec
    dataset: Iterator[DrawnBatch[Nest]]
    seed: int = 0
    write_priorities: Callable[[np.ndarray, np.ndarray], None] | None = None
