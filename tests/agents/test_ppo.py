import pathlib
import textwrap
from typing import Any, ClassVar

import dm_env
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tree

from agentkit import checkpoint, envs, specs
from agentkit import networks as nets
from agentkit.agents import ppo
from agentkit.agents.common.advantages import observe_segments
from agentkit.datasets import ReplayDataset
from agentkit.errors import ConfigError, SpecError
from agentkit.experiment import ExperimentConfig, launch, run
from agentkit.learning import Linear
from agentkit.replay import InProcessReplay
from agentkit.testing.agent import AgentContract, Change
from agentkit.testing.learning import learns
from agentkit.types import Step
from tests.agents import on_policy_settings
from tests.agents.on_policy_training import KEY, Training, rows_of

FLOAT = specs.Array((), np.float32)
SMALL = {**on_policy_settings.SMALL, "num_epochs": 2, "num_minibatches": 2}
REFUSED: dict[str, Any] = {
    **on_policy_settings.REFUSED,
    "core_size": 0,
    "core": "lsmt",
    "num_epochs": 0,
    "num_minibatches": 3,
    "clip_epsilon": 0.0,
    "value_clip": -1.0,
    "target_kl": 0.0,
    "adam_epsilon": 0.0,
    "entropy_cost": -1.0,
    "kl_cost": -1.0,
    "adaptive_kl_target": Change(0.01, {"kl_cost": 0.0}),
    "normalize_advantages": "sometimes",
}
CHANGES: dict[str, Any] = {
    **on_policy_settings.CHANGES,
    "core_size": Change(3, {"batch_size": 2}),
    "core": Change("gru", {"batch_size": 2, "core_size": 3}),
    "num_epochs": 3,
    "num_minibatches": 4,
    "clip_epsilon": Change(0.001, {"learning_rate": 0.1}),
    "value_clip": 0.001,
    "value_cost": 0.1,
    "entropy_cost": 0.1,
    "target_kl": 1e-9,
    "adam_epsilon": 1e-2,
    "kl_cost": Change(10.0, {"learning_rate": 0.1}),
    "adaptive_kl_target": Change(1e-9, {"learning_rate": 0.1, "kl_cost": 10.0}),
    "normalize_advantages": "none",
}


class _PpoContract(AgentContract):
    refused: ClassVar = REFUSED
    changes: ClassVar = CHANGES

    def make_agent(self, **settings: Any) -> Any:
        return ppo.make_agent(ppo.Config(**{**SMALL, **settings}))


@pytest.mark.both_stacks
class TestPpoDiscrete(_PpoContract):
    unsuitable_environment = on_policy_settings.UNSUITABLE
    steps_before_learning = 12  # A segment of 16 rows has 15 steps, with the end of an episode.
    test_every_setting_changes_what_the_agent_does = None  # type: ignore[assignment]  # Those of continuous actions do.

    def make_environment(self, seed: int) -> Any:
        return envs.make("agentkit:catch", seed=seed)


class TestPpoContinuous(_PpoContract):
    unsuitable_environment = on_policy_settings.UNSUITABLE

    @pytest.mark.full
    def test_every_setting_changes_what_the_agent_does(self) -> None:
        """Each is traced anew."""
        super().test_every_setting_changes_what_the_agent_does()

    def make_environment(self, seed: int) -> Any:
        return envs.make("agentkit:point_mass", seed=seed)


def start(name: str, num_envs: int | None, **changes: Any) -> Training:
    return Training(ppo.make_agent(ppo.Config(**{**SMALL, **changes})), name, num_envs)


