"""Several agents in a launched program: a learner of each policy; killed, resumed, judged, and refused."""

import dataclasses
import os
import shutil
import signal
from types import SimpleNamespace

import jax
import numpy as np
import pytest
import tree

import agentkit
from agentkit import checkpoint
from agentkit.agents import dqn, ppo
from agentkit.callbacks import stop_at, stop_when_flat
from agentkit.cli import main
from agentkit.errors import CheckpointError, ConfigError
from agentkit.experiment import LaunchConfig, read_multi_agent_config
from agentkit.experiment.launching.multi_agent import make_multi_agent_program
from agentkit.experiment.launching.nodes import opponents
from agentkit.experiment.launching.nodes.opponents import Answers, LaunchedSelfPlay
from agentkit.experiment.multi_agent.build import check_policies
from agentkit.experiment.multi_agent.loading import find_policies
from agentkit.experiment.multi_agent.pools import Earlier, Pools
from agentkit.experiment.runs.learner_folders import learner_folder, pools_folder
from agentkit.experiment.runs.resume_checks import ResumeError
from agentkit.experiment.training.hooks import Hooks

DQN = dqn.make_agent(dqn.Config(batch_size=16, min_replay_size=32, hidden_sizes=(16,), n_step=1, learning_rate=3e-3))
LEARNER = dqn.make_agent(
    dqn.Config(
        batch_size=64, min_replay_size=100, hidden_sizes=(32,), n_step=1, discount=0.5, target_update_period=50,
        epsilon=0.5,
    )
)  # fmt: skip
PPO = ppo.make_agent(ppo.Config(segment_length=16, num_minibatches=2, num_epochs=2, hidden_sizes=(16,)))


BOTH = {"row": DQN, "column": DQN}


def config(folder, policies=BOTH, policy_of=None, environment="agentkit:matrix_game", num_steps=200, **settings):
    given = {"evaluation_period": 0, "progress": False, "checkpoint_period": 100, **settings}
    return agentkit.MultiAgentConfig(policies, environment, num_steps, policy_of, run_directory=folder, **given)


def launch(plan, **settings):
    return agentkit.launch(plan, **{"num_actors": 1, "num_evaluators": 0, "engine": "threads", **settings})


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "each"
    result = launch(config(folder, seed=1))
    assert result.steps >= 200 and result.updates > 50 and result.reason == "reached 200 steps"
    return folder


def test_each_policy_has_a_learner_with_a_log_and_checkpoints_of_its_own(run):
    found = agentkit.open_run(str(run))
    learned = [max(row["updates"] for row in found.rows(f"learner-{policy}")) for policy in ("row", "column")]
    assert min(learned) > 20
    assert {"episode_return/row", "episode_return/column"} <= found.rows("train")[-1].keys()
    for row in (*found.rows("train"), *found.rows("learner-row"), *found.rows("learner-column")):
        assert row["agent_steps"] == 2 * row["steps"], "both act at each step"
    one, other = (tree.flatten(agentkit.load(run, policy=policy).arrays) for policy in ("row", "column"))
    assert any((a != b).any() for a, b in zip(one, other, strict=True))
    record = agentkit.evaluate_multi_agent(run, num_episodes=2)
    assert record["steps"] >= 200 and record["episode_return"] == record["episode_return/row"] * 2
    frozen = agentkit.Frozen(run, policy="column")
    assert agentkit.evaluate_multi_agent(run, num_episodes=2, opponents={"column": frozen}) == record


