"""Acts as a trained agent does: `LoadedPolicy`, which `agentkit.load` returns."""

from __future__ import annotations

import copy
import pathlib
from collections.abc import Mapping
from typing import Any, NamedTuple, final

import jax
import numpy as np
import tree

from agentkit.actors.policy import Policy
from agentkit.agents.common.agent import Agent
from agentkit.child import check_not_forked
from agentkit.counting import MOST_STEPS
from agentkit.errors import ConfigError, SpecError, says_what_was_meant
from agentkit.experiment.config.experiment_config import ExperimentConfig
from agentkit.experiment.policies.acting import ActingState, ActsByActor, ActsByPolicy
from agentkit.experiment.policies.own_actor import OwnActing
from agentkit.experiment.policies.policy_file import PolicyFile, write_policy
from agentkit.specs import fit, from_own_terms, in_own_terms, in_words
from agentkit.types import Nest
from agentkit.wrappers.canonical_actions import to_bounds


class Origin(NamedTuple):
    """Says which run a policy is of.

    Attributes:
        experiment: that was run; None for one of several agents.
        counts: the steps and the updates that the policy was trained for; None where the run did not count them.
    """

    experiment: ExperimentConfig | None
    counts: tuple[int | None, int | None]


def _check_not_traced(nest: Nest) -> None:
    if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(nest)):
        raise ConfigError(
            "A LoadedPolicy acts outside of jax.jit, jax.vmap and jax.grad: it takes and returns numpy arrays, also "
            "with a batch axis in front. Within them, call policy.pure_policy.act(params, key, observation, state); "
            "policy.arrays are the parameters."
        )


def _read_beginnings(episode_start: Any, batch_size: int | None) -> np.ndarray:
    found = np.asarray(episode_start)
    expected = () if batch_size is None else (batch_size,)
    if found.dtype != bool or found.shape != expected:
        raise SpecError(
            f"episode_start: expected bool{list(expected)}, whether an episode begins, found {found.dtype}"
            f"{list(found.shape)}."
        )
    return found


OTHER_WORDS_TO_ACT = ("act", "action", "compute_action", "compute_single_action", "get_action", "predict")


