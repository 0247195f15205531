"""What Python says of a word that is nearly right: one line, with what was meant."""

import copy
import dataclasses
import inspect
import pickle

import dm_env
import gymnasium
import pytest

import agentkit
from agentkit.agents import dqn, registry, sac
from agentkit.agents.addons import with_rnd
from agentkit.agents.common.experience import Transitions
from agentkit.envs.catch import Catch
from agentkit.errors import AgentkitError

TRAIN = "agentkit:catch"


class NoSpaces(gymnasium.Env):
    """Has forgotten its spaces."""


class Half(dm_env.Environment):
    """Has not all of dm_env's methods."""

    def reset(self):
        """Does nothing."""


class Chess(Catch):
    """Stands for one of PettingZoo's."""

    __module__ = "pettingzoo.utils.env"


class TorchModule:
    """Stands for one of PyTorch's."""

    __module__ = "torch.nn.modules.module"

    def __call__(self, *inputs):
        """Takes anything, as theirs do."""


def networks_of_the_spec(environment_spec):
    """Lacks the settings."""


def own_boxes(config):
    return agentkit.Agent(config, Transitions(config), make_actor=lambda parts: None, make_learner=lambda parts: None)


def experiment(environment, agent="dqn"):
    return lambda: agentkit.train(agent, environment, 5, run_directory=None, progress=False)


MEANT = {
    "environment": (lambda: agentkit.train("dqn", env=TRAIN), "env: agentkit.train calls it 'environment'"),
    "steps": (lambda: agentkit.train("dqn", TRAIN, total_steps=5), "total_steps: agentkit.train calls it 'num_steps'"),
    "the command's word": (lambda: agentkit.train("dqn", TRAIN, 5, out="x"), "out: .* calls it 'run_directory'"),
    "num_steps": (
        lambda: agentkit.ExperimentConfig(dqn.make_agent(), TRAIN, steps=5),
        "steps: agentkit.ExperimentConfig calls it 'num_steps'",
    ),
    "a setting": (lambda: sac.Config(gamma=0.9), "gamma: sac.Config calls it 'discount'"),
    "a replaced setting": (
        lambda: dataclasses.replace(sac.Config(), lr=1.0),
        "lr: sac.Config calls it 'learning_rate'",
    ),
    "settings of an agent that is made": (
        lambda: dataclasses.replace(dqn.make_agent(), config=dqn.Config(learning_rate=0.5)),
        r"config: expected the settings that .* Make the agent anew .*: dqn.make_agent\(config\)",
    ),
    "another agent's settings": (
        lambda: dataclasses.replace(dqn.make_agent(), config=sac.Config()),
        "config: expected",
    ),
    "settings behind an add-on": (
        lambda: dataclasses.replace(with_rnd(dqn.make_agent()), config=dqn.Config(learning_rate=0.5)),
        "config: expected",
    ),
    "a misspelt setting": (
        lambda: sac.Config(learning_rat=1.0),
        r"Unknown argument of sac.Config .* 'learning_rate'\?",
    ),
    "a box": (lambda: agentkit.compose(make_actr=None), "Unknown argument of agentkit.compose .* 'make_actor'"),
    "a replaced part": (
        lambda: dataclasses.replace(dqn.make_agent(), experence=None),
        "Unknown argument of agentkit.Agent .* 'experience'",
    ),
    "path": (lambda: agentkit.load(run="x"), "run: agentkit.load calls it 'path'"),
    "run_directory": (lambda: agentkit.resume(path="x"), "path: agentkit.resume calls it 'run_directory'"),
    "too many of run": (
        lambda: agentkit.run(dqn.make_agent(), TRAIN, 100),
        r"agentkit.run: expected at most 1 without a name \(experiment\), found 3. By name it takes resume, .*"
        "agentkit.train takes an agent, an environment and steps",
    ),
    "too many of resume": (
        lambda: agentkit.resume("x", 200),
        "expected at most 1 .*, found 2. By name it takes profile",
    ),
    "run": (lambda: agentkit.run(None, resum=True), "Unknown argument of agentkit.run 'resum'. Did you mean 'resume'"),
    "sample": (lambda: agentkit.sample("x", n_steps=5), r"Unknown argument .*'n_steps'. Did you mean 'num_steps'\?"),
    "a sampler's": (lambda: agentkit.Sampler("x", n_envs=5), "n_envs: agentkit.sample calls it 'num_envs'"),
    "a class of settings": (
        lambda: dqn.make_agent(dqn.Config),
        r"config: expected the settings of dqn, .* the class agentkit.agents.dqn.Config itself. .*dqn.Config\(...\)",
    ),
    "settings as a dictionary": (lambda: dqn.make_agent({"n_step": 1}), "found a dict: {'n_step': 1}. Make them with"),
    "networks": (
        lambda: dqn.make_agent(make_networks=networks_of_the_spec),
        r"make_networks: expected a function \(environment_spec, config\), found networks_of_the_spec\("
        r"environment_spec\) of .*test_meant.py, line \d+: too many",
    ),
    "policy": (
        lambda: dqn.make_agent(make_policy=lambda networks, config: None),
        r"make_policy: expected a function \(network, config, evaluation=False\), found <lambda>",
    ),
    "update": (lambda: dqn.make_agent(make_update=3), "make_update: expected a function .*, found 3"),
    "a module of PyTorch": (
        lambda: dqn.make_agent(torso=TorchModule()),
        "torso: found TorchModule, a module of PyTorch, .* with Haiku, Flax or Equinox",
    ),
    "networks of PyTorch": (lambda: dqn.make_agent(make_networks=TorchModule), "a module of PyTorch"),
    "the wrong order": (experiment("dqn", TRAIN), "agent comes first .*; found the environment agentkit:catch first"),
    "the wrong order of things": (
        lambda: agentkit.ExperimentConfig(Catch, dqn.make_agent(), 5),
        "found the environment Catch first",
    ),
    "spaces": (experiment(NoSpaces), r"NoSpaces\.observation_space: expected a gymnasium Space, found None"),
    "methods": (experiment(Half), "Half has no action_spec, observation_spec, step"),
    "several agents": (experiment("pettingzoo:chess"), "pettingzoo\\S* has several agents"),
    "several agents in a module": (experiment("pettingzoo.classic:chess"), "pettingzoo\\S* has several agents"),
    "several agents by class": (experiment(Chess), "pettingzoo\\S* has several agents"),
}