def test_it_goes_on_in_one_process_and_launched_again(run, tmp_path):
    """In the landing tier, since it alone notices there that learners or schedules begin anew."""
    folder = shutil.copytree(run, tmp_path / "run")
    found = [find_policies(folder, "newest")]
    agentkit.resume(folder, replay="in_process", num_steps=found[-1].step + 20)
    found.append(checkpoint.read_latest(folder / "checkpoints"))
    assert not (folder / "learners").exists()
    explored = {name: actor["policy_state"] for name, actor in found[-1].state["actors"].items()}
    for (steps,) in (state.values() for state in explored.values()):
        assert steps.tolist()[0] == found[-1].step, "each agent acts once a step"
    how = {"engine": "threads", "num_actors": 1, "num_evaluators": 0}
    lost = folder / "logs" / "train-1.csv"  # Of an actor of a killed program, which this one has no more.
    lost.write_text(f"steps\n1\n{10**6}\n")
    agentkit.resume_launch(folder, replay="served", num_steps=found[-1].step + 20, **how)
    assert lost.read_text() == "steps\n1\n"
    found.append(find_policies(folder, "newest"))
    assert not (folder / "checkpoints").exists()
    for policy in BOTH:
        before, one, launched = (each.state["learner"][policy]["num_updates"] for each in found)
        assert 20 < before < one < launched
        newest = checkpoint.read_latest(learner_folder(folder, policy) / "checkpoints")
        assert found[1].step < newest.state["explored"]["actor-0"] <= found[1].step + 60


def test_a_step_takes_of_each_policy_the_newest_up_to_it(tmp_path):
    for policy, steps in (("a", (10, 21, 30)), ("b", (12, 19, 33))):
        for step in steps:
            folder = learner_folder(tmp_path, policy) / "checkpoints"
            checkpoint.write(folder, step, {"learner": {"at": step}}, max_to_keep=3)
    for which, expected in (
        ("newest", (30, 33)),
        (30, (30, 19)),
        (20, (10, 19)),
        ("1_2", (10, 12)),
        ("0.03k", (30, 19)),
        (99, (30, 33)),
    ):
        found = find_policies(tmp_path, which)
        assert found.state["learner"] == {"a": {"at": expected[0]}, "b": {"at": expected[1]}}
        assert found.step == min(expected)
    with pytest.raises(ConfigError, match=r"expected 'newest', 'best' or a step, found '30_'"):
        find_policies(tmp_path, "30_")
    with pytest.raises(ConfigError, match=r"b has no checkpoint of step 11\. It has those of: 12, 19, 33"):
        find_policies(tmp_path, 11)


def test_what_does_not_go_on_with_a_run_is_refused(run, tmp_path):
    with pytest.raises(CheckpointError, match="is of a launched run: use agentkit launch --resume"):
        agentkit.run(config(run), resume=True)
    with pytest.raises(ResumeError, match=r"policies\['row'\]: saved agent=dqn, found ppo"):
        launch(config(run, {"row": PPO, "column": DQN}), resume=True)
    with pytest.raises(ResumeError, match="policy_of: saved None, found "):
        launch(config(run, policy_of={"row": "column", "column": "row"}), resume=True)
    with pytest.raises(ResumeError, match=r"The run .* was made with environment_settings.rounds=None, and .* has 3"):
        agentkit.resume_launch(run, environment_settings={"rounds": 3})
    with pytest.raises(ResumeError, match="was made with seed=1, and this experiment has 2"):
        launch(config(run, seed=2), resume=True)
    copy = shutil.copytree(run, tmp_path / "copy")
    shutil.rmtree(copy / "learners" / "row")
    with pytest.raises(ResumeError, match="the learners row have no checkpoint, and others have"):
        agentkit.resume_launch(copy, num_steps=300)
    agentkit.run(config(tmp_path / "alone", num_steps=40))
    with pytest.raises(ConfigError, match=r"was not launched\. Go on with: agentkit train --resume"):
        agentkit.resume_launch(tmp_path / "alone", num_steps=60)


def test_inference_nodes_are_refused_with_a_pool_before_there_is_a_folder(tmp_path):
    with pytest.raises(ConfigError, match=r"num_inference \(--inference\): .* opponents from a pool play by earlier"):
        launch(self_play(tmp_path / "run", 100), num_inference=1)
    with pytest.raises(ConfigError, match="0 to num_actors=1 inference nodes, found 2"):
        launch(config(tmp_path / "run"), num_inference=2)
    assert not (tmp_path / "run").exists()


def test_a_program_has_inference_nodes_of_all_policies():
    _, trained, _ = check_policies(plan := config(None))
    program = make_multi_agent_program(plan, LaunchConfig(num_actors=3, num_inference=2), trained)
    replays_and_learners = {f"{role}-{i}" for role in ("replay", "learner") for i in range(2)}
    assert program.nodes["actor-2"].dependencies() == {*replays_and_learners, "inference-0", "inference-1"}
    assert program.nodes["inference-1"].dependencies() == {"learner-0", "learner-1"}
    assert program.roles["actor"].stop_order < program.roles["inference"].stop_order
    assert "inference" not in make_multi_agent_program(plan, LaunchConfig(), trained).roles


