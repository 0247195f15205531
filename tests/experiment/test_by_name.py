"""`agentkit.train`: settings are told apart, presets are used and written down, and nonsense is refused by name."""

import functools
import json
import warnings

import pytest

import agentkit
from agentkit.agents import dqn, registry
from agentkit.callbacks import Callback, keep_best
from agentkit.cli.training.new_run import new_experiment
from agentkit.cli.words.parser import parse
from agentkit.envs.catch import Catch
from agentkit.errors import ConfigError, SpecError, UnknownNameError
from agentkit.experiment import read_config
from agentkit.experiment.config import preset_table, presets
from agentkit.experiment.config.experiment_config import ExperimentConfig
from agentkit.experiment.config.preset_table import Falling, Preset
from agentkit.experiment.runs.config_json import write_config
from agentkit.experiment.train_by_name import plan
from agentkit.wrappers import ClipReward
from agentkit.wrappers.step_limit import StepLimit
from tests.envs import handed_in

SMALL = {"hidden_sizes": (4,), "min_replay_size": 8, "batch_size": 4, "evaluation_period": 0, "progress": False}
CATCH = Preset(
    "dqn", ("agentkit:ca*",), "a test", 48, {"learning_rate": Falling(1e-2), "discount": 0.5}, num_envs=2,
    environment_settings={"rows": 5, "columns": 4}, wrappers=(ClipReward,),
)  # fmt: skip


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    """A run that nobody names a folder for has one in the working directory."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.full
def test_a_run_is_kept_as_the_command_keeps_it(tmp_path, capsys):
    """In Python, too: ``runs/AGENT-ENVIRONMENT-seedN``, a new one each time, unless a folder or None is given."""
    settings = SMALL | {"evaluation_period": 10, "evaluation_episodes": 1, "progress": True}
    made = tmp_path / "runs" / "dqn-agentkit_catch-seed3"
    result = agentkit.train("dqn", "agentkit:catch", 20, seed=3, **settings)
    assert "Run folder: runs/dqn-agentkit_catch-seed3" in capsys.readouterr().out
    assert agentkit.evaluate(made, 1)["steps"] == 20 and result.best_policy is not None
    agent = dqn.make_agent(dqn.Config(hidden_sizes=(4,), min_replay_size=8, batch_size=4))
    agentkit.train(agent, Catch, 20, seed=3, evaluation_period=0, progress=False)
    agentkit.train("dqn", "agentkit:catch", 20, seed=3, run_directory=None, **SMALL)
    with pytest.raises(ConfigError, match="keep_best keeps the policy in the run folder"):
        agentkit.train("dqn", "agentkit:catch", 20, run_directory=None, callbacks=[keep_best()], **settings)
    with pytest.raises(ConfigError, match="needs the run_directory"):
        agentkit.train("dqn", "agentkit:catch", 20, seed=3, resume=True, **SMALL)
    with pytest.raises(SpecError, match="DQN needs"):
        agentkit.train("dqn", "agentkit:point_mass", 20, **SMALL)
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["dqn-Catch-seed3", made.name]


@pytest.mark.full
def test_the_best_policy_is_kept_unless_it_is_not_wanted_or_has_no_folder(tmp_path):
    """As the command does; a score of the user's own is the only one."""
    settings = SMALL | {"evaluation_period": 10, "evaluation_episodes": 1}
    own = keep_best("episode_return_min")
    for name, words, scores in (
        ("default", {}, ["episode_return"]),
        ("own", {"callbacks": [own]}, ["episode_return_min"]),
        ("no", {"keep_best": False}, []),
        ("no evaluation", {"evaluation_period": 0}, []),
    ):
        given = settings | words | {"run_directory": tmp_path / name}
        agentkit.train("dqn", "agentkit:catch", 20, **given)
        assert (tmp_path / name / "best").exists() is bool(scores)
        record = json.loads((tmp_path / name / "config.json").read_text())
        assert [each["fields"]["score"] for each in record["callbacks"]] == scores
    assert agentkit.resume(tmp_path / "default", num_steps=40).best_policy is not None
    agentkit.train("dqn", "agentkit:catch", 20, run_directory=None, **settings)
    with pytest.raises(ConfigError, match="keep_best: expected True or False, found 5"):
        agentkit.train("dqn", "agentkit:catch", 20, keep_best=5, **settings)


