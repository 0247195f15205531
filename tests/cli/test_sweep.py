"""``agentkit sweep``: files that are refused, and what a trial is; examples/test_journeys_sweep.py runs one."""

import dataclasses

import pytest

from agentkit.cli import main
from agentkit.cli.training import seeds, train
from agentkit.cli.training.new_run import new_experiment
from agentkit.cli.training.sweep_file import make_plan, read_sweep_file
from agentkit.cli.values.environments import parse_environment_settings
from agentkit.cli.words.parser import parse
from agentkit.experiment import sweeps
from agentkit.loggers import read_csv

FILE = """
agent = "dqn"
env = "agentkit:catch"
steps = 1_500
eval_every = 750
eval_episodes = 2
checkpoint_every = 100

[set]
hidden_sizes = [8]
min_replay_size = 20
batch_size = 4
replay_size = 500

[env_set]
rows = 6

[sweep]
method = "grid"

[search]
num_envs = [1]

[search.set]
learning_rate = [1e-3, 1e-2]
"""


def write(tmp_path, text=FILE):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    return path


def test_the_words_of_a_key_may_have_either_sign_between_them(tmp_path):
    text = FILE
    for name in ("eval_every", "eval_episodes", "checkpoint_every", "env_set", "num_envs"):
        text = text.replace(name, name.replace("_", "-"))
    either, one = (read_sweep_file(write(tmp_path, each)) for each in (text, FILE))
    assert text != FILE and either == one


def test_steps_may_be_written_as_on_the_command_line(tmp_path):
    assert read_sweep_file(write(tmp_path, FILE.replace("1_500", '"1.5k"'))).fixed["steps"] == 1500


def test_a_trial_is_a_command_line_of_train(tmp_path):
    file = read_sweep_file(write(tmp_path))
    words = file.words({"set.learning_rate": 0.25, "num_envs": 3, "env_set.rows": 7, "set.hidden_sizes": [4, 4]})
    plan = new_experiment(parse(["train", *words]), "train")
    assert plan.agent.config.learning_rate == 0.25 and plan.agent.config.hidden_sizes == (4, 4)
    assert (plan.num_envs, plan.environment_settings, plan.num_steps) == (3, {"rows": 7}, 1500)
    assert (plan.evaluation_period, plan.evaluation_episodes) == (750, 2)


@pytest.mark.parametrize("searched", [False, True])
@pytest.mark.parametrize(
    "value", [[4], [[0, 1], [2, 3]], ["a", "b"], [], "1", "none", "a,b", "(1)", True, 1e-3, {"a": [1]}]
)
def test_an_argument_of_the_environment_is_what_the_file_says(tmp_path, value, searched):
    fixed = {"agent": "dqn", "env_set": {} if searched else {"own": value}}
    file = dataclasses.replace(read_sweep_file(write(tmp_path)), fixed=fixed)
    parameters = {"env_set.own": value} if searched else {}
    found = parse_environment_settings(parse(["train", *file.words(parameters)]).env_set, "gymnasium:Own-v0")["own"]
    assert found == value and type(found) is type(value)


def test_a_no_of_the_file_is_a_word_of_the_trial(tmp_path):
    for text, kept in (("false", False), ("true", True)):
        file = read_sweep_file(write(tmp_path, f"keep_best = {text}\n" + FILE))
        assert parse(["train", *file.words({})]).keep_best is kept


def test_intervals_are_whole_where_the_setting_is(tmp_path):
    text = FILE.replace(
        "learning_rate = [1e-3, 1e-2]", "n_step = {low = 1, high = 5, num = 3}\ndiscount = {low = 0, high = 1}"
    )
    plan = make_plan(read_sweep_file(write(tmp_path, text.replace('"grid"', '"random"\ntrials = 2'))), None)
    assert plan.space["set.n_step"].whole and not plan.space["set.discount"].whole