def test_learners_of_runs_with_neighbouring_seeds_have_seeds_of_their_own():
    _, trained, _ = check_policies(config(None))
    seeds = []
    for seed in (0, 1, 2, 2**31 - 1):
        program = make_multi_agent_program(config(None, seed=seed), LaunchConfig(), trained)
        seeds += [program.nodes[f"learner-{number}"].args[0].seed for number in range(2)]
    assert len(set(seeds)) == 8 and seeds[::2] == [0, 1, 2, 2**31 - 1], "the first has the run's own"


def test_a_learner_takes_the_callbacks_of_a_run_that_stops_by_one_agents_return():
    """Its experiment is of one policy, and knows no agents; the evaluator's knows them."""
    callbacks = [stop_at(1.0, return_of="agent_0"), stop_when_flat(3, return_of="agent_0")]
    plan = config(None, callbacks=callbacks, evaluation_period=100)
    program = make_multi_agent_program(plan, LaunchConfig(), check_policies(plan)[1])
    for experiment in (plan, program.nodes["learner-0"].args[0]):
        assert len(Hooks(experiment, "learner").callbacks) == 2


@pytest.mark.full
def test_a_program_goes_on_when_its_inference_node_is_killed(tmp_path):
    """Of two policies of two kinds, one of which two agents share, and chance."""
    seen = {"killed": 0}

    def kill(status):
        seen["nodes"], node = status["nodes"], status["nodes"].get("inference-0", {})
        if not seen["killed"] and status["totals"].get("steps", 0) > 300 and node["gauges"].get("parameter_version"):
            seen["killed"] = node["pid"]
            os.kill(node["pid"], signal.SIGKILL)

    who = {"agent_0": "a", "agent_1": "b", "agent_2": "chance", "agent_3": "a"}
    policies = {"a": DQN, "b": PPO, "chance": "random"}
    plan = config(tmp_path / "run", policies, who, "agentkit:come_and_go", 3_000, num_envs=2)
    result = launch(plan, num_inference=1, engine="processes", on_status=kill)
    node, actor = seen["nodes"]["inference-0"], seen["nodes"]["actor-0"]
    assert result.steps >= 3_000 and result.reason == "reached 3,000 steps"
    assert seen["killed"] and node["restarts"] == 1 and node["counts"]["actions"] > 1_000
    assert actor["restarts"] == 0 and actor["gauges"]["parameter_version"] > 0
    rows = agentkit.open_run(str(tmp_path / "run")).rows("train")
    assert rows[-1]["steps"] > 2_500 and {f"episode_return/{agent_id}" for agent_id in who} <= rows[-1].keys()
    assert min(agentkit.open_run(str(tmp_path / "run")).rows(f"learner-{name}")[-1]["updates"] for name in "ab") > 10


def self_play(folder, num_steps, **settings):
    pool = agentkit.Pool("prioritized", period=200, size=20)
    given = {"opponents": pool, "checkpoint_period": 200, **settings}
    return config(folder, DQN, "shared", "agentkit:tic_tac_toe", num_steps, **given)


def kept(folder):
    """The earlier parameters by step."""
    found = checkpoint.read_latest(pools_folder(folder)).state["pools"]["shared"]
    return {int(step): each for step, each in found.items()}


