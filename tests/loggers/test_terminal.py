import io

import pytest

from agentkit.errors import ConfigError
from agentkit.loggers import TerminalLogger


class _Clock:
    now = 100.0

    def __call__(self):
        return self.now


class _Terminal(io.StringIO):
    def isatty(self):
        return True


def test_plain_lines_at_intervals_and_at_the_end():
    clock, stream = _Clock(), io.StringIO()
    logger = TerminalLogger(1000, interval_seconds=10, stream=stream, clock=clock)
    for second in range(25):
        clock.now = 100.0 + second
        logger.write({"steps": 10 * second, "updates": 20 * second, "unknown": 1.0})
    logger.write({"episodes": 2, "episode_return": 1.0, "samples_per_insert": 256.0})
    logger.write({"episodes": 3, "episode_return": 4.0})
    logger.message("evaluation [1]")
    logger.close()
    logger.close()
    lines = stream.getvalue().splitlines()
    assert len(lines) == 5  # seconds 0, 10, 20, the message, the end
    assert lines[1] == " 10% 100/1,000 steps | 1:30 left | 20 updates/s"
    assert lines[3] == "evaluation [1]"
    assert lines[4] == (
        " 24% 240/1,000 steps | took 0:24 | return 2.5 | 3 episodes | 20 updates/s | 256.0 samples/insert"
    )


def test_time_left_of_a_resumed_run_counts_from_where_it_resumed():
    clock = _Clock()
    logger = TerminalLogger(1000, start_step=900, stream=io.StringIO(), clock=clock)
    clock.now += 10
    logger.write({"steps": 950})
    assert "0:10 left" in logger.line()


def test_no_time_left_is_shown_while_the_run_still_compiles():
    clock = _Clock()
    logger = TerminalLogger(1000, stream=io.StringIO(), clock=clock)
    clock.now += 4.9
    logger.write({"steps": 1})
    assert "left" not in logger.line()
    clock.now += 0.2
    assert "left" in logger.line()


def test_rates_follow_the_recent_past():
    clock = _Clock()
    logger = TerminalLogger(10_000, stream=io.StringIO(), clock=clock)
    for second in range(200):
        clock.now += 1
        logger.write({"steps": second if second < 100 else 100 + 10 * (second - 100)})
    assert "14:51 left" in logger.line()  # (10,000 - 1,090) steps at 10 a second, not at the mean


def test_a_terminal_gets_one_line_redrawn_and_the_cursor_back():
    stream, clock = _Terminal(), _Clock()
    with TerminalLogger(100, stream=stream, clock=clock) as logger:
        for step in (0, 50, 100):
            clock.now += 1
            logger.write({"steps": step, "episode_return": -1.5})
        logger.message("[saved]")
    text = stream.getvalue()
    assert "\x1b[2K" in text and "50/100 steps" in text and "[saved]" in text
    assert text.rstrip().endswith("\x1b[?25h")


def test_nothing_known_is_still_a_line():
    assert TerminalLogger(10, stream=io.StringIO()).line() == "  0% 0/10 steps"


@pytest.mark.parametrize("kwargs", [{"num_steps": 0}, {"num_steps": 5, "interval_seconds": 0}])
def test_impossible_settings(kwargs):
    with pytest.raises(ConfigError, match="num_steps >= 1"):
        TerminalLogger(**kwargs)
