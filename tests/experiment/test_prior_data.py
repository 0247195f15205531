"""Data of others in replay: its contents, how learning then goes, resumes to the bit, both tables' parts of a batch."""

import dataclasses
import functools
import json
import pathlib
import warnings
from typing import Any

import dm_env
import numpy as np
import pytest
import tree

import agentkit
from agentkit import ExperimentConfig, checkpoint, datasets
from agentkit.agents import discrete_sac, dqn, gumbel_muzero, ppo, r2d2, sac, td3_bc
from agentkit.agents.addons import with_gail, with_prior_data, with_rnd
from agentkit.cli import main
from agentkit.core import BatchPlan
from agentkit.datasets import ItemStore, ReplayDataset, add_episode
from agentkit.errors import ConfigError
from agentkit.experiment.launching.run import prepare_launch
from agentkit.experiment.training.prior_data import fill, read_fillings, warn_of_own_bounds
from agentkit.replay import InProcessReplay, MinSize, Table
from agentkit.specs import BoundedArray, make_environment_spec
from agentkit.wrappers.base import EnvironmentWrapper, ObservationWrapper
from agentkit.wrappers.clip_reward import ClipReward
from agentkit.wrappers.reward_scale import RewardScale
from agentkit.wrappers.terminations_as_truncations import TerminationsAsTruncations
from tests.agents import offline_data

CATCH = offline_data.CATCH
EPISODES = offline_data.make_episodes(CATCH, 6, [0.5])
NUM_STEPS = sum(len(episode.rewards) for episode in EPISODES)
SMALL: dict[str, Any] = {"hidden_sizes": (8,), "batch_size": 8}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return datasets.write_episodes(tmp_path_factory.mktemp("data") / "data.hdf5", EPISODES)


def make_agent(**settings: Any) -> Any:
    return dqn.make_agent(
        dqn.Config(**{**SMALL, "min_replay_size": 20, "n_step": 1, "updates_per_step": 1.0, **settings})
    )


def make_experiment(agent: Any, num_steps: int = 45, **settings: Any) -> ExperimentConfig:
    usual = {"environment": CATCH, "evaluation_period": 0, "checkpoint_period": 0}
    return ExperimentConfig(agent, num_steps=num_steps, **{**usual, **settings})


def filled(experiment: ExperimentConfig) -> tuple[InProcessReplay, list[str]]:
    """A replay as the experiment's run begins with."""
    agent = experiment.agent
    with experiment.make_environment(0) as environment:
        spec = make_environment_spec(environment)
    replay = InProcessReplay(agent.make_tables(spec))
    return replay, fill(replay, read_fillings(experiment, spec, agent.make_policy(agent.make_networks(spec))))


def state_of(directory: pathlib.Path) -> checkpoint.Checkpoint:
    found = checkpoint.read_latest(directory / "checkpoints")
    assert found is not None
    return found


def assert_same(found: Any, expected: Any) -> None:
    tree.assert_same_structure(found, expected)
    for x, y in zip(tree.flatten(found), tree.flatten(expected), strict=True):
        np.testing.assert_array_equal(x, y)


# --- replay begins with a file ---------------------------------------------------------------------


@pytest.mark.both_stacks
@pytest.mark.parametrize("n_step", [1, 3])
def test_what_replay_holds_are_the_files_transitions(data: pathlib.Path, n_step: int) -> None:
    agent = make_agent(n_step=n_step)
    replay, (message,) = filled(make_experiment(agent, data=data))
    spec = make_environment_spec(agentkit.envs.make(CATCH, seed=0))
    store = ItemStore(replay.table("transitions"))
    adder = agent.make_adder(store, spec)
    for episode in EPISODES:
        add_episode(adder, episode)
    items, _ = replay.contents("transitions")
    assert len(store) == NUM_STEPS + (n_step - 1) * len(EPISODES)
    assert_same(items, store.take(np.arange(len(store))))
    assert f"6 episodes of {data}: {NUM_STEPS} steps, {len(store)} items" in message


