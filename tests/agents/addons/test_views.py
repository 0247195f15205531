"""Views: acting, storing and learning see what a plain loop over the episodes sees, and what cannot be is refused."""

import dataclasses
import pathlib
import pickle
import re
from typing import Any, ClassVar, NamedTuple

import dm_env
import jax
import numpy as np
import pytest
import tree

from agentkit import networks as nets
from agentkit import specs
from agentkit.actors import Policy
from agentkit.adders import Hindsight
from agentkit.agents import dqn, ppo, r2d2
from agentkit.agents.addons import View, with_her, with_views
from agentkit.agents.common.past import show_batch
from agentkit.agents.common.views import Views
from agentkit.datasets.offline import ItemStore
from agentkit.errors import ConfigError
from agentkit.experiment import ExperimentConfig, read_config, run
from agentkit.learning import Linear, Update, UpdateOutput
from agentkit.replay import InProcessReplay
from agentkit.replay.rate_limiter import MinSize
from agentkit.replay.reverb.packing import Packing
from agentkit.testing.learning import learns
from agentkit.types import FIRST, LAST, MID, ReplaySample, Step, Transition
from agentkit.wrappers.observation_action_reward import OAR
from tests.agents.on_policy_training import KEY, Training, rows_of
from tests.experiment.resumed import check_resumes

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
    for i in range(12):
        column = columns[i % len(columns)]
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
    known = t + 1 if column == "observation" else t  # What is known at step t: rows 0 to known - 1.
    found = []
    for shift in view.shifts:
        if t + shift >= 0:
            value = rows[t + shift]
        elif view.fill == "first" and known > 0:
            value = rows[0]
        else:
            fill = 0 if isinstance(view.fill, str) else view.fill
            value = tree.map_structure(lambda x, fill=fill: np.full_like(x, fill), rows[0])
        for name in path:
            value = value[name]
        found.append(value)
    if isinstance(view.shift, int):
        return found[0]
    return tree.map_structure(lambda *leaves: np.stack(leaves), *found)


def expected_views(views: dict[str, View], episodes: dict[int, Episode], number: int) -> dict[str, Any]:
    """What the views show at the step of this id."""
    return {name: expected_view(view, episodes[number], number % 100) for name, view in views.items()}


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
                adder.add(episode.actions[-1], step)
            else:
                adder.add_first(dm_env.TimeStep(FIRST, None, None, observation))
            if t < length:
                key = jax.random.PRNGKey(rng.integers(1 << 30))
                action, state, _ = act((), key, observation, state)
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
    "transitions of one step": dqn.make_agent(dqn.Config(n_step=1, min_replay_size=1, batch_size=64, replay_size=70)),
    "sequences": r2d2.make_agent(
        r2d2.Config(sequence_length=7, sequence_period=4, batch_size=16, min_replay_size=1, burn_in=0)
    ),
    "segments": dataclasses.replace(PPO, experience=dataclasses.replace(PPO.experience, queue_size=100)),
}


def check(
    agent: Any, spec: specs.EnvironmentSpec, views: dict[str, View], replay: Any, draw: Any, seed: int = 0
) -> int:
    """Returns how many observations of a batch were compared; `draw` takes the batch from what the adder wrote to."""
    adder = agent.make_adder(replay, spec)
    episodes, seen = play(agent, spec, adder, seed, num_episodes=24)
    for number, shown in seen.items():
        tree.map_structure(np.testing.assert_array_equal, shown, expected_views(views, episodes, number))
    update = agent.make_update(agent.make_networks(spec))
    data = jax.jit(update.update)((), draw())[1].metrics
    adder.close()
    compared = 0
    for shown in [data.observation, data.next_observation] if isinstance(data, Transition) else [data.observation]:
        axes = np.shape(shown["id"])
        for at in np.ndindex(*axes):
            if isinstance(data, Step) and at[1] + 1 == axes[1] and data.start_of_episode[at]:
                continue  # Behind a segment that ends with its episode is nothing to bootstrap from.
            expected = expected_views(views, episodes, int(shown["id"][at]))
            tree.map_structure(lambda x, e, at=at: np.testing.assert_array_equal(x[at], e), shown, expected)
            compared += 1
    if isinstance(data, Step):
        assert {leaf.shape[:2] for leaf in jax.tree.leaves(data)} == {axes}
        actions = [episodes[int(n)].actions[int(n) % 100] for n in np.ravel(data.observation["id"][:, :-1])]
        np.testing.assert_array_equal(np.ravel(data.action[:, :-1]), actions)
    return compared


