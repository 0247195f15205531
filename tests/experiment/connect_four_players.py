"""Players of Connect Four to judge others by, and games between them: one looks a move ahead, one three."""

from collections.abc import Callable

import numpy as np

from agentkit import envs

Player = Callable[[dict[str, np.ndarray]], int]
"""A function from an observation of ``jax:connect_four``, of whose turn it is, to a column."""

_CENTRE_FIRST = (3, 2, 4, 1, 5, 0, 6)


def one_ply_player(seed: int = 0) -> Player:
    """Returns who wins at once where it can, else takes the column in which the other would, else draws."""
    rng = np.random.default_rng(seed)

    def choose(observation: dict[str, np.ndarray]) -> int:
        own, other = _boards(observation)
        columns = np.flatnonzero(observation["action_mask"]).tolist()
        for pieces in (own, other):
            if winning := [column for column in columns if _has_four(pieces | _landing(own | other, column))]:
                return int(rng.choice(winning))
        return int(rng.choice(columns))

    return choose


def minimax_player(depth: int = 3, seed: int = 0) -> Player:
    """Returns who looks `depth` moves ahead, its own first; a win is 1, a loss -1, all else 0, and equals are drawn."""
    rng = np.random.default_rng(seed)

    def choose(observation: dict[str, np.ndarray]) -> int:
        own, other = _boards(observation)
        columns = np.flatnonzero(observation["action_mask"]).tolist()
        values = [_value_of_move(own, other, column, depth) for column in columns]
        best = [column for column, value in zip(columns, values, strict=True) if value == max(values)]
        return int(rng.choice(best))

    return choose


def play(first: Player, second: Player, num_games: int, random_moves: int = 0, seed: int = 0) -> tuple[int, int, int]:
    """Plays games, and returns how many the first player won, drew and lost."""
    environment = envs.make_multi_agent("jax:connect_four", seed, raw=True, random_moves=random_moves)
    players, counts = {"first": first, "second": second}, [0, 0, 0]
    for _ in range(num_games):
        timesteps = environment.reset()
        while not all(timestep.last() for timestep in timesteps.values()):
            ((mover, timestep),) = timesteps.items()
            timesteps = environment.step({mover: np.int32(players[mover](timestep.observation))})
        counts[1 - round(timesteps["first"].reward)] += 1
    return counts[0], counts[1], counts[2]


def _boards(observation: dict[str, np.ndarray]) -> tuple[int, int]:
    """Returns one's own pieces and the other's as bits: 7 to a column, the lowest row first, the last one never set."""
    columns = observation["observation"][::-1].transpose(2, 1, 0) > 0
    bits = np.pad(columns, ((0, 0), (0, 0), (0, 1))).reshape(2, 49)
    own, other = (sum(1 << int(place) for place in np.flatnonzero(each)) for each in bits)
    return own, other


def _landing(pieces: int, column: int) -> int:
    """Returns the bit on which a piece comes to lie."""
    return (pieces + (1 << 7 * column)) & (0b111111 << 7 * column)


def _has_four(pieces: int) -> bool:
    for shift in (1, 6, 7, 8):  # Up, down to the right, right, up to the right.
        pairs = pieces & pieces >> shift
        if pairs & pairs >> 2 * shift:
            return True
    return False


def _value_of_move(own: int, other: int, column: int, depth: int) -> int:
    """Returns 1, 0 or -1: what a move is worth to who makes it, as far as `depth` moves show."""
    own |= _landing(own | other, column)
    if _has_four(own):
        return 1
    if depth == 1:
        return 0
    worth = -2
    for reply in _CENTRE_FIRST:
        if _landing(own | other, reply):
            worth = max(worth, _value_of_move(other, own, reply, depth - 1))
            if worth == 1:  # There is no better one.
                break
    return 0 if worth == -2 else -worth  # A full board is a draw.
