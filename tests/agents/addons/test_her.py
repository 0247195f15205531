"""Agents with hindsight: what of the agent stays, how much is learned, resuming, and what is refused."""

import dataclasses

import numpy as np
import pytest
import tree

from agentkit import envs, specs
from agentkit.adders import Hindsight, WithoutExtras
from agentkit.agents import a2c, dqn, iql
from agentkit.agents.addons import View, with_her, with_postprocessing, with_prior_data, with_rnd, with_views
from agentkit.agents.common.experience_wrappers import DroppingExtras, WithRateLimiter
from agentkit.envs.reach_goal import BitFlip
from agentkit.errors import ConfigError, SpecError
from agentkit.experiment import ExperimentConfig, run
from agentkit.replay import InProcessReplay, MinSize
from agentkit.replay.table import FromInline
from tests.experiment.resumed import check_resumes

SPEC = specs.make_environment_spec(envs.make("agentkit:bit_flip"))


def make_plain():
    return dqn.make_agent(dqn.Config(n_step=1, hidden_sizes=(8,)))


def make_agent(num_relabelled=4, **settings):
    config = dqn.Config(**{"n_step": 1, "hidden_sizes": (8,), "batch_size": 8, "min_replay_size": 20, **settings})
    hindsight = Hindsight(BitFlip.compute_reward, BitFlip.compute_terminated, num_relabelled=num_relabelled)
    return with_her(dqn.make_agent(config), hindsight)


def test_items_of_hindsight_are_what_the_agents_own_table_holds():
    agent = make_agent()
    (own,), (table,) = dqn.make_agent(agent.config).make_tables(SPEC), agent.make_tables(SPEC)
    assert (table.name, table.max_size, table.rate_limiter) == (own.name, own.max_size, own.rate_limiter)
    flat = [(s.shape, s.dtype) for s in map(np.asarray, tree.flatten(specs.zeros(table.layout.signature)))]
    assert flat == [(s.shape, s.dtype) for s in map(np.asarray, tree.flatten(specs.zeros(own.layout.signature)))]


@pytest.mark.full
@pytest.mark.parametrize(("num_envs", "curious"), [(None, False), (3, True)])
def test_it_trains_and_resumes(num_envs, curious, tmp_path):
    def trained(directory, num_steps, **resume):
        agent = with_rnd(make_agent()) if curious else make_agent()
        experiment = ExperimentConfig(
            agent,
            "agentkit:bit_flip",
            num_steps,
            num_envs=num_envs,
            run_directory=tmp_path / directory,
            evaluation_period=0,
            checkpoint_period=45,
        )
        return run(experiment, **resume)

    check_resumes(trained, tmp_path, 90)


@pytest.mark.one_case
@pytest.mark.parametrize("num_relabelled", [0, 4])
def test_an_update_follows_so_many_items(num_relabelled):
    agent = make_agent(num_relabelled, updates_per_step=0.2, min_replay_size=50)
    result = run(ExperimentConfig(agent, "agentkit:bit_flip", num_steps=400, evaluation_period=0))
    items = 400 * (1 + num_relabelled)
    assert result.updates == pytest.approx(0.2 * (items - 50), abs=12)


def test_the_rest_of_the_agent_stays():
    agent, own = make_agent(), dqn.make_agent(make_agent().config)
    assert dataclasses.replace(agent, experience=own.experience) == own
    assert agent.batch_plan == agent.with_num_envs(3).batch_plan == own.batch_plan
    assert agent == make_agent() != make_agent(num_relabelled=3)


def test_several_summed_rewards_are_refused():
    with pytest.raises(ConfigError, match="n_step=1, found 3"):
        make_agent(n_step=3)


def keep(episode):
    return episode


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (a2c.make_agent, r"found Segments\. Take such an agent"),
        (lambda: with_postprocessing(make_plain(), keep), r"Write with_postprocessing\(with_her\(agent, hindsight\)"),
        (lambda: with_views(make_plain(), {"last": View("action", -1)}), "with views. Leave with_views out"),
        (lambda: with_prior_data(make_plain(), "data.hdf5"), "found PriorData. .*without other add-ons"),
        (make_agent, "found HindsightTransitions"),
        (iql.make_agent, "with scale_rewards=True. Set scale_rewards=False"),
    ],
    ids=["segments", "postprocessing", "views", "prior data", "hindsight", "scaled rewards"],
)
def test_what_an_agent_keeps_in_another_way_is_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        with_her(make(), Hindsight(BitFlip.compute_reward))


def test_what_goes_with_it_stays_in_effect():
    hindsight, extras = Hindsight(BitFlip.compute_reward), specs.Array((2,), np.float32)
    with_postprocessing(with_her(make_plain(), hindsight), keep)
    with_her(iql.make_agent(iql.Config(scale_rewards=False)), hindsight)
    plain = make_plain()
    limited = WithRateLimiter(DroppingExtras(plain.experience), MinSize(77))
    agent = with_her(dataclasses.replace(plain, experience=limited), hindsight)
    (table,) = agent.make_tables(SPEC)
    assert table.rate_limiter == MinSize(77) and isinstance(table.layout.data.reward, FromInline)
    with InProcessReplay([table]) as replay:
        assert isinstance(agent.experience.make_adder(replay, SPEC, extras), WithoutExtras)


def test_an_environment_without_goals_is_refused():
    with pytest.raises(SpecError, match="Hindsight needs observations that are a dict"):
        make_agent().make_tables(specs.make_environment_spec(envs.make("agentkit:catch")))
