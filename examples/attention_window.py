"""Views: DQN with attention over a window of past observations, on a task that needs memory, and DQN without.

The first observation of an episode shows a bit, and `length` steps later the agent must name it: the return is 1 for
the right answer and -1 for the wrong one. `with_views` gives the network the last `window` + 1 observations and the
last action; replay stores each observation once all the same. The torso attends from the present to the window
(Vaswani et al. 2017).

    python examples/attention_window.py --num_steps 1500 --length 15 --window 50
"""

import argparse

import haiku as hk
import jax
import jax.numpy as jnp

import agentkit
from agentkit.agents import dqn
from agentkit.agents.addons import View, with_views
from agentkit.envs.memory_chain import MemoryChain
from agentkit.learning import Linear


def attend(observation: dict[str, jax.Array]) -> jax.Array:
    """Features ``[B, F]`` of the window ``[B, S, 3]`` and the last action ``[B, A]``, by attention of 4 heads."""
    window = observation["window"]
    size = 32
    position = hk.get_parameter("position", (1, window.shape[1], size), init=hk.initializers.RandomNormal(0.1))
    rows = hk.Linear(size)(window)
    rows = rows + jnp.broadcast_to(position, rows.shape)  # [B, S, 32]
    initializer = hk.initializers.VarianceScaling(1.0)
    attention = hk.MultiHeadAttention(num_heads=4, key_size=8, model_size=size, w_init=initializer)
    seen = attention(query=rows[:, -1:], key=rows, value=rows)[:, 0]  # [B, 32]
    return jnp.concatenate([seen, window[:, -1], observation["last_action"]], axis=-1)


def train(sees_its_past: bool, num_steps: int, length: int, window: int, seed: int) -> float:
    """The mean return of the last evaluation."""
    config = dqn.Config(
        n_step=1,
        discount=1.0,  # Only the last action counts, and each is as good as the others before it.
        batch_size=32,
        updates_per_step=0.5,
        min_replay_size=200,
        target_update_period=50,
        epsilon=Linear(1.0, 0.05, num_steps // 2),
    )
    agent = dqn.make_agent(config)
    if sees_its_past:
        views = {"window": View("observation", f"-{window}:0"), "last_action": View("action", -1, fill=-1)}
        agent = with_views(dqn.make_agent(config, torso=attend), views)
    experiment = agentkit.ExperimentConfig(
        agent,
        lambda seed: MemoryChain(length, seed),
        num_steps,
        seed,
        evaluation_period=num_steps,
        evaluation_episodes=50,
    )
    return agentkit.run(experiment).evaluations[-1]["episode_return"]


def main(num_steps: int = 1_500, length: int = 15, window: int = 50, seed: int = 0) -> tuple[float, float]:
    """Trains both; their mean returns, without a window and with it."""
    without = train(False, num_steps, length, window, seed)
    print(f"DQN after {num_steps} steps: return {without:.2f} (0 is chance)")
    attention = train(True, num_steps, length, window, seed)
    print(f"With attention over the past after {num_steps} steps: return {attention:.2f} (1 is perfect)")
    return without, attention


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("num_steps", 1_500), ("length", 15), ("window", 50), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    main(**vars(parser.parse_args()))
