"""A run of several agents goes on launched, and a launched one in one process: each policy with all that it has."""

import itertools
import json
import shutil

import numpy as np
import pytest

import agentkit
from agentkit import checkpoint, nests
from agentkit.agents import dqn, ppo
from agentkit.cli import main
from agentkit.errors import ConfigError
from agentkit.experiment.multi_agent.build import check_policies
from agentkit.experiment.multi_agent.loading import find_policies
from agentkit.experiment.runs.config_json import write_config
from agentkit.experiment.runs.learner_folders import (
    all_learners,
    handover_folder,
    learner_folder,
    pools_folder,
)
from agentkit.experiment.runs.resume_checks import ResumeError
from agentkit.experiment.training import carrying
from agentkit.experiment.training.switched_state import as_launched
from agentkit.experiment.training.switching import switched
from agentkit.learning.schedules import Linear
from agentkit.replay import InProcessReplay

DQN = dqn.make_agent(
    dqn.Config(
        hidden_sizes=(8,), min_replay_size=50, batch_size=16, n_step=1, updates_per_step=0.1,
        epsilon=Linear(1.0, 0.1, 10_000),
    )
)  # fmt: skip
PPO = ppo.make_agent(ppo.Config(segment_length=8, batch_size=4, num_minibatches=1, num_epochs=1, hidden_sizes=(8,)))
POLICIES = {"row": PPO, "column": DQN}  # Not in the order of their names, and one learns from a queue.


def plan(folder, num_steps=200, policies=POLICIES, environment="agentkit:matrix_game", **settings):
    given = {"evaluation_period": 0, "progress": False, "num_envs": 2, **settings}
    return agentkit.MultiAgentConfig(policies, environment, num_steps, run_directory=folder, **given)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run in one process, of 200 steps."""
    folder = tmp_path_factory.mktemp("runs") / "trained"
    agentkit.run(plan(folder))
    return folder


@pytest.fixture(scope="module")
def launched(trained):
    """The same, gone on with as a program, which finds that no step is left, and saves what it has."""
    folder = shutil.copytree(trained, trained.parent / "launched")
    result = agentkit.resume_launch(folder, replay="served", engine="threads", num_actors=1, num_evaluators=0)
    assert result.steps == 200
    return folder


CONTENTS = {"row": "replay", "column": "replay-1"}


def contents_of(policy, folder):
    """Returns the items of a policy's replay, what its table has counted, and the state of its sampler."""
    (trained,) = [each for each in check_policies(plan(None))[1] if each.policy_id == policy]
    with InProcessReplay(trained.agent.make_tables(trained.spec)) as replay:
        replay.restore(folder)
        (name,) = replay.tables
        items, info = nests.flatten_to_paths(replay.contents(name)[0]), replay.info(name)
    rng = json.loads((folder / "replay.json").read_text())["tables"][0]["rng"]
    return items, (info.size, info.num_inserted, info.num_sampled), rng


def learners_of(folder):
    """Returns the newest checkpoint of each learner of a launched run, and where its replay's contents are."""
    found = {name: checkpoint.read_latest(learner_folder(folder, name) / "checkpoints") for name in POLICIES}
    return found, {name: found[name].path / CONTENTS[name] for name in POLICIES}


def check_same(one, other):
    assert one.keys() == other.keys()
    for path, leaf in one.items():
        np.testing.assert_array_equal(leaf, other[path], err_msg=path)


@pytest.mark.full
def test_a_run_in_one_process_goes_on_launched_with_what_it_has(trained, launched):
    before = checkpoint.read_latest(trained / "checkpoints")
    after, contents = learners_of(launched)
    for policy in POLICIES:
        learner = before.state["learner"][policy]
        assert after[policy].step == 200 and after[policy].state["launched"]
        assert after[policy].state["learner"]["num_updates"] == learner["num_updates"] > 5
        check_same(after[policy].state["learner"]["state"], learner["state"])
        one, *counted = contents_of(policy, before.path / f"replay-{policy}")
        other, *known = contents_of(policy, contents[policy])
        check_same(one, other)
        assert counted == known and counted[0][0] > 0
    state = after["column"].state
    # Two agents have acted 200 times each; no step of the program is left.
    assert state["totals"]["agent_steps"] == 400 and state["explored"]["actor-0"] == 200
    assert not (launched / "checkpoints").exists() and find_policies(launched, "newest").step == 200


