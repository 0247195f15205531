"""The words before the colon of an environment's name, and what makes the environments of each."""

from __future__ import annotations

import importlib
import inspect
import re
import typing
from collections.abc import Callable, Iterable
from typing import Any

import dm_env

from agentkit.errors import ConfigError, unknown_name

Factory = Callable[..., dm_env.Environment]
"""``factory(name, seed, **kwargs) -> environment``; `name` is what follows the prefix."""

_OWN = {
    "bandit": "bandit.Bandit",
    "bit_flip": "reach_goal.BitFlip",
    "catch": "catch.Catch",
    "deep_sea": "deep_sea.DeepSea",
    "memory_chain": "memory_chain.MemoryChain",
    "point_mass": "point_mass.PointMass",
}
SIMULATORS = {
    "atari": "Breakout",
    "both_sides": "agentkit:tic_tac_toe",
    "brax": "ant",
    "bsuite": "catch/0",
    "dm_control": "cheetah/run",
    "dm_control_pixels": "cheetah/run",
    "envpool": "HalfCheetah-v4",
    "gymnax": "Breakout-MinAtar",
    "gymnasium": "HalfCheetah-v5",
    "gymnasium_vector": "CartPole-v1",
    "jax": "cartpole",
    "jumanji": "Snake-v1",
    "metaworld": "reach",
    "minatar": "Breakout",
    "minigrid": "DoorKey-5x5",
    "navix": "Navix-Empty-5x5-v0",
    "playground": "CartpoleBalance",
    "robotics": "PointMaze_UMaze",
    "team": "pettingzoo:mpe/simple_spread_v3",
}
"""Prefixes of simulators, each with the name of one of its environments."""
_ROOMS = {**dict.fromkeys(("brax", "gymnax", "jumanji", "navix", "playground", "jaxmarl", "pgx"), "jax.")}
_ROOMS |= dict.fromkeys(("agent_ids", "both_sides", "openspiel", "pettingzoo", "team"), "multi_agent.")
GYMNASIUM_PREFIXES = ("gymnasium", "gymnasium_vector", "atari", "metaworld", "minigrid", "robotics")
"""Prefixes of environments that gymnasium makes, and that draw with ``render_mode="rgb_array"``."""

OF_SEVERAL_AGENTS = {
    "agent_ids": "agentkit:matrix_game",
    "jaxmarl": "MPE_simple_spread_v3",
    "openspiel": "kuhn_poker",
    "pettingzoo": "mpe/simple_spread_v3",
    "pgx": "connect_four",
}
"""Prefixes of environments of several agents, each with the name of one of its environments: `envs.make_multi_agent`
makes them."""
_ONE_OF_SEVERAL = ("both_sides", "team")
"""Prefixes that make one agent of an environment of several."""
OWN_OF_SEVERAL_AGENTS = {
    "come_and_go": "come_and_go.ComeAndGo",
    "matrix_game": "matrix_game.MatrixGame",
    "tic_tac_toe": "tic_tac_toe.TicTacToe",
    "two_step_game": "two_step_game.TwoStepGame",
}
"""agentkit's own environments of several agents, each with its file in ``agentkit/envs/multi_agent`` and its class."""
IN_JAX_OF_SEVERAL_AGENTS = {
    "connect_four": "connect_four.ConnectFour",
    "tic_tac_toe": "tic_tac_toe.TicTacToe",
    "two_step_game": "two_step_game.TwoStepGame",
}
"""Those that follow ``jax:``, each with its file in ``agentkit/envs/jax`` and its class."""

_registered: dict[str, Factory] = {}


def register(prefix: str, factory: Factory) -> None:
    """Makes ``make(f"{prefix}:{name}", seed, **kwargs)`` call ``factory(name, seed, **kwargs)``.

    Raises:
        ConfigError: if the prefix is taken or contains a colon.
    """
    if ":" in prefix or not prefix:
        raise ConfigError(f"A prefix is a word without a colon, found {prefix!r}.")
    if prefix in (*_registered, *SIMULATORS, *OF_SEVERAL_AGENTS, "agentkit"):
        raise ConfigError(f"The environment prefix {prefix!r} is taken. Choose another one.")
    _registered[prefix] = factory


