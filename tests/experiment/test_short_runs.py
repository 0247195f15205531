"""What a run that is too short for its agent says in its first lines and at its end."""

import optax
import pytest

import agentkit
from agentkit.agents import dqn, npg, ppo, r2d2, sac, trpo
from agentkit.experiment import ExperimentConfig
from agentkit.experiment.checks.short_runs import learning_ends, steps_to_first_update, warnings_of
from agentkit.experiment.local import started
from agentkit.experiment.multi_agent.parts import short_runs_of
from agentkit.learning import Linear, Piecewise
from tests.experiment.test_evaluation_plan import Episodes

DQN = {"hidden_sizes": (4,), "batch_size": 2, "updates_per_step": 0.1}


def short(agent, num_steps=300, num_actors=1, **settings):
    return warnings_of(ExperimentConfig(agent, "agentkit:catch", num_steps, **settings), num_actors)


def test_no_update_and_no_action_of_the_policy_are_foreseen():
    learning, acting = short(sac.make_agent(), 900)
    assert "sac will learn nothing in 900 steps: it begins after about 1,000" in learning
    assert "min_replay_size=90" in learning
    assert "sac will act at random in all of its 900 steps" in acting
    assert "num_random_steps=90" in acting
    assert len(short(sac.make_agent(), 5_000)) == 1  # It learns, and never acts by what it has learned.
    assert short(sac.make_agent(), 5_001) == []
    assert len(short(sac.make_agent(), 5_001, num_actors=2)) == 1  # Each begins with as many.
    assert short(dqn.make_agent(dqn.Config(**DQN, min_replay_size=300))) == []
    assert len(short(dqn.make_agent(dqn.Config(**DQN, min_replay_size=301)))) == 1
    assert len(short(ppo.make_agent(ppo.Config(segment_length=100)), num_envs=4)) == 1
    assert short(ppo.make_agent(ppo.Config(segment_length=75, num_minibatches=1)), num_envs=4) == []


def test_a_step_size_that_is_0_before_the_end_is_foreseen():
    """As where a run is resumed for more steps than its schedule was made for."""
    (line,) = short(ppo.make_agent(ppo.Config(segment_length=100, learning_rate=Linear(1e-3, 0.0, 4_096))), 8_192)
    assert line.startswith(
        "ppo will learn nothing after step 4,096 of 8,192: by then its learning_rate has fallen to 0."
    )
    for rate, steps in (
        (Linear(1e-3, 0.0, 8_192), 8_192),
        (Linear(1e-3, 1e-4, 4_096), 8_192),
        (Linear(1e-3, 0.0, 4_096, by="updates"), 8_192),
        (1e-3, 8_192),
    ):
        assert short(ppo.make_agent(ppo.Config(segment_length=100, learning_rate=rate)), steps) == []
    falling = ppo.Config(segment_length=100, learning_rate=Linear(1e-3, 0.0, 4_096))
    assert short(ppo.make_agent(falling), 4_500) == []  # The rest makes no whole batch.
    assert short(ppo.make_agent(falling, optimizer=optax.adam(1e-3)), 8_192) == []  # Its own goes on.
    for agent in (trpo, npg):  # Only the value's falls.
        config = agent.Config(segment_length=100, learning_rate=Linear(1e-3, 0.0, 4_096))
        assert short(agent.make_agent(config), 8_192) == []
    entropy = ppo.Config(segment_length=100, entropy_cost=Linear(1e-2, 0.0, 4_096))
    assert short(ppo.make_agent(entropy), 8_192) == []  # Which learns without it.
    rates = {"actor_learning_rate": Linear(1.0, 0.0, 10), "critic_learning_rate": Piecewise((1.0, 0.0), (20,))}
    assert learning_ends(rates) == 20 and learning_ends({**rates, "learning_rate": 0.1}) is None
    assert learning_ends({}) is None


def test_each_policy_that_learns_has_the_steps_of_its_agents():
    """Three agents play by dqn's policy, and one by sac's."""
    plays = {"agent_0": "a", "agent_1": "a", "agent_2": "a", "agent_3": "b"}
    policies = {"a": dqn.make_agent(dqn.Config(**DQN, min_replay_size=301)), "b": sac.make_agent()}

    def said(steps, num_actors=1, **settings):
        plan = agentkit.MultiAgentConfig(policies, "agentkit:come_and_go", steps, plays, **settings)
        return short_runs_of(plan, {"a": list(plays)[:3], "b": ["agent_3"]}, num_actors)

    of_dqn, learning, acting = said(100)
    assert of_dqn == (
        "policies['a']: dqn will learn nothing in 100 steps, at most 300 of its 3 agents: it begins after about 301. "
        "Give it more steps, or min_replay_size=30."
    )
    assert learning.startswith("policies['b']: sac will learn nothing in 100 steps: it begins after about 1,000.")
    assert acting.startswith("policies['b']: sac will act at random in all of its 100 steps, and by its policy")
    assert len(said(101)) == 2 and said(5_001) == [] and len(said(5_001, num_actors=2)) == 1
    assert len(said(300, count_steps_by="agents")) == 3


