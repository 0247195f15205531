"""Digests of what every agent has learned after a short run: equal digests are equal bits.

Run it on two commits and compare (it uses whichever of `make_agent` and `Agent` the commit has)::

    python benchmarks/changes/bit_equality.py before.json
    python benchmarks/changes/bit_equality.py after.json --against before.json
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import pathlib
import tempfile
import time
from typing import Any

import numpy as np
import tree

import agentkit
from agentkit import checkpoint, datasets, envs
from agentkit.adders import Hindsight
from agentkit.agents import registry
from agentkit.envs.reach_goal import BitFlip

REPLAY = {"min_replay_size": 20, "batch_size": 8, "replay_size": 1_000}
SMALL = {"hidden_sizes": (16,)}
CONTINUOUS = (
    "cql", "crossq", "crr", "d4pg", "ddpg", "droq", "iql", "mpo", "recurrent_sac", "redq", "sac", "td3", "td3_bc",
    "tqc",
)  # fmt: skip
ON_POLICY = ("a2c", "impala", "mappo", "npg", "ppo", "pqn", "reinforce", "trpo")
TEAMS = ("maddpg", "mappo", "qmix")
SEQUENCES = {"sequence_length": 8, "sequence_period": 4, "min_replay_size": 4}
# A setting that was renamed stands here under both names: each commit takes the one it knows.
OF_AN_AGENT: dict[str, dict[str, Any]] = {
    "r2d2": {**SEQUENCES, "core_size": 8, "lstm_size": 8, "burn_in": 2, "updates_per_step": 0.5},
    "redq": {"updates_per_step": 2.0, "updates_per_call": 2, "policy_period": 2, "policy_delay": 2, "num_critics": 4},
    "droq": {"updates_per_step": 2.0, "updates_per_call": 2, "policy_period": 2, "policy_delay": 2},
    "crossq": {"critic_hidden_sizes": (16,), "policy_delay": 2},
    "mpo": {"num_samples": 4},
    "pqn": {"num_minibatches": 2},
    "gumbel_muzero": {
        **SEQUENCES,
        "model_size": 16,
        "num_atoms": 11,
        "num_simulations": 4,
        "unroll_length": 2,
        "updates_per_step": 0.5,
        "target_update_period": 10,
    },
    "impala": {"normalize_observations": False, "normalize_values": False},  # Settings that the first commit had not.
}


def annealed() -> dict[str, Any]:
    """PPO's default learning rate, which falls to 0, as the commit says it."""
    if "anneal_steps" in registry.config_class("ppo").__dataclass_fields__:
        return {"anneal_steps": 10_000}
    return {"learning_rate": importlib.import_module("agentkit.learning").Linear(1e-3, 0.0, 10_000)}


VARIANTS: dict[str, dict[str, Any]] = {
    "sac/prioritized,n_step": {"prioritized": True, "n_step": 3},
    "sac/fixed temperature": {"learn_temperature": False},
    "td3/prioritized": {"prioritized": True},
    "dqn/prioritized,duelling": {"prioritized": True, "duelling": True},
    "dqn/not double, squared": {"double": False, "huber_delta": None},
    "c51/prioritized": {"prioritized": True},
    "c51/ladder": {"epsilon_ladder": True},
    "r2d2/uniform, not rescaled": {"prioritized": False, "rescale_values": False},
    "r2d2/ladder": {"epsilon_ladder": True},
    "iqn/risk": {"risk_level": 0.5, "prioritized": True},
    "qr_dqn/prioritized, delta 0": {"prioritized": True, "huber_delta": 0.0},
    "rainbow/uniform": {"prioritized": False},
    "munchausen_dqn/prioritized": {"prioritized": True, "huber_delta": None},
    "discrete_bcq/prioritized": {"prioritized": True, "threshold": 0.9},
    "discrete_cql/prioritized": {"prioritized": True, "duelling": True},
    "discrete_cql/not double": {"double": False, "huber_delta": None},
    "bc/continuous": {},
    "gumbel_muzero/prioritized": {"prioritized": True},
    "ppo/core": {"core_size": 8, "lstm_size": 8, "num_minibatches": 2},
    "ppo/clip,kl,anneal": {"value_clip": 0.2, "target_kl": 0.01, "entropy_cost": 0.01, **annealed()},
    "impala/core": {"core_size": 8, "lstm_size": 8},
    "crr/binary": {"weights": "binary"},
}


ADDONS: dict[str, tuple[str, str]] = {
    "addon/her": ("dqn", "agentkit:bit_flip"),
    "addon/rnd": ("dqn", "agentkit:catch"),
    "addon/gail": ("sac", "agentkit:point_mass"),
}


def make_agent(name: str, changes: dict[str, Any]) -> Any:
    module = importlib.import_module(f"agentkit.agents.{name}")
    fields = registry.config_class(name).__dataclass_fields__
    wanted = {**REPLAY, **SMALL, "num_random_steps": 20, **OF_AN_AGENT.get(name, {})}
    if name in ON_POLICY:
        wanted = {**SMALL, "segment_length": 8, **OF_AN_AGENT.get(name, {})}
    settings = {key: value for key, value in {**wanted, **changes}.items() if key in fields}
    make = getattr(module, "make_agent", None) or module.Agent
    return make(module.Config(**settings))