@pytest.fixture
def catch_preset(monkeypatch):
    monkeypatch.setattr("agentkit.experiment.config.presets.PRESETS", (CATCH, *preset_table.PRESETS))


def test_settings_of_agent_run_and_call_are_told_apart(tmp_path):
    settings = SMALL | {"hidden_sizes": [4], "run_directory": tmp_path / "run"}
    result = agentkit.train("dqn", "agentkit:catch", "0.06k", seed=3, **settings)
    assert result.steps == 60
    made = read_config(tmp_path / "run")
    assert made.agent.config.hidden_sizes == (4,)
    assert (made.seed, made.agent.config.batch_size, made.evaluation_period) == (3, 4, 0)
    again = agentkit.train("dqn", "agentkit:catch", 80, seed=3, run_directory=tmp_path / "run", resume=True, **SMALL)
    assert again.steps == 80


def test_a_callback_is_called_once():
    """It could go to the experiment or to `run`, and once went to both."""
    seen = []

    class Record(Callback):
        def on_evaluation(self, run, record):
            seen.append(record["steps"])

    settings = SMALL | {"evaluation_period": 30, "evaluation_episodes": 1, "callbacks": [Record()]}
    agentkit.train("dqn", "agentkit:catch", 60, **settings)
    assert seen == [30, 60]


@pytest.mark.full
def test_an_offline_agent_without_data_is_warned_of():
    with pytest.warns(UserWarning, match="bc is made to learn from data"):
        agentkit.train("bc", "agentkit:catch", 20, evaluation_period=0, progress=False)


@pytest.mark.parametrize(("words", "is_warned"), [([], True), (["--data", "d.npz", "--data-share", "0.5"], False)])
def test_an_offline_agent_with_a_share_of_data_is_not_warned_of(tmp_path, words, is_warned):
    (tmp_path / "d.npz").touch()
    words = ["train", "td3_bc", "--env", "agentkit:point_mass", "--steps", "100", "--preset", "none", *words]
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        new_experiment(parse(words), "train")
    assert any("td3_bc is made to learn from data" in str(each.message) for each in told) is is_warned


def test_no_name_means_two_things():
    fields = set(ExperimentConfig.__dataclass_fields__) | {"resume", "profile", "preset", "steps", "name"}
    for name in registry.names():
        assert not fields & set(registry.config_class(name).__dataclass_fields__), name


@pytest.mark.full
def test_a_preset_is_used_and_written_down(tmp_path, catch_preset, monkeypatch):
    result = agentkit.train("dqn", "agentkit:catch", run_directory=tmp_path / "run", **SMALL)
    assert result.steps == 48
    monkeypatch.undo()  # A later table says nothing of it any more: the run is what it was.
    made = read_config(tmp_path / "run")
    assert (made.agent.config.discount, made.num_envs) == (0.5, 2)
    assert made.agent.config.learning_rate == agentkit.learning.Linear(1e-2, 0.0, 48)
    assert made.environment_settings == {"rows": 5, "columns": 4}
    assert agentkit.resume(tmp_path / "run", num_steps=60).steps == 60


@pytest.mark.full
def test_the_users_settings_win_over_the_presets(tmp_path, catch_preset):
    mine = {"discount": 0.25, "num_envs": 3, "environment_settings": {"rows": 6}}
    assert agentkit.train("dqn", "agentkit:catch", 60, run_directory=tmp_path / "run", **SMALL, **mine).steps == 60
    made = read_config(tmp_path / "run")
    assert (made.agent.config.discount, made.num_envs) == (0.25, 3)
    assert made.environment_settings == {"rows": 6, "columns": 4}
    assert made.agent.config.learning_rate.duration == 60