def registered(name: str) -> Factory | None:
    """Returns the function that `register` was given for a name's prefix; None for a prefix that is agentkit's own."""
    return _registered.get(name.partition(":")[0])


def module_of(name: str) -> str:
    """Returns the module that has an environment of agentkit's own, or those of a prefix (``prefix:``); "" for none."""
    prefix, _, rest = name.partition(":")
    if prefix in _registered:
        return ""
    if prefix == "jax" and rest in IN_JAX_OF_SEVERAL_AGENTS:
        return f"agentkit.envs.jax.{IN_JAX_OF_SEVERAL_AGENTS[rest].partition('.')[0]}"
    if prefix != "agentkit":
        return f"agentkit.envs.{_ROOMS.get(prefix, '')}{prefix}"
    own = _OWN.get(rest) or f"multi_agent.{OWN_OF_SEVERAL_AGENTS[rest]}"
    return f"agentkit.envs.{own.rpartition('.')[0]}"


def settings_of(name: str) -> dict[str, Any] | None:
    """Returns the arguments that agentkit's own environment takes, with their types; None for another's environment."""
    name = name_inside(name)
    prefix, rest = split_several(name) if has_several_agents(name) else split(name)
    if prefix != "agentkit" or rest not in (*_OWN, *OWN_OF_SEVERAL_AGENTS):
        return None
    cls = own_class(rest)
    hints = typing.get_type_hints(cls.__init__)
    return {key: hints[key] for key in inspect.signature(cls).parameters if key != "seed"}


def available() -> list[str]:
    """Returns agentkit's own environments by their full names, then every other prefix as ``prefix:``."""
    return [f"agentkit:{name}" for name in sorted(_OWN)] + [f"{p}:" for p in prefixes() if p != "agentkit"]


def prefixes() -> list[str]:
    """Returns the words that may stand before the colon of a name."""
    return sorted({"agentkit", *SIMULATORS, *_registered})


def check_name(name: str) -> None:
    """Refuses a name that is no ``prefix:name``; whether the simulator has it shows when it is made.

    Raises:
        UnknownNameError: proposes the nearest match.
    """
    split(name)


def split(name: str) -> tuple[str, str]:
    """Returns the prefix of an environment's name, and the rest.

    Raises:
        UnknownNameError: it is no ``prefix:name``, or there is no such prefix; proposes the nearest match.
    """
    prefix, colon, rest = name.partition(":")
    if not colon and re.search(r"-v\d+$", name):
        raise unknown_name("environment", name, [], f"Did you mean 'gymnasium:{name}'?")
    if not colon and name in (*_OWN, *OWN_OF_SEVERAL_AGENTS):
        raise unknown_name("environment", name, [], f"Did you mean 'agentkit:{name}'? Expected 'prefix:name'.")
    if not colon or not rest:
        raise unknown_name(
            "environment",
            name,
            [*available(), *(f"{p}:{example}" for p, example in SIMULATORS.items())],
            "Expected 'prefix:name'.",
        )
    refuse_several_agents(name)
    if prefix not in prefixes():
        advice = (
            "Of your own, hand in the class or function itself; on the command line, --env MODULE:NAME of a module "
        )
        advice += "that can be imported here. A prefix of your own comes from envs.register."
        raise unknown_name("environment prefix", prefix, prefixes(), advice)
    return prefix, rest


def has_several_agents(name: str) -> bool:
    """Returns whether a name is one of an environment of several agents."""
    prefix, _, rest = name.partition(":")
    own = {"agentkit": OWN_OF_SEVERAL_AGENTS, "jax": IN_JAX_OF_SEVERAL_AGENTS}
    return prefix in OF_SEVERAL_AGENTS or rest in own.get(prefix, ())


def name_inside(name: str) -> str:
    """Returns the name of the environment inside of a team, of both sides, or of agent ids; else the name itself."""
    prefix, _, rest = name.partition(":")
    return name_inside(rest) if prefix in ("agent_ids", *_ONE_OF_SEVERAL) else name


