"""``watch``, ``evaluate --video``, ``export-policy`` and `agentkit.load` of runs of several agents."""

import sys

import jax
import numpy as np
import pytest

import agentkit
from agentkit.agents import dqn, ppo
from agentkit.cli import main
from agentkit.cli.looking import watch
from agentkit.cli.looking.evaluate import opponents_of
from agentkit.cli.training.several import new_several
from agentkit.cli.words.parser import parse
from agentkit.envs.multi_agent.tic_tac_toe import TicTacToe
from agentkit.errors import ConfigError, SpecError, UnknownNameError
from agentkit.experiment.multi_agent.config import read_to_judge
from agentkit.experiment.multi_agent.judging.filming import filmed_agents

DQN = dqn.make_agent(dqn.Config(batch_size=8, min_replay_size=16, hidden_sizes=(8,), n_step=2))


def config(folder=None, policies=DQN, policy_of="each", environment="agentkit:tic_tac_toe"):
    return agentkit.MultiAgentConfig(
        policies, environment, 40, policy_of, run_directory=folder, evaluation_period=40, evaluation_episodes=2,
        progress=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "each"
    agentkit.run(config(folder))
    return folder


OBSERVATION = TicTacToe().reset()["first"].observation


def assert_equal(one, other):
    jax.tree.map(np.testing.assert_array_equal, one.arrays, other.arrays)
    np.testing.assert_array_equal(one.select_action(OBSERVATION), other.select_action(OBSERVATION))


def test_policies_are_loaded_by_their_ids(run, tmp_path):
    first, second = (agentkit.load(run, policy=policy) for policy in ("first", "second"))
    assert any(
        np.any(one != other) for one, other in zip(*map(jax.tree.leaves, (first.arrays, second.arrays)), strict=True)
    )
    assert_equal(second, agentkit.load_multi_agent(run, "second"))
    assert_equal(second, agentkit.load(run, policy="second", checkpoint=40, environment=TicTacToe))
    with pytest.raises(ConfigError, match="has the policies first, second: say which"):
        agentkit.load(run)
    with pytest.raises(UnknownNameError, match=r"'secnd'.*second"):
        agentkit.load(run, policy="secnd")
    second.save(tmp_path / "policy.npz")
    with pytest.raises(ConfigError, match="is no run of several agents; leave out 'second'"):
        agentkit.load(tmp_path / "policy.npz", policy="second")
    agentkit.run(
        config(tmp_path / "one", {"learner": DQN, "chance": "random"}, {"first": "learner", "second": "chance"})
    )
    assert_equal(agentkit.load(tmp_path / "one"), agentkit.load(tmp_path / "one", policy="learner"))


def test_an_export_of_each_policy_lies_in_the_run_with_its_card(run, capsys):
    assert main(["export-policy", str(run)]) != 0
    (line,) = capsys.readouterr().err.splitlines()
    assert (
        "has the policies first, second: say which, policy=... (--policy ID)." in line and not (run / "policy").exists()
    )
    assert main(["export-policy", str(run), "--policy", "second"]) == 0
    folder = run / "policy" / "second"
    assert_equal(agentkit.load(folder / "policy.npz"), agentkit.load(run, policy="second"))
    card = (folder / "README.md").read_text()
    assert "# dqn on agentkit:tic_tac_toe" in card and "| Policy, of several agents | second |" in card
    evaluated = agentkit.open_run(str(run)).rows("evaluation")[-1]["episode_return/second"]
    assert f"Over 2 episodes at step 40 it reached a return of {evaluated:.2f} for each of its agents" in card
    assert "| `batch_size` | `8` |" in card
    assert main(["push", str(run), str(run / "published"), "--policy", "first", "--episodes", "2"]) == 0
    assert_equal(agentkit.load(run / "published"), agentkit.load(run, policy="first"))


def test_without_a_display_watch_writes_a_film(run, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("agentkit.envs.rendering.has_display", lambda: False)
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    assert main(["watch", str(run), "--episodes", "1", "--opponent", "second=random"]) == 0
    first, second, every, wrote = capsys.readouterr().out.splitlines()
    assert first.startswith("first: mean return") and second.endswith("(opponent)") and "(1 episode)" in every
    assert wrote == f"There is no display to open a window on: wrote {run / 'watch.gif'}"
    assert (run / "watch.gif").read_bytes()[:3] == b"GIF"
    assert (
        main(["evaluate", str(run), "--episodes", "2", "--video", str(tmp_path / "a.gif"), "--video-steps", "3"]) == 0
    )
    assert (tmp_path / "a.gif").stat().st_size and capsys.readouterr().out.endswith(f"Wrote {tmp_path / 'a.gif'}\n")
    assert main(["evaluate", str(run), "--tournament", "--video", "a.gif"]) != 0
    assert "--video films one game, and --tournament plays many" in capsys.readouterr().err
    assert main(["evaluate", str(run), "--checkpoint", "best"]) == 2
    assert "is of several agents, which keeps no best policies" in capsys.readouterr().err


def test_the_window_shows_each_step_of_the_game(run, monkeypatch, capsys):
    shown = []
    monkeypatch.setattr("agentkit.envs.rendering.has_display", lambda: True)
    monkeypatch.setattr(watch.Window, "possible", staticmethod(lambda: True))
    monkeypatch.setattr(watch.Window, "take", lambda self, render: shown.append(render()))
    assert main(["watch", str(run), "--episodes", "1"]) == 0
    assert "(1 episode)" in capsys.readouterr().out
    assert main(["watch", str(run), "--checkpoint", "7"]) == 2
    assert "has no checkpoint of step 7" in capsys.readouterr().err
    taken = [int(np.sum(np.any(image[16::32, 16::32] != 255, axis=-1))) for image in shown]
    assert taken == list(range(len(shown))) and 6 <= len(shown) <= 10, "an empty board, then a square a step"

    def close(self, render):
        raise watch.ClosedError

    monkeypatch.setattr(watch.Window, "take", close)
    assert main(["watch", str(run)]) == 0
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("drawn", ["X..\n.O.", np.zeros((3, 3), np.float32), np.zeros((3, 3, 4), np.uint8)])
def test_what_is_no_image_is_neither_filmed_nor_watched(run, tmp_path, monkeypatch, capsys, drawn):
    monkeypatch.setattr(TicTacToe, "render", lambda self: drawn)
    monkeypatch.setattr("agentkit.envs.rendering.has_display", lambda: True)
    monkeypatch.setattr(watch.Window, "possible", staticmethod(lambda: True))
    found = "str" if isinstance(drawn, str) else f"{drawn.dtype} {list(drawn.shape)}"
    for words in (["watch", str(run)], ["evaluate", str(run), "--video", str(tmp_path / "a.gif")]):
        assert main([*words, "--episodes", "1"]) != 0
        assert f"must give an image, uint8 [H, W, 3] or grey [H, W]; found {found}." in capsys.readouterr().err
    assert not list(tmp_path.iterdir()), "half a film was left"


def test_what_cannot_draw_is_refused():
    with pytest.raises(ConfigError, match=r"agentkit:matrix_game has no render\(\)"):
        filmed_agents(config(environment="agentkit:matrix_game"), print).make_environment(0)


def test_pettingzoo_draws_images():
    pytest.importorskip("mpe2")
    images = []
    name = "pettingzoo:mpe/simple_spread_v3"
    environment = filmed_agents(config(environment=name), lambda draw: images.append(draw())).make_environment(0)
    actions = {agent_id: np.int32(1) for agent_id in environment.reset()}
    for _ in range(2):  # The first only gives them a speed.
        environment.step(actions)
    assert [image.shape[2] for image in images] == [3, 3, 3] and np.any(images[0] != images[2])
    environment.close()
    silent = config(environment=name).make_environment(0)
    silent.reset()
    with pytest.raises(SpecError, match="draws no image"):
        silent.render()
    silent.close()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["train", "--on-device", "--env", "jax:two_step_game"], {"on_device": True}),
        (["train", "--num-envs", "3"], {"num_envs": 3, "replay": "in_process"}),
        (["launch", "--replay", "served"], {"replay": "served", "on_device": False}),
        (["launch", "--opponents", "uniform,period=50"], {"opponents": agentkit.Pool("uniform", period=50)}),
        (["train", "--env-set", "random_moves=4"], {"environment_settings": {"random_moves": 4}}),
        (
            ["launch", "--env", "pettingzoo:mpe/simple_spread_v3", "--env-set", "max_cycles=50"],
            {"environment_settings": {"max_cycles": 50}},
        ),
        (["train", "--env", "tests.cli.test_several:TicTacToe"], {"environment": TicTacToe}),
    ],
)
def test_words_of_each_command_say_what_is_run(words, expected):
    command, *more = words
    arguments = parse([command, "dqn", "--env", "agentkit:tic_tac_toe", "--policies", "shared", "--steps", "2k", *more])
    plan = new_several(arguments, command)
    assert plan.num_steps == 2_000 and plan.policy_of == "shared"
    assert {name: getattr(plan, name) for name in expected} == expected