@pytest.mark.both_stacks
def test_sequences_have_a_memory_that_has_seen_nothing(data: pathlib.Path) -> None:
    config = r2d2.Config(
        hidden_sizes=(8,), core_size=4, batch_size=2, burn_in=2, sequence_length=4, sequence_period=2,
        min_replay_size=2,
    )  # fmt: skip
    replay, _ = filled(make_experiment(r2d2.make_agent(config), data=data))
    items, _ = replay.contents("sequences")
    observations = np.concatenate([episode.observations for episode in EPISODES])
    np.testing.assert_array_equal(items.observation[0], observations[: items.observation.shape[1]])
    assert all(np.all(leaf == 0) for leaf in tree.flatten(items.extras))


@pytest.mark.both_stacks
def test_rewards_are_those_that_training_gives(data: pathlib.Path) -> None:
    """Wrappers for training only change the data's rewards, in their order; evaluations have neither."""
    wrappers = [functools.partial(RewardScale, scale=3.0), ClipReward, functools.partial(RewardScale, scale=0.5)]
    plain, changed = (filled(make_experiment(make_agent(), data=data, wrappers=w))[0] for w in ((), wrappers))
    before, after = (replay.contents("transitions")[0].reward for replay in (plain, changed))
    assert np.any(before)
    np.testing.assert_allclose(after, 0.5 * np.clip(3.0 * before, -1.0, 1.0))


@pytest.mark.parametrize(
    ("high", "actions", "space", "warns"),
    [
        (0.4, [-0.4, 0.1, 0.4001], None, True),  # Rounded.
        (0.9995, [-0.4, 0.1, 0.4], None, False),
        (0.4, [-0.4, 0.1, 0.4], None, True),
        (0.4, [-0.4, 0.1, 0.5], None, False),  # These are an agent's.
        (0.4, [-0.4, 0.1, 0.4], {"type": "Box", "low": [-0.4], "high": [0.4]}, False),
        (1.0, [-0.4, 0.1, 0.4], None, False),
        (2.0, [-0.4, 0.1, 0.4], None, False),
    ],
)
def test_actions_that_seem_to_be_in_the_environments_own_bounds_are_warned_of(
    high: float, actions: list[float], space: Any, warns: bool
) -> None:
    episode = datasets.Episode(np.zeros((4, 2)), np.float64(actions)[:, None], np.zeros(3), *np.zeros((2, 3), bool))
    own = BoundedArray((1,), np.float32, -high, high)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        warn_of_own_bounds(datasets.EpisodeData([episode], space), own, "d.npz")
    assert ["All actions of d.npz are within" in str(each.message) for each in seen] == [True] * warns


@pytest.mark.parametrize(
    ("actions", "warns"),
    [
        ([[-1.0, 0.0], [1.0, 0.4]], True),
        ([[0.0, -0.4], [0.3, 0.0]], False),  # The first is within the second's bounds, and the second is not.
        ([[0.0, 0.2], [0.3, 1.0]], True),
    ],
)
def test_of_several_bounds_the_narrower_ones_count(actions: list[list[float]], warns: bool) -> None:
    episode = datasets.Episode(np.zeros((3, 2)), np.asarray(actions, np.float32), np.zeros(2), *np.zeros((2, 2), bool))
    own = BoundedArray((2,), np.float32, [-1.0, 0.0], [1.0, 1.0])
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        warn_of_own_bounds(datasets.EpisodeData([episode], None), own, "d.npz")
    assert ["own bounds, 0 to 1," in str(each.message) for each in seen] == [True] * warns


def test_at_the_bounds_of_actions_in_parts_nobody_looks() -> None:
    """They are refused elsewhere, in words of their own."""
    actions = (np.zeros((3, 1), np.float32), np.zeros((3, 2), np.float32))
    episode = datasets.Episode(np.zeros((4, 2)), actions, np.zeros(3), *np.zeros((2, 3), bool))
    own = BoundedArray((1,), np.float32, -0.4, 0.4)
    warn_of_own_bounds(datasets.EpisodeData([episode], None), own, "d.npz")


