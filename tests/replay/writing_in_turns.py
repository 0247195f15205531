"""What a replay that is `in_turns` does, in process and on Reverb."""

import threading
from collections.abc import Callable

import pytest

from agentkit.errors import ConfigError
from agentkit.replay import Replay
from agentkit.replay.rate_limiter import SampleToInsertRatio
from agentkit.testing.replay import LONG, SHORT, pair_table, write_pairs


def write_much_in_turns(make: Callable[..., Replay]) -> None:
    """Writes more at once than the rate limit lets in, and draws what is due then."""
    table = pair_table(max_size=100, rate_limiter=SampleToInsertRatio(4.0, 4, 8.0))
    with make([table], default_timeout=SHORT, in_turns=True) as replay:
        write_pairs(replay.writer(1), "pairs", range(90))
        assert replay.info("pairs")[1:4] == (90, 100, 90) and not replay.can_insert("pairs")
        sampler = replay.sampler("pairs", 4, timeout=LONG)
        for _ in range(86):
            next(sampler)
        assert replay.can_insert("pairs")


def draw_too_early_in_turns(make: Callable[..., Replay]) -> None:
    """Draws what is not due: another thread waits for it, and the one that writes is told at once."""
    table = pair_table(max_size=100, rate_limiter=SampleToInsertRatio(4.0, 4, 8.0))
    with make([table], default_timeout=LONG, in_turns=True) as replay:
        writer, sampler, got = replay.writer(1), replay.sampler("pairs", 4, timeout=SHORT), []
        with pytest.raises(ConfigError, match=r"Table 'pairs': expected a draw when .* Draw one batch in each step"):
            next(sampler)
        sampler = replay.sampler("pairs", 4)
        thread = threading.Thread(target=lambda: got.append(next(sampler)), daemon=True)
        thread.start()
        write_pairs(writer, "pairs", range(6))
        thread.join(LONG)
        assert len(got) == 1
