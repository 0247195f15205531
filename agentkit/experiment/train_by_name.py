"""Trains an agent by name, with known settings where there are some: `agentkit.train`."""

from __future__ import annotations

import dataclasses
import inspect
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from agentkit.agents import registry
from agentkit.agents.addons import View, with_normalization, with_views
from agentkit.agents.addons.prior_data import PriorData
from agentkit.agents.common.agent import Agent
from agentkit.callbacks import keep_best
from agentkit.callbacks.best import KeepBest
from agentkit.counting import parse_whole
from agentkit.envs.given import find, name_of
from agentkit.errors import ConfigError, accepts_old_words, our_name, says_what_was_meant, unknown_name
from agentkit.experiment.config import presets
from agentkit.experiment.config.experiment_config import ExperimentConfig, refuse_wrong_order
from agentkit.experiment.config.presets import Preset
from agentkit.experiment.local import run
from agentkit.experiment.policies.result import Result
from agentkit.experiment.runs.new_folder import RUNS, make_folder


@accepts_old_words(steps="num_steps")
@says_what_was_meant
def train(
    agent: str | Agent,
    environment: Any,
    num_steps: int | float | str | None = None,
    *,
    seed: int = 0,
    preset: str | None = presets.AUTO,
    torso: Any = None,
    normalize: str | Sequence[str] = (),
    views: Mapping[str, View] | None = None,
    **settings: Any,
) -> Result:
    """Trains an agent, keeps the run in a folder as the command does, and returns how it ended.

    >>> import agentkit
    >>> settings = {"evaluation_period": 0, "hidden_sizes": (8,), "run_directory": None}
    >>> agentkit.train("dqn", "agentkit:catch", "60", **settings).steps
    60

    Args:
        agent: a name of ``agentkit list``, or an agent that was made by hand.
        environment: a name; or a class, function or instance of gymnasium's or dm_env's kind, see docs/environments.md.
        num_steps: environment steps, such as 100_000, "100k" or "2M"; None for those of the preset.
        seed: every random choice follows from it.
        preset: "auto" for settings that are known to work in this environment (see `agentkit.presets`), "none", or
            another environment's name for its settings.
        torso: what turns observations into features: "nature", "shallow", "impala", "drq", "simba", "flatten" or a
            function, see docs/environments.md; None for what the agent and the observation ask for.
        normalize: "observations", "rewards" or both, with a comma or as a list: see `agents.addons.with_normalization`.
        views: what the model sees of the past, by name, in the place of the observation; see docs/views.md.
        **settings: fields of the agent's `Config` (``learning_rate``, ...), of `ExperimentConfig` (``run_directory``,
            ``num_envs``, ...), and arguments of `agentkit.run` (``resume``, ...). They win over the preset's. Without
            a ``run_directory`` the run is kept in a new folder ``runs/AGENT-ENVIRONMENT-seedN``; None keeps nothing.
            ``keep_best=False`` leaves out `callbacks.keep_best`, which a run in a folder that is evaluated has.

    Raises:
        ConfigError: for settings that are impossible or contradict each other, or where there are no steps.
        UnknownNameError: for an agent, environment or setting that is not there; proposes the nearest name.
    """
    refuse_wrong_order(agent, environment)
    keeps_best = settings.pop("keep_best", True)
    if not isinstance(keeps_best, bool):
        raise ConfigError(f"keep_best: expected True or False, found {keeps_best!r}. Another one goes into callbacks=.")
    of_agent, of_run, of_call = _split(agent, settings)
    of_run = {"progress": True, "seed": seed} | of_run
    if not isinstance(agent, str) and preset not in (None, presets.AUTO, presets.NONE):
        raise ConfigError(
            f"preset={preset!r}: the agent was made with its settings, and no preset changes them. Leave preset out, "
            "or name the agent."
        )
    # An agent that was made by hand has its settings already.
    chosen = presets.choose(agent, environment, preset) if isinstance(agent, str) else None
    made = find(environment) if isinstance(environment, str) else environment
    experiment = plan(
        agent, made, num_steps, of_agent, preset=chosen, torso=torso, normalize=normalize, views=views, **of_run
    )
    warn_without_data(experiment, agent)
    named = environment if preset == presets.AUTO else preset
    line = presets.announcement(chosen, experiment.agent.config, experiment, named)
    if line and experiment.progress:
        print(f'{line} preset="none" for bare defaults.', flush=True)
    if keeps_best and of_run.get("run_directory", RUNS) is not None:
        experiment = _keeping_best(experiment)
    if "run_directory" in of_run or of_call.get("resume"):
        return run(experiment, **of_call)
    name = agent if isinstance(agent, str) else registry.name_of(agent) or "agent"
    folder = make_folder(RUNS, name, name_of(environment), f"seed{seed}")
    with folder.removed_if_refused():
        return run(dataclasses.replace(experiment, run_directory=folder.path), **of_call)


def _keeping_best(experiment: ExperimentConfig) -> ExperimentConfig:
    """Returns the experiment with `callbacks.keep_best` before its own, if it is evaluated and has none yet.

    By the return, which nobody adds: own callbacks find the newest best policy, and one that fails loses none.
    """
    own = experiment.callbacks
    if experiment.evaluation_period == 0 or any(isinstance(callback, KeepBest) for callback in own):
        return experiment
    return dataclasses.replace(experiment, callbacks=(keep_best(), *own))


