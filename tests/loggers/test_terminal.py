import io
import itertools
import sys
import types

import pytest

from agentkit.errors import ConfigError
from agentkit.loggers import TerminalLogger
from agentkit.loggers.progress import Curve, Progress
from agentkit.loggers.terminal import drawn_lines


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
    assert lines[1] == " 10% 100/1,000 steps | 10 steps/s | 1:30 left | 20 updates/s"
    assert lines[3] == "evaluation [1]"
    assert lines[4] == " 24% 240/1,000 steps | 10 steps/s | took 0:24 | return 2.5 | 3 episodes | 20 updates/s"


def test_the_line_of_a_run_with_nothing_to_do_is_printed_once():
    stream = io.StringIO()
    logger = TerminalLogger(100, start_step=600, stream=stream, clock=_Clock())
    logger.write({"steps": 600})
    logger.close()
    assert stream.getvalue().splitlines() == ["100% 600/100 steps | took 0:00"]


def test_time_left_of_a_resumed_run_counts_from_where_it_resumed():
    clock = _Clock()
    logger = TerminalLogger(1000, start_step=900, stream=io.StringIO(), clock=clock)
    for steps in (925, 950):
        clock.now += 5
        logger.write({"steps": steps})
    assert "0:10 left" in logger.line()


def test_no_time_left_is_shown_while_the_run_still_compiles():
    clock = _Clock()
    logger = TerminalLogger(1000, stream=io.StringIO(), clock=clock)
    clock.now += 4.9
    logger.write({"steps": 1})
    clock.now += 60
    assert logger.line() == "  0% 1/1,000 steps"  # All that is known is how long the first step was compiled.
    logger.write({"steps": 2, "episodes": 1})
    assert "left" in logger.line() and logger.line().endswith("| 1 episode")


def test_the_speed_is_without_the_time_that_the_first_step_compiled():
    clock = _Clock()
    logger = TerminalLogger(10_000, stream=io.StringIO(), clock=clock)
    for step in range(1, 4):
        clock.now += 8.0 if step == 1 else 0.01
        logger.write({"steps": step})
    assert "| 100 steps/s |" in logger.line()


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


def test_learning_in_bursts_has_a_rate_between_them_and_none_before_the_first():
    """As PPO's: 320 updates every 40 s, longer than the window of rates."""
    clock = _Clock()
    logger = TerminalLogger(100_000, stream=io.StringIO(), clock=clock)
    shown = []
    for second in range(1, 130):
        clock.now += 1
        logger.write({"steps": 50 * second, "updates": 320 * (second // 40)})
        shown.append(logger.line())
    assert not any("updates/s" in line for line in shown[:39])
    assert all("| 8 updates/s" in line for line in shown[79:])


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_the_bar_fits_its_terminal_however_long_the_numbers(width):
    progress = Progress(10_000_000, 0, now=0.0)
    for number in range(1, 400):
        row = {"steps": 25_000 * number, "episodes": number, "episode_return": 30.0 * number - 9000.0}
        progress.add(number / 100, {**row, "updates": 300 * number})
        for line in drawn_lines(progress, 100.0 + number, width):
            assert len("".join(line)) <= width
    first, second = ("".join(line) for line in drawn_lines(progress, 4_000.0, width))
    assert "━" in first and "9,975,000/10,000,000 steps" in first and "return 2835.0" in second
    assert first.endswith("left") == (width >= 60)
    if width >= 80:
        assert "steps/s" in first
        assert "▁▂" in second and second.index("▁") < second.index("█") and second.endswith("updates/s")


def test_the_curve_is_of_all_episodes_in_equal_parts():
    curve = Curve()
    for value in range(1_000):
        curve.add(float(value))
    points = curve.points(10)
    assert len(points) <= 10 and points[0] < 60 and points[-1] > 900
    steps = [later - earlier for earlier, later in itertools.pairwise(points)]
    assert max(steps[:-1]) == pytest.approx(min(steps[:-1]))


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
def test_a_return_that_is_no_number_is_shown_and_is_no_part_of_the_curve(value):
    progress = Progress(1_000, 0, now=0.0)
    for number in range(1, 9):
        odd = number in (3, 8)
        progress.add(number, {"steps": 100 * number, "episode_return": float(value) if odd else float(number)})
    _, second = ("".join(line) for line in drawn_lines(progress, 9.0, 80))
    assert f"return {value}" in second and progress.curve(10) == "▁▂▅▆▇█"


def test_a_notebook_has_one_output_that_changes(monkeypatch, capsys):
    outputs = []

    class Handle:
        def update(self, shown, raw):
            outputs[-1] = shown["text/plain"]

    def display(shown, raw, display_id):
        outputs.append(shown["text/plain"])
        return Handle()

    class IPython:
        @staticmethod
        def get_ipython():
            return types.SimpleNamespace(kernel=object())

    IPython.display = types.SimpleNamespace(display=display)
    monkeypatch.setitem(sys.modules, "IPython", IPython)
    clock = _Clock()
    with TerminalLogger(100, clock=clock) as logger:
        for step in (10, 50, 100):
            clock.now += 1
            logger.write({"steps": step})
        logger.message("saved")
    assert len(outputs) == 1 and "100/100 steps" in outputs[0] and capsys.readouterr().out == "saved\n"


def test_updates_are_counted_as_such_and_said_once():
    clock = _Clock()
    logger = TerminalLogger(100, unit="update", stream=io.StringIO(), clock=clock)
    for updates in (10, 20, 30):
        clock.now += 1
        logger.write({"steps": updates, "updates": updates})
    assert logger.line() == " 30% 30/100 updates | 10 updates/s"


def test_nothing_known_is_still_a_line():
    assert TerminalLogger(10, stream=io.StringIO()).line() == "  0% 0/10 steps"


@pytest.mark.parametrize("kwargs", [{"num_steps": 0}, {"num_steps": 5, "interval_seconds": 0}])
def test_impossible_settings(kwargs):
    with pytest.raises(ConfigError, match="num_steps >= 1"):
        TerminalLogger(**kwargs)