@pytest.mark.full
@pytest.mark.parametrize(
    "agent",
    [
        dqn.make_agent(dqn.Config(**DQN, min_replay_size=40)),
        r2d2.make_agent(r2d2.Config(batch_size=2, min_replay_size=3, sequence_length=10, sequence_period=5, burn_in=2)),
        ppo.make_agent(ppo.Config(segment_length=40, num_minibatches=1)),
    ],
    ids=["transitions", "sequences", "segments"],
)
def test_the_first_update_comes_about_when_it_is_foreseen(agent):
    expected = steps_to_first_update(agent.experience)
    updates = {
        steps: agentkit.run(ExperimentConfig(agent, "agentkit:catch", steps, evaluation_period=0)).updates
        for steps in (expected // 2, expected + 15)
    }
    assert updates[expected // 2] == 0 < updates[expected + 15]


@pytest.mark.parametrize("from_python", [True, False])
def test_a_run_without_an_update_says_so_at_both_ends(tmp_path, capsys, from_python):
    if from_python:
        agentkit.train("dqn", "agentkit:catch", 30, evaluation_period=0, hidden_sizes=(4,))
    else:
        from agentkit.cli import main

        words = ["--env", "agentkit:catch", "--steps", "30", "--eval-every", "0", "--out", str(tmp_path)]
        assert main(["train", "dqn", *words, "--set", "hidden_sizes=4"]) == 0
    said = capsys.readouterr().err
    assert said.count("dqn will learn nothing in 30 steps") == 1
    assert said.count("No update was made in 30 steps") == 1


@pytest.mark.full
def test_a_first_episode_that_goes_on_for_long_is_said(capsys, monkeypatch):
    monkeypatch.setattr("agentkit.experiment.training.training_loop.LONG_EPISODE", 20)
    agent = dqn.make_agent(dqn.Config(**DQN))
    for length, times in ((10**9, 1), (19, 0)):
        plan = ExperimentConfig(agent, lambda seed, n=length: Episodes(n), 60, evaluation_period=0, progress=True)
        agentkit.run(plan)
        assert capsys.readouterr().err.count("step 20: no episode has ended yet") == times


@pytest.mark.full
def test_several_seeds_say_it_once(tmp_path, capsys):
    agent = dqn.make_agent(dqn.Config(**DQN))
    plan = ExperimentConfig(agent, "agentkit:catch", 30, evaluation_episodes=1, run_directory=tmp_path, progress=True)
    agentkit.run_seeds(plan, [0, 1], jobs=2)
    said = capsys.readouterr().err
    assert said.count("dqn will learn nothing in 30 steps") == 1
    assert said.count(", without an update") == 2


EACH = [f"policies['{agent}']: dqn will learn nothing in 30 steps: it begins" for agent in ("first", "second")]


def of_several(**settings):
    agent = dqn.make_agent(dqn.Config(**DQN))
    given = {"environment": "agentkit:tic_tac_toe", "policy_of": "each", "evaluation_period": 0, **settings}
    return agentkit.MultiAgentConfig(agent, num_steps=30, progress=True, **given)


def test_a_run_of_several_agents_says_so_of_each_policy_before_it_begins(capsys):
    """Nothing else notices it."""
    with started(of_several(), resume=False):
        said = capsys.readouterr().err
    assert [said.count(line) for line in EACH] == [1, 1]
    on_device = of_several(environment="jax:two_step_game", policy_of="shared", on_device=True, num_envs=2)
    with started(on_device, resume=False):
        said = capsys.readouterr().err
    assert said.count("dqn will learn nothing in 30 steps, at most 60 of its 2 agents") == 1


def test_a_launched_run_says_so_at_both_ends(tmp_path, capsys, monkeypatch):
    from agentkit.cli import main
    from agentkit.experiment.launching.run import LaunchResult

    monkeypatch.setattr("agentkit.cli.training.launch.check_installed", lambda *_: None)
    ended = LaunchResult(30, 0, [], False, reason="done")
    monkeypatch.setattr("agentkit.experiment.launch", lambda *args, **settings: ended)
    words = ["--env", "agentkit:point_mass", "--steps", "3k", "--actors", "2", "--out", str(tmp_path)]
    assert main(["launch", "sac", *words, "--set", "num_random_steps=1500"]) == 0
    said = capsys.readouterr().out
    assert "sac will act at random in all of its 3,000 steps" in said  # Each actor begins with as many.
    assert "No update was made in 30 steps" in said
    words = ["--env", "agentkit:tic_tac_toe", "--steps", "30", "--policies", "each", "--out", str(tmp_path)]
    assert main(["launch", "dqn", *words]) == 0
    said = capsys.readouterr().out
    assert [said.count(line) for line in EACH] == [1, 1]