@pytest.mark.full
def test_a_launched_run_goes_on_in_one_process_with_what_it_has(launched, tmp_path):
    folder = shutil.copytree(launched, tmp_path / "run")
    agentkit.resume_launch(folder, num_steps=300)
    before, contents = learners_of(folder)
    kept = {policy: contents_of(policy, path) for policy, path in contents.items()}
    steps = max(each.step for each in before.values())
    with switched(folder, "train", "in_process"):
        found = checkpoint.read_latest(folder / "checkpoints")
        for policy in POLICIES:
            check_same(found.state["learner"][policy]["state"], before[policy].state["learner"]["state"])
            check_same(contents_of(policy, found.path / f"replay-{policy}")[0], kept[policy][0])
        assert main(["train", "--resume", str(folder), "--steps", str(steps + 100)]) == 0
    after = checkpoint.read_latest(folder / "checkpoints")
    assert after.step == steps + 100 and "launched" not in after.state and not all_learners(folder).exists()
    for policy in POLICIES:
        assert after.state["learner"][policy]["num_updates"] > before[policy].state["learner"]["num_updates"]
        _, counted, _ = contents_of(policy, after.path / f"replay-{policy}")
        assert counted[1] > kept[policy][1][1], "it has written on"
    # An actor keeps its count of steps, of all environments, and had those of the program's.
    (counted,) = after.state["actors"]["column"]["policy_state"].values()
    assert counted.tolist() == [[before["row"].state["explored"]["actor-0"] + 100, 2]] * 2
    assert as_launched(after.state)["explored"] == {"actor-0": counted[0, 0]}


def test_how_often_a_policy_acted_is_known_of_older_checkpoints_too():
    of_x = {"actors": {"a": {}, "b": {}}, "num_actions": {"a": 3, "b": 4}}
    of_y = {"actors": {"a": {}}, "num_actions": {"a": 5}}
    state = {
        "num_steps": 9, "num_agent_steps": 12, "actors": {"x": of_x, "y": of_y},
        "learner": {}, "counter": {"counts": {"steps": 8, "episodes": 2}},
    }  # fmt: skip
    found = as_launched(state)
    chosen = {"agent_steps/a": 8, "agent_steps/b": 4}
    assert found["totals"] == {"steps": 9, "agent_steps": 12, "episodes": 2, "updates": 0, **chosen}
    assert found["explored"] == {"actor-0": 4}, "of three pairs of agent and policy"


def told(text):
    """Returns what writes a replay's contents into a checkpoint."""
    return lambda folder: (folder / "told").write_text(text)


def write_launched(folder, **contents):
    """Writes a launched run of the policies b and a, in this order, whose learners have saved at different steps."""
    write_config(plan(folder, policies={"b": DQN, "a": DQN}, replay="served"), folder, launch={})
    for policy, step in (("b", 12), ("a", 20), ("b", 21)):
        totals = {"steps": step, "agent_steps": 2 * step, "updates": 5}
        state = {"launched": True, "num_steps": step, "totals": totals, "explored": {"actor-0": step}, "callbacks": {}}
        name = {"a": "replay-1", "b": "replay"}[policy]
        given = {name: told(f"{policy} at {step}")} if contents.get(policy, step) >= step else {}
        learner = {"num_updates": step, "state": {"w": np.full(2, step)}}
        checkpoint.write(learner_folder(folder, policy) / "checkpoints", step, {**state, "learner": learner}, given)
    pools = {"episode": 3, "pools": {"a": {}, "b": {}}}
    checkpoint.write(pools_folder(folder), 10, pools, max_to_keep=1)


