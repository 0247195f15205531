"""OpenSpiel's games behind agentkit's interface: turns, hands at once, chance, hidden cards, rewards by hand."""

import numpy as np
import pytest

pyspiel = pytest.importorskip("pyspiel")

from agentkit import envs  # noqa: E402
from agentkit.envs.multi_agent.openspiel import OpenSpiel, make  # noqa: E402
from agentkit.errors import ConfigError, SpecError, UnknownNameError  # noqa: E402
from agentkit.testing.multi_agent import MultiAgentEnvironmentContract, rollout  # noqa: E402


class OfOpenSpiel(MultiAgentEnvironmentContract):
    name, num_steps = "connect_four", 80

    def make_environment(self):
        return envs.make_multi_agent(f"openspiel:{self.name}", seed=3)


class TestConnectFour(OfOpenSpiel):
    pass


class TestLeducPoker(OfOpenSpiel):
    """With cards by chance, before and between the turns."""

    name = "leduc_poker"


class TestGoofspiel(OfOpenSpiel):
    """Both bid at once."""

    name = "goofspiel"


class TestBoxPushing(OfOpenSpiel):
    """Both act at once, and get rewards on the way."""

    name, num_steps = "coop_box_pushing", 150


def play(environment, *actions):
    given = [environment.reset()]
    for action in actions:
        (who,) = [agent_id for agent_id, timestep in given[-1].items() if not timestep.last()]
        given.append(environment.step({who: np.int32(action)}))
    return given


def test_the_loser_hears_of_a_game_that_ends_at_the_others_turn():
    *before, last = play(make("tic_tac_toe"), 0, 3, 1, 4, 2)
    assert all(set(given) == {f"player_{turn % 2}"} for turn, given in enumerate(before))
    assert {who: (timestep.reward, timestep.discount) for who, timestep in last.items()} == {
        "player_0": (1.0, 0.0),
        "player_1": (-1.0, 0.0),
    }
    mask = before[1]["player_1"].observation["action_mask"]
    assert mask.tolist() == [0, 1, 1, 1, 1, 1, 1, 1, 1] and before[1]["player_1"].observation["observation"].shape == (
        3, 3, 3,
    )  # fmt: skip


def test_a_hand_of_poker_by_hand():
    """In Kuhn's poker a bet that is passed wins the ante of 1, whatever the cards; one that is called wins 2."""
    bet = play(make("kuhn_poker"), 1, 0)[-1]
    assert (bet["player_0"].reward, bet["player_1"].reward) == (1.0, -1.0)
    called = play(make("kuhn_poker"), 1, 1)[-1]
    assert sorted(timestep.reward for timestep in called.values()) == [-2.0, 2.0]


def test_chance_follows_from_the_seed():
    def cards(seed):
        return [
            given[who].observation["observation"].tolist()
            for given in rollout(make("leduc_poker", seed), 40)
            for who in sorted(given)
        ]

    assert cards(1) == cards(1) != cards(2)


def test_what_is_hidden_is_not_seen_and_what_was_seen_can_be_kept():
    known, seen = make("kuhn_poker"), make("kuhn_poker", observed="observation")
    assert known.agent_specs()["player_0"].observations["observation"].shape == (11,)
    assert seen.agent_specs()["player_0"].observations["observation"].shape == (7,)
    (given,) = play(known)
    for dealt in (0, 1, 2):  # Player 0 sees its own card, and nothing of the other's.
        for other in {0, 1, 2} - {dealt}:
            state = pyspiel.load_game("kuhn_poker").new_initial_state()
            state.apply_action(dealt)
            state.apply_action(other)
            same = np.array_equal(state.information_state_tensor(0), given["player_0"].observation["observation"])
            assert same == (known._state.history()[0] == dealt)


@pytest.mark.parametrize(
    ("name", "settings", "error", "match"),
    [
        ("conect_four", {}, UnknownNameError, "openspiel:connect_four"),
        ("connect_four", {"row": 5}, UnknownNameError, "'rows'"),
        ("connect_four", {"rows": "five"}, ConfigError, "rows"),
        ("connect_four", {"observed": "information_state"}, UnknownNameError, "observation"),
        ("mfg_crowd_modelling", {}, SpecError, "mean field"),
    ],
)
def test_what_there_is_not_is_refused(name, settings, error, match):
    with pytest.raises(error, match=match):
        make(name, **settings)


def test_a_move_that_is_not_allowed_is_refused():
    environment = make("tic_tac_toe")
    environment.reset()
    environment.step({"player_0": np.int32(4)})
    with pytest.raises(SpecError, match=r"'player_1' took action 4.*action_mask"):
        environment.step({"player_1": np.int32(4)})


def test_a_game_that_is_handed_in_is_taken():
    environment = envs.make_multi_agent(pyspiel.load_game("connect_four(rows=5)"), raw=True)
    assert isinstance(environment, OpenSpiel)
    assert environment.agent_specs()["player_0"].observations["observation"].shape == (3, 5, 7)
