"""The perfect player of tic-tac-toe, and games against it."""

import functools
from collections.abc import Callable

import numpy as np

LINES = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6))
Board = tuple[int, ...]
"""Nine squares: 0 is free, 1 of who is to move, -1 of the other."""


@functools.cache
def value(board: Board) -> int:
    """Returns what the game is worth to who is to move, where both play perfectly: 1, 0 or -1."""
    if any(all(board[i] == -1 for i in line) for line in LINES):
        return -1
    return max((-value(after(board, square)) for square in free(board)), default=0)


def free(board: Board) -> list[int]:
    return [square for square in range(9) if board[square] == 0]


def after(board: Board, square: int) -> Board:
    """Returns the board after a move, as the other sees it."""
    return tuple(-1 if i == square else -x for i, x in enumerate(board))


@functools.cache
def perfect_moves(board: Board) -> list[int]:
    """Returns all moves that keep what the game is worth."""
    return [square for square in free(board) if -value(after(board, square)) == value(board)]


def player_of(policy) -> Callable[[Board], int]:
    """Returns a greedy `LoadedPolicy` as a function of boards, asked once for each."""

    @functools.cache
    def choose(board: Board) -> int:
        squares = np.array(board)
        seen = np.stack([squares == 1, squares == -1], axis=1).astype(np.float32)
        return int(policy.select_action({"observation": seen, "action_mask": (squares == 0).astype(np.int8)}))

    return choose


def play(choose: Callable[[Board], int], side: int, num_games: int, seed: int = 0) -> tuple[int, int, int]:
    """Plays games against the perfect player, who draws among its moves; returns won, drawn and lost ones.

    Args:
        choose: the move for a board.
        side: 0 moves first, 1 second.
        num_games: how many.
        seed: of the perfect player's draws.
    """
    rng, counts = np.random.default_rng(seed), [0, 0, 0]
    for _ in range(num_games):
        board, turn = (0,) * 9, 0
        while free(board) and not _is_lost(board):
            square = choose(board) if turn == side else int(rng.choice(perfect_moves(board)))
            assert board[square] == 0, "an illegal move"
            board, turn = after(board, square), 1 - turn
        counts[1 if not _is_lost(board) else 2 if turn == side else 0] += 1
    return counts[0], counts[1], counts[2]


def _is_lost(board: Board) -> bool:
    """Returns whether the other, who moved last, has three in a line."""
    return any(all(board[i] == -1 for i in line) for line in LINES)


def losing_lines(choose: Callable[[Board], int], side: int) -> int:
    """Counts the lines of play, of any opponent at all, in which this player loses."""

    def count(board: Board, turn: int) -> int:
        if _is_lost(board):
            return int(turn == side)
        squares = [choose(board)] if turn == side and free(board) else free(board)
        return sum(count(after(board, square), 1 - turn) for square in squares)

    return count((0,) * 9, 0)
