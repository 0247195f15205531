"""Agents in turns in the compiled loop: rows by hand, no gaps in segments, learning, resumed to the bit, refusals."""

import dataclasses

import chex
import dm_env
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentkit import specs
from agentkit.actors.policy import Policy, stateless_policy
from agentkit.actors.step_count import count_from, count_one_more, no_steps, steps_taken
from agentkit.agents import dqn, ppo
from agentkit.agents.common.experience import Segments, SegmentsConfig
from agentkit.envs.jax.time_steps import first_step_of, next_step_of
from agentkit.envs.jax.turn_base import JaxTurnEnvironment
from agentkit.envs.jax.turn_host import HostTurnEnvironment
from agentkit.errors import SpecError
from agentkit.experiment.local import started
from agentkit.experiment.on_device.several.acting import Party
from agentkit.experiment.on_device.several.rounds import SeveralRounds
from agentkit.experiment.on_device.several.turns import InTurns, close_up
from agentkit.learning import Update, UpdateOutput
from agentkit.learning.finite import start_tally
from agentkit.types import FIRST, LAST, Step
from tests.experiment.test_several_on_device import config

DQN = dqn.make_agent(dqn.Config(batch_size=8, min_replay_size=16, hidden_sizes=(8,), n_step=1))


@dataclasses.dataclass(frozen=True)
class Relay(JaxTurnEnvironment):
    """Lets agents act in a given order, and is over then; at step k "a" is given k, and "b" ten times as much.

    An observation is the agent's number and the count of steps; who acts out of turn is ignored.
    """

    order: str = "abab"
    terminates: bool = True

    def observation_spec(self):
        return dict.fromkeys("ab", specs.Array((2,), np.float32))

    def action_spec(self):
        return dict.fromkeys("ab", specs.DiscreteArray(9, dtype=np.int8))  # Policies give int32.

    def turn(self, state):
        return jnp.array(["ab".index(agent_id) for agent_id in self.order + "a"])[state]

    def reset(self, key):
        return jnp.int32(0), first_step_of(self._observe(0))

    def step(self, state, action, key):
        state, is_over = state + 1, state + 1 == len(self.order)
        rewards = {"a": state, "b": 10 * state}
        ends = {"terminated": is_over} if self.terminates else {"truncated": is_over}
        return state, next_step_of(self._observe(state), rewards, **ends)

    def _observe(self, count):
        return {name: jnp.stack([jnp.float32(number), jnp.float32(count)]) for number, name in enumerate("ab")}


def rows_of(environment, num_steps, num_envs=1):
    """The rows of "a" and of "b" that there are in some steps of the loop, of the first environment."""
    policy = stateless_policy(lambda params, key, observation: observation[1].astype(jnp.int32))
    play = InTurns(environment, [Party(name, (name,), policy) for name in "ab"], num_envs)
    acting, rows, episodes = play.start(jax.random.PRNGKey(0)), {"a": [], "b": []}, []
    step = jax.jit(lambda acting: play.take_step({"a": (), "b": ()}, acting, jax.vmap(environment.reset)))
    for _ in range(num_steps):
        before = acting
        acting, turns, ended = step(acting)
        chex.assert_trees_all_equal_dtypes(before, acting)
        episodes.append(ended)
        for name, turn in turns.items():
            assert turn.is_there.shape == (num_envs,)
            if turn.is_there[0]:
                before, row, after = jax.tree.map(lambda x: np.asarray(x)[0].tolist(), turn[:3])
                assert row.start_of_episode == (before.step_type == 0)
                rows[name].append((before.observation[1], row.action, row.reward, row.discount, after.observation[1]))
    return rows, acting, episodes


def test_what_falls_between_turns_is_one_step():
    """a and b alternate: a acts at 0 and 2, b at 1 and 3, and each hears at its next turn of both steps since."""
    rows, acting, episodes = rows_of(Relay(), 5)
    # Observed, action (the same), reward, discount, observed next; then the reset, and the second episode's first.
    first, final = (0, 0, 1 + 2, 1, 2), (2, 2, 3 + 4, 0, 4)
    assert rows["a"] == [first, final, (4, 0, 0, 0, 0), first]
    # b's first turn comes after a's step, whose 10 is in the reward of b's first row.
    assert rows["b"] == [(1, 1, 10 + 20 + 30, 1, 3), (3, 3, 40, 0, 4), (4, 0, 0, 0, 1), (1, 1, 60, 1, 3)]
    assert [int(each.count) for each in episodes] == [0, 1, 0, 0, 1]
    assert float(episodes[1].by_agent["b"]) == 100 and float(episodes[1].total_return) == 110
    assert int(episodes[1].total_length) == 4 and int(acting.num_steps) == 8


def test_any_order_and_a_truncation():
    """a acts twice in a row, and nothing comes of b meanwhile; all are cut off at the end, which has a value then."""
    rows, _, _ = rows_of(Relay("baab", terminates=False), 4, num_envs=2)
    assert rows["a"] == [(1, 1, 1 + 2, 1, 2), (2, 2, 3 + 4, 1, 4)]
    assert rows["b"] == [(0, 0, 10 + 20 + 30, 1, 3), (3, 3, 40, 1, 4)]


def test_an_agent_without_a_turn_has_no_row_and_its_returns_count():
    rows, _, episodes = rows_of(Relay("aa"), 3)
    assert rows["a"] == [(0, 0, 1, 1, 1), (1, 1, 2, 0, 2)] and rows["b"] == []
    assert float(episodes[1].by_agent["b"]) == 30