def drawing(agent: Any, replay: Any) -> Any:
    """Draws a batch of the agent's."""

    def draw() -> Any:
        sampler = replay.sampler(agent.batch_plan.table, agent.batch_plan.batch_size)
        sample = next(sampler).sample
        sampler.close()
        return sample

    return draw


@pytest.mark.full
@pytest.mark.one_case
@pytest.mark.parametrize("kind", AGENTS)
@pytest.mark.parametrize("seed", range(2))
def test_acting_storing_and_learning_see_what_a_plain_loop_sees(kind: str, seed: int) -> None:
    """Random declarations, over episodes of all lengths; rows are used again and others' items are removed."""
    spec = WITH_REWARDS if seed % 2 else SPEC
    views = random_views(np.random.default_rng(10 * seed + len(kind)), rewards=spec is WITH_REWARDS)
    agent = recording_agent(AGENTS[kind], views)
    with InProcessReplay(agent.make_tables(spec), in_turns=True) as replay:
        assert check(agent, spec, views, replay, drawing(agent, replay), seed) >= 64


@pytest.mark.full
@pytest.mark.parametrize("kind", ["transitions", "transitions of one step"])
def test_so_does_learning_from_data(kind: str) -> None:
    """The transitions of episodes from a file, which are in a store of their own."""
    views = random_views(np.random.default_rng(7), rewards=True)
    agent = recording_agent(AGENTS[kind], views)
    store = ItemStore(agent.make_tables(WITH_REWARDS)[0])

    def draw() -> ReplaySample:
        return ReplaySample((), store.take(np.arange(len(store))))

    assert check(agent, WITH_REWARDS, views, store, draw) >= 200
    past = draw().data.observation
    numbers, starts = past.observation.observation["id"], past.start_of_episode
    before = np.cumsum(starts, axis=1)[:, -numbers.shape[1] :] == 0
    before &= starts.any(axis=1)[:, None]
    assert before.any() and not numbers[before].any()


@pytest.mark.full
def test_what_ppo_stored_on_acting_is_what_it_computes_on_learning() -> None:
    """The densities of actions, at each update: environments' windows are kept apart, and begin with their episodes."""
    views = {"window": View("observation", "-5:0"), "last": View("action", [-3, -1], fill=-1)}
    config = ppo.Config(hidden_sizes=(8,), segment_length=8, num_minibatches=1, num_epochs=1, learning_rate=0.01)
    training = Training(with_views(ppo.make_agent(config), views), "agentkit:memory_chain", num_envs=3)

    @jax.jit
    def densities(state: Any, data: Any) -> Any:
        rows = rows_of(training.networks.agent, config, state, show_batch(Views.from_mapping(views), data))
        distribution, _ = training.networks.agent.apply(state.variables.params, rows.observation)
        return distribution.log_prob(rows.extras.sample), rows

    for _ in range(3):
        batch = training.next_batch()
        log_prob, rows = densities(training.state, batch.data)
        mask = rows.mask > 0
        np.testing.assert_allclose(log_prob[mask], rows.extras.log_prob[mask], rtol=1e-4, atol=1e-5)
        assert np.std(log_prob[mask]) > 1e-4


