"""Environments that stand in mid-episode again after a restart."""

from __future__ import annotations

import functools
import warnings
from typing import Any, final

import dm_env
import numpy as np
import tree

from agentkit import nests, specs
from agentkit.errors import CheckpointError, ConfigError, SpecError
from agentkit.types import Nest
from agentkit.wrappers.base import Around

LONG_EPISODE = 100_000
"""Steps of an episode after which it is said what it costs to keep its actions."""


@final
class ResumableEnvironment(Around, dm_env.Environment):
    """Makes an environment whose episodes can be repeated also one that can be saved.

    No simulator here can copy its whole state, but all can repeat an episode: episode k begins with
    ``reseed`` of a seed made of (`seed`, k), and its actions are kept. `restore` begins that
    episode again and replays the actions. It must be the outermost layer, so that everything that
    wrappers keep within an episode is rebuilt too.

    Where the environment ``goes_on`` after an episode (a lost life of a longer game), the next one is a part
    of the same repeated whole: it is not reseeded, and its reset is kept among the actions.

    Keeping an action costs about half a microsecond and 150 bytes per step; restoring costs as much as the steps
    of one unfinished episode. One of `LONG_EPISODE` steps is warned of.

    Args:
        environment: a dm_env environment, wrapped as needed, with ``reseed(seed)``: "the next reset
            begins an episode that depends on `seed` alone".
        seed: seeds the sequence of episodes.

    Raises:
        ConfigError: if the environment has no `reseed`, is a batch, or is resumable already.
    """

    resumable = True

    def __init__(self, environment: dm_env.Environment, seed: int = 0):
        specs.check_is_environment(environment)
        _check_repeatable(environment)
        self._environment = environment
        self._action_spec = environment.action_spec()
        self._copy_action = np.array if specs.is_spec(self._action_spec) else nests.copy_nest
        self.reseed(seed)

    def reseed(self, seed: int) -> None:
        """Begins another sequence of episodes: the next reset is its episode 0."""
        self._seed = int(seed)
        self._episode = -1
        self._actions: list[Nest] = []
        self._start_state: dict[str, Any] | None = None
        self._timestep: dm_env.TimeStep | None = None

    def reset(self) -> dm_env.TimeStep:
        """Starts the next episode."""
        if self._episode >= 0 and getattr(self._environment, "goes_on", False):
            self._actions.append(specs.zeros(self._action_spec))  # In the place of the reset.
            self._timestep = timestep = self._environment.reset()
            return timestep
        self._start_state = self._wrappers_state()
        self._episode += 1
        return self._begin()

    def step(self, action: Nest) -> dm_env.TimeStep:
        """Takes an action; after LAST (or before the first reset) it starts an episode instead."""
        if self._timestep is None or self._timestep.last():
            return self.reset()
        self._actions.append(self._copy_action(action))
        warn_of_length(
            len(self._actions), "max_episode_steps, or the wrapper step_limit (--wrapper 'step_limit(max_steps=1000)')"
        )
        self._timestep = timestep = self._environment.step(action)
        return timestep

    def _wrappers_state(self) -> dict[str, Any] | None:
        """Returns what of the wrappers inside outlives an episode; None if there are none."""
        return self._environment.save() if hasattr(self._environment, "save") else None

    def _begin(self) -> dm_env.TimeStep:
        self._actions = []
        self._environment.reseed(episode_seed(self._seed, self._episode))
        self._timestep = timestep = self._environment.reset()
        return timestep

    def save(self) -> dict[str, Any]:
        """Returns the environment's state: the episode's number, its actions, the wrappers' state.

        The arrays are new ones, ``[number of steps, ...]`` per action leaf.
        """
        leaves = zip(*(tree.flatten(action) for action in self._actions), strict=True)
        return {
            "seed": self._seed,
            "episode": self._episode,
            "num_steps": len(self._actions),
            "actions": {str(i): np.stack(leaf) for i, leaf in enumerate(leaves)},
            "start": self._start_state if self._episode >= 0 else self._wrappers_state(),
            "last": fingerprint(self._timestep),
        }

    def restore(self, state: dict[str, Any]) -> dm_env.TimeStep | None:
        """Stands where `save` stood: begins the episode again and replays its actions.

        Returns:
            The time step that was current, or None if it was saved before its first reset.

        Raises:
            CheckpointError: if the state does not fit, or the replayed episode ends up elsewhere,
                which means that the environment is not deterministic or was made otherwise.
        """
        try:
            seed, episode = int(state["seed"]), int(state["episode"])
            actions = unstack(state["actions"], self._action_spec, int(state["num_steps"]))
            last, start = state["last"], state["start"]
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise CheckpointError(
                f"Expected the state of a ResumableEnvironment with actions {self._action_spec}, found "
                f"something else: {error!r}. Build the environment as when it was saved."
            ) from error
        if (start is None) == hasattr(self._environment, "restore"):
            raise CheckpointError(
                f"The state was saved with {'no' if start is None else 'some'} wrappers around the "
                "environment. Build it with the same wrappers as when it was saved."
            )
        self.reseed(seed)
        self._episode, self._start_state = episode, start
        if start is not None:
            self._environment.restore(start)
        if self._episode < 0:
            return None
        self._begin()
        for number, action in enumerate(actions):
            if self._timestep is not None and self._timestep.last() and getattr(self._environment, "goes_on", False):
                self.reset()
                continue
            if self._timestep is None or self._timestep.last():
                raise elsewhere(f"the episode ended after {number} of {len(actions)} actions")
            self.step(action)
        compare(last, fingerprint(self._timestep))
        return self._timestep

    def observation_spec(self) -> Nest:
        """Returns the spec of the observations."""
        return self._environment.observation_spec()

    def action_spec(self) -> Nest:
        """Returns the spec of the actions."""
        return self._action_spec

    def reward_spec(self) -> Nest:
        """Returns the spec of the rewards."""
        return self._environment.reward_spec()

    def discount_spec(self) -> Nest:
        """Returns the spec of the discounts."""
        return self._environment.discount_spec()

    def close(self) -> None:
        """Frees the resources of the environment inside."""
        self._environment.close()


