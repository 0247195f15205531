"""The players that judge others at Connect Four: which moves they see, and how games are counted."""

import numpy as np
import pytest

from tests.experiment.connect_four_players import minimax_player, one_ply_player, play


def seen(*rows):
    """Returns the observation of who has the pieces x; rows from the top, those above are empty."""
    board = [*["......."] * (6 - len(rows)), *rows]
    pieces = np.array([[[square == "x", square == "o"] for square in row] for row in board], np.float32)
    return {"observation": pieces, "action_mask": (pieces[0].sum(axis=1) == 0).astype(np.int8)}


def chosen(make, observation):
    return {make(seed=seed)(observation) for seed in range(30)}


@pytest.mark.parametrize("make", [one_ply_player, minimax_player])
@pytest.mark.parametrize(
    ("rows", "columns"),
    [
        (["......o", "......o", "xxx...o"], {3}),  # Wins, although the other threatens to.
        (["..x....", "..x....", "..x.o..", "o.o.o.."], {2}),  # A column.
        (["..xx...", ".xoo...", "xoox..o"], {3}),  # A diagonal, from the left below.
        (["...xx..", "...oox.", "o..xoox"], {3}),  # From the right below.
        ([".x.....", "ooo.xx."], {3}),  # Blocks.
    ],
)
def test_an_immediate_win_is_taken_and_the_others_is_blocked(make, rows, columns):
    assert chosen(make, seen(*rows)) == columns


def test_what_is_a_line_only_across_an_edge_is_none():
    """The three at the top of the first column and the foot of the second would be neighbours in one row of bits."""
    across = seen("x......", "x......", "x......", "o......", "o......", "o......")
    assert chosen(one_ply_player, across) == set(range(1, 7))


def test_three_moves_ahead_a_line_open_at_both_ends_is_seen():
    open_two = seen("..oo...", "..xx...")
    assert chosen(minimax_player, open_two) == {1, 4} < chosen(one_ply_player, open_two)


def test_games_with_a_random_player_are_won_on_either_side():
    rng = np.random.default_rng(0)

    def drawn(observation):
        return int(rng.choice(np.flatnonzero(observation["action_mask"])))

    won, draws, lost = play(one_ply_player(), drawn, 10)
    assert won >= 8 and won + draws + lost == 10
    won, draws, lost = play(drawn, minimax_player(), 10)
    assert lost >= 8 and won + draws + lost == 10
