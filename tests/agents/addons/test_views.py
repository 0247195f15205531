"""Views: acting, storing and learning see what a plain loop over the episodes sees, and what cannot be is refused."""

import dataclasses
from typing import Any, NamedTuple

import dm_env
import jax
import numpy as np
import pytest
import tree

from agentkit import specs
from agentkit.actors import Policy
from agentkit.agents import dqn, ppo, r2d2
from agentkit.agents.addons import View, with_her, with_views
from agentkit.agents.common.views import Views
from agentkit.errors import ConfigError
from agentkit.learning import Update, UpdateOutput
from agentkit.replay import InProcessReplay
from agentkit.types import FIRST, LAST, MID, Step, Transition
from agentkit.wrappers.observation_action_reward import OAR

SPEC = specs.EnvironmentSpec(
    {
        "id": specs.Array((), np.int32, "id"),
        "x": {"a": specs.BoundedArray((2,), np.float32, -1.0, 1.0, "a"), "b": specs.Array((3, 1), np.uint8, "b")},
    },
    specs.DiscreteArray(5, dtype=np.int32, name="action"),
    specs.Array((), np.float32, "reward"),
    specs.BoundedArray((), np.float32, 0.0, 1.0, "discount"),
)
WITH_REWARDS = SPEC._replace(observations=OAR(SPEC.observations, SPEC.actions, SPEC.rewards))
REACH = 6


class Episode(NamedTuple):
    """A whole episode: row t holds o_t, and the action and reward that followed."""

    observations: list
    actions: list
    rewards: list


def random_views(rng: np.random.Generator, rewards: bool) -> dict[str, View]:
    columns = ["observation", "observation.x", "observation.x.a", "action"] + ["reward"] * rewards
    found = {"id": View("observation.id", 0)}
    for i in range(rng.integers(1, 5)):
        column = str(rng.choice(columns))
        newest = 0 if column.startswith("observation") else -1
        shifts = rng.integers(-REACH, newest + 1, rng.integers(1, 4)).tolist()
        low, high = min(shifts), max(shifts)
        shift: Any = [shifts[0], shifts, f"{low}:{high}"][rng.integers(3)]
        fill: Any = ["zeros", "first", 1][rng.integers(3)]
        found[f"view{i}"] = View(column, shift, -1 if column == "action" and fill == 1 else fill)
    return found


def expected_view(view: View, episode: Episode, t: int) -> Any:
    """What the view shows at step t, by a plain loop."""
    column, *path = view.column.split(".")
    rows = {"observation": episode.observations, "action": episode.actions, "reward": episode.rewards}[column]
    # Rewards count from the step that they came with: the newest, shift -1, is that of the last action.
    steps = [t + shift for shift in view.shifts]
    found = []
    for step in steps:
        value = rows[max(step, 0)] if (step >= 0 or view.fill == "first") and len(rows) > max(step, 0) else None
        if value is None or (column != "observation" and max(step, 0) >= t):
            value, fill = rows[0], 0 if isinstance(view.fill, str) else view.fill
            value = tree.map_structure(lambda x, fill=fill: np.full_like(x, fill), value)
        elif step < 0 and view.fill != "first":
            raise AssertionError
        for name in path:
            value = value[name]
        found.append(value)
    if isinstance(view.shift, int):
        return found[0]
    return tree.map_structure(lambda *leaves: np.stack(leaves), *found)


def play(agent: Any, spec: specs.EnvironmentSpec, adder: Any, seed: int, num_episodes: int) -> tuple[dict, dict]:
    """Acts in random episodes and stores them; returns the episodes and what the policy saw, by id of step."""
    rng = np.random.default_rng(seed)
    policy = agent.make_policy(agent.make_networks(spec))
    act, state = jax.jit(policy.act), policy.init(jax.random.PRNGKey(seed))
    episodes, seen = {}, {}
    for number in range(num_episodes):
        length = int(rng.integers(1, 2 * REACH))
        episode = Episode([], [], [])
        state = policy.reset(state)
        for t in range(length + 1):
            observation = {
                "id": np.int32(100 * (number + 1) + t),
                "x": {"a": np.float32(rng.uniform(-1, 1, 2)), "b": rng.integers(0, 256, (3, 1), np.uint8)},
            }
            episode.observations.append(observation)
            episodes[int(observation["id"])] = episode
            if spec is WITH_REWARDS:
                shown = (episode.actions[-1], episode.rewards[-1]) if t else (np.int32(0), np.float32(0))
                observation = OAR(observation, *shown)
            if t:
                last = t == length
                step = dm_env.TimeStep(LAST if last else MID, episode.rewards[-1], np.float32(number % 2), observation)
                adder.add(episode.actions[-1], step, extras)  # noqa: F821  # Of the step before.
            else:
                adder.add_first(dm_env.TimeStep(FIRST, None, None, observation))
            if t < length:
                key = jax.random.PRNGKey(rng.integers(1 << 30))
                action, state, extras = act((), key, observation, state)
                seen[100 * (number + 1) + t] = jax.device_get(state.agent)
                action = np.asarray(action)
                episode.actions.append(action)
                episode.rewards.append(np.float32(rng.normal()))
            else:
                episode.actions.append(np.int32(0))
                episode.rewards.append(np.float32(0))
    return episodes, seen


