"""Loads a policy to act with, out of a run folder or a policy file: no learner, replay or environment is left."""

from __future__ import annotations

import contextlib
import copyreg
import dataclasses
import functools
import pathlib
import tempfile
from collections.abc import Sequence
from typing import Any, final

import jax.numpy as jnp
import numpy as np

from agentkit.actors.policy import Policy
from agentkit.agents.common.agent import Agent
from agentkit.checkpoint import Checkpoint
from agentkit.errors import ConfigError
from agentkit.experiment.config import identity
from agentkit.experiment.config.experiment_config import ExperimentConfig
from agentkit.experiment.config.trust import UntrustedCodeError
from agentkit.experiment.policies.loaded_policy import LoadedPolicy, Origin
from agentkit.experiment.policies.own_actor import OwnActing
from agentkit.experiment.policies.policy_file import POLICY_FILE, PolicyFile, read_policy
from agentkit.experiment.policies.restore_policy import (
    RestoredPolicy,
    check_run,
    own_actions,
    read_params,
    restore_experiment,
    restore_policy,
    steps_explored,
    without_environment,
)
from agentkit.specs import EnvironmentSpec
from agentkit.variables import VariableClient, VariableStore


def counts_of(found: Checkpoint) -> tuple[int, int]:
    """Returns the steps and the updates of a run's checkpoint, or of its best policy."""
    return found.step, int(found.state["learner" if "learner" in found.state else "best"]["num_updates"])


def load_one_agent(
    path: str | pathlib.Path | ExperimentConfig, *, checkpoint: str | int = "newest", explore: bool = False,
    seed: int = 0, imports: Sequence[str] = (), **changes: Any,
) -> LoadedPolicy:  # fmt: skip
    """Returns the policy of a run of one agent, or of a policy file: `agentkit.load` where there is one policy.

    Args:
        path: see `agentkit.load`, as all that follow.
        checkpoint: likewise.
        explore: likewise.
        seed: likewise.
        imports: likewise.
        **changes: likewise.
    """
    if isinstance(path, str) and path.startswith("hf:"):
        from agentkit.experiment.policies.hub import download

        path = download(str(path))
    check_run(path)
    if not isinstance(path, ExperimentConfig) and is_policy_file(path):
        file = pathlib.Path(path)
        file = file / POLICY_FILE if file.is_dir() else file
        if checkpoint != "newest":
            raise ConfigError(f"{file} is a policy file, which has no checkpoints: leave out {checkpoint=}.")
        return _load_file(file, explore, seed, imports, **changes)
    changes = without_environment(path, changes)
    return _loaded_policy_from(restore_policy(path, checkpoint, imports=imports, **changes), explore, seed)


def is_policy_file(path: str | pathlib.Path) -> bool:
    """Returns whether a path is a policy file, or a folder with one that `push` or ``export-policy`` wrote."""
    path = pathlib.Path(path)
    return path.is_file() or ((path / POLICY_FILE).is_file() and not (path / "config.json").exists())


def _loaded_policy_from(
    restored: RestoredPolicy, explore: bool = False, seed: int = 0, counts: tuple[int | None, int | None] = (None, None)
) -> LoadedPolicy:
    agent = restored.experiment.agent
    record = identity.describe_agent(agent, restored.experiment.num_envs or 1)
    found = restored.found
    explored = counts[0] if found is None else steps_explored(found.state, found.step)
    file = PolicyFile(record, restored.environment_spec, restored.own_actions, explored)
    origin = Origin(restored.experiment, counts if found is None else counts_of(found))
    params = VariableClient(restored.store).params
    acting: Policy | OwnActing = OwnActing(agent, restored.networks, not explore)
    if agent.make_actor is None:
        acting = agent.make_policy(restored.networks, evaluation=not explore)
    return LoadedPolicy(agent, acting, params, file, seed, explore, origin)


@final
@dataclasses.dataclass(frozen=True)
class Policies:
    """Makes the policies of a run that has ended, when they are asked for.

    Attributes:
        experiment: that was run.
        spec: of its environment.
        networks: of its agent; None where the parameters are in the run folder alone.
        store: has the newest parameters; None where they are in the run folder alone.
        acts: whether there is an environment.
        counts: the steps and updates of the newest parameters in `store`.
    """

    experiment: ExperimentConfig
    spec: EnvironmentSpec
    networks: Any = None
    store: VariableStore | None = None
    acts: bool = True
    counts: tuple[int | None, int | None] = (None, None)

    @functools.cached_property
    def newest(self) -> LoadedPolicy:
        """Returns the newest policy; see `find_newest`."""
        return self.find_newest()

    def find_newest(self, explore: bool = False) -> LoadedPolicy:
        """Returns the newest policy, which explores or not.

        Raises:
            ConfigError: the run was launched without a run folder, and its parameters are gone.
        """
        if self.store is None:
            return self._read_folder("newest", explore)
        actions = self.spec.actions
        if self.acts:
            with contextlib.closing(self.experiment.make_environment(self.experiment.seed)) as environment:
                actions = own_actions(environment)
        restored = RestoredPolicy(self.experiment, self.networks, self.store, None, self.spec, actions)
        return _loaded_policy_from(restored, explore, counts=self.counts)

    @functools.cached_property
    def best(self) -> LoadedPolicy:
        """Returns the policy of the best evaluation.

        Raises:
            ConfigError: none was kept.
        """
        return self._read_folder("best")

    def _read_folder(self, which: str, explore: bool = False) -> LoadedPolicy:
        directory = self.experiment.run_directory
        if directory is None:
            raise ConfigError(f"The run has no run folder to read its {which} policy from. Give it a run_directory.")
        return _loaded_policy_from(restore_experiment(self.experiment, directory, which), explore)


def _load_file(
    path: pathlib.Path, explore: bool, seed: int, imports: Sequence[str], agent: Agent | None = None
) -> LoadedPolicy:
    file, arrays = read_policy(path)
    if agent is None:
        checked = identity.check_rebuildable(file.agent, path, imports, identity.AGENT_PARTS)
        agent = identity.rebuild_agent(file.agent, checked, path)
        identity.warn_of_changes(file.agent, identity.describe_agent(agent, 1), path)
    networks = agent.make_networks(file.environment_spec)
    update = agent.make_update(networks)
    params = read_params(update, arrays, f"The policy file {path}")
    return LoadedPolicy(agent, agent.make_policy(networks, evaluation=not explore), params, file, seed, explore)


def _pickled(policy: LoadedPolicy) -> tuple[Any, ...]:
    """Returns what a policy is pickled as: its file, which does not say what run it is of, and its random numbers.

    Raises:
        ConfigError: as `LoadedPolicy.save`.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / POLICY_FILE
        policy.save(path)
        return _unpickled, (path.read_bytes(), policy.explore, np.asarray(policy.key))


def _unpickled(content: bytes, explore: bool, key: np.ndarray) -> LoadedPolicy:
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / POLICY_FILE
        path.write_bytes(content)
        try:
            policy = load_one_agent(path, explore=explore)
        except UntrustedCodeError as error:  # Who unpickles trusts the code that is named there.
            policy = load_one_agent(path, explore=explore, imports=error.packages)
    policy.key = jnp.asarray(key)
    return policy


copyreg.pickle(LoadedPolicy, _pickled)  # Not a method of it: to read the file again is what this module is for.