@pytest.mark.parametrize("name", MEANT)
def test_an_error_says_what_was_meant(name):
    call, message = MEANT[name]
    with pytest.raises(AgentkitError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", registry.names())
def test_every_agents_function_says_where_settings_go_and_names_its_loss(name):
    make_agent = registry.module(name).make_agent
    with pytest.raises(AgentkitError, match=rf"Give: {name}.make_agent\({name}.Config\(discount=...\)\)"):
        make_agent(gamma=0.5)
    mine, other = ("make_loss", "make_losses")[:: 1 if "make_loss" in inspect.signature(make_agent).parameters else -1]
    with pytest.raises(AgentkitError, match=f"Unknown argument of {name}.make_agent '{other}'.* '{mine}'"):
        make_agent(**{other: None})


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("DQN", r"Give: agentkit.train\('dqn', ...\), or from agentkit.agents import dqn; dqn.make_agent\(\)"),
        ("make", "Did you mean agentkit.envs.make"),
        ("trian", "Did you mean agentkit.train"),
        ("nothing_like_it", "It has: .*run"),
    ],
)
def test_the_package_says_what_a_name_may_have_meant(name, message):
    with pytest.raises(AttributeError, match=message):
        getattr(agentkit, name)


def test_an_error_inside_of_a_call_is_left_alone():
    def make_networks(environment_spec, config):
        raise TypeError("of my own")

    with pytest.raises(TypeError, match=r"^of my own$"):
        dqn.make_agent(make_networks=make_networks).make_networks(None)
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'environment'"):
        agentkit.train("dqn")


def test_settings_keep_their_signature_and_can_be_copied():
    assert next(iter(inspect.signature(agentkit.ExperimentConfig).parameters)) == "agent"
    assert "evaluation" not in inspect.signature(dqn.make_agent).parameters
    config = sac.Config(discount=0.5)
    assert pickle.loads(pickle.dumps(config)) == copy.deepcopy(config) == config


@pytest.mark.full
def test_the_words_of_before_are_taken_for_one_version_and_said() -> None:
    made = agentkit.ExperimentConfig(dqn.make_agent(dqn.Config(hidden_sizes=(2,))), TRAIN, 1)
    with pytest.warns(DeprecationWarning, match=r"steps: agentkit\.sample calls it 'num_steps' now"):
        assert len(agentkit.sample(made, steps=2).t) == 2
    with (
        pytest.warns(DeprecationWarning, match="episodes: "),
        pytest.raises(AgentkitError, match="episodes and num_episodes are one thing"),
    ):
        agentkit.sample(made, episodes=2, num_episodes=2)
    settings = {"evaluation_period": 0, "hidden_sizes": (2,), "run_directory": None, "progress": False}
    with pytest.warns(DeprecationWarning, match=r"steps: agentkit\.train calls it 'num_steps' now"):
        assert agentkit.train("dqn", TRAIN, steps=3, **settings).steps == 3
