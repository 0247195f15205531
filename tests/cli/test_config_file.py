"""``--config FILE.toml``, ``--show-config``, ``--preset``, counts such as 100k, and own environments by import path."""

import json
import re
import shlex
import sys

import pytest

from agentkit.cli import main
from agentkit.cli.training.new_run import new_experiment
from agentkit.cli.training.seeds import take_seeds
from agentkit.cli.values.config_file import config_text
from agentkit.cli.words.parser import parse
from agentkit.errors import ConfigError
from agentkit.experiment import UntrustedCodeError, read_config

FILE = """
env = "agentkit:catch"
steps = "0.04k"
eval-every = 0
num-envs = 2
tensorboard = false
wrapper = ["step_limit(max_steps=7)"]
[env-set]
rows = 6
[agent]
name = "dqn"
learning_rate = "linear(1e-3, 0, 1k)"
hidden_sizes = [4]
min_replay_size = 10
batch_size = 4
"""


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "dqn.toml"
    path.write_text(FILE.replace("1k)", "1000)"))
    return path


@pytest.mark.full
def test_a_file_trains_as_its_options_do_and_the_command_line_wins(file, capsys):
    assert main(["train", "--config", "dqn.toml", "--seed", "2", "--set", "batch_size=8", "--num-envs", "3"]) == 0
    made = read_config(file.parent / "runs" / "dqn-agentkit_catch-seed2")
    assert (made.num_steps, made.num_envs, made.evaluation_period) == (40, 3, 0)
    assert (made.agent.config.batch_size, made.agent.config.hidden_sizes) == (8, (4,))
    assert made.environment_settings == {"rows": 6}
    assert made.wrappers[0].keywords == {"max_steps": 7}


def test_the_words_of_a_key_may_have_either_sign_between_them(file):
    given = parse(["train", "--config", "dqn.toml"])
    file.write_text(file.read_text().replace("eval-every", "eval_every").replace("env-set", "env_set"))
    assert parse(["train", "--config", "dqn.toml"]) == given


def test_the_shown_config_is_the_same_experiment_and_leaves_nothing(file, capsys):
    words = ["train", "--config", "dqn.toml", "--env-set", "columns=5", "--show-config"]
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert sorted(path.name for path in file.parent.iterdir()) == ["dqn.toml"]
    file.write_text(shown)
    with pytest.raises(SystemExit):
        main(["train", "--config", "dqn.toml", "--show-config"])
    assert capsys.readouterr().out == shown
    assert 'learning_rate = "linear(0.001, 0, 1000)"' in shown
    assert "columns = 5" in shown and "discount = 0.99" in shown and 'preset = "none"' in shown


@pytest.mark.parametrize("command", [["launch"], ["node", "replay"]])
def test_the_shown_config_of_a_program_is_one_that_its_command_takes(tmp_path, monkeypatch, capsys, command):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        main([*command, "dqn", "--env", "agentkit:catch", "--steps", "100", "--show-config"])
    shown = capsys.readouterr().out
    (tmp_path / "shown.toml").write_text(shown)
    with pytest.raises(SystemExit) as ended:
        main([*command, "--config", "shown.toml", "--show-config"])
    assert (ended.value.code, capsys.readouterr().out) == (0, shown)


SETTINGS = """
from agentkit.envs.catch import Catch

class Own(Catch):
    def __init__(self, seed=0, **settings):
        super().__init__(seed=seed)
"""
VALUES = ["none", "'none'", "{'a': [1]}", "1,2", "[1,2]", "[(1,)]", "text", "'1'", "true", "1e-3", "ä \U0001f600"]


def experiment_of(*words):
    """Returns what two experiments must have alike: a description, and what decides of their folders."""
    arguments = parse(["train", *words])
    given = {name: getattr(arguments, name) for name in ("seeds", "jobs", "out", "run_directory", "keep_best")}
    if arguments.seeds is not None:
        take_seeds(arguments)
    plan = new_experiment(arguments, "train", replay="in_process")
    values = [(name, type(value), repr(value)) for name, value in plan.environment_settings.items()]
    return (plan.describe(), values, given), config_text(plan, arguments)