def demonstrations(environment: str) -> list[Any]:
    """Three episodes of uniform actions."""
    rng, recorder = np.random.default_rng(0), datasets.EpisodeRecorder()
    made = envs.make(environment, seed=1)
    for _ in range(3):
        timestep = made.reset()
        recorder.add_first(timestep)
        while not timestep.last():
            action = rng.uniform(-1.0, 1.0, made.action_spec().shape).astype(np.float32)
            timestep = made.step(action)
            recorder.add(action, timestep)
    return recorder.episodes


def with_addon(case: str, agent: Any, environment: str) -> Any:
    """Returns the agent with HER, RND or GAIL, from where the commit has them."""
    name = case.partition("/")[2]
    try:
        home = importlib.import_module(f"agentkit.agents.addons.{name}")
        settings = home.Config if name != "her" else None
        wrap = getattr(home, f"with_{name}")
    except ImportError:
        home = importlib.import_module("agentkit.experiment")
        learning = importlib.import_module("agentkit.learning")
        settings = {"rnd": learning.RndConfig, "gail": learning.GailConfig, "her": None}[name]
        wrap = home.with_hindsight if name == "her" else getattr(home, f"with_{name}")
    if name == "her":
        return wrap(agent, Hindsight(BitFlip.compute_reward, BitFlip.compute_terminated))
    if name == "rnd":
        return wrap(agent, settings(hidden_sizes=(16,)))
    return wrap(agent, demonstrations(environment), settings(hidden_sizes=(16,)))


def digest(arrays: list[np.ndarray]) -> str:
    each = sorted(hashlib.sha256(f"{x.dtype}{x.shape}".encode() + x.tobytes()).hexdigest() for x in arrays)
    return hashlib.sha256("".join(each).encode()).hexdigest()[:16]


def run(agent: Any, environment: str, num_envs: int | None, num_steps: int) -> dict[str, Any]:
    """Digests of all arrays that were learned, as a set without names, which a refactoring may change."""
    with tempfile.TemporaryDirectory() as folder:
        experiment = agentkit.ExperimentConfig(
            agent,
            environment,
            num_steps=num_steps,
            seed=1,
            num_envs=num_envs,
            run_directory=folder,
            evaluation_period=0,
            checkpoint_period=0,
        )
        result = agentkit.run(experiment)
        found = checkpoint.read_latest(pathlib.Path(folder) / "checkpoints")
        assert found is not None
        arrays = [np.asarray(x) for x in tree.flatten(found.state["learner"]["state"])]
        floats = [x for x in arrays if x.dtype == np.float32 and x.size > 1]
    return {
        "updates": result.updates,
        "arrays": len(arrays),
        "all": digest(arrays),
        "weights": digest(floats),
        "each": sorted(digest([x]) for x in floats),
    }


def cases(only: list[str]) -> list[tuple[str, str, dict[str, Any]]]:
    plain: list[tuple[str, str, dict[str, Any]]] = [(name, name, {}) for name in registry.names()]
    found = plain + [(case, case.partition("/")[0], changes) for case, changes in VARIANTS.items()]
    found += [(case, name, {"n_step": 1}) for case, (name, _) in ADDONS.items()]
    return [case for case in found if case[0].startswith(tuple(only))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", type=pathlib.Path)
    parser.add_argument("--against", type=pathlib.Path)
    parser.add_argument("--only", nargs="+", default=[""], help="prefixes of the cases to run")
    arguments = parser.parse_args()
    before = json.loads(arguments.against.read_text()) if arguments.against else {}
    found, differing = {}, 0
    for case, name, changes in cases(arguments.only):
        if before and case not in before:
            continue  # An agent that came later.
        start = time.monotonic()
        num_envs = 2 if name in ON_POLICY else None
        continuous = name in CONTINUOUS or case.endswith("/continuous")
        environment = "agentkit:point_mass" if continuous else "agentkit:catch"
        if name in TEAMS:
            environment = "team:agentkit:two_step_game"
        agent = make_agent(name, changes)
        if case in ADDONS:
            environment = ADDONS[case][1]
            agent = with_addon(case, agent, environment)
        found[case] = run(agent, environment, num_envs, 96 if name in ON_POLICY else 80)
        verdict = ""
        if case in before:
            old, new = before[case], found[case]
            equal = len(set(old["each"]) & set(new["each"]))
            same = old["all"] == new["all"] or old["weights"] == new["weights"]
            verdict = "equal" if same else f"{equal} of {len(old['each'])} arrays equal"
            differing += not same
        print(f"{case:28} {found[case]['updates']:5} updates {time.monotonic() - start:6.1f} s  {verdict}", flush=True)
    arguments.output.write_text(json.dumps(found, indent=1) + "\n")
    if arguments.against:
        print(f"{differing} of {len(found)} differ")


if __name__ == "__main__":
    main()