@pytest.mark.parametrize("offline", [False, True])
def test_both_kinds_of_run_look_at_the_environments_own_bounds(offline: bool, tmp_path: pathlib.Path) -> None:
    episodes = offline_data.make_episodes(offline_data.POINT_MASS, 2, [0.5])
    own = [episode._replace(actions=episode.actions * np.float32(0.4)) for episode in episodes]
    path = datasets.write_episodes(tmp_path / "data.hdf5", own)
    with pytest.warns(RuntimeWarning, match="within the environment's own bounds, -0.4 to 0.4"):
        if offline:
            agent = td3_bc.make_agent(td3_bc.Config(**SMALL))
            agentkit.run_offline(agentkit.OfflineConfig(agent, path, 1, make_narrow, evaluation_period=0))
        else:
            agent = sac.make_agent(sac.Config(**SMALL, num_random_steps=1))
            agentkit.run(make_experiment(agent, 1, environment=make_narrow, data=path))


@pytest.mark.parametrize("is_file", [False, True])
def test_demonstrations_in_the_environments_own_bounds_are_warned_of(is_file: bool, tmp_path: pathlib.Path) -> None:
    episodes = offline_data.make_episodes(offline_data.POINT_MASS, 2, [0.5])
    shown: Any = [episode._replace(actions=episode.actions * np.float32(0.4)) for episode in episodes]
    if is_file:
        shown = datasets.write_episodes(tmp_path / "shown.hdf5", shown)
    plain = sac.make_agent(sac.Config(**SMALL))
    spec = make_environment_spec(make_narrow(0))
    experiment = make_experiment(with_rnd(plain), 1, environment=make_narrow)
    own = BoundedArray((2,), np.float32, -0.4, 0.4)
    for agent in (plain, with_gail(plain, episodes)):  # The latter's are an agent's.
        assert read_fillings(dataclasses.replace(experiment, agent=agent), spec, None, own) == []
    experiment = dataclasses.replace(experiment, agent=with_gail(with_rnd(plain), shown))
    found = r"the demonstrations .*shown\.hdf5 are" if is_file else "the demonstrations are"
    with pytest.warns(RuntimeWarning, match=f"All actions of {found} within .* bounds, -0.4 to 0.4"):
        read_fillings(experiment, spec, None, own)
    offline = agentkit.OfflineConfig(experiment.agent, episodes, 1, make_narrow, evaluation_period=0)
    with pytest.raises(RuntimeWarning, match=f"All actions of {found} within"):  # Warnings are errors in tests.
        agentkit.run_offline(offline)
    unread = dataclasses.replace(experiment, agent=with_gail(plain, "nowhere.npz"))
    assert read_fillings(unread, spec, None, BoundedArray((2,), np.float32, -1.0, 1.0)) == []


class Narrow(EnvironmentWrapper):
    """Takes actions in [-0.4, 0.4]."""

    def action_spec(self) -> BoundedArray:
        spec = self._environment.action_spec()
        return BoundedArray(spec.shape, spec.dtype, -0.4, 0.4, spec.name)


def make_narrow(seed: int) -> Any:
    return Narrow(agentkit.envs.make(offline_data.POINT_MASS, seed=seed, raw=True))


class PaidBySight(ObservationWrapper):
    """Pays what is seen, in training."""

    training_only = True

    def _transform(self, timestep: dm_env.TimeStep) -> dm_env.TimeStep:
        if timestep.reward is None:
            return timestep
        return timestep._replace(reward=np.float32(np.argmax(timestep.observation)))


def test_wrappers_for_training_only_see_the_datas_steps(data: pathlib.Path) -> None:
    wrappers = [PaidBySight, TerminationsAsTruncations]
    items, _ = filled(make_experiment(make_agent(), data=data, wrappers=wrappers))[0].contents("transitions")
    seen = items.next_observation.reshape(len(items.reward), -1)
    np.testing.assert_array_equal(items.reward, np.argmax(seen, axis=1))
    assert np.any(items.reward) and np.all(items.discount == np.float32(0.99))