def is_of_pettingzoo(name: str) -> bool:
    """Returns whether PettingZoo makes an environment, or the one inside."""
    return name_inside(name).partition(":")[0] == "pettingzoo"


def refuse_several_agents(name: str) -> None:
    """Refuses an environment of several agents where one agent is to act.

    Raises:
        ConfigError: it is one.
        UnknownNameError: what is behind ``agent_ids:`` is none of several agents.
    """
    if has_several_agents(name):
        if name.startswith("agent_ids:"):
            split_several(name.removeprefix("agent_ids:"))
        raise several_agents(name)


def several_agents(name: str) -> ConfigError:
    """Returns the error of an environment of several agents, or of a class of one's own, where one agent is to act."""
    own = "an agentkit.envs.multi_agent.team.TeamEnvironment around it, in JAX an agentkit.envs.jax.team.JaxTeam"
    return ConfigError(
        f"{name} has several agents, and this is for one agent. Say who plays whom: --policies shared (or each), "
        "in Python agentkit.MultiAgentConfig; see docs/several_agents.md. One agent that acts for all of a team, as "
        f"qmix, takes {f'team:{name}' if ':' in name else own}; see docs/teams.md."
    )


def split_several(name: str) -> tuple[str, str]:
    """Returns the prefix of the name of an environment of several agents, and the rest.

    Raises:
        UnknownNameError: it is none; proposes the nearest match.
        ConfigError: in it, one agent acts for all.
    """
    prefix, _, rest = name.partition(":")
    if prefix in _ONE_OF_SEVERAL:
        raise ConfigError(
            f"{name} has one agent, which acts for all, and this is for several agents. Leave {prefix}: out; "
            f"beside agent_ids: it comes first, {prefix}:agent_ids:{name_inside(name)}."
        )
    if not has_several_agents(name):
        known = [f"agentkit:{own}" for own in OWN_OF_SEVERAL_AGENTS]
        known += [f"jax:{own}" for own in IN_JAX_OF_SEVERAL_AGENTS]
        known += ["jaxmarl:NAME", "openspiel:NAME", "pettingzoo:FAMILY/NAME", "pgx:NAME", "agent_ids:NAME"]
        advice = "Those of one agent take no policies."
        raise unknown_name("environment of several agents", name, known, advice)
    return prefix, rest


def factory_of(prefix: str) -> Factory:
    """Returns what makes the environments of a prefix; a simulator is imported here."""
    if prefix in _registered:
        return _registered[prefix]
    if prefix == "agentkit":
        return _make_own
    return importlib.import_module(f"agentkit.envs.{_ROOMS.get(prefix, '')}{prefix}").make


def check_known(prefix: str, name: str, known: Iterable[str]) -> None:
    """Refuses a name that a package does not have.

    Raises:
        UnknownNameError: proposes the nearest one.
    """
    names = list(known)
    if name not in names:
        raise unknown_name("environment", f"{prefix}:{name}", [f"{prefix}:{each}" for each in names])


def check_settings(environment: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Refuses settings that an environment does not take.

    Raises:
        UnknownNameError: proposes the nearest one.
    """
    names = list(known)
    for name in given:
        if name not in names:
            raise unknown_name(f"setting of {environment}", name, names)


def _make_own(name: str, seed: int, **kwargs: Any) -> dm_env.Environment:
    check_known("agentkit", name, _OWN)
    cls = own_class(name)
    check_settings(f"agentkit:{name}", kwargs, set(inspect.signature(cls).parameters) - {"seed"})
    return cls(seed=seed, **kwargs)


def own_class(name: str) -> Any:
    """Returns the class that makes agentkit's own environment of this name, of one agent or of several."""
    room = "" if name in _OWN else "multi_agent."
    module, attribute = (_OWN | OWN_OF_SEVERAL_AGENTS)[name].split(".")
    return getattr(importlib.import_module(f"agentkit.envs.{room}{module}"), attribute)