class TestRuns:
    """Trainings with views go on where they stopped."""

    cases: ClassVar[dict[str, Any]] = {
        "replay": (dqn.make_agent(dqn.Config(hidden_sizes=(8,), min_replay_size=20, batch_size=8, replay_size=50)), 2),
        "sequences": (
            r2d2.make_agent(
                r2d2.Config(
                    hidden_sizes=(4,),
                    batch_size=4,
                    core_size=4,
                    burn_in=2,
                    sequence_length=6,
                    sequence_period=3,
                    min_replay_size=3,
                )
            ),
            1,
        ),
        "segments": (ppo.make_agent(ppo.Config(hidden_sizes=(8,), segment_length=6, num_minibatches=1)), 2),
    }

    @pytest.mark.parametrize("case", ["replay", "segments", pytest.param("sequences", marks=pytest.mark.full)])
    def test_it_resumes_to_the_bit(self, case: str, tmp_path: pathlib.Path) -> None:
        """In mid-episode, from its folder's config.json."""
        agent, num_envs = self.cases[case]
        views = {"window": View("observation", "-4:0", fill="first"), "last": View("action", -1, fill=-1)}

        def trained(directory: str, num_steps: int, resume: bool = False) -> Any:
            experiment = ExperimentConfig(
                with_views(agent, views),
                "agentkit:memory_chain",
                num_steps,
                run_directory=tmp_path / directory,
                num_envs=num_envs,
                evaluation_period=0,
                checkpoint_period=20,
            )
            return run(read_config(tmp_path / directory, num_steps=num_steps) if resume else experiment, resume=resume)

        check_resumes(trained, tmp_path, 80)


@pytest.mark.full
def test_a_window_solves_what_needs_memory() -> None:
    """1 is the right answer each time; without memory no policy's mean exceeds 0 (`MemoryChain`)."""
    config = dqn.Config(
        n_step=3, hidden_sizes=(32,), min_replay_size=100, batch_size=32, epsilon=Linear(1.0, 0.05, 400)
    )
    agent = with_views(dqn.make_agent(config), {"window": View("observation", "-5:0")})
    assert learns(agent, "agentkit:memory_chain", 500, 0.99) == [1.0] * 3


@pytest.mark.one_case
@pytest.mark.parametrize("size, most", [(17, 1.05), (4, 1.1)])
def test_a_window_of_50_steps_costs_under_a_tenth_of_plain_storage(size: int, most: float) -> None:
    """The bytes of steps and items, and the number of rows, which are as many as there are steps."""
    num_items, found = 20_000, []
    spec = SPEC._replace(observations=specs.Array((size,), np.float32))
    agent = dqn.make_agent(dqn.Config(n_step=1, replay_size=num_items))
    for each in (agent, with_views(agent, {"window": View("observation", "-50:0")})):
        tables = [dataclasses.replace(table, rate_limiter=MinSize(1)) for table in each.make_tables(spec)]
        with InProcessReplay(tables) as replay:
            adder, observation = each.make_adder(replay, spec), np.zeros(size, np.float32)
            for _ in range(num_items // 400 + 5):
                adder.add_first(dm_env.TimeStep(FIRST, None, None, observation))
                for t in range(400):
                    adder.add(np.int32(0), dm_env.TimeStep(LAST if t == 399 else MID, 0.0, 1.0, observation))
            assert replay.info("transitions").size == num_items
            found.append((replay.nbytes, replay.shared.stores[0].num_rows))
    (plain, plain_rows), (window, rows) = found
    assert plain < window < most * plain
    assert rows <= plain_rows + 51  # Those that the oldest items look at.


def test_a_server_keeps_both_windows_of_a_transition_in_one_column() -> None:
    """Each column costs an item a reference to every chunk that it is in."""
    for n_step, rows in ((1, [52, None]), (3, [54, None])):
        agent = with_views(dqn.make_agent(dqn.Config(n_step=n_step)), {"window": View("observation", "-50:0")})
        (table,) = agent.make_tables(SPEC)
        assert sorted((part.length for part in Packing(table).parts), key=str) == rows


@pytest.mark.full
def test_a_mask_of_legal_actions_stays_the_present_one() -> None:
    """A view of the observation shows no masks, which the networks would add up."""
    mask = specs.Array((5,), np.int8, "mask")
    spec = SPEC._replace(observations={"board": specs.Array((2,), np.float32), specs.ACTION_MASK: mask})
    seen = Views.from_mapping({"window": View("observation", "-2:0")}).spec(spec)
    assert seen == {"window": {"board": specs.Array((3, 2), np.float32)}, specs.ACTION_MASK: mask}
    policy_sees = with_views(dqn.make_agent(), {"window": View("observation", "-2:0")})
    policy = policy_sees.make_policy(networks := policy_sees.make_networks(spec), True)
    params = networks.agent.init(jax.random.PRNGKey(0))
    state = policy.init(jax.random.PRNGKey(0))
    act = jax.jit(policy.act)
    for legal in (3, 1, 4):
        observation = {"board": np.zeros(2, np.float32), specs.ACTION_MASK: np.eye(5, dtype=np.int8)[legal]}
        action, state, _ = act(params, jax.random.PRNGKey(0), observation, state)
        assert action == legal


@pytest.mark.parametrize(
    "actions",
    [
        specs.DiscreteArray(65),
        specs.DiscreteArray(3, np.int8),
        specs.BoundedArray((2,), np.int64, 0, [2, 4]),
        specs.Choices((2, 2), np.int32, 3),
    ],
)
def test_several_steps_of_choices_are_the_indicators_of_each(actions: specs.BoundedArray) -> None:
    """And a fill that is none of them is seen as none, not as the number -1."""
    views = {f"{shift}": View("action", shift, fill=-1) for shift in (-1, "-3:-1")}
    seen = Views.from_mapping(views).spec(SPEC._replace(actions=actions))
    seen = pickle.loads(pickle.dumps(seen))
    shown = {name: np.zeros((1, *leaf.shape), leaf.dtype) for name, leaf in seen.items()}
    shown["-3:-1"][0, 0] = -1
    one, several = (np.asarray(x) for x in nets.encode_inputs(seen, shown).values())
    np.testing.assert_array_equal(several, np.concatenate([0 * one, one, one], axis=1))
    np.testing.assert_array_equal(one.sum(), max(np.prod(actions.shape), 1))


@pytest.mark.parametrize(
    "arguments, words",
    [
        (("observation", 1), "shifts of at most 0, found 1: a policy cannot look ahead"),
        (("action", "-3:0"), "shifts of at most -1, found 0"),
        (("reward", [-2, 0]), "shifts of at most -1, found 0"),
        (("info", -1), "found 'info'"),
        (("action.x", -1), "found 'action.x'"),
        (("observation", "-1:-5"), "from the oldest to the newest; found '-1:-5'"),
        (("observation", []), "whole numbers"),
        (("observation", [-1.5]), "whole numbers"),
        (("observation", -1.0), "whole numbers, such as -1 or [-4, -2, -1]; found -1.0"),
        (("observation", -1, "last"), "found 'last'"),
        (("observation", -1, float("nan")), "found nan"),
    ],
)
def test_impossible_views_are_refused(arguments: tuple, words: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)):
        View(*arguments)