@pytest.mark.full
@pytest.mark.parametrize("num_envs", [None, 3])
@pytest.mark.parametrize("name", ["agentkit:catch", "agentkit:point_mass"])
def test_at_the_first_minibatch_every_ratio_is_1(name: str, num_envs: int | None) -> None:
    """The densities that actors stored are those of the learner's parameters and statistics, at every update."""
    training = start(name, num_envs, learning_rate=0.01)
    for number in range(4):
        batch = training.next_batch()
        rows = rows_of(training.networks, training.agent.config, training.state, batch.data)
        distribution, _ = training.networks.apply(training.state.variables.params, rows.observation)
        log_prob = distribution.log_prob(rows.extras.sample)
        mask = rows.mask > 0
        assert np.count_nonzero(~mask) > 0 or number == 0
        np.testing.assert_allclose(log_prob[mask], rows.extras.log_prob[mask], rtol=1e-4, atol=1e-5)
        metrics = training.learn(batch)
        assert metrics["kl"] > 1e-7  # Later minibatches have moved away.


@pytest.mark.full
@pytest.mark.parametrize("num_envs", [None, 3])
def test_every_step_is_learned_from_once(num_envs: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Observations and rewards in the order in which the environments gave them; and nothing waits."""
    training = start("agentkit:catch", num_envs, segment_length=7, num_minibatches=1)
    seen: list[dm_env.TimeStep] = []

    def note(name: str) -> None:
        method = getattr(training.environment, name)

        def noted(*action: Any) -> dm_env.TimeStep:
            timestep = method(*action)
            given = timestep._replace(reward=timestep.reward or 0.0) if num_envs is None else timestep
            seen.append(given if num_envs else dm_env.TimeStep(*(np.asarray(x)[None] for x in given)))
            return timestep

        monkeypatch.setattr(training.environment, name, noted)

    note("reset")
    note("step")
    batches = []
    for _ in range(6):
        batch = training.next_batch()
        assert training.replay.info("segments").size == 0
        batches.append(batch.data)
        training.learn(batch)
    rows = tree.map_structure(lambda *x: np.concatenate([leaf[:, :-1] for leaf in x], axis=1), *batches)
    has_action = np.concatenate([~segment.start_of_episode[:, 1:] for segment in batches], axis=1)
    for i in range(num_envs or 1):
        observations = np.stack([t.observation[i] for t in seen])
        np.testing.assert_array_equal(rows.observation[i], observations[: 6 * 7])
        steps = [t for t in seen if t.step_type[i] != dm_env.StepType.FIRST]
        np.testing.assert_array_equal(rows.reward[i][has_action[i]], [t.reward[i] for t in steps])
        np.testing.assert_array_equal(rows.discount[i][has_action[i]], [t.discount[i] for t in steps])


def by_hand(networks: Any, agent: ppo.make_agent, episodes: list[Any]) -> list[tuple[float, float]]:
    """Advantage and target of every step, by a loop over each episode on its own, from its end."""
    gamma, lambda_ = agent.config.discount, agent.config.gae_lambda
    found = []
    for observations, rewards, last_discount in episodes:
        values = [float(networks.apply((), np.float32(o)[None])[1][0]) for o in observations]
        advantage, pairs = 0.0, []
        for t in reversed(range(len(rewards))):
            discount = gamma * (last_discount if t == len(rewards) - 1 else 1.0)
            advantage = rewards[t] + discount * values[t + 1] - values[t] + discount * lambda_ * advantage
            pairs.append((advantage, advantage + values[t]))
        found += reversed(pairs)
    return found


@pytest.mark.parametrize(
    ("lengths", "last_discounts"),
    [
        ([5], [None]),  # The segment ends in mid-episode.
        ([3], [0.0]),  # Shorter than a segment, terminated.
        ([3], [1.0]),  # ... truncated.
        ([1, 3], [1.0, None]),
        ([1, 2], [0.0, 1.0]),  # Two episodes in one segment.
        ([5, 4], [1.0, None]),  # Truncated with the last row: its final observation is behind the segment.
        ([5, 4], [0.0, None]),
        ([4, 5], [1.0, None]),  # Its final observation is the last row.
    ],
)
def test_bootstraps_at_truncations_and_segment_ends_and_nowhere_else(
    lengths: list[int], last_discounts: list[float | None]
) -> None:
    """Through the adder and the queue; the value of an observation is its number."""
    length = 5
    spec = specs.EnvironmentSpec(FLOAT, specs.DiscreteArray(2, np.int32), FLOAT, FLOAT)
    settings = {**SMALL, "segment_length": length, "num_minibatches": 1}
    agent = ppo.make_agent(ppo.Config(**settings, normalize_values=False, normalize_observations=False))
    networks = agent.make_networks(spec)
    square = nets.as_recurrent(networks.init, lambda params, o: (None, o * o + 1.0))
    networks = networks._replace(network=square)
    state = agent.make_update(agent.make_networks(spec)).init(KEY)
    extras = nets.PolicyExtras(np.int32(0), np.float32(-0.5))
    episodes, number, num_rows = [], 0, 0
    with InProcessReplay(agent.make_tables(spec)) as replay:
        adder = agent.make_adder(replay, spec)
        for count, last_discount in [*zip(lengths, last_discounts, strict=True), (9, None)]:
            observations, rewards = [float(number)], []
            adder.add_first(dm_env.restart(np.float32(number)))
            for t in range(count):
                number += 1
                observations.append(float(number))
                rewards.append(float(number % 3))
                timestep = dm_env.transition(np.float32(rewards[-1]), np.float32(number))
                if t == count - 1 and last_discount is not None:
                    timestep = timestep._replace(step_type=dm_env.StepType.LAST, discount=last_discount)
                adder.add(np.int32(1), timestep, extras)
                num_rows += 1
                if num_rows == length:
                    break
            episodes.append((observations, rewards, 1.0 if last_discount is None else last_discount))
            num_rows += last_discount is not None
            number += 1
            if num_rows >= length:
                break
        batch = next(ReplayDataset(replay, agent.batch_plan, timeout=1.0)).sample
    rows = rows_of(networks, agent.config, state, batch.data)
    expected = by_hand(networks, agent, episodes)
    mask = np.asarray(rows.mask) > 0
    assert mask.sum() == len(expected)
    found = np.stack([rows.advantage, rows.target], axis=1)[mask]
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.full
def test_a_kl_that_is_too_large_ends_the_epochs() -> None:
    def learn(**settings: Any) -> tuple[dict[str, float], Any]:
        training = start("agentkit:catch", 3, learning_rate=0.05, num_epochs=4, **settings)
        return training.learn(training.next_batch()), training.state.variables.params

    whole, _ = learn()
    stopped, params = learn(target_kl=1e-4)
    assert whole["epochs"] == 4.0 and whole["kl"] > 1e-3
    assert stopped["epochs"] == 1.0  # Two minibatches were looked at, and the first was learned from.
    _, once = learn(target_kl=1e-9)
    for a, b in zip(jax.tree.leaves(params), jax.tree.leaves(once), strict=True):
        np.testing.assert_array_equal(a, b)
    patient, _ = learn(target_kl=1e9)
    assert patient == pytest.approx(whole, rel=1e-4, abs=1e-6)


@pytest.mark.full
def test_the_kl_cost_doubles_and_halves_where_the_kl_is_beyond_its_target() -> None:
    """The paper's section 4: at d < d_targ / 1.5 and at d > 1.5 d_targ, and in between it stays."""
    for kl, expected in [(0.0066, 1.5), (0.0067, 3.0), (0.0149, 3.0), (0.0151, 6.0)]:
        assert ppo.adapt_kl_cost(jnp.float32(3.0), jnp.float32(kl), 0.01) == expected
    costs = {}
    for target in (1e-9, 1e9):
        training = start("agentkit:catch", 3, learning_rate=0.01, kl_cost=0.5, adaptive_kl_target=target)
        costs[target] = [training.learn(training.next_batch())["kl_cost"] for _ in range(3)]
    assert costs == {1e-9: [0.5, 1.0, 2.0], 1e9: [0.5, 0.25, 0.125]}


@pytest.mark.full
def test_a_kl_penalty_holds_the_policy_back_and_one_of_ones_own_does_as_much() -> None:
    def make_loss(networks: Any, config: Any) -> Any:
        def loss(*arguments: Any) -> Any:
            output = ppo.make_loss(networks, config)(*arguments)
            return output._replace(loss=output.loss + 100.0 * output.metrics["kl"])

        return loss

    def kl_after(own_loss: Any = ppo.make_loss, **settings: Any) -> float:
        config = ppo.Config(**{**SMALL, "learning_rate": 0.02, "num_epochs": 10, **settings})
        training = Training(ppo.make_agent(config, make_loss=own_loss), "agentkit:catch", 3)
        return training.learn(training.next_batch())["kl"]

    free, held, own = kl_after(), kl_after(kl_cost=100.0), kl_after(make_loss)
    assert 0.0 < held < 0.2 * free and own == pytest.approx(held, rel=1e-3)


@pytest.mark.full
def test_advantages_are_normalised_in_each_minibatch_in_the_batch_or_not_at_all() -> None:
    """One loss sees them: as they are, in which case the batch was normalised before, or normalised by itself."""
    seen: dict[str, Any] = {}

    def noting_loss(networks: Any, config: Any) -> Any:
        loss = ppo.make_loss(networks, config)

        def noted(params: Any, state: Any, batch: Any, key: Any) -> Any:
            rows, output = batch.data, loss(params, state, batch, key)
            moments = [jnp.sum(rows.advantage**n * rows.mask) / jnp.sum(rows.mask) for n in (1, 2)]
            return output._replace(metrics={**output.metrics, "mean": moments[0], "square": moments[1]})

        return noted

    for kind in ("minibatch", "batch", "none"):
        config = ppo.Config(**{**SMALL, "normalize_advantages": kind, "num_minibatches": 1, "num_epochs": 1})
        training = Training(ppo.make_agent(config, make_loss=noting_loss), "agentkit:point_mass", 3)
        seen[kind] = training.learn(training.next_batch())
    assert [seen[kind]["square"] for kind in seen] != pytest.approx([1.0] * 3, rel=0.01)
    assert (seen["batch"]["mean"], seen["batch"]["square"]) == pytest.approx((0.0, 1.0), abs=1e-3)
    assert seen["minibatch"]["square"] == pytest.approx(seen["none"]["square"], rel=1e-5)
    assert seen["minibatch"]["policy_loss"] == pytest.approx(seen["batch"]["policy_loss"], abs=1e-5)
    assert seen["none"]["policy_loss"] != pytest.approx(seen["batch"]["policy_loss"], abs=1e-3)


def test_the_papers_config_can_be_pasted() -> None:
    """Table 3: a horizon of 2,048, minibatches of 64."""
    assert ppo.__doc__ is not None
    config = eval(textwrap.dedent(ppo.__doc__[ppo.__doc__.index("    Config(") :]), {"Config": ppo.Config})
    rows = ppo.make_agent(config).experience
    assert (rows.segment_length, rows.batch_plan.batch_size, rows.segment_length // config.num_minibatches) == (
        2048,
        1,
        64,
    )
    normalized = {config.normalize_observations, config.normalize_values, config.normalize_advantages}
    assert normalized == {False, "none"} and config.max_grad_norm is None


@pytest.mark.full
def test_an_entropy_bonus_makes_the_policy_more_random() -> None:
    found = []
    for entropy_cost in (0.0, 10.0):
        training = start("agentkit:point_mass", 3, learning_rate=0.01, entropy_cost=entropy_cost)
        entropies = [training.learn(training.next_batch())["entropy"] for _ in range(3)]
        found.append(entropies[-1] - entropies[0])
    assert found[1] > found[0] + 0.1


@pytest.mark.full
def test_the_learning_rate_falls_to_zero() -> None:
    training = start("agentkit:catch", 3, learning_rate=Linear(0.01, 0.0, 3 * 48))
    rates, steps = [], [0]
    while steps[-1] < 3 * 48:
        batch = training.next_batch()
        rates.append(training.learn(batch)["learning_rate"])
        steps.append(training.loop.num_steps)
    assert steps[1] < 48  # A segment of 48 rows has final observations, too.
    np.testing.assert_allclose(rates, 0.01 * (1 - np.array(steps[:-1]) / (3 * 48)), rtol=1e-4)
    before = jax.tree.map(np.asarray, training.state.variables.params)
    assert training.learn(training.next_batch())["learning_rate"] == 0.0
    for a, b in zip(jax.tree.leaves(before), jax.tree.leaves(training.state.variables.params), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.full
def test_statistics_are_those_of_all_data_and_are_published_with_the_parameters() -> None:
    training = start("agentkit:point_mass", 3)
    observations = []
    for _ in range(3):
        published = training.client.params
        batch = training.next_batch()
        assert published is training.client.params  # Nothing changes while a segment is made.
        observations.append(batch.data.observation[:, :-1].reshape(-1, 2))
        training.learn(batch)
        everything = np.concatenate(observations)
        (statistics,) = training.client.params.statistics
        assert statistics.count == len(everything)
        np.testing.assert_allclose(statistics.mean, everything.mean(0), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(statistics.squares / len(everything), everything.var(0), rtol=1e-4, atol=1e-5)
    # Final observations have no return: one in 21 rows of each environment.
    assert training.state.returns.count == 3 * (3 * 16 - 3 * 16 // 21)


@pytest.mark.full
def test_images_are_not_normalised() -> None:
    spec = specs.EnvironmentSpec(
        {
            "depth": specs.BoundedArray((8, 8, 1), np.float32, 0.0, 255.0),
            "image": specs.BoundedArray((8, 8, 3), np.uint8, 0, 255),
            "speed": specs.Array((2,), np.float32),
        },
        specs.DiscreteArray(2, np.int32),
        FLOAT,
        FLOAT,
    )
    agent = ppo.make_agent(ppo.Config(**SMALL))
    variables = agent.make_update(agent.make_networks(spec)).init(KEY).variables
    rng = np.random.default_rng(0)
    seen = {
        "depth": np.float32(rng.uniform(0.0, 255.0, (1, 3, 8, 8, 1))),
        "image": rng.integers(0, 256, (1, 3, 8, 8, 3)).astype(np.uint8),
        "speed": np.float32(rng.normal(7.0, 2.0, (1, 3, 2))),
    }
    start = np.zeros((1, 3), bool)
    variables = variables._replace(statistics=observe_segments(variables, Step(seen, (), (), (), start)))
    found = variables.normalized(seen)
    for name in ("depth", "image"):  # The networks divide them by 255.
        np.testing.assert_array_equal(found[name], seen[name])
    np.testing.assert_allclose(found["speed"][0, :2].mean(axis=0), [0.0, 0.0], atol=1e-5)


@pytest.mark.full
def test_actions_are_clipped_to_bounds_and_densities_are_not() -> None:
    actions = specs.BoundedArray((2, 1), np.float32, [[0.0], [-4.0]], [[10.0], [-2.0]], "action")
    spec = specs.EnvironmentSpec(specs.Array((3,), np.float32), actions, FLOAT, FLOAT)
    agent = ppo.make_agent(ppo.Config(**SMALL, initial_std=2.0))
    networks = agent.make_networks(spec)
    policy = agent.make_policy(networks)
    acting = jax.jit(agent.make_update(networks).init)(KEY).variables
    observation = np.ones(3, np.float32)

    def draw(key: jax.Array) -> Any:
        action, _, extras = policy.act(acting, key, observation, ())
        return action, extras

    action, extras = jax.vmap(draw)(jax.random.split(KEY, 500))
    assert action.shape == (500, 2, 1) and action.dtype == jnp.float32
    for i, (low, high) in enumerate([(0.0, 10.0), (-4.0, -2.0)]):
        assert action[:, i].min() == low and action[:, i].max() == high
        expected = low + (np.clip(extras.sample[:, i], -1, 1) + 1) / 2 * (high - low)
        np.testing.assert_allclose(action[:, i, 0], expected, rtol=1e-4, atol=1e-5)
    assert np.abs(extras.sample).max() > 4.0
    distribution, _ = networks.apply(acting.params, observation[None])
    np.testing.assert_allclose(extras.log_prob, distribution.log_prob(extras.sample), rtol=1e-4, atol=1e-5)
    best, _, nothing = agent.make_policy(networks, evaluation=True).act(acting, KEY, observation, ())
    assert nothing == () and np.abs(best - np.array([[5.0], [-3.0]])).max() < 0.5


@pytest.mark.full
def test_an_update_follows_each_round_of_segments() -> None:
    """Of as many segments as there are environments, unless the config says otherwise."""
    for num_envs, batch_size, expected in [(None, None, 1), (4, None, 4), (4, 2, 2), (4, 3, 3)]:
        agent = ppo.make_agent(ppo.Config(**SMALL, batch_size=batch_size))
        experiment = ExperimentConfig(agent, "agentkit:point_mass", 400, num_envs=num_envs, evaluation_period=0)
        assert experiment.agent.batch_plan.batch_size == expected
        result = run(experiment)
        # Episodes of 20 steps and a row for their end: 16 rows are at least 15 steps.
        per_env = result.steps // (num_envs or 1)
        rounds = (per_env + per_env // 20) // 16
        assert result.updates == rounds * (num_envs or 1) // expected


def test_minibatches_of_unequal_size_are_refused_before_anything_runs() -> None:
    agent = ppo.make_agent(ppo.Config(**{**SMALL, "num_minibatches": 5}))
    with pytest.raises(ConfigError, match="num_minibatches=5 does not divide"):
        run(ExperimentConfig(agent, "agentkit:catch", 100, num_envs=2))
    with pytest.raises(SpecError, match="two numbers"):
        run(ExperimentConfig(agent, on_policy_settings.UNSUITABLE, 100))


@pytest.mark.full
def test_it_learns_catch() -> None:
    config = ppo.Config(hidden_sizes=(32, 32), segment_length=32, learning_rate=3e-3, num_minibatches=2)
    learns(ppo.make_agent(config), "agentkit:catch", num_steps=8_000, threshold=0.8, num_envs=8)


@pytest.mark.full
def test_it_learns_the_point_mass() -> None:
    config = ppo.Config(hidden_sizes=(32, 32), segment_length=32, learning_rate=3e-3, num_minibatches=2, discount=0.9)
    learns(ppo.make_agent(config), "agentkit:point_mass", num_steps=12_000, threshold=-1.5, num_envs=8)


@pytest.mark.reverb
@pytest.mark.filterwarnings("ignore:distutils Version classes are deprecated:DeprecationWarning")
def test_on_reverb_it_trains_bit_for_bit_as_in_process(tmp_path: pathlib.Path) -> None:
    """A queue leaves nothing to chance, and all that was written is there when learning is due."""
    learned = []
    for replay in ("in_process", "reverb"):
        agent, directory = ppo.make_agent(ppo.Config(**SMALL)), tmp_path / replay
        settings: dict[str, Any] = {"num_envs": 3, "evaluation_period": 0, "run_directory": directory}
        result = run(ExperimentConfig(agent, "agentkit:catch", 500, replay=replay, **settings))
        found = checkpoint.read_latest(directory / "checkpoints")
        assert found is not None and result.updates == 11
        learned.append(found.state["learner"]["state"])
    assert learned[0].keys() == learned[1].keys()
    for name, leaf in learned[0].items():
        np.testing.assert_array_equal(leaf, learned[1][name], err_msg=name)


@pytest.mark.reverb
@pytest.mark.full
def test_it_learns_from_actors_in_other_processes() -> None:
    """The same agent, launched: as many segments are learned from as the actors' steps make."""
    config = ppo.Config(hidden_sizes=(32, 32), segment_length=32, learning_rate=1e-3, num_minibatches=2)
    experiment = ExperimentConfig(
        ppo.make_agent(config), "agentkit:catch", 12_000, num_envs=4, replay="reverb", evaluation_period=12_000
    )
    result = launch(experiment, num_actors=2, num_evaluators=1)
    rows = result.steps * 10 / 9  # Episodes of 9 steps and a row for their end.
    assert 0.8 < result.updates / (rows / (4 * 32)) < 1.05
    assert result.evaluations[-1]["episode_return"] > 0.8