@pytest.mark.full
def test_opponents_come_from_a_pool_that_outlives_the_program(tmp_path):
    launch(self_play(tmp_path / "run", 600), num_actors=2)
    first = kept(tmp_path / "run")
    periods = [step // 200 for step in first]
    assert periods and sorted(set(periods)) == periods and periods[0] > 0
    games = {step: each["games"].get("shared", 0.0) for step, each in first.items()}
    assert sum(games.values()) > 0 and all(each["won"].get("shared", 0) <= games[step] for step, each in first.items())
    names = agentkit.play_tournament(tmp_path / "run", num_episodes=1).players
    assert names == ("newest", *(f"step {step:,}" for step in first), "random")
    agentkit.resume_launch(tmp_path / "run", num_steps=1_100)
    second = kept(tmp_path / "run")
    assert first.keys() < second.keys(), "it goes on with what it had"
    for step, each in first.items():
        for path, leaf in each["params"].items():
            np.testing.assert_array_equal(leaf, second[step]["params"][path])
    with pytest.raises(ConfigError, match="opponents: a pool is for two agents or more that learn, found first"):
        who = {"first": "a", "second": "b"}
        launch(
            config(tmp_path / "one", {"a": DQN, "b": "random"}, who, "agentkit:tic_tac_toe", opponents=agentkit.Pool())
        )
    assert not (tmp_path / "one").exists()


def test_an_episode_that_is_asked_about_twice_is_drawn_and_counted_once():
    """A client asks anew over a new connection, and the node may have answered the first time."""
    _, trained, _ = check_policies(self_play(None, 100))
    pools = Pools(agentkit.Pool("uniform", period=10, size=2, share=1.0), 0, trained)
    for step in (10, 20):
        pools.keep(step, {"shared": {"w": np.full(1, step)}})
    answers, said = Answers(pools), []
    server = SimpleNamespace(answer=lambda request, body: said.append(body), refuse=lambda *given: said.append(given))

    def ask(body):
        answers.give(server, SimpleNamespace(body=body))
        return said[-1]

    first = ask({"player": "a", "episode": 0, "ended": None, "steps": 7})
    assert first["kept"] == [10, 20] and len(first["playing"]) == 1
    ((opponent, step),) = first["playing"].items()
    learner = {"first": "second", "second": "first"}[opponent]
    assert list(ask({"agent": opponent, "step": step}).values()) == [step]
    assert ask({"agent": opponent, "step": 15}) is None
    ended = {"playing": first["playing"], "returns": {learner: 1.0, opponent: -1.0}}
    once = ask({"player": "a", "episode": 1, "ended": ended, "steps": 9})
    assert ask({"player": "a", "episode": 1, "ended": ended, "steps": 9}) is once
    earlier = pools.find(opponent, step)
    assert answers.num_games == 1 and earlier.games == earlier.won == {"shared": 1.0}
    assert answers.num_steps == 9
    ask({"player": "b", "episode": 1, "ended": ended, "steps": 9})
    assert answers.num_games == 2, "of another player"
    pools.keep(30, {"shared": {}})
    pools.keep(40, {"shared": {}})
    ask({"player": "a", "episode": 2, "ended": ended, "steps": 9})
    assert not any(each.games for each in pools.by_policy["shared"]), "its opponent has left the pool"
    assert "Expected a question about a pool" in ask({"other": 1})[1]


@pytest.mark.parametrize(
    ("saved", "values", "expected"),
    [((20, 31), {}, ["10", "30"]), ((), {}, []), ((20, 31), {"endpoint/opponents-0": {}}, ["10", "30", "40"])],
    ids=["begins", "begins anew", "again"],
)
def test_a_program_begins_with_what_its_pool_had_kept_by_the_checkpoints_of_its_learners(
    saved, values, expected, tmp_path
):
    """Those that were killed since they saved are not to meet what they are not yet."""
    states = {"episode": 7, "pools": {"shared": {"10": {}, "30": {}, "40": {}}}}
    checkpoint.write(pools_folder(tmp_path), 40, states)
    for step in saved:
        checkpoint.write(learner_folder(tmp_path, "shared") / "checkpoints", step, {})
    found = []
    store = SimpleNamespace(status=lambda: {"values": values})
    context = SimpleNamespace(run_directory=tmp_path, name="opponents-0", store=store)
    opponents._restore(context, SimpleNamespace(restore=lambda state, trained: found.append(state)), [])
    assert [(state["episode"], list(state["pools"]["shared"])) for state in found] == [(7, expected)]


def test_who_has_left_the_pool_in_this_moment_is_drawn_anew_and_what_is_known_is_not_fetched_again(monkeypatch):
    _, (trained,), _ = check_policies(self_play(None, 100))
    update = trained.parts.update
    arrays = Earlier(20, update.variables(update.init(jax.random.PRNGKey(0)))["policy"]).arrays()
    asked, gone = [], {"playing": {"second": 10}, "kept": [10]}
    there = {"playing": {"second": 20}, "kept": [20]}
    answers = iter([gone, None, there, arrays, there, {"playing": {}, "kept": []}])
    monkeypatch.setattr(LaunchedSelfPlay, "_ask", lambda self, question: asked.append(question) or next(answers))
    context = SimpleNamespace(totals=lambda: {"steps": 40}, unsent=lambda name: 2)
    play = LaunchedSelfPlay(context, {"node": "opponents-0"}, [trained], {"shared": trained.client})
    first, second = play.seats["first"], play.seats["second"]
    play.begin(0)
    assert [question.get("episode", question.get("step")) for question in asked] == [0, 10, 1, 20]
    (held,) = second.held
    assert first.held == [None] and len(jax.tree.leaves(held)) == len(arrays)
    play.end({"first": 1.0, "second": -1.0})
    play.begin(0)
    assert second.held[0] is held and len(asked) == 5
    assert asked[-1]["ended"] == {"playing": {"second": 20}, "returns": {"first": 1.0, "second": -1.0}}
    play.begin(0)
    assert second.held == [None] and asked[-1] == {**asked[-1], "episode": 3, "ended": None, "steps": 42}


@pytest.mark.full
@pytest.mark.parametrize("replay", ["in_process", pytest.param("reverb", marks=pytest.mark.reverb)])
def test_policies_of_two_kinds_are_killed_resumed_and_judged(replay, tmp_path):
    killed = {"actor-1", "learner-1", "replay-0", "learner-0"}

    def kill(status):
        for name in sorted(killed):
            node = status["nodes"].get(name, {})
            if status["totals"].get("steps", 0) > 1_000 and node.get("state") == "ready":
                os.kill(node["pid"], signal.SIGKILL)
                killed.remove(name)

    who = {"agent_0": "a", "agent_1": "b", "agent_2": "chance", "agent_3": "a"}
    plan = config(
        tmp_path / "run", {"a": DQN, "b": PPO, "chance": "random"}, who, "agentkit:come_and_go", 4_000,
        evaluation_period=1_000, evaluation_episodes=2, checkpoint_period=500, num_envs=2, replay=replay,
    )  # fmt: skip
    result = launch(plan, num_actors=2, num_evaluators=1, engine="processes", on_status=kill)
    assert not killed and result.steps >= 4_000 and result.evaluations
    before = {policy: agentkit.load(tmp_path / "run", policy=policy) for policy in ("a", "b")}
    rows = len(agentkit.open_run(str(tmp_path / "run")).rows("train"))
    assert read_multi_agent_config(tmp_path / "run").replay == ("reverb" if replay == "reverb" else "served")
    again = agentkit.resume_launch(tmp_path / "run", num_steps=6_000)
    assert again.steps >= 6_000 and again.updates > result.updates
    for policy, old in before.items():
        new = agentkit.load(tmp_path / "run", policy=policy)
        pairs = zip(tree.flatten(old.arrays), tree.flatten(new.arrays), strict=True)
        assert all((one != other).any() for one, other in pairs), policy
    found = agentkit.open_run(str(tmp_path / "run"))
    assert len(found.rows("train")) > rows, "the log goes on"
    assert {"episode_return/agent_1", "wins/agent_1"} <= found.rows("evaluation")[-1].keys()
    assert agentkit.evaluate_multi_agent(tmp_path / "run", num_episodes=2)["steps"] >= 6_000


@pytest.mark.full
def test_self_play_goes_on_where_its_pool_is_killed(tmp_path):
    """Of 12 periods of 500 steps: it is killed in the fifth, with all that it had kept on the disk."""
    seen = {}

    def kill(status):
        node = status["nodes"]["opponents-0"]
        if not seen and status["totals"].get("steps", 0) > 2_000 and node["state"] == "ready":
            seen.update(kept(tmp_path / "run"))
            os.kill(node["pid"], signal.SIGKILL)

    pool = agentkit.Pool("uniform", period=500, size=20)
    plan = self_play(tmp_path / "run", 6_000, opponents=pool, checkpoint_period=1_000, num_envs=2)
    result = launch(plan, num_actors=2, engine="processes", on_status=kill)
    assert result.steps >= 6_000 and len(seen) >= 3
    after = kept(tmp_path / "run")
    assert seen.keys() < after.keys() and max(after) >= 5_500
    assert sum(each["games"].get("shared", 0.0) > 0 for each in after.values()) > len(after) / 2
    assert agentkit.resume_launch(tmp_path / "run", num_steps=6_600).steps >= 6_600
    assert kept(tmp_path / "run").keys() > after.keys()


@dataclasses.dataclass
class Told(agentkit.callbacks.Callback):
    """Writes down where it was called, and ends the run at its third evaluation, those before a resume included."""

    path: str
    evaluations: int = 0

    def on_start(self, run, environment):
        self._write(run, "on_start")

    def on_episode(self, run, episode):
        self._write(run, "on_episode")
        episode.record["told"] = episode.record["episode_return/row"]

    def on_learner_log(self, run, record):
        self._write(run, "on_learner_log")

    def on_evaluation(self, run, record):
        self._write(run, "on_evaluation")
        self.evaluations += 1
        if self.evaluations >= 3:
            return agentkit.callbacks.Stop(f"{self.evaluations} evaluations")

    def on_checkpoint(self, run, path):
        self._write(run, "on_checkpoint")

    def on_end(self, run):
        self._write(run, "on_end")

    def _write(self, run, event):
        with open(self.path, "a") as file:
            file.write(f"{event} {run.role}\n")

    def save(self):
        return {"evaluations": self.evaluations}

    def restore(self, state):
        self.evaluations = int(state["evaluations"])


@pytest.mark.full
def test_callbacks_are_called_where_their_events_are_and_end_the_program(tmp_path):
    told = Told(str(tmp_path / "told"))
    settings = {"num_steps": 100_000, "evaluation_period": 50, "evaluation_episodes": 1, "log_seconds": 0.0}
    result = launch(config(tmp_path / "run", **settings), num_evaluators=1, callbacks=[told])
    assert result.stopped_by == "3 evaluations" and result.steps < 100_000
    assert set((tmp_path / "told").read_text().splitlines()) == {
        "on_start actor", "on_start learner", "on_start evaluator", "on_episode actor", "on_learner_log learner",
        "on_evaluation evaluator", "on_checkpoint learner", "on_end learner",
    }  # fmt: skip
    rows = agentkit.open_run(str(tmp_path / "run")).rows("train")
    assert rows and all(row["told"] == row["episode_return/row"] for row in rows)
    again = agentkit.resume_launch(tmp_path / "run", callbacks=[told])
    assert again.stopped_by == "4 evaluations"


@pytest.mark.full
@pytest.mark.parametrize("seed", range(3))
def test_agents_of_two_kinds_learn_a_matrix_game(seed, tmp_path):
    """Each defects, which is the better answer to either: -2 in each of four rounds."""
    settings = {"environment_settings": {"game": "prisoners_dilemma"}, "seed": seed}
    plan = config(tmp_path / "run", {"row": LEARNER, "column": PPO}, num_steps=8_000, **settings)
    launch(plan, num_actors=2, engine="processes")
    record = agentkit.evaluate_multi_agent(tmp_path / "run", num_episodes=5)
    assert record["episode_return/row"] == record["episode_return/column"] == -8.0


@pytest.mark.full
def test_the_command(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["launch", "dqn", "--env", "agentkit:tic_tac_toe", "--policies", "each", "--actors", "1"]
    small = ["--set", "min_replay_size=16", "--set", "batch_size=8", "--eval-every", "100", "--eval-episodes", "2"]
    assert main([*words, *small, "--steps", "200", "--run-directory", "run"]) == 0
    out = capsys.readouterr().out
    assert "2 agents by 2 policies: first, second" in out and "agentkit launch --resume run" in out
    assert main(["launch", "--resume", "run", "--steps", "300"]) == 0
    assert main(["evaluate", "run", "--episodes", "2"]) == 0
    assert main([*words, *small, "--inference", "1", "--opponents", "uniform", "--steps", "200"]) == 2
    assert "num_inference (--inference): an inference node acts by the newest" in capsys.readouterr().err