@pytest.mark.parametrize(
    "words",
    [
        shlex.join(["--env", "own_settings:Own", *(f"--env-set=v{i}={text}" for i, text in enumerate(VALUES))]),
        "--no-keep-best --seeds 0:3 --jobs 2 --env-set rows=6 --out elsewhere",
        "--keep-best --seed 3 --normalize rewards --view w=observation:-3:0 --run-directory there",
        "--set 'learning_rate=linear(1e-3,0,9,by=\"updates\")' --wrapper 'step_limit(max_steps=9)' --log jsonl",
        "--stop-at-return 3 --checkpoint-every 0 --num-envs 2 --evaluate-samples --column t",
    ],
    ids=["env-set", "seeds", "addons", "set", "others"],
)
def test_the_shown_config_of_any_options_is_the_same_experiment(tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "own_settings.py").write_text(SETTINGS)
    one, text = experiment_of("dqn", "--env", "agentkit:catch", "--steps", "100", *shlex.split(words))
    (tmp_path / "shown.toml").write_text(text, encoding="utf-8")
    assert experiment_of("--config", "shown.toml") == (one, text)


def test_the_command_line_wins_over_what_excludes_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "seed.toml").write_text('agent = "dqn"\nseed = 0\nout = "a"\n')
    (tmp_path / "seeds.toml").write_text('agent = "dqn"\nseeds = "0:2"\njobs = 2\nrun-directory = "a"\n')
    found = parse(["train", "--config", "seed.toml", "--seeds", "0:5", "--run-directory", "b"])
    assert (found.seed, found.seeds, found.out, found.run_directory) == (None, "0:5", None, "b")
    found = parse(["train", "--config", "seeds.toml", "--seed", "0", "--out", "b"])
    assert (found.seed, found.seeds, found.jobs, found.out, found.run_directory) == (0, None, None, "b", None)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("eval-every = 0", "evaluate-every = 0"), "key of dqn.toml 'evaluate-every'.*'eval-every'"),
        (("rows = 6", "rwos = 6"), "Did you mean 'rows'"),
        (("batch_size", "bach_size"), "Did you mean 'batch_size'"),
        (("tensorboard = false", "tensorboard = 3"), "tensorboard: expected true or false, found 3"),
        (('"0.04k"', '"many"'), "dqn.toml: .*--steps: expected a whole number, found 'many'"),
        (('steps = "0.04k"', "steps = [100]"), r"steps: expected one value, found the list \[100\]"),
        (
            ("hidden_sizes = [4]", "hidden_sizes = [[8]]"),
            r"hidden_sizes: expected a list of single values, found \[\[8",
        ),
        (("batch_size = 4", "batch_size = [4]"), "batch_size .*: expected a whole number"),
        (("[env-set]\nrows = 6", "[env-set]\nrows = [6]"), "rows .*: expected a whole number"),
        (("num-envs = 2", "resume = 2"), "key of dqn.toml 'resume'"),
        (("num-envs = 2", "seed = [1"), "dqn.toml is no TOML"),
        (("[env-set]\nrows = 6", "env-set = 6"), "env-set: expected a table, found 6"),
        (("[env-set]\nrows = 6", "env-set = [6]"), "--env-set: expected NAME=VALUE.*found '6'"),
    ],
    ids=lambda value: value[1][:12] if isinstance(value, tuple) else "",
)
def test_wrong_files_are_refused_before_anything_starts(file, change, message, capsys):
    file.write_text(file.read_text().replace(*change))
    assert main(["train", "--config", "dqn.toml"]) == 2
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 1
    assert re.search(message, said), said
    assert [path.name for path in file.parent.iterdir()] == ["dqn.toml"]


@pytest.mark.parametrize(("text", "sizes"), [("[]", ()), ("[4, 8]", (4, 8)), ('"4,8"', (4, 8)), ("8", (8,))])
def test_lists_are_what_they_say(file, text, sizes, capsys):
    file.write_text(file.read_text().replace("hidden_sizes = [4]", f"hidden_sizes = {text}"))
    with pytest.raises(SystemExit):
        main(["train", "--config", "dqn.toml", "--show-config"])
    assert f"hidden_sizes = {list(sizes)}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("in_file", "word", "kept"),
    [("false", None, False), ("true", None, True), ("false", "--keep-best", True), ("true", "--no-keep-best", False)],
)
def test_a_no_is_heard_from_a_file_and_from_the_command_line(tmp_path, in_file, word, kept):
    path = tmp_path / "dqn.toml"
    path.write_text(f'env = "agentkit:catch"\nsteps = 100\nkeep-best = {in_file}\n[agent]\nname = "dqn"\n')
    arguments = parse(["train", "--config", str(path), *([word] if word else [])])
    assert arguments.keep_best is kept