@pytest.mark.both_stacks
@pytest.mark.parametrize(("num_items", "first"), [(20, 20), (54, 20), (10, 10)])
def test_data_bear_on_the_size_and_not_on_the_rate(num_items: int, first: int) -> None:
    """Learning begins as it would have where the items that it waits for were the run's own."""
    limiter = make_agent().make_tables(make_environment_spec(agentkit.envs.make(CATCH, seed=0)))[0].rate_limiter
    experiment = make_experiment(make_agent(), 45)
    episodes = [EPISODES[0]] * (num_items // 9) + [_cut(EPISODES[0], num_items % 9)] * (num_items % 9 > 0)
    with experiment.make_environment(0) as environment:
        spec = make_environment_spec(environment)
    counts = []
    for which in (episodes, _first(episodes, first)):
        replay = InProcessReplay(experiment.agent.make_tables(spec))
        adder = experiment.agent.make_adder(replay, spec)
        if which is episodes:
            assert datasets.fill_replay(replay, "transitions", adder, episodes)[1] == num_items
        else:
            for episode in which:
                add_episode(adder, episode)
        dataset = ReplayDataset(replay, experiment.agent.batch_plan)
        taken = []
        for number in range(40):
            if number:
                add_episode(experiment.agent.make_adder(replay, spec), _cut(EPISODES[0], 1))
            count = 0
            while dataset.ready():
                next(dataset)
                count += 1
            taken.append(count)
        counts.append(taken)
    assert counts[0] == counts[1] and sum(counts[0]) > 20 and limiter.min_size_to_sample == 20


def _cut(episode: Any, num_steps: int) -> Any:
    return type(episode)(*(leaf[: num_steps + (name == "observations")] for name, leaf in episode._asdict().items()))


def _first(episodes: Any, num_steps: int) -> Any:
    found = []
    for episode in episodes:
        taken = min(num_steps, len(episode.rewards))
        found += [_cut(episode, taken)] * (taken > 0)
        num_steps -= taken
    return found


@pytest.mark.one_case
@pytest.mark.both_stacks
@pytest.mark.parametrize("shared", [False, True], ids=["one table", "two tables"])
def test_stopped_and_resumed_it_ends_as_if_never_stopped(
    data: pathlib.Path, tmp_path: pathlib.Path, shared: bool
) -> None:
    """The data are read once: the resumed run's file is gone."""
    own = tmp_path / "data.hdf5"
    own.write_bytes(data.read_bytes())
    agent = with_prior_data(make_agent(updates_per_call=2), own) if shared else make_agent()
    settings: dict[str, Any] = {} if shared else {"data": own}
    result = agentkit.run(make_experiment(agent, run_directory=tmp_path / "whole", **settings))
    assert result.updates == (28 if shared else 47)  # Of which two are ahead.
    agentkit.run(make_experiment(agent, 30, run_directory=tmp_path / "run", **settings))
    own.unlink()
    agentkit.resume(tmp_path / "run", num_steps=45)
    whole, resumed = (state_of(tmp_path / name) for name in ("whole", "run"))
    assert_same(resumed.state["learner"], whole.state["learner"])
    files = sorted(path.relative_to(whole.path) for path in (whole.path / "replay").rglob("*") if path.is_file())
    assert len(files) > 5
    for path in files:
        assert (whole.path / path).read_bytes() == (resumed.path / path).read_bytes()
    assert str(own) in json.dumps(json.loads((tmp_path / "run" / "config.json").read_text()))


@pytest.mark.reverb
def test_reverb_learns_as_often_and_goes_on_so(data: pathlib.Path, tmp_path: pathlib.Path) -> None:
    settings = {"replay": "reverb", "data": data}
    assert agentkit.run(make_experiment(make_agent(), run_directory=tmp_path / "whole", **settings)).updates == 47
    assert (
        agentkit.run(make_experiment(make_agent(), 30, run_directory=tmp_path / "run", **settings)).updates == 31
    )  # The newest step is no item yet.
    # The episode that was cut begins anew: two of the later steps are no items.
    assert agentkit.resume(tmp_path / "run", num_steps=45).updates == 45
    agent = with_prior_data(make_agent(updates_per_call=2), data)
    assert agentkit.run(make_experiment(agent, replay="reverb")).updates == 28


# --- batches from two tables -----------------------------------------------------------------------


@pytest.mark.both_stacks
@pytest.mark.parametrize("num_updates", [1, 3])
def test_a_batch_has_its_share_of_either_table(num_updates: int) -> None:
    layout = make_agent().make_tables(make_environment_spec(agentkit.envs.make(CATCH, seed=0)))[0].layout
    replay = InProcessReplay([Table(name, layout, 100, rate_limiter=MinSize(1)) for name in ("own", "prior")])
    spec = make_environment_spec(agentkit.envs.make(CATCH, seed=0))
    for name, reward in (("own", 1.0), ("prior", 2.0)):
        experience = dataclasses.replace(make_agent().experience, table=name)
        add_episode(
            experience.make_adder(replay, spec, ()),
            EPISODES[0]._replace(rewards=np.full(len(EPISODES[0].rewards), reward)),
        )
    plan = BatchPlan("own", 8, num_updates, "prior", 3)
    batch = next(ReplayDataset(replay, plan)).sample
    rewards = batch.data.reward.reshape(num_updates, 8)
    assert np.all(rewards[:, :5] == 1.0) and np.all(rewards[:, 5:] == 2.0)
    assert batch.data.observation.shape[: -len(spec.observations.shape)] == ((8,) if num_updates == 1 else (3, 8))
    assert [replay.info(name).num_sampled for name in ("own", "prior")] == [5 * num_updates, 3 * num_updates]


@pytest.mark.both_stacks
def test_the_data_stay_and_the_agents_own_steps_say_how_often_it_learns(data: pathlib.Path) -> None:
    plain, mixed = make_agent(), with_prior_data(make_agent(), data, share=0.25)
    assert mixed.batch_plan == BatchPlan("transitions", 8, 1, "prior_data", 2) and plain.batch_plan.num_own == 8
    results = [agentkit.run(make_experiment(agent, 60)) for agent in (plain, mixed)]
    assert results[0].updates == results[1].updates > 30
    replay, _ = filled(make_experiment(mixed))
    assert (replay.info("prior_data").size, replay.info("transitions").size) == (NUM_STEPS, 0)


def _dive(num_episodes: int) -> list[datasets.Episode]:
    """Episodes of deep sea: every second one finds the treasure, the others wander about."""
    rng, recorder = np.random.default_rng(0), datasets.EpisodeRecorder()
    environment = agentkit.envs.make("agentkit:deep_sea", seed=0, size=8)
    for number in range(num_episodes):
        timestep = environment.reset()
        recorder.add_first(timestep)
        while not timestep.last():
            action = np.int32(1 if number % 2 == 0 else rng.integers(2))
            timestep = environment.step(action)
            recorder.add(action, timestep)
    return recorder.episodes


@pytest.mark.full
def test_sac_learns_what_it_would_not_find_alone() -> None:
    """The treasure of deep sea, which a random policy finds once in 256 episodes, in 50 episodes: for three seeds."""
    config = discrete_sac.Config(
        hidden_sizes=(16,), batch_size=16, min_replay_size=20, learning_rate=3e-3, discount=0.9, updates_per_step=4.0,
        updates_per_call=4,
    )  # fmt: skip
    agent = discrete_sac.make_agent(config)
    returns = {}
    for name, which in (("alone", agent), ("with data", with_prior_data(agent, _dive(10)))):
        plan: dict[str, Any] = {"environment": "agentkit:deep_sea", "environment_settings": {"size": 8}}
        plan |= {"evaluation_period": 400, "evaluation_episodes": 1}
        found = [agentkit.run(make_experiment(which, 400, seed=seed, **plan)) for seed in range(3)]
        returns[name] = [result.evaluations[0]["episode_return"] for result in found]
    assert min(returns["with data"]) > 0.9 > max(returns["alone"]) + 0.5


# --- refusals --------------------------------------------------------------------------------------


@pytest.mark.both_stacks
@pytest.mark.parametrize(
    ("agent", "settings", "message"),
    [
        (make_agent(), {"data": "/nowhere.hdf5"}, r"data \(--data\): There is no file /nowhere.hdf5"),
        (sac.make_agent(), {"environment": offline_data.POINT_MASS}, r"data \(--data\): episode 0, observations"),
        (make_agent(), {"environment": "agentkit:deep_sea"}, r"data \(--data\): episode 0, observations"),
        (make_agent(), {"environment": "agentkit:catch", "environment_settings": {"columns": 4}}, "episode 0, observ"),
        (ppo.make_agent(), {}, "learns once from each of its own steps"),
    ],
)
def test_data_that_do_not_fit_are_refused_before_there_is_a_folder(
    data: pathlib.Path, tmp_path: pathlib.Path, agent: Any, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        agentkit.run(make_experiment(agent, run_directory=tmp_path / "run", **{"data": data, **settings}))
    assert not (tmp_path / "run").exists()


@pytest.mark.both_stacks
@pytest.mark.parametrize(("length", "enough"), [(8, True), (9, True), (10, False), (20, False)])
def test_data_too_short_for_one_sequence_are_refused_before_there_is_a_folder(
    tmp_path: pathlib.Path, length: int, enough: bool
) -> None:
    """One episode of nine steps: exactly so many data are taken as make an item."""
    config = r2d2.Config(
        hidden_sizes=(8,), core_size=4, batch_size=2, burn_in=2, sequence_length=length, sequence_period=2,
        min_replay_size=2, prioritized=False,
    )  # fmt: skip
    agent = with_prior_data(r2d2.make_agent(config), EPISODES[:1])
    if enough:
        replay, _ = filled(make_experiment(agent))
        assert replay.info("prior_data").size > 0
        return
    with pytest.raises(ConfigError, match=f"'prior_data' takes {length} steps of .* has \\(1\\), found 9"):
        agentkit.run(make_experiment(agent, run_directory=tmp_path / "run"))
    assert not (tmp_path / "run").exists()


@pytest.mark.both_stacks
def test_a_planners_own_words_are_in_no_data(data: pathlib.Path) -> None:
    pytest.importorskip("mctx")
    with pytest.raises(ConfigError, match="says beside each action"):
        agentkit.run(make_experiment(gumbel_muzero.make_agent(), data=data))


@pytest.mark.both_stacks
def test_impossible_shares_and_agents_are_refused(data: pathlib.Path) -> None:
    for share in (0.0, 1.0, 0.01, -1.0, float("nan")):
        with pytest.raises(ConfigError, match="share must be above 0 and below 1"):
            with_prior_data(make_agent(), data, share)
    with pytest.raises(ConfigError, match="found prioritized=True"):
        with_prior_data(make_agent(prioritized=True), data)
    with pytest.raises(ConfigError, match="found the experience Segments"):
        with_prior_data(ppo.make_agent(), data)
    with pytest.raises(ConfigError, match="expected a path, found a list"):
        make_experiment(make_agent(), data=EPISODES)
    for agent, settings in ((make_agent(), {"data": data}), (with_prior_data(make_agent(), data), {})):
        with pytest.raises(ConfigError, match="A launched program's replay begins empty"):
            prepare_launch(make_experiment(agent, **settings), False, {})


@pytest.mark.both_stacks
def test_the_command_says_what_it_is_missing(
    data: pathlib.Path, tmp_path: pathlib.Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["train", "dqn", "--env", CATCH, "--eval-every", "0", "--out", str(tmp_path / "runs")]
    words += ["--set", "hidden_sizes=8", "--set", "batch_size=8", "--steps", "9", "--set", "min_replay_size=20"]
    for given, message in (
        (["--data", "nowhere.hdf5"], "--data: there is no file 'nowhere.hdf5'"),
        (["--data-share", "0.5"], "--data-share is of the file in --data, which is missing"),
        (["--data", str(data), "--data-share", "1.5"], "share must be above 0 and below 1"),
    ):
        assert main([*words, *given]) == 2
        assert message in capfd.readouterr().err
    assert main([*words, "--data", str(data), "--env", "agentkit:deep_sea"]) == 2
    assert not (tmp_path / "runs").exists() or not list((tmp_path / "runs").iterdir())
    assert main([*words, "--data", str(data), "--data-share", "0.25"]) == 0
    said = capfd.readouterr()
    assert f"Replay table 'prior_data' begins with 6 episodes of {data}: {NUM_STEPS} steps" in said.out + said.err
