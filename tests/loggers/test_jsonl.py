import json
import math
import os
import tracemalloc

import pytest

from agentkit.errors import ConfigError
from agentkit.loggers import JsonLinesLogger, read_jsonl


def test_each_row_is_an_object_at_once_and_json_everywhere(tmp_path):
    path = tmp_path / "new" / "learner.jsonl"
    with JsonLinesLogger(path) as logger:
        logger.write({"steps": 1, "loss": 0.5, "missing": None})
        assert read_jsonl(path) == [{"steps": 1, "loss": 0.5}]  # Before it is closed.
        logger.write({"steps": 2, "q": math.nan, "r": math.inf})
    lines = [json.loads(line, parse_constant=pytest.fail) for line in path.read_text().splitlines()]
    assert lines[1] == {"steps": 2, "q": None, "r": None}
    with pytest.raises(ValueError, match="closed"):
        logger.write({"steps": 3})


def test_a_resumed_log_forgets_what_comes_again_and_half_a_row(tmp_path):
    path = tmp_path / "train.jsonl"
    with JsonLinesLogger(path) as logger:
        for step in (10, 20, 30):
            logger.write({"steps": step})
    with path.open("a") as file:
        file.write('{"steps": 4')
    with JsonLinesLogger(path, resume_step=20) as logger:
        logger.write({"steps": 25})
    assert [row["steps"] for row in read_jsonl(path)] == [10, 20, 25]
    with pytest.raises(ConfigError, match="exists already"):
        JsonLinesLogger(path)
    path.write_text("[1]\n")
    with pytest.raises(ConfigError, match="damaged"):
        JsonLinesLogger(path, resume_step=5)


@pytest.mark.parametrize(
    "row", ['{"steps": "x"}', '{"steps": [1]}', '{"steps": 1, "v": "a"}', '{"steps": 1%s}' % (400 * "0"), 20_000 * "["]
)
def test_a_damaged_log_is_told_and_stays(tmp_path, row):
    path = tmp_path / "train.jsonl"
    path.write_text(f'{{"steps": 1}}\n{row}\n')
    with pytest.raises(ConfigError, match=r"train\.jsonl is damaged: .*Mend it, or move it away"):
        JsonLinesLogger(path, resume_step=5)
    assert path.read_text() == f'{{"steps": 1}}\n{row}\n'


def test_a_text_of_the_users_own_is_read(tmp_path):
    path = tmp_path / "train.jsonl"
    path.write_text('{"steps": 1, "note": "a lower rate"}\n')
    assert read_jsonl(path) == [{"steps": 1, "note": "a lower rate"}]
    path.write_text(20_000 * "[" + "\n")
    with pytest.raises(ConfigError, match="is damaged: "):
        read_jsonl(path)


def test_a_long_log_goes_on_without_being_held_in_memory(tmp_path):
    path = tmp_path / "train.jsonl"
    path.write_text("".join(f'{{"steps": {step}, "x": 0.5}}\n' for step in range(20_000)))
    tracemalloc.start()
    try:
        JsonLinesLogger(path, resume_step=5_000).close()
        assert tracemalloc.get_traced_memory()[1] < 400_000  # The text has 500,000.
    finally:
        tracemalloc.stop()
    assert len(read_jsonl(path)) == 5_001


def test_a_full_disk_leaves_whole_rows(tmp_path, monkeypatch):
    path = tmp_path / "train.jsonl"
    logger = JsonLinesLogger(path)
    logger.write({"steps": 1})

    class Full:
        def __init__(self, file):
            self.file = file

        def fileno(self):
            return self.file.fileno()

        def write(self, text):
            self.file.write(bytes(text)[:3])
            raise OSError(28, os.strerror(28))

    real, logger._file = logger._file, Full(logger._file)
    with pytest.raises(OSError, match="No space"):
        logger.write({"steps": 2})
    assert path.read_text() == '{"steps": 1}\n'
    logger._file = real
    with logger:
        logger.write({"steps": 3})
    assert [row["steps"] for row in read_jsonl(path)] == [1, 3]