def test_an_agent_that_is_made_for_data_is_warned_of():
    words = ["--env", "agentkit:tic_tac_toe", "--policies", "shared", "--steps", "2k"]
    with pytest.warns(UserWarning, match=r"bc is made to learn from data\. Several agents take none yet, so it learns"):
        new_several(parse(["train", "bc", *words]), "train")


def test_opponents_are_named_in_three_ways():
    found = opponents_of(parse(["evaluate", "run", "--opponent", "a=random", "--opponent", "b=old:x"]))
    assert found == {"a": "random", "b": agentkit.Frozen("old", "x")}
    for text in ("a=random:x", "a=random:", "a=", "a"):
        with pytest.raises(ConfigError, match=f"--opponent: expected AGENT=RUN, .* found '{text}'"):
            opponents_of(parse(["evaluate", "run", "--opponent", text]))
    with pytest.raises(ConfigError, match="--opponent a is given twice"):
        opponents_of(parse(["evaluate", "run", "--opponent", "a=random", "--opponent", "a=old"]))


def test_settings_of_an_own_environment_are_known_by_their_types():
    words = ["train", "dqn", "--env", "agentkit:tic_tac_toe", "--policies", "shared", "--steps", "2k", "--env-set"]
    with pytest.raises(ConfigError, match=r"--env-set random_moves \(int\): expected a whole number"):
        new_several(parse([*words, "random_moves=x"]), "train")
    with pytest.raises(UnknownNameError, match="Did you mean 'random_moves'"):
        new_several(parse([*words, "random_move=3"]), "train")