def test_each_policy_goes_on_from_its_newest_state_and_its_replays_newest_contents(tmp_path):
    write_launched(tmp_path, b=12)  # That of step 21 is without.
    (tmp_path / "learners" / ".DS_Store").touch()
    with switched(tmp_path, "train", "in_process"):
        found = checkpoint.read_latest(tmp_path / "checkpoints")
    assert {name: each["num_updates"] for name, each in found.state["learner"].items()} == {"b": 21, "a": 20}
    assert list(found.state["learner"]) == ["b", "a"], "as the replays are numbered"
    assert found.step == found.state["num_steps"] == 21 and found.state["num_agent_steps"] == 42
    assert [(found.path / f"replay-{name}" / "told").read_text() for name in "ba"] == ["b at 12", "a at 20"]
    assert found.state["self_play"]["episode"] == 3


def test_its_pool_has_nobody_who_is_later_than_its_learners(tmp_path):
    """They were killed since they saved, and the pool is saved as it changes."""
    write_launched(tmp_path)
    pools = {name: {"21": {}, "22": {}} for name in "ab"}
    checkpoint.write(pools_folder(tmp_path), 22, {"episode": 3, "pools": pools}, max_to_keep=1)
    with switched(tmp_path, "train", "in_process"):
        state = checkpoint.read_latest(tmp_path / "checkpoints").state["self_play"]
    assert state == {"episode": 3, "pools": {"a": {"21": {}}, "b": {"21": {}}}}


def test_a_policy_whose_replay_was_handed_over_goes_on_with_that(tmp_path):
    write_launched(tmp_path, a=0)
    handover = handover_folder(learner_folder(tmp_path, "a"), "replay-1")
    checkpoint.write(handover, 20, {}, {"replay-1": told("a handed over")})
    with switched(tmp_path, "train", "in_process"):
        found = checkpoint.read_latest(tmp_path / "checkpoints")
    assert [(found.path / f"replay-{name}" / "told").read_text() for name in "ba"] == ["b at 21", "a handed over"]


def test_a_launched_run_of_which_a_replay_is_lost_does_not_change(tmp_path):
    write_launched(tmp_path, b=0)
    before = (tmp_path / "config.json").read_bytes()
    with pytest.raises(ResumeError, match=r"no checkpoint of b has the contents of replay.*agentkit launch --resume"):
        agentkit.resume(tmp_path, replay="in_process")
    assert (tmp_path / "config.json").read_bytes() == before and not (tmp_path / "checkpoints").exists()


def write_trained(folder, **settings):
    """Writes a run in one process, of the policies b and a."""
    policies = {"policies": {"b": DQN, "a": DQN}} | settings
    write_config(plan(folder, **policies), folder)
    learner = {name: {"num_updates": 7, "state": {"w": np.full(2, ord(name))}} for name in "ba"}
    kept = {"10": {"params": {"w": np.zeros(1)}}, "20": {"params": {"w": np.ones(1)}}}
    state = {
        "experiment": {"policies": {}}, "num_steps": 30, "num_agent_steps": 90, "learner": learner,
        "counter": {"counts": {"steps": 28, "episodes": 7}},
        "actors": {"x": {}, "y": {}, "z": {}}, "callbacks": {"StopWhenFlat": {"best": 0.5}},
        "self_play": {"episode": 4, "pools": {"b": kept, "a": kept}, "left": {}, "playing": {}},
    }  # fmt: skip
    contents = {f"replay-{name}": told(name) for name in "ba"}
    checkpoint.write(folder / "checkpoints", 30, state, contents)


