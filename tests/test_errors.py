import pytest

from agentkit import errors


def test_unknown_name_proposes_the_nearest_and_lists_the_known() -> None:
    message = str(errors.unknown_name("agent", "sca", ["dqn", "sac"], "See: agentkit list"))
    assert message == "Unknown agent 'sca'. Did you mean 'sac'? Known: dqn, sac. See: agentkit list"
    assert "Did you mean 'ppo'?" in str(errors.unknown_name("agent", "PPO", ["dqn", "ppo"]))
    assert "Did you mean 'CartPole-v1'?" in str(errors.unknown_name("environment", "cartpole", ["CartPole-v1"]))


def test_a_slip_among_many_names_is_answered_without_the_list() -> None:
    many = [f"name_{number}" for number in range(20)] + ["learning_rate"]
    message = str(errors.unknown_name("setting", "learning_rat", many, "See: agentkit show sac"))
    assert message == "Unknown setting 'learning_rat'. Did you mean 'learning_rate'? See: agentkit show sac"
    assert "Known: " in str(errors.unknown_name("setting", "lr_rate", many))
    assert "Known: " in str(errors.unknown_name("setting", "learning_rat", many[-3:]))


def test_unknown_name_proposes_nothing_far_off() -> None:
    assert str(errors.unknown_name("agent", "xxxxxx", ["dqn"])) == "Unknown agent 'xxxxxx'. Known: dqn."
    assert str(errors.unknown_name("agent", "dqn", [])) == "Unknown agent 'dqn'."


def test_unknown_name_prints_its_message_not_its_repr() -> None:
    with pytest.raises(KeyError) as caught:
        raise errors.unknown_name("agent", "x", ["dqn"])
    assert str(caught.value).startswith("Unknown agent")


def test_missing_extra_says_what_to_install() -> None:
    error = errors.missing_extra("reverb", "reverb")
    assert isinstance(error, ImportError)
    assert "pip install 'agentkit-rl[reverb]'" in str(error)


@pytest.mark.parametrize(
    ("cls", "builtin"),
    [
        (errors.ConfigError, ValueError),
        (errors.SpecError, ValueError),
        (errors.UnknownNameError, KeyError),
        (errors.MissingExtraError, ImportError),
        (errors.ReplayTimeoutError, TimeoutError),
        (errors.VariablesTimeoutError, TimeoutError),
        (errors.ReplayClosedError, RuntimeError),
        (errors.CheckpointError, RuntimeError),
    ],
)
def test_every_error_is_agentkits_and_a_builtin(cls: type, builtin: type) -> None:
    assert issubclass(cls, errors.AgentkitError)
    assert issubclass(cls, builtin)


def test_an_old_word_is_taken_with_a_warning_and_not_beside_the_new_one() -> None:
    @errors.accepts_old_words(steps="num_steps")
    def play(num_steps: int = 1) -> int:
        return num_steps

    with pytest.warns(DeprecationWarning, match=r"steps: .*play calls it 'num_steps' now"):
        assert play(steps=3) == 3  # type: ignore[call-arg]
    with pytest.warns(DeprecationWarning), pytest.raises(errors.ConfigError, match="are one thing"):
        play(steps=3, num_steps=3)  # type: ignore[call-arg]
    assert play(num_steps=2) == 2