@pytest.mark.parametrize("own", [{"wrappers": []}, {"wrappers": [StepLimit]}, {}])
def test_an_empty_list_of_wrappers_is_the_users_own(own):
    made = plan("dqn", "agentkit:catch", 9, {}, preset=CATCH, **own)
    assert made.wrappers == tuple(own.get("wrappers", CATCH.wrappers))


@pytest.mark.parametrize(
    ("own", "told"),
    [
        ({}, ""),
        ({"wrappers": [*CATCH.wrappers, StepLimit], "environment_settings": {"columns": 4}}, ""),
        ({"wrappers": [StepLimit], "environment_settings": {"columns": 6}}, " Yours instead: columns, wrappers."),
        ({"wrappers": []}, " Yours instead: wrappers."),
    ],
)
def test_the_line_of_a_preset_says_which_of_the_environments_settings_are_the_users_own(own, told):
    made = plan("dqn", "agentkit:catch", 9, {}, preset=CATCH, **own)
    line = presets.announcement(CATCH, made.agent.config, made, "agentkit:catch")
    assert line.endswith(f"({CATCH.source}).{told}")


def test_without_a_preset_and_by_hand_there_are_bare_defaults(tmp_path, catch_preset):
    agentkit.train("dqn", "agentkit:catch", 10, preset="none", run_directory=tmp_path / "run", **SMALL)
    assert read_config(tmp_path / "run").agent.config.discount == dqn.Config().discount
    by_hand = ExperimentConfig(dqn.make_agent(), "agentkit:catch", 10)
    assert (by_hand.agent.config.discount, by_hand.num_envs) == (dqn.Config().discount, None)


def test_an_agent_made_by_hand_keeps_its_settings(catch_preset):
    agent = dqn.make_agent(dqn.Config(hidden_sizes=(4,), min_replay_size=8, batch_size=4))
    assert agentkit.train(agent, "agentkit:catch", 20, evaluation_period=0, progress=False).steps == 20
    with pytest.raises(ConfigError, match="discount: the agent was made with its settings"):
        agentkit.train(agent, "agentkit:catch", 20, discount=0.5)
    with pytest.raises(ConfigError, match="preset='jnk': the agent was made with its settings"):
        agentkit.train(agent, "agentkit:catch", 20, preset="jnk")


@pytest.mark.full
def test_a_run_of_an_instance_is_resumed_by_its_code_only(tmp_path):
    make = dict(seed=0, run_directory=tmp_path / "run", **SMALL, num_random_steps=4)
    agentkit.train("td3", handed_in.Thermostat(), 20, **make)
    with pytest.raises(ConfigError, match=r"an instance of tests\.envs\.handed_in:Thermostat, not its class"):
        agentkit.resume(tmp_path / "run", num_steps=40)
    assert agentkit.train("td3", handed_in.Thermostat(), 40, resume=True, **make).steps == 40
    assert agentkit.evaluate(tmp_path / "run", 1, environment=handed_in.Thermostat)["steps"] == 40


@pytest.mark.full
def test_what_the_folder_will_not_know_is_said_at_the_start_and_when_it_is_missed(tmp_path, capsys):
    def make():
        return Catch(rows=6)

    settings = SMALL | {"progress": True, "run_directory": tmp_path / "run"}
    settings["wrappers"] = [functools.partial(StepLimit, max_steps=3)]
    agentkit.train("dqn", lambda: make(), 20, **settings)
    said = " ".join(capsys.readouterr().err.split())
    assert "environment is a lambda. To evaluate or load it, give environment= again" in said
    for use in (agentkit.load, agentkit.evaluate):
        with pytest.raises(ConfigError, match=r"environment is a lambda. .* give environment= again"):
            use(tmp_path / "run")
    assert agentkit.evaluate(tmp_path / "run", 1, environment=make)["episode_length"] == [3]
    agentkit.train("dqn", "agentkit:catch", 20, **SMALL | {"progress": True})
    assert "will not know" not in capsys.readouterr().err