def test_a_file_that_is_not_there(capsys, tmp_path):
    with pytest.raises(ConfigError, match=r"none\.toml' cannot be read"):
        parse(["train", "--config", str(tmp_path / "none.toml")])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--learning-rate", "3e-4"],
            "--learning-rate is no option but a setting of dqn. Give: --set learning_rate=3e-4",
        ),
        (["--learning_rate=3e-4"], "Give: --set learning_rate=3e-4"),
        (["--lr", "3e-4"], "Give: --set learning_rate=3e-4"),
        (["--double"], "Give: --set double=VALUE"),
        (["--lerning-rate", "3e-4"], "Did you mean the setting --set learning_rate=3e-4?"),
    ],
)
def test_an_option_that_is_a_setting_says_how_to_give_it(words, message):
    with pytest.raises(ConfigError) as refused:
        parse(["train", "dqn", "--env", "agentkit:catch", *words])
    assert message in str(refused.value)


def test_steps_may_be_left_out_where_a_preset_has_them(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["train", "dqn", "--env", "gymnasium:CartPole-v1"]
    with pytest.raises(SystemExit):
        main([*words, "--show-config"])
    shown = capsys.readouterr().out
    assert "steps = 50000" in shown and "n_step = 20" in shown
    assert main([*words, "--preset", "none"]) == 2
    assert "--steps is missing" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main([*words, "--preset", "none", "--steps", "2k", "--show-config"])
    shown = capsys.readouterr().out
    assert "steps = 2000" in shown and "n_step = 10" in shown


@pytest.mark.full
def test_the_preset_is_told_in_one_line_with_what_the_user_changed(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    small = ["--set", "hidden_sizes=4", "--set", "min_replay_size=99", "--set", "discount=0.9", "--eval-every", "0"]
    assert main(["train", "dqn", "--env", "gymnasium:CartPole-v1", "--steps", "60", *small]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "Preset" in line]
    assert line == (
        "Preset for gymnasium:CartPole-v1: n_step=20, discount=0.995 (docs/results/cartpole.md). "
        "Yours instead: discount. --preset none for bare defaults."
    )


def test_show_has_the_preset_beside_the_defaults(capsys):
    assert main(["show", "ppo", "--env", "gymnasium:HalfCheetah-v5"]) == 0
    shown = capsys.readouterr().out
    for part in (
        "learning_rate = linear(0.0005, 0, STEPS)  (default: 0.001)", "--num-envs 64", "source: docs/results/mujoco.md",
    ):  # fmt: skip
        assert part in shown
    assert main(["show", "dqn", "--env", "gymnasium:ALE/Pong-v5"]) == 0
    assert "--wrapper atari\n    --wrapper clip_reward\n" in capsys.readouterr().out
    assert main(["show", "sac", "--env", "agentkit:point_mass"]) == 0
    assert "No preset of sac for agentkit:point_mass" in capsys.readouterr().out


OWN = """
from agentkit.envs.catch import Catch

class Wide(Catch):
    def __init__(self, rows, seed=0):
        super().__init__(rows=rows, columns=9, seed=seed)
"""


@pytest.mark.full
def test_an_own_class_by_import_path(tmp_path, monkeypatch, capsys):
    package = tmp_path / "wide_envs"
    package.mkdir()
    (package / "__init__.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    small = ["--set", "hidden_sizes=4", "--set", "min_replay_size=10", "--set", "batch_size=4", "--eval-every", "0"]
    train = ["train", "dqn", "--env", "wide_envs:Wide", "--steps", "0.03k", *small]
    assert main(train) == 2
    assert "Wide needs rows: give --env-set rows=VALUE" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()
    assert main([*train, "--env-set", "rows=6"]) == 0
    run = "runs/dqn-wide_envs_Wide-seed0"
    assert f"agentkit evaluate {run} --import wide_envs" in capsys.readouterr().out
    record = json.loads((tmp_path / run / "config.json").read_text())
    assert record["environment_function"]["function"] == "wide_envs:Wide"
    assert record["environment_settings"] == {"rows": 6}
    assert main(["evaluate", run, "--import", "wide_envs", "--episodes", "1"]) == 0
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry != str(tmp_path)])
    for name in [name for name in sys.modules if name.startswith("wide_envs")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(UntrustedCodeError):  # A folder's word alone imports nothing.
        read_config(tmp_path / run)
    assert "wide_envs" not in sys.modules