def recording_agent(agent: Any, views: dict[str, View]) -> Any:
    """Whose policy acts by chance and has as its state what it saw, and whose update shows its batch."""

    def make_policy(networks: Any, evaluation: bool = False) -> Policy:
        def act(params: Any, key: Any, observation: Any, state: Any) -> tuple:
            return jax.random.randint(key, (), 0, 5), observation, ()

        zeros = jax.tree.map(np.asarray, specs.zeros(networks.observations))
        return Policy(act, init=lambda key: zeros)

    def make_update(networks: Any) -> Update:
        return Update(lambda key: (), lambda state, batch: (state, UpdateOutput(batch.data)), lambda state: {})

    parts = {"make_networks": lambda spec: spec, "make_policy": make_policy, "make_update": make_update}
    return with_views(dataclasses.replace(agent, **parts), views)


PPO = ppo.make_agent(ppo.Config(segment_length=4, num_minibatches=1, batch_size=16))
AGENTS = {
    "transitions": dqn.make_agent(dqn.Config(n_step=3, min_replay_size=1, batch_size=64, replay_size=70)),
    "sequences": r2d2.make_agent(
        r2d2.Config(sequence_length=7, sequence_period=4, batch_size=16, min_replay_size=1, burn_in=0)
    ),
    "segments": dataclasses.replace(PPO, experience=dataclasses.replace(PPO.experience, queue_size=100)),
}


def check(agent: Any, spec: Any, views: dict[str, View], replay: Any, seed: int) -> int:
    """Returns how many observations of batches were compared."""
    adder = agent.make_adder(replay, spec)
    episodes, seen = play(agent, spec, adder, seed, num_episodes=24)
    for number, shown in seen.items():
        expected = {name: expected_view(view, episodes[number], number % 100) for name, view in views.items()}
        tree.map_structure(np.testing.assert_array_equal, shown, expected)
    update = agent.make_update(agent.make_networks(spec))
    sampler = replay.sampler(agent.batch_plan.table, agent.batch_plan.batch_size)
    data = jax.jit(update.update)((), next(sampler).sample)[1].metrics
    sampler.close()
    adder.close()
    compared = 0
    for shown in [data.observation, data.next_observation] if isinstance(data, Transition) else [data.observation]:
        axes = np.shape(shown["id"])
        for at in np.ndindex(*axes):
            if isinstance(data, Step) and at[1] + 1 == axes[1] and data.start_of_episode[at]:
                continue  # Behind a segment that ends with its episode is nothing to bootstrap from.
            number = int(shown["id"][at])
            expected = {name: expected_view(view, episodes[number], number % 100) for name, view in views.items()}
            tree.map_structure(lambda x, e, at=at: np.testing.assert_array_equal(x[at], e), shown, expected)
            compared += 1
    if isinstance(data, Step):
        assert {leaf.shape[:2] for leaf in jax.tree.leaves(data)} == {axes}
        actions = [episodes[int(n)].actions[int(n) % 100] for n in np.ravel(data.observation["id"][:, :-1])]
        np.testing.assert_array_equal(np.ravel(data.action[:, :-1]), actions)
    return compared


@pytest.mark.parametrize("kind", AGENTS)
@pytest.mark.parametrize("seed", range(4))
def test_acting_storing_and_learning_see_what_a_plain_loop_sees(kind: str, seed: int) -> None:
    """Random declarations, over episodes of all lengths; rows are used again and others' items are removed."""
    spec = WITH_REWARDS if seed % 2 else SPEC
    views = random_views(np.random.default_rng(10 * seed + len(kind)), rewards=spec is WITH_REWARDS)
    agent = recording_agent(AGENTS[kind], views)
    with InProcessReplay(agent.make_tables(spec)) as replay:
        assert check(agent, spec, views, replay, seed) >= 64


@pytest.mark.parametrize("kind", AGENTS)
def test_so_they_do_on_reverb(kind: str) -> None:
    """The same, by items that refer to steps on a server."""
    reverb = pytest.importorskip("agentkit.replay.reverb.single_process", exc_type=ImportError)
    views = random_views(np.random.default_rng(len(kind)), rewards=True)
    agent = recording_agent(AGENTS[kind], views)
    with reverb.SingleProcessReverbReplay(agent.make_tables(WITH_REWARDS)) as replay:
        assert check(agent, WITH_REWARDS, views, replay, seed=0) >= 64