@final
class LoadedPolicy:
    """Acts as a trained agent does: ``action, state = policy(observation, state)``; None begins an episode.

    One without a memory needs no state: ``action = policy.select_action(observation)``. An actor of the user's own acts
    for one observation at a time, and keeps what it remembers itself.

    Observations are as the run's wrappers give them, of any dtype that `specs.fit` casts to theirs; actions have the
    environment's own bounds and dtypes. Choices count from where the environment itself counts them, where no wrapper
    of the run changed them. Both may have a batch axis in front.

    Attributes:
        observation_spec: what it takes.
        action_spec: what it returns.
        agent_observation_spec: of what its agent was trained with, which `observation_spec`'s is made: choices from 0.
        agent_action_spec: of what its agent was trained to return, which is made `action_spec`'s.
        arrays: its parameters.
        acting: what acts: its `pure_policy`; of an agent's own actor, what makes that.
        environment_spec: what its agent was made for.
        explore: whether it acts as in training.
        num_steps: at which its exploration goes on; where nobody knows, its schedules have ended.
        origin: the run that it is of; None for that of a file.
    """

    def __init__(
        self, agent: Agent, acting: Policy | OwnActing, params: Nest, file: PolicyFile, seed: int,
        explore: bool = False, origin: Origin | None = None,
    ):  # fmt: skip
        """Makes a `LoadedPolicy`; `load` does.

        Args:
            agent: whose policy it is.
            acting: what acts.
            params: its parameters.
            file: what `save` writes, but for the parameters.
            seed: of its sampling.
            explore: whether `acting` acts as in training.
            origin: the run that it is of; None where nothing is known of it.
        """
        check_not_forked()
        self.agent, self.acting = agent, acting
        self.arrays = jax.tree.map(np.asarray, params)
        self.environment_spec = file.environment_spec
        self.explore, self.origin = explore, origin
        # Half of the most has room to count on, and schedules have ended there.
        explored = MOST_STEPS // 2 if file.num_steps is None else min(file.num_steps, MOST_STEPS // 2)
        self.num_steps = explored if explore else 0
        self.agent_observation_spec = file.environment_spec.observations
        self.observation_spec = in_own_terms(self.agent_observation_spec)
        self.action_spec = in_own_terms(file.own_actions)
        self.agent_action_spec = file.environment_spec.actions
        self._file, self._seed = file, seed
        self._acts: ActsByPolicy | ActsByActor
        if isinstance(acting, OwnActing):
            self._acts = ActsByActor(acting, params, file.environment_spec, seed, self.num_steps)
        else:
            self._acts = ActsByPolicy(acting, params, seed, self.num_steps)

    @property
    def pure_policy(self) -> Policy:
        """Returns the pure function of parameters and one observation; its actions are in [-1, 1] or from 0.

        Raises:
            ConfigError: an actor of the user's own acts.
        """
        return self._pure("pure_policy")

    def _pure(self, asked: str) -> Policy:
        if isinstance(self.acting, OwnActing):
            raise ConfigError(
                f"{asked}: the run's agent acts by an actor of its own (make_actor), which is Python code and no file "
                "can hold. Load it from its run folder, where that code can be imported."
            )
        return self.acting

    def __repr__(self) -> str:
        """Returns whose policy it is, what it takes and what it returns."""
        name = type(self.agent.config).__module__.rpartition(".")[2]
        observations, actions = in_words(self.observation_spec), in_words(self.action_spec)
        return f"LoadedPolicy(of {name}, observations {observations}, actions {actions})"

    def __call__(
        self, observation: Nest, state: ActingState | None = None, *, episode_start: np.ndarray | bool | None = None
    ) -> tuple[Nest, ActingState]:
        """Returns the action for an observation, and the state to hand in with the next one.

        Args:
            observation: of `observation_spec`, or each leaf ``[B, ...]``.
            state: what the call before returned; None at the start of an episode (of all B).
            episode_start: where an episode begins while others go on, bool ``[B]``; None for nowhere.

        Returns:
            An action of `action_spec`, or each leaf ``[B, ...]``; a single number is numpy's scalar, such as ``int32``.

        Raises:
            SpecError: the observation has another structure, shape or kind, or numbers that are not finite, or choices
                that there are not; or the state is none of this policy for as many.
            ConfigError: this process was forked from one that had used JAX; it is called within JAX's transformations;
                or a batch was given to an actor of the user's own.
        """
        check_not_forked()
        _check_not_traced((observation, state, episode_start))
        observation, batch_size = self._read(observation)
        begins = None if episode_start is None else _read_beginnings(episode_start, batch_size)
        action, state = self._acts.act(observation, batch_size, state, begins)
        _check_not_traced(action)  # Of a function without arguments, only what it computes is traced.
        specs = self.agent_action_spec, self.action_spec
        return tree.map_structure(lambda leaf, *each: to_bounds(np.asarray(leaf), *each)[()], action, *specs), state

    @says_what_was_meant
    def select_action(self, observation: Nest) -> Nest:
        """Returns the action alone, of a policy that keeps nothing from one step to the next.

        Args:
            observation: of `observation_spec`, or each leaf ``[B, ...]``.

        Raises:
            ConfigError: the policy has a state, such as a recurrent core's, which would be lost at each step.
            SpecError: the observation has another structure or shape.
        """
        action, state = self(observation)
        if jax.tree.leaves(state.policy):
            raise ConfigError(
                "This policy keeps a state from step to step (a memory, or a count of its steps), and an action alone "
                "would lose it. Call: action, state = policy(observation, state), with None where an episode begins."
            )
        return action

    @property
    def key(self) -> jax.Array:
        """Returns the PRNG key ``uint32[2]`` of the episodes that begin next."""
        return self._acts.key

    @key.setter
    def key(self, key: jax.Array) -> None:
        self._acts.key = key

    def __copy__(self) -> LoadedPolicy:
        """Returns another that goes on with the same random numbers; an actor of one's own begins anew."""
        copied = LoadedPolicy(self.agent, self.acting, self.arrays, self._file, self._seed, self.explore, self.origin)
        copied.key = self.key
        return copied

    def __deepcopy__(self, memo: Any) -> LoadedPolicy:
        """Returns what `__copy__` does."""
        return copy.copy(self)

    def __getattr__(self, name: str) -> Any:
        """Says what another library's word for acting is here."""
        if name in OTHER_WORDS_TO_ACT:
            raise AttributeError(
                f"A LoadedPolicy has no {name!r}. policy.select_action(observation) returns the action alone; with a "
                "memory, action, state = policy(observation, state)."
            )
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def _read(self, observation: Nest) -> tuple[Nest, int | None]:
        """Returns the observation as the agent's, and the size of its batch or None."""
        spec = self.observation_spec
        try:
            ndim = np.ndim(tree.flatten_up_to(spec, observation, check_types=False)[0])
        except (TypeError, ValueError):  # `fit` says it better.
            ndim = 0
        single = ndim <= len(tree.flatten(spec)[0].shape)
        leading, advice = (
            "" if single else "row",
            "Give what observation_spec says, or each with a batch axis in front.",
        )
        found = fit(observation, spec, "Unexpected observation", leading=leading, advice=advice)
        sizes = {len(leaf) for leaf in tree.flatten(found)} if not single else set()
        if len(sizes) > 1:
            raise SpecError(f"Unexpected observation: expected one number of rows, found {sorted(sizes)}. {advice}")
        return from_own_terms(found, self.agent_observation_spec), None if single else sizes.pop()

    def save(self, path: str | pathlib.Path, *, extra: Mapping[str, np.ndarray] | None = None) -> None:
        """Writes a policy file ``.npz``: parameters, the agent's settings and parts, and specs; nothing else.

        Args:
            path: the file; one of this name is replaced in one step.
            extra: arrays for other readers, under names with a slash.

        Raises:
            ConfigError: the name does not end in .npz; or the agent has an actor or a learner of its own, which no file
                can name.
        """
        self._pure("save")
        if self.agent.make_learner is not None:
            raise ConfigError(
                "save: the agent learns by a learner of its own (make_learner), and a policy file holds parameters of "
                "an update. Load the policy from its run folder, or export it."
            )
        write_policy(path, self._file, self.arrays, extra)

    def export(self, path: str | pathlib.Path, format: str | None = None) -> list[pathlib.Path]:
        """Writes the policy for another world; returns the files.

        What was written is read back, and its actions are compared with the policy's own, before it takes the place of
        what has its name. docs/policies.md says what each format needs and how it is used.

        Args:
            path: the file, or of ``savedmodel`` the folder.
            format: "policy", "numpy", "stablehlo", "onnx" or "savedmodel"; None goes by the name's end.

        Raises:
            ConfigError: the format cannot hold this policy or has other names, or the file cannot be written.
            MissingExtraError: it needs a package that is not installed.
        """
        from agentkit.experiment.policies.export.formats import export

        self._pure("export")
        return export(self, path, format)
