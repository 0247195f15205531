"""Each item once and with its own steps: whatever the writer has heard when its server, or its stream there, ends."""

import contextlib
import itertools
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

from agentkit import specs
from agentkit.replay import Layout, SampleToInsertRatio, Table
from agentkit.replay.served import writer
from agentkit.replay.table import FromStep, Select
from agentkit.testing.replay import make_step, pair_layout, sequence_layout, wait_until
from agentkit.wire import Client
from tests.replay.served.pair import Host

LONG = 30.0
ALL = 100_000


class Kind(NamedTuple):
    """A kind of items, each of three steps: how its steps are made, and which numbers of steps an item shows."""

    layout: Layout
    step: Callable[[int], Any]
    read: Callable[[Any], list[tuple[int, ...]]]
    expected: Callable[[int], tuple[int, ...]]
    history: int = 3
    inline: bool = False


def _stacked_step(number):
    """Shows two frames in a stack, of which the next step shows one again."""
    frames = [np.full((40, 40), (number + i) % 251, np.uint8) for i in range(2)]
    return {"image": np.stack(frames, -1), "number": np.int32(number)}


KINDS = {
    "transitions": Kind(
        pair_layout(),
        make_step,
        lambda data: [tuple(map(int, row)) for row in zip(data.first[:, 0], data.value, data.last[:, 0], strict=True)],
        lambda number: (number, number, number + 2),
        inline=True,
    ),
    "sequences": Kind(
        sequence_layout(3),
        make_step,
        lambda data: [tuple(row) for row in data["action"].tolist()],
        lambda number: (number, number + 1, number + 2),
    ),
    "stacked frames and the steps before": Kind(
        Layout(
            {"image": specs.Array((40, 40, 2), np.uint8), "number": specs.Array((), np.int32)},
            {"image": FromStep(0, Select.ALL), "number": FromStep(1, Select.FIRST, 2)},
            length=3,
        ),
        _stacked_step,
        lambda data: [
            (*numbers, *image)
            for numbers, image in zip(data["number"].tolist(), data["image"][:, :, 0, 0, 1].tolist(), strict=True)
        ],
        lambda number: (max(0, number - 2), max(0, number - 1), number, *((number + i) % 251 for i in (1, 2, 3))),
        history=5,
    ),
}


@pytest.fixture
def host():
    """Makes hosts of one table, whose rate limit lets nothing in until a story does."""
    made = []

    def make(layout):
        limiter = SampleToInsertRatio(1.0, 1, (-1e6, 1.0))  # One item more than were drawn.
        made.append(Host([Table("items", layout, 10_000, rate_limiter=limiter)]))
        return made[-1]

    yield make
    for each in made:
        each.close()


class Story:
    """A writer that hears of nothing unless it is let, its server, and all items that must be there."""

    def __init__(self, host, kind):
        self.host, self.kind, self.rng = host, kind, np.random.default_rng(0)
        self.replay = host.connect(default_timeout=LONG)
        self.replay.push = lambda seconds: None  # No other thread reads answers or sends blocks.
        self.writer = self.replay.writer(kind.history)
        self.hear = self.writer._hear_now
        self.writer._hear_now = lambda timeout: not self.deaf and self.hear(timeout)
        self.deaf = False
        self.expected, self.num_steps = [], 0
        self.let_in(ALL)

    @property
    def num_inserted(self):
        return self.host.server.replay.info("items").num_inserted

    def let_in(self, count):
        """Sets how many items the limiter lets in, all told."""
        self.host.server.replay.count_as_sampled("items", count - 1)

    def write_block(self):
        """Sends a block of a few steps, or of none, and of at least an item."""
        before = len(self.expected)
        while len(self.expected) == before or self.rng.random() < 0.6:
            if self.num_steps < 4 or self.rng.random() < 0.6:
                assert self.writer.append(self.kind.step(self.num_steps)) == self.num_steps
                self.num_steps += 1
            if self.num_steps >= 4 and self.rng.random() < 0.5:
                first = self.num_steps - 3
                inline = np.float32(first) if self.kind.inline else ()
                self.writer.create_item("items", 1.0, first, self.num_steps, inline=inline)
                self.expected.append(self.kind.expected(first))
        self.writer._send()

    def write_unheard(self, count, partly):
        """Sends blocks whose answers stay unread; where `partly`, the last item waits for the limiter."""
        self.deaf = True
        goal = self.num_inserted - len(self.expected)
        if partly:
            self.let_in(max(1, self.num_inserted))
        for _ in range(count):
            self.write_block()
        goal += len(self.expected)
        if partly:
            self.let_in(goal - 1)
            assert wait_until(lambda: self.num_inserted == goal - 1)
        else:
            last, confirmed = self.writer._sequence, self.host.server.replay.shared.confirmed
            assert wait_until(lambda: confirmed.get(self.writer._name, (0, 0))[0] == last)
            assert self.num_inserted == goal

    def restart(self, checkpoint):
        self.host.stop()
        self.host.server.close()
        self.host.start(checkpoint)

    def save(self, folder):
        folder.mkdir()
        self.host.server.replay.save(folder)
        return folder

    def lose_lease(self):
        """Ends the stream of a writer whose process was stopped for long: its connection ends, too."""
        streams = self.host.server._streams
        for stream in list(streams.values()):
            stream.heard -= 1e6
        self.host.server._next_sweep = 0.0
        assert wait_until(lambda: not streams)
        self.host.cut()

    def write_and_hear(self):
        self.deaf = False
        self.let_in(ALL)
        self.write_block()
        self.writer.flush()

    def check(self):
        """Writes on, hears all, and compares all items."""
        self.write_and_hear()
        data, _ = self.host.server.replay.contents("items")
        assert self.kind.read(data) == self.expected


