"""What games of two players on a board share: who plays, the moves that chance begins with, and how it is drawn."""

from __future__ import annotations

from typing import Any

import numpy as np

from agentkit.errors import ConfigError

PLAYERS = ("first", "second")
_COLOURS = ((230, 120, 40), (50, 100, 210))


def check_random_moves(value: Any, most: int) -> None:
    """Refuses a number of random first moves with which a game might be over before it begins.

    Raises:
        ConfigError: it is no whole number from 0 to `most`.
    """
    if value not in range(most + 1):
        raise ConfigError(f"random_moves: expected a whole number from 0 to {most}, found {value!r}.")


def draw(pieces: np.ndarray) -> np.ndarray:
    """Returns a board as an image: pieces of "first" orange, of "second" blue.

    Args:
        pieces: ``[R, C, 2]``, 1 where a player has one.

    Returns:
        uint8 ``[32 R, 32 C, 3]``.
    """
    board = np.full((*pieces.shape[:2], 3), 255, np.uint8)
    for player, colour in enumerate(_COLOURS):
        board[pieces[..., player] > 0] = colour
    image = np.kron(board, np.ones((32, 32, 1), np.uint8))
    image[::32] = image[:, ::32] = 0
    return image