def warn_of_length(num_steps: int, remedy: str) -> None:
    """Warns once, at step `LONG_EPISODE` of an episode whose actions are kept.

    Args:
        num_steps: of the episode so far.
        remedy: what ends such episodes sooner.
    """
    if num_steps == LONG_EPISODE:
        warnings.warn(
            f"An episode has gone on for {LONG_EPISODE:,} steps. To repeat it after a kill, each of its actions is "
            "kept (about 150 bytes of memory), written into each checkpoint, and taken again by a resume. End episodes "
            f"sooner: {remedy}.",
            stacklevel=3,
        )


_BLOCK = 128


def episode_seed(seed: int, episode: int) -> int:
    """Returns the seed of episode number `episode`: 31 bits, so that every simulator takes it."""
    block, position = divmod(episode, _BLOCK)
    return _block_of_seeds(seed, block)[position]


@functools.lru_cache(maxsize=256)
def _block_of_seeds(seed: int, block: int) -> tuple[int, ...]:
    # A SeedSequence costs 10 microseconds, as much as two steps of a small simulator: hence blocks.
    states = np.random.SeedSequence([seed, block]).generate_state(_BLOCK)  # uint32
    return tuple(int(state) for state in states >> 1)


def _check_repeatable(environment: Any) -> None:
    if specs.is_batched(environment):
        raise ConfigError(
            f"ResumableEnvironment takes one environment, found a batch of {environment.num_envs}. "
            "Make each environment resumable and batch them: envs.make(name, num_envs=N)."
        )
    inner = environment
    while inner is not None:
        if getattr(inner, "resumable", False):
            raise ConfigError(
                "The environment is resumable already. Put the resumable layer outermost, once: "
                "envs.make(name, wrappers=[...])."
            )
        inner = vars(inner).get("_environment")
    if not callable(getattr(environment, "reseed", None)):
        raise ConfigError(
            f"{type(environment).__name__} has no reseed(seed), so its episodes cannot be repeated and it "
            "cannot be saved in mid-episode. Give it a method reseed(seed: int) after which the next "
            "reset() begins an episode that depends on that seed alone."
        )


def unstack(stacked: dict[str, np.ndarray], spec: Nest, num_steps: int) -> list[Nest]:
    """Returns saved actions of `spec`, one by one.

    Raises:
        SpecError: they are of another spec, or not as many.
    """
    if num_steps == 0:
        return []
    leaves = [np.asarray(stacked[str(i)]) for i in range(len(tree.flatten(spec)))]
    for leaf, leaf_spec in zip(leaves, tree.flatten(spec), strict=True):
        if leaf.shape != (num_steps, *leaf_spec.shape):
            raise SpecError(f"actions of shape {list(leaf.shape)} for {num_steps} steps of {leaf_spec}")
    return [tree.unflatten_as(spec, [leaf[t] for leaf in leaves]) for t in range(num_steps)]


def fingerprint(timestep: dm_env.TimeStep | None) -> dict[str, Any]:
    """Returns what of a time step must be equal after a replay: step type, reward, discount and observation."""
    if timestep is None:
        return {}
    leaves = {}
    if timestep.observation is not None:  # As at the end of one of several agents.
        leaves = {f"observation/{i}": leaf for i, leaf in enumerate(tree.flatten(timestep.observation))}
    if timestep.reward is not None:
        leaves |= {f"reward/{i}": leaf for i, leaf in enumerate(tree.flatten(timestep.reward))}
        leaves |= {f"discount/{i}": leaf for i, leaf in enumerate(tree.flatten(timestep.discount))}
    return {"step_type": int(timestep.step_type)} | {k: np.array(v) for k, v in leaves.items()}


def compare(expected: dict[str, Any], found: dict[str, Any]) -> None:
    """Refuses a replayed episode whose last fingerprint is not the saved one.

    Raises:
        CheckpointError: it says what differs.
    """
    if expected.keys() != found.keys():
        raise elsewhere(f"expected {sorted(expected)}, found {sorted(found)}")
    for name, value in expected.items():
        if not np.array_equal(np.asarray(value), np.asarray(found[name]), equal_nan=True):
            raise elsewhere(f"{name} was {value} when saved and is {found[name]} now")


def elsewhere(what: str) -> CheckpointError:
    """Returns the error of an episode that did not go as it was saved."""
    return CheckpointError(
        f"The replayed episode is not the saved one: {what}. Either the environment is not deterministic "
        "for a given seed (its reseed must cover every source of randomness), or it was made with other "
        "settings or another version than when it was saved. A new run of one agent can begin with what this "
        "one has learned: init_from (--init-from)."
    )