@dataclasses.dataclass(frozen=True)
class Beginning(Relay):
    """Says at each step that an episode begins, but at the last."""

    def step(self, state, action, key):
        after, timestep = super().step(state, action, key)
        kind = jnp.where(timestep.step_type == LAST, LAST, FIRST)
        return after, timestep._replace(step_type=kind.astype(jnp.int32))


def test_steps_of_no_type_are_counted_and_refused_on_the_host():
    """Of 4 moves in each of 2 games, 3 say so; it was seen nowhere, and nothing came of it."""
    for environment, expected in ((Relay(), [0] * 4), (Beginning(), [4, 2, 0, 4])):
        episodes = rows_of(environment, 4, num_envs=2)[2]
        assert [int(each.num_out_of_range) for each in episodes] == expected
    host = HostTurnEnvironment(Beginning())
    host.reset()
    with pytest.raises(SpecError, match=r"Beginning's step: step_type: expected MID \(1\) or LAST \(2\), found 0"):
        host.step({"a": np.int8(0)})


def test_schedules_of_each_agent_count_its_own_steps():
    """In 2 environments a takes 3 steps, and b 2; where one of the two waits, its count has the other's steps, too."""

    def act(params, key, observation, count):
        return jnp.int32(0), count_one_more(count), ()

    environment = Relay("aba")
    play = InTurns(environment, [Party("shared", ("a", "b"), Policy(act, no_steps, begin=count_from))], 2)
    acting = play.start(jax.random.PRNGKey(0))
    for _ in range(4):
        acting, _, _ = play.take_step({"shared": ()}, acting, jax.vmap(environment.reset))
    counts = {name: set(steps_taken(count.T).tolist()) for name, count in acting.policy.items()}
    assert counts == {"a": {2 * 3}, "b": {2 * 2}}


class Hidden(Relay):
    """Shows NaN to who waits."""

    def _observe(self, count):
        seen, ends = super()._observe(count), jnp.int32(count) == len(self.order)
        acts = {name: (self.turn(count) == number) | ends for number, name in enumerate("ab")}
        return {name: jnp.where(acts[name], x, jnp.nan) for name, x in seen.items()}


def test_what_is_shown_to_who_waits_is_not_looked_at():
    def update(training, batch):
        return training, UpdateOutput({"loss": jnp.sum(batch.data.observation)})

    own = Update(lambda key: jnp.int32(0), update, lambda training: {"policy": training})
    policy = stateless_policy(lambda params, key, observation: jnp.int32(0))
    experience = Segments(SegmentsConfig(segment_length=6, batch_size=4))
    rounds = SeveralRounds(Hidden("abbab"), [Party("shared", ("a", "b"), policy, own, experience)], 2)
    acting, metrics = rounds.start(jax.random.PRNGKey(0)), {"shared": {"loss": jnp.float32(0.0)}}
    run = jax.jit(
        lambda acting: rounds.run({"shared": 0}, acting, {"shared": ()}, {"shared": start_tally(0)}, metrics, 0)
    )
    for _ in range(2):
        found = run(acting)
        acting = found.acting
    assert found.is_finite and np.isfinite(found.metrics["shared"]["loss"]) and int(found.acting.num_episodes) == 6


@pytest.mark.full
def test_a_replay_beside_segments_has_room_for_a_whole_round():
    """Which is longer than the run: what is drawn after a resume would be empty rows."""
    policies = {"one": ppo.make_agent(ppo.Config(segment_length=64, hidden_sizes=(4,))), "two": DQN}
    experiment = config(None, policies, {"first": "one", "second": "two"}, "jax:tic_tac_toe", 20, num_envs=4)
    with started(experiment, False) as (training, _):
        training.work.step()
        ((capacity, num_inserted),) = training.work._chunks.counts().values()
    assert 100 < num_inserted <= capacity


def test_segments_have_no_gaps():
    """Against a plain loop: rows in their order, the newest observation without an action, and empty episodes."""
    rng = np.random.default_rng(0)
    rows, streams = 6, 40
    is_there = rng.random((rows, streams)) < np.linspace(0, 1, streams)
    number = np.arange(1, 1 + rows * streams).reshape(rows, streams)
    starts = rng.random((rows, streams)) < 0.3
    step = Step(number[..., None].astype(np.float32), number, number.astype(np.float32), number * 0.5, starts, ())
    newest = dm_env.TimeStep(rng.integers(0, 3, streams), 0, 0, -np.arange(streams, dtype=np.float32)[:, None])
    found, (observation, begins) = jax.tree.map(np.asarray, close_up(jax.tree.map(jnp.asarray, step), is_there, newest))
    np.testing.assert_array_equal(observation, newest.observation)
    for i in range(streams):
        own = np.flatnonzero(is_there[:, i])
        room = rows - len(own)
        expected = [*number[own, i], *[0] * room]
        np.testing.assert_array_equal(found.action[:, i], expected)
        np.testing.assert_array_equal(found.discount[:, i], np.multiply(expected, 0.5))
        np.testing.assert_array_equal(found.observation[:, i, 0], [*number[own, i], *[-i] * room])
        is_first = newest.step_type[i] == 0
        all_starts = [*starts[own, i], is_first, *[True] * room][: rows + 1]
        np.testing.assert_array_equal([*found.start_of_episode[:, i], begins[i]], all_starts)
