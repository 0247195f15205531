"""What a user reads of a mistake in a loss: the own line and the cause; of a bug of agentkit's, all of it."""

import pathlib
import traceback

import jax.numpy as jnp
import pytest

from agentkit.agents import dqn
from agentkit.errors import SpecError
from agentkit.experiment import ExperimentConfig, MultiAgentConfig, run
from agentkit.experiment.checks import user_tracebacks

SMALL = dqn.Config(hidden_sizes=(8,), min_replay_size=16, batch_size=8)


def of_loss(change):
    """The error of a training whose loss is DQN's, changed."""

    def make_loss(networks, config):
        inner = dqn.make_loss(networks, config)
        return lambda *args: change(inner(*args))

    agent = dqn.make_agent(SMALL, make_loss=make_loss)
    with pytest.raises(Exception) as caught:
        run(ExperimentConfig(agent, "agentkit:catch", 40, evaluation_period=0))
    return caught.value


def wrong_shapes(output):
    return output._replace(loss=jnp.sum(jnp.ones((3, 4)) @ jnp.ones((3, 4))))


def files(error):
    return [frame.filename for frame in traceback.extract_tb(error.__traceback__)]


def test_only_the_users_frames_are_left(monkeypatch):
    error = of_loss(wrong_shapes)
    text = "".join(traceback.format_exception(error))
    # The test's own frames, the one of `run` that raises and of what looks at its arguments, and the loss's two.
    others = [pathlib.Path(file).name for file in files(error) if not user_tracebacks.is_users(file)]
    assert others == ["errors.py", "local.py"]
    assert text.index("jnp.ones((3, 4)) @ jnp.ones((3, 4))") < text.index("TypeError: dot_general requires")
    assert "learner.py" not in text and "JAX_TRACEBACK" not in text and "AGENTKIT_DEBUG=1" in text
    assert len(text.splitlines()) < 25
    monkeypatch.setenv("AGENTKIT_DEBUG", "1")
    assert any(file.endswith("agent_fits.py") for file in files(of_loss(wrong_shapes)))


@pytest.mark.parametrize("make_config, settings", [(ExperimentConfig, {}), (MultiAgentConfig, {"policy_of": "shared"})])
def test_only_the_users_frames_of_an_environment_are_left(make_config, settings):
    """Of one agent's environment, and of one of several agents."""

    def failing(seed):
        return {}["its own"]

    with pytest.raises(KeyError, match="its own") as caught:
        run(make_config(dqn.make_agent(SMALL), failing, 40, evaluation_period=0, **settings))
    assert [pathlib.Path(file).name for file in files(caught.value)] == [
        "test_mistakes.py",
        "errors.py",
        "local.py",
        "test_mistakes.py",
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda output: output.loss, r"must return a LossOutput\(loss, metrics, priorities\)"),
        (lambda output: output._replace(loss=output.loss[None]), r"found the shape \(1,\). Take the mean"),
    ],
)
def test_what_a_loss_must_return_is_said(change, message):
    error = of_loss(change)
    with pytest.raises(SpecError, match=message):
        raise error
    assert not any(file.endswith("update.py") for file in files(error))


def test_a_bug_of_agentkits_own_keeps_all_its_frames():
    try:
        ExperimentConfig.describe(None)
    except AttributeError as error:
        inside = error.with_traceback(error.__traceback__.tb_next)  # Without this test's frame, which is a user's.
    frames = files(inside)
    assert (
        user_tracebacks.shorten(inside) is inside
        and files(inside) == frames
        and not user_tracebacks.was_shortened(inside)
    )