def test_seeds_and_trials_are_filmed_as_one_run_is(tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr(seeds, "start_group", lambda plan, *others: made.append(plan) or 0)
    monkeypatch.setattr(train, "_run", lambda plan, arguments: made.append(plan))
    monkeypatch.setattr(train, "finish", lambda *others: 0)
    file = read_sweep_file(write(tmp_path, "video_every = 30\n" + FILE))
    words = [*file.words({}), "--run-directory", str(tmp_path / "run")]
    for more in ([], ["--seeds", "0:2"]):
        assert main(["train", *words, *more]) == 0

    def run_sweep(plan, *others):
        made.append(plan.make_experiment(plan.first_values()))
        return sweeps.SweepResult([], 1, True)

    monkeypatch.setattr(sweeps, "run_sweep", run_sweep)
    assert main(["sweep", str(file.path), "--out", str(tmp_path)]) == 130
    assert [plan.video_period for plan in made] == [30, 30, 30]


def test_a_sweep_tells_its_preset_once(tmp_path, monkeypatch, capsys):
    def run_sweep(plan, *others):
        plan.make_experiment(plan.first_values())
        return sweeps.SweepResult([], 1, True)

    monkeypatch.setattr(sweeps, "run_sweep", run_sweep)
    path = write(tmp_path, 'preset = "gymnasium:CartPole-v1"\n' + FILE)
    assert main(["sweep", str(path), "--out", str(tmp_path)]) == 130
    assert capsys.readouterr().out.count("Preset for gymnasium:CartPole-v1: ") == 1


SEVERAL = """
agent = "dqn"
env = "agentkit:tic_tac_toe"
policies = "each"
steps = 60

[set]
hidden_sizes = [8]
min_replay_size = 10
batch_size = 4

[sweep]
method = "grid"
return_of = "second"

[search.set]
learning_rate = [1e-3, 1e-2]
"""


def test_a_sweep_of_several_agents_judges_by_the_return_of_one(tmp_path, capsys):
    """Of a game for two that one loses what the other wins: in sum all trials are alike."""
    assert main(["sweep", str(write(tmp_path, SEVERAL)), "--out", str(tmp_path)]) == 0
    folder = tmp_path / "sweep-mine"
    rows = [line.split(",") for line in (folder / "results.csv").read_text().splitlines()[1:]]
    assert len(rows) == 2
    for number, row in enumerate(rows):
        _, table = read_csv(folder / f"trial-{number:04}" / "seed0" / "logs" / "evaluation.csv")
        assert row[1] == "complete" and float(row[2]) == pytest.approx(float(table[-1]["episode_return/second"]))
        assert float(table[-1]["episode_return"]) == 0.0
    assert "agentkit train dqn --env agentkit:tic_tac_toe --policies each" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"second"', '"secund"', "Unknown agent in return_of 'secund'. Did you mean 'second'"),
        ('policies = "each"\n', "", "several agents"),
        ('"agentkit:tic_tac_toe"\npolicies = "each"', '"agentkit:catch"', "return_of = 'second' is of several"),
        ('"each"\n', '"each"\nworkers = 2\n', "--workers is not for several agents"),
    ],
)
def test_a_file_of_several_agents_that_says_what_cannot_be_is_refused(tmp_path, capsys, old, new, message):
    assert old in SEVERAL
    assert main(["sweep", str(write(tmp_path, SEVERAL.replace(old, new))), "--out", str(tmp_path / "runs")]) == 2
    assert message in capsys.readouterr().err and not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("steps = 1_500", "steps = ", "is no TOML"),
        ("steps = 1_500", "", "steps is missing"),
        ("steps = 1_500", "step = 1_500", "Unknown option 'step'. Did you mean 'steps'"),
        ("steps = 1_500", "steps = 0", "expected at least 1"),
        ("steps = 1_500", "steps = 9\nlearning_rate = 1", "a setting of dqn: it belongs into the table [set]"),
        ("batch_size = 4", "num_envs = 4", "num_envs is no setting of dqn but an option. Give: --num-envs 4"),
        ("[set]", "eval-every = 9\n[set]", "eval-every is given twice"),
        ("steps = 1_500", 'steps = 9\nrun_directory = "a"', "Unknown option 'run_directory'"),
        ("steps = 1_500", "steps = 9\nshow_config = true", "Unknown option 'show_config'"),
        ("steps = 1_500", 'steps = 9\nconfig = "a.toml"', "Unknown option 'config'"),
        ('"dqn"', '"dqm"', "Did you mean 'dqn'"),
        ('"agentkit:catch"', '"agentkit:cash"', "Did you mean 'agentkit:catch'"),
        ('"grid"', '"gird"', "Did you mean 'grid'"),
        ('"grid"', '"random"', "trials is missing"),
        ('"grid"', '"grid"\nseed = -1', "seed must be"),
        ('"grid"', '"grid"\nseeds = "a"', "expected FIRST:END"),
        ('"grid"', '"grid"\njobs = 0', "sweep.jobs"),
        ('"grid"', '"grid"\npruner = "median"', 'pruner is of method "tpe"'),
        ('"grid"', '"grid"\nbudget = 3', "Unknown key of [sweep] 'budget'"),
        ("eval_every = 750", "eval_every = 0", "eval_every must not be 0"),
        ("eval_every = 750", "eval_every = 1_501", "Give a shorter evaluation_period (--eval-every), or a longer run"),
        ("rows = 6", "row = 6", "Did you mean 'rows'"),
        ("batch_size = 4", "batch_size = 0", "batch_size must be"),
        ("learning_rate =", "learning_rat =", "Did you mean 'learning_rate'"),
        ("[1e-3, 1e-2]", "[1e-3, -1]", "search.set.learning_rate: learning_rate must be"),
        ("[1e-3, 1e-2]", '["fast"]', "expected a number, found 'fast'"),
        ("[1e-3, 1e-2]", "{low = 1e-3}", "expected values such as [1, 2]"),
        ("[1e-3, 1e-2]", "{low = 1e-3, high = 1}", "a grid needs"),
        ("[1e-3, 1e-2]", "{low = 0, high = 1, log = true}", "learning_rate must be"),
        ("[1e-3, 1e-2]", "{low = 1, high = 1e-3}", "low < high"),
        ("[1e-3, 1e-2]", "{low = 1e-3, high = 1, lag = true}", "Did you mean 'log'"),
        ("learning_rate =", "batch_size =", "set.batch_size is both fixed and searched"),
        ("num_envs = [1]", "env = ['a']", "Unknown name in [search] 'env'"),
        ("num_envs = [1]", "num_envs = [0]", "expected at least 1"),
    ],
)
def test_a_file_that_says_what_cannot_be_is_refused_in_a_line(tmp_path, monkeypatch, capsys, old, new, message):
    monkeypatch.chdir(tmp_path)
    assert old in FILE
    path = write(tmp_path, FILE.replace(old, new, 1))
    assert main(["sweep", path.name]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and message in lines[0] and "mine.toml" in lines[0]
    assert list(tmp_path.iterdir()) == [path]


def test_no_file_and_no_sweep(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["sweep", "none.toml"]) == 2
    assert main(["sweep", write(tmp_path).name, "--status"]) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert "none.toml cannot be read" in first and "has no sweep yet" in second
    (tmp_path / "sweep.json").write_text("{}")
    assert main(["train", "--resume", "."]) == 2
    assert "it is a sweep's. The command that began it goes on with it: agentkit sweep" in capsys.readouterr().err