@pytest.mark.parametrize(
    "view, words",
    [
        (View("reward", -1), "Put rewards there by the wrapper observation_action_reward"),
        (View("observation.y", -1), "no part 'y'; found ['id', 'x']"),
        (View("observation.x.b", -1, -1), "a uint8 cannot be -1, its fill"),
        (View("action", -1, 0.5), "a int32 cannot be 0.5"),
    ],
)
def test_what_an_environment_has_not_is_refused_with_its_networks(view: View, words: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)):
        with_views(dqn.make_agent(), {"view": view}).make_networks(SPEC)


def test_views_without_names_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"views: expected a dictionary of them by name, .* found a list. Name each"):
        with_views(dqn.make_agent(), [View("action", -1)])  # type: ignore[arg-type]


@pytest.mark.full
def test_agents_that_keep_no_order_are_refused() -> None:
    """Hindsight changes what was; and views are given once."""
    views = {"view": View("action", -1)}
    hindsight = Hindsight(lambda *args: args[0], None)
    for agent in (with_her(dqn.make_agent(dqn.Config(n_step=1)), hindsight), with_views(dqn.make_agent(), views)):
        with pytest.raises(ConfigError, match="as an agent keeps them in order, once; found"):
            with_views(agent, views)
    with pytest.raises(ConfigError, match="Expected views by name"):
        with_views(dqn.make_agent(), {})
    plain = dqn.make_agent().make_update
    update = with_views(dqn.make_agent(), views).make_update
    networks = with_views(dqn.make_agent(), views).make_networks(SPEC)
    with pytest.raises(ConfigError, match="without the past"):
        update(networks).update(plain(networks.agent).init(KEY), ReplaySample((), Transition((), (), (), (), ())))