@pytest.mark.full
def test_an_environment_that_is_given_has_the_wrappers_of_the_run_or_others(tmp_path):
    """Of a folder, a policy of it and the experiment; wrappers that no folder can name may be given alone."""
    short, shorter = (functools.partial(StepLimit, max_steps=steps) for steps in (3, 2))
    kept = SMALL | {"run_directory": tmp_path / "run", "wrappers": [short]}
    result = agentkit.train("dqn", "agentkit:catch", 20, **kept)
    policy = agentkit.load(tmp_path / "run", environment=Catch)
    for judged in (tmp_path / "run", policy, result):
        assert agentkit.evaluate(judged, 1, environment=Catch)["episode_length"] == [3]
        assert agentkit.evaluate(judged, 1, environment=Catch, wrappers=[shorter])["episode_length"] == [2]
    for sampled in (tmp_path / "run", policy):
        assert agentkit.sample(sampled, num_episodes=1, environment=Catch).t.tolist() == [0, 1, 2]
    unnamed = kept | {"run_directory": tmp_path / "unnamed", "wrappers": [lambda environment: short(environment)]}
    agentkit.train("dqn", "agentkit:catch", 20, **unnamed)
    for given in ({}, {"environment": Catch}):
        with pytest.raises(ConfigError, match=r"wrappers\[0\] is a lambda. .* give wrappers= again"):
            agentkit.evaluate(tmp_path / "unnamed", 1, **given)
    assert agentkit.evaluate(tmp_path / "unnamed", 1, wrappers=[shorter])["episode_length"] == [2]


def test_a_run_of_a_class_names_it(tmp_path):
    agentkit.train(
        "td3", "tests.envs.handed_in:Thermostat", 20, run_directory=tmp_path / "run", num_random_steps=4, **SMALL
    )
    record = json.loads((tmp_path / "run" / "config.json").read_text())
    assert record["environment_function"]["function"] == "tests.envs.handed_in:Thermostat"
    assert agentkit.resume(tmp_path / "run", num_steps=30).steps == 30


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"learning_rat": 1}, UnknownNameError, "'learning_rat'. Did you mean 'learning_rate'"),
        ({"run_directry": 1}, UnknownNameError, "Did you mean 'run_directory'"),
        ({"max_episode_steps": 9}, UnknownNameError, r"goes into environment_settings={'max_episode_steps': ...}"),
        ({"gamma": 0.9}, ConfigError, "dqn calls it 'discount'"),
        ({"total_timesteps": 5}, ConfigError, "calls it 'num_steps'"),
        ({"environment_settings": None}, ConfigError, "environment_settings: expected a mapping of .*, found None"),
        ({"discount": 7}, ConfigError, r"discount must be in \[0, 1\]"),
        ({"preset": "gymnasium:CarPole-v1"}, UnknownNameError, "preset of dqn .* Did you mean 'gymnasium:CartPole"),
    ],
)
def test_what_is_refused(settings, error, message, catch_preset):
    with pytest.raises(error, match=message):
        agentkit.train("dqn", "agentkit:catch", 20, **settings)


@pytest.mark.parametrize("name", ["learning_rate", "lr"])
def test_a_resumed_run_keeps_its_agents_settings(name, tmp_path):
    write_config(ExperimentConfig(dqn.make_agent(), "agentkit:catch", 10), tmp_path)
    with pytest.raises(ConfigError, match=rf"^{name}: a run keeps the settings of its .* init_from='{tmp_path}'"):
        agentkit.resume(tmp_path, **{name: 0.5})


def test_a_run_is_of_an_experiment():
    with pytest.raises(ConfigError, match="Expected an ExperimentConfig, found a str"):
        agentkit.run("dqn")


@pytest.mark.parametrize("steps", [None, "many", "1.5", 0, "-1k", True])
def test_steps_that_are_none(steps):
    with pytest.raises(ConfigError, match="steps"):
        agentkit.train("dqn", "agentkit:catch", steps)