def test_a_module_of_pettingzoos_may_be_named():
    words = [
        "train",
        "dqn",
        "--env",
        "pettingzoo.classic.tictactoe.tictactoe:env",
        "--policies",
        "each",
        "--steps",
        "2k",
    ]
    assert new_several(parse(words), "train").environment.__module__ == "pettingzoo.classic.tictactoe.tictactoe"


def test_a_preset_gives_steps_and_settings_and_what_is_said_wins(capsys):
    words = ["train", "ppo", "--env", "jaxmarl:MPE_simple_spread_v3", "--policies", "shared"]
    plan = new_several(parse(words), "train")
    assert (plan.num_steps, plan.num_envs, plan.policies.config.segment_length) == (2_000_000, 16, 128)
    assert "Preset for jaxmarl:MPE_simple_spread_v3: segment_length=128" in capsys.readouterr().out
    plan = new_several(parse([*words, "--steps", "5k", "--num-envs", "2", "--set", "segment_length=32"]), "train")
    assert (plan.num_steps, plan.num_envs, plan.policies.config.segment_length) == (5_000, 2, 32)
    assert "Yours instead: segment_length, num_envs." in capsys.readouterr().out
    bare = new_several(parse([*words, "--steps", "5k", "--preset", "none"]), "train")
    assert bare.num_envs is None and bare.policies.config == ppo.Config() and capsys.readouterr().out == ""
    with pytest.raises(ConfigError, match="--steps is missing"):
        new_several(parse([*words, "--preset", "none"]), "train")
    words = ["train", "dqn", "--env", "agentkit:tic_tac_toe", "--policies", "shared", "--steps", "100"]
    new_several(parse([*words, "--preset", "envpool:Pong-v5"]), "train")
    assert "Yours instead: wrappers." in capsys.readouterr().out


def test_settings_of_the_environment_stand_beside_the_runs_own(tmp_path):
    settings = {"game": "climbing", "rounds": 3}  # The default game has fewer actions.
    agentkit.run(
        agentkit.MultiAgentConfig(
            DQN, "agentkit:matrix_game", 20, "each", run_directory=tmp_path, evaluation_period=0,
            environment_settings=settings, progress=False,
        )
    )  # fmt: skip
    config = read_to_judge(tmp_path, environment_settings={"rounds": 2})
    assert config.environment_settings == settings | {"rounds": 2}
    agentkit.evaluate_multi_agent(tmp_path, 1, environment_settings={"rounds": 2})
    agentkit.play_tournament(tmp_path, 1, environment_settings={"rounds": 2})
