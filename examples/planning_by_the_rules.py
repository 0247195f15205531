"""Planning by the rules: Gumbel MuZero plays Connect Four with the game itself in the place of its learned model.

The networks of `agentkit.agents.gumbel_muzero` predict what an action leads to. Here the game says so (AlphaZero:
Silver et al. 2018, 1712.01815), and a network learns values and the policy. Search, loss, replay and the loop on the
device stay as they are, and one agent plays both sides (docs/several_agents.md).

    python examples/planning_by_the_rules.py --num_steps 50_000
"""

import argparse

import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np

import agentkit
from agentkit import envs
from agentkit.agents import gumbel_muzero
from agentkit.envs.jax.connect_four import ConnectFour, ConnectFourState
from agentkit.networks import mlp
from agentkit.types import LAST

GAME = ConnectFour()


def make_networks(spec, config):
    """The model's state is the board as who is to move sees it, and whether the game is over: ``[B, 85]``."""
    num_atoms = config.num_atoms
    sure = 30.0 * jnp.eye(num_atoms)[jnp.array([0, num_atoms // 2, num_atoms - 1])]  # Of -1, 0 and 1.

    def heads(board):
        features = jax.nn.relu(mlp(board, config.hidden_sizes, config.model_size))
        return hk.Linear(7)(features), hk.Linear(num_atoms)(features)

    def represent(params, observation):
        board = observation["observation"].reshape(-1, 84)
        return jnp.concatenate([board, jnp.zeros((len(board), 1))], axis=1)

    def predict(params, hidden):
        policy, value = learned.apply(params, hidden[:, :84])
        has_room = hidden[:, :84].reshape(-1, 6, 7, 2)[:, 0].sum(-1) == 0
        return jnp.where(has_room, policy, -1e9), jnp.where(hidden[:, 84:] > 0, sure[1], value)

    def move(hidden, action):
        state = ConnectFourState(hidden[:84].reshape(6, 7, 2), player=jnp.int32(0))
        after, timestep = GAME.step(state, dict.fromkeys(("first", "second"), action), key=jnp.zeros(2, jnp.uint32))
        was_over, reward = hidden[84] > 0, timestep.reward["first"].astype(jnp.int32)
        is_over = was_over | (timestep.step_type == LAST)
        return sure[1 + jnp.where(was_over, 0, reward)], jnp.append(after.pieces[..., ::-1].reshape(84), is_over)

    learned = hk.without_apply_rng(hk.transform(heads))
    return gumbel_muzero.make_networks(spec, config)._replace(
        init=lambda key: learned.init(key, np.zeros((1, 84), np.float32)),
        represent=represent,
        predict=predict,
        step=lambda params, hidden, action: jax.vmap(move)(hidden, action),
    )


CONFIG = gumbel_muzero.Config(
    discount=0.99, vmin=-1.0, vmax=1.0, num_atoms=21, rescale_values=False, value_cost=1.0, n_step=20, unroll_length=1,
    batch_size=64, updates_per_step=1 / 64, replay_size=10_000, min_replay_size=500, target_update_period=50,
    hidden_sizes=(256, 128), learning_rate=agentkit.learning.Linear(2e-3, 3e-4, 1_000_000),
)  # fmt: skip


def games_against_chance(policy, num_games, seed):
    """The share of games that are won, half of them from the second's side."""
    game, rng, won = envs.make_multi_agent("jax:connect_four", seed), np.random.default_rng(seed), 0
    for number in range(num_games):
        side, timesteps = ("first", "second")[number % 2], game.reset()
        while len(timesteps) == 1:  # At the end both hear of it.
            ((mover, timestep),) = timesteps.items()
            legal = np.flatnonzero(timestep.observation["action_mask"])
            action = policy.select_action(timestep.observation) if mover == side else rng.choice(legal)
            timesteps = game.step({mover: np.int32(action)})
        won += timesteps[side].reward > 0
    return won / num_games


def main(num_steps=50_000, seed=0, run_directory=None):
    """Trains, and plays against chance."""
    given = {"num_envs": 64, "on_device": True, "environment_settings": {"random_moves": 6}, "evaluation_period": 0}
    agent = gumbel_muzero.make_agent(CONFIG, make_networks=make_networks)
    experiment = agentkit.ExperimentConfig(
        agent, "both_sides:jax:connect_four", num_steps, seed, run_directory=run_directory, **given
    )
    share = games_against_chance(agentkit.run(experiment).policy, 100, seed)
    print(f"Planning by the rules after {num_steps} steps: won {share:.2f} of 100 games against chance")
    return share


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num_steps", type=int, default=50_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--run_directory")
    main(**vars(parser.parse_args()))
