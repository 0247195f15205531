"""PPO on the device beside brax's own: its environments, settings and sizes of networks, in turns.

    python benchmarks/peers/brax_beside.py

agentkit's interpreter has brax, too (extra ``brax``). Settings are those of brax's notebook ``training.ipynb``. Rates
are of training alone, after the first part, which compiles. Returns are those of 128 episodes at the end.

What is not the same: agentkit estimates advantages once an update over segments of 80 rows, brax in each minibatch
over unrolls of 5; agentkit normalises values, brax multiplies rewards by 10; agentkit's standard deviation does not
depend on the observation, and its final observations are rows; it looks for numbers that are not finite, and logs.
"""

from __future__ import annotations

import pathlib
from typing import Any

import beside

# Workloads: brax's settings for its environments; "ant-short" trains fewer steps, and "small" is to try the script.
_SHARED = {"reward_scaling": 10, "unroll_length": 5, "num_minibatches": 32, "num_updates_per_batch": 4}
_SHARED |= {"learning_rate": 3e-4, "entropy_cost": 1e-2, "discounting": 0.97}
WORKLOADS: dict[str, dict[str, Any]] = {
    "inverted_pendulum": _SHARED | {"num_envs": 2_048, "batch_size": 1_024, "num_timesteps": 2_000_000},
    "ant": _SHARED | {"num_envs": 4_096, "batch_size": 2_048, "num_timesteps": 50_000_000},
    "ant-short": _SHARED | {"name": "ant", "num_envs": 4_096, "batch_size": 2_048, "num_timesteps": 8_000_000},
    "small": _SHARED | {"name": "inverted_pendulum", "num_envs": 64, "batch_size": 32, "num_timesteps": 60_000},
}
POLICY, VALUE = (32,) * 4, (256,) * 5  # brax's layers.


def run_brax(work: dict[str, Any]) -> dict[str, float]:
    """Trains in five parts, of which the first compiles; each is followed by an evaluation, which is not timed."""
    import jax

    if not hasattr(jax, "device_put_replicated"):  # brax 0.14.2 asks for it, and JAX has it no more.
        jax.device_put_replicated = lambda nest, devices: jax.tree.map(
            lambda x: jax.numpy.stack([x] * len(devices)), nest
        )
    from brax import envs
    from brax.training.agents.ppo import train

    work = dict(work)
    environment = envs.get_environment(work.pop("name"), backend="positional")
    parts: list[dict[str, float]] = []
    begun = beside.clocks()
    *_, last = train.train(
        environment, **work, num_evals=6, normalize_observations=True, episode_length=1_000, num_eval_envs=128, seed=1,
        progress_fn=lambda steps, metrics: parts.append(metrics | {"steps": steps, "clocks": beside.clocks()}),
    )  # fmt: skip
    first, end = parts[1], parts[-1]
    rate = (end["steps"] - first["steps"]) / (end["training/walltime"] - first["training/walltime"])
    compiled = first["training/walltime"] - first["steps"] / rate
    return {
        "compile_seconds": compiled, "compile_processor": compiled, "per_second": rate, "per_processor_second": rate,
        "episode_return": float(last["eval/episode_reward"]), "seconds_in_all": beside.clocks()[0] - begun[0],
    }  # fmt: skip


def run_agentkit(work: dict[str, Any]) -> dict[str, float]:
    """Trains with the same numbers of environments, rows, epochs and minibatches."""
    import agentkit
    from agentkit.agents import ppo

    rows = work["batch_size"] * work["num_minibatches"] // work["num_envs"] * work["unroll_length"]
    config = ppo.Config(
        segment_length=rows, num_epochs=work["num_updates_per_batch"], num_minibatches=work["num_minibatches"],
        learning_rate=work["learning_rate"], entropy_cost=work["entropy_cost"], discount=work["discounting"],
        clip_epsilon=0.3, max_grad_norm=None,
    )  # fmt: skip

    def make_experiment(folder: pathlib.Path) -> agentkit.ExperimentConfig:
        return agentkit.ExperimentConfig(
            ppo.make_agent(config, make_networks=_networks), f"brax:{work['name']}", work["num_timesteps"],
            num_envs=work["num_envs"], on_device=True, evaluation_period=work["num_timesteps"], evaluation_episodes=128,
            checkpoint_period=0, run_directory=folder, environment_settings={"backend": "positional"}, progress=False,
        )  # fmt: skip

    return beside.time_agentkit(make_experiment)


def _networks(environment_spec: Any, config: Any) -> Any:
    """Returns networks of policy and value with brax's numbers of layers and units."""
    import jax

    from agentkit import networks as nets
    from agentkit.networks.mlp import orthogonal_mlp
    from agentkit.networks.policy_heads import policy_head
    from agentkit.networks.recurrent import recurrent_network
    from agentkit.networks.torsos import torso

    def heads(features: Any, observation: Any) -> Any:
        value = orthogonal_mlp(features, VALUE, 1, activation=jax.nn.swish)[:, 0]
        return policy_head(features, environment_spec.actions, POLICY, config.initial_std, observation), value

    made = nets.policy_value(environment_spec, POLICY, config.initial_std)
    return made._replace(network=recurrent_network(torso, heads, None, environment_spec.observations))


if __name__ == "__main__":
    named = {name: {"name": name} | work for name, work in WORKLOADS.items()}
    beside.main(__file__, named, {"agentkit": run_agentkit, "brax": run_brax})