@pytest.mark.parametrize("kind", KINDS)
def test_each_item_is_in_once_and_with_its_own_steps_whatever_the_writer_has_heard(kind, host, tmp_path):
    story = Story(host(KINDS[kind].layout), KINDS[kind])
    events = ["saved", "saved before", "saved before, with a block partly in", "lease"]
    rounds = [*itertools.product(events, [0, 1, 2], [False]), *itertools.product(events[:3], [1, 2], [True])]
    story.rng.shuffle(rounds)
    for number, (event, num_unheard, partly) in enumerate([("saved", 1, False), *rounds]):
        print(f"{event}: {num_unheard} blocks unheard{', partly in' if partly else ''}")
        if event.startswith("saved before"):
            is_partly = event.endswith("partly in")
            if is_partly:
                story.write_unheard(1, partly=True)
            before = story.save(tmp_path / f"{number}")
            num_saved = len(story.expected) - is_partly
            story.write_and_hear()
            del story.expected[num_saved:]  # These are lost with the server, and their steps are not.
            story.write_unheard(num_unheard, partly)
            story.restart(before)
        else:
            story.write_unheard(num_unheard, partly)
            if event == "saved":
                story.host.stop()
                story.restart(story.save(tmp_path / f"{number}"))
            else:
                story.lose_lease()
        story.check()
    story.replay.close()


def test_a_block_that_overtakes_the_one_before_it_waits_for_it(host):
    """A connection is made anew, and before the wire sends again what the old one took along, the next block goes."""
    story = Story(host(pair_layout()), KINDS["transitions"])
    ship, held = story.writer._ship, []
    story.writer._ship = held.append
    story.write_block()
    story.write_block()
    ship(held[1])
    time.sleep(0.1)  # The server has the time to take it.
    ship(held[0])
    story.writer._ship = ship
    story.check()
    story.replay.close()


def test_an_opening_that_comes_late_ends_no_stream(host):
    """It was on its way in a connection that was lost, and the writer has opened another stream meanwhile."""
    story = Story(host(pair_layout()), KINDS["transitions"])
    story.write_unheard(2, partly=True)
    opening = {"writer": story.writer._name, "session": 0, "store": 0, "history": 3, "blocks": []}
    with contextlib.closing(Client(story.host.address, patience=LONG)) as late:
        late.ask({"do": "open", **opening}, LONG)
    story.deaf = False
    story.let_in(ALL)
    story.writer.flush()  # And sends nothing more that would be refused.
    story.check()
    story.replay.close()


def test_the_steps_that_are_kept_are_as_few_as_items_may_need(host, monkeypatch):
    monkeypatch.setattr(writer, "MAX_STEPS", 2)
    story = Story(host(sequence_layout(3)), KINDS["sequences"])
    for _ in range(20):
        story.write_block()
        story.writer.flush()
        assert sum(len(block["steps"][0]) for block in list(story.writer._history)[1:]) < 3
    story.replay.close()