def test_what_a_change_that_was_killed_has_left_is_nobodys(tmp_path):
    write_trained(tmp_path)
    stale = learner_folder(tmp_path, "a") / "checkpoints"
    checkpoint.write(stale, 99, {"launched": True})
    checkpoint.write(pools_folder(tmp_path), 99, {})
    assert find_policies(tmp_path, "newest").step == 30
    with switched(tmp_path, "launch", "served"):
        assert checkpoint.steps(stale) == [30]
        pools = checkpoint.read_latest(pools_folder(tmp_path))
        assert pools.step == 20 and pools.state["pools"]["b"].keys() == {"10", "20"}
        for name, contents in (("b", "replay"), ("a", "replay-1")):
            found = checkpoint.read_latest(learner_folder(tmp_path, name) / "checkpoints")
            assert (found.path / contents / "told").read_text() == name
            assert found.state["learner"]["state"]["w"].tolist() == [ord(name)] * 2
            assert found.state["totals"] == {"steps": 30, "agent_steps": 90, "episodes": 7, "updates": 14}
            assert found.state["explored"] == {"actor-0": 30}
            assert found.state["callbacks"].keys() == {"evaluator-0", "learner-0", "learner-1"}
        assert find_policies(tmp_path, "newest").path == all_learners(tmp_path)
    assert checkpoint.steps(tmp_path / "checkpoints") == [30], "until the program has begun"


def test_where_the_disk_refuses_in_the_middle_the_run_stays_as_it_was(tmp_path, monkeypatch):
    write_trained(tmp_path)
    before, link = (tmp_path / "config.json").read_bytes(), carrying._link_all

    def refuse_the_second(source, folder):
        if source.name == "replay-a":
            raise OSError(28, "No space left on device")
        link(source, folder)

    monkeypatch.setattr(carrying, "_link_all", refuse_the_second)
    with pytest.raises(ResumeError, match="the disk is full"):
        agentkit.resume_launch(tmp_path, replay="served")
    assert (tmp_path / "config.json").read_bytes() == before
    assert find_policies(tmp_path, "newest").path.parent == tmp_path / "checkpoints"


def change_sides(agent_id, episode):
    return "ab"[(episode + (agent_id == "row")) % 2]


REFUSED = {
    "on-device": ({"environment": "jax:two_step_game", "on_device": True}, {}, "on the device"),
    "reverb": ({"replay": "reverb"}, {}, "its replay is 'reverb'"),
    "by-episode": ({"policy_of": change_sides}, {"num_inference": 1}, "agents of a policy, which change by episode"),
    "inference": ({"opponents": agentkit.Pool("newest")}, {"num_inference": 1}, "opponents from a pool play by"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_change_says_why_and_stays_as_it_is(name, tmp_path):
    settings, how, why = REFUSED[name]
    write_trained(tmp_path, **{"policy_of": {"row": "a", "column": "b"}} | settings)
    before = (tmp_path / "config.json").read_bytes()
    with pytest.raises(ConfigError, match=why):
        agentkit.resume_launch(tmp_path, replay="served", **how)
    assert (tmp_path / "config.json").read_bytes() == before
    assert not all_learners(tmp_path).exists() and not pools_folder(tmp_path).exists()


@pytest.mark.full
def test_a_pool_of_opponents_goes_along(tmp_path):
    pool = agentkit.Pool("uniform", period=100, size=9)
    settings = {"policy_of": "shared", "environment": "agentkit:tic_tac_toe", "opponents": pool}
    agentkit.run(plan(tmp_path, 300, DQN, **settings))
    kept = [checkpoint.read_latest(tmp_path / "checkpoints").state["self_play"]]
    agentkit.resume_launch(tmp_path, replay="served", engine="threads", num_actors=1, num_evaluators=0, num_steps=600)
    kept.append(checkpoint.read_latest(pools_folder(tmp_path)).state)
    agentkit.resume(tmp_path, replay="in_process", num_steps=900)
    kept.append(checkpoint.read_latest(tmp_path / "checkpoints").state["self_play"])
    for before, after in itertools.pairwise(kept):
        assert before["episode"] < after["episode"]
        one, other = before["pools"]["shared"], after["pools"]["shared"]
        assert one.keys() < other.keys()
        for step, earlier in one.items():
            check_same(earlier["params"], other[step]["params"])
    assert not pools_folder(tmp_path).exists()