def plan(
    agent: str | Agent,
    environment: Any,
    steps: int | float | str | None,
    agent_settings: Mapping[str, Any],
    *,
    preset: Preset | None,
    torso: Any = None,
    normalize: str | Sequence[str] = (),
    views: Mapping[str, View] | None = None,
    **settings: Any,
) -> ExperimentConfig:
    """Returns the experiment that a preset and the user's own settings describe; the user's win.

    Args:
        agent: a registered name, or an agent.
        environment: as `ExperimentConfig` takes it.
        steps: as `train` takes them.
        agent_settings: fields of the agent's `Config`.
        preset: see `agentkit.presets`; None for none.
        torso: of an agent by name; None for its own.
        normalize: as `train` takes it.
        views: of `with_views`; None or empty for what the environment shows.
        **settings: fields of `ExperimentConfig`; without them the run is evaluated in proportion and saved ten times.

    Raises:
        ConfigError: for impossible settings, or where neither the user nor the preset says how many steps.
        UnknownNameError: for a setting that is not there.
    """
    num_steps = _whole(steps) if steps is not None else None if preset is None else preset.num_steps
    if num_steps is None:
        raise ConfigError('steps: expected how many environment steps to train for, such as 100_000 or "100k".')
    if preset is not None:
        agent_settings = preset.settings_for(num_steps) | dict(agent_settings)
        own = settings.get("environment_settings", {})
        if isinstance(own, Mapping):  # Else the experiment refuses it.
            settings["environment_settings"] = {**preset.environment_settings, **own}
        if settings.get("wrappers") is None:  # An empty list is the user's own.
            settings["wrappers"] = preset.wrappers
        settings.setdefault("num_envs", preset.num_envs)
    settings = {"checkpoint_period": max(num_steps // 10, 1)} | settings
    if torso is not None and not isinstance(agent, str):
        raise ConfigError("torso: the agent was made with its networks. Give it there (make_agent(torso=...)).")
    made = registry.make(agent, agent_settings, torso) if isinstance(agent, str) else agent
    return ExperimentConfig(with_addons(made, normalize, views), environment, num_steps, **settings)


def warn_without_data(experiment: ExperimentConfig, agent: str | Agent) -> None:
    """Warns where an agent that is made to learn from data gets none.

    Args:
        experiment: that is to be run.
        agent: a registered name; one that was made by hand is not warned of.
    """
    if not isinstance(agent, str) or registry.about(agent).data != "offline":
        return
    has_data = experiment.data is not None or isinstance(experiment.agent.experience, PriorData)
    if not has_data and experiment.init_from is None:
        warnings.warn(
            f"{agent} is made to learn from data, and has only what it does itself here. Give it data (--data FILE), "
            "a run to begin with (--init-from RUN), or see: agentkit offline --help",
            stacklevel=3,
        )


NORMALIZED = ("observations", "rewards")


def with_addons(agent: Agent, normalize: str | Sequence[str] = (), views: Mapping[str, View] | None = None) -> Agent:
    """Returns the agent with the add-ons that a command's words ask for; itself where they ask for none.

    Args:
        agent: any.
        normalize: of `NORMALIZED`, with commas or as a list.
        views: see `with_views`.

    Raises:
        ConfigError: the agent normalises already, or has no use for the views.
        UnknownNameError: for another name than those in `NORMALIZED`.
    """
    given = [normalize] if isinstance(normalize, str) else normalize
    words = [word.strip() for each in given for word in each.split(",")]
    for word in words:
        if word not in NORMALIZED:
            raise unknown_name("part to normalise", word, NORMALIZED)
    if words:
        agent = with_normalization(agent, "observations" in words, "rewards" in words)
    return with_views(agent, views) if views else agent  # Around the rest, which then sees the views.


def _split(agent: str | Agent, settings: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Tells settings of the agent, fields of the experiment and arguments of `run` apart."""
    config_class = registry.config_class(agent) if isinstance(agent, str) else None
    of_agent = {field.name for field in dataclasses.fields(config_class)} if config_class is not None else set()
    of_run = {field.name for field in dataclasses.fields(ExperimentConfig)} - {"agent", "environment", "num_steps"}
    of_call = set(inspect.signature(run).parameters) - {"experiment"} - of_run  # Both take callbacks.
    for name in settings.keys() - of_agent - of_run - of_call:
        if (ours := our_name(name, of_agent)) is not None:
            raise ConfigError(f"{name}: {agent} calls it {ours!r}.")
        if (ours := our_name(name, [*inspect.signature(train).parameters, *of_run, *of_call])) is not None:
            raise ConfigError(f"{name}: agentkit.train calls it {ours!r}.")
        if not isinstance(agent, str) and hasattr(agent.config, name):
            raise ConfigError(f"{name}: the agent was made with its settings. Give it there, or name the agent.")
        kind = f"setting of {agent if isinstance(agent, str) else 'a run'}"
        advice = f"An argument of the environment goes into environment_settings={{{name!r}: ...}}."
        see = f" See: agentkit show {agent}" if of_agent else ""
        raise unknown_name(kind, name, of_agent | of_run | of_call, advice + see)
    # Lists are as good as tuples for sizes, and configs are hashed.
    given = {name: tuple(x) if isinstance(x, list) and name in of_agent else x for name, x in settings.items()}
    return tuple(  # type: ignore[return-value]
        {name: value for name, value in given.items() if name in names} for names in (of_agent, of_run, of_call)
    )


def _whole(steps: int | float | str) -> int:
    try:
        return parse_whole(str(steps))
    except ValueError as error:
        raise ConfigError(f"steps: {error}.") from None
