import errno
import math
import subprocess
import sys
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentkit.errors import ConfigError
from agentkit.loggers import CsvLogger, csv, read_csv


def _write(path, rows, **kwargs):
    with CsvLogger(path, **kwargs) as logger:
        for row in rows:
            logger.write(row)


def test_columns_grow_and_earlier_rows_stay(tmp_path):
    path = tmp_path / "logs" / "train.csv"
    _write(path, [{"steps": 1}, {"steps": 2, "loss": 0.5}, {"loss": None, "steps": 3}, {"new": 0}])
    assert path.read_text() == "steps,loss,new\n1,,\n2,0.5,\n3,,\n,,0\n"
    assert list(path.parent.iterdir()) == [path]  # no temporary file is left


def test_a_row_is_on_disk_before_the_next_one(tmp_path):
    logger = CsvLogger(tmp_path / "a.csv")
    logger.write({"steps": 1, "loss": math.nan})
    assert read_csv(tmp_path / "a.csv")[1] == [{"steps": "1", "loss": "nan"}]
    logger.close()
    logger.close()
    with pytest.raises(ValueError, match="closed"):
        logger.write({"steps": 2})


def test_resume_drops_later_rows_and_a_torn_one(tmp_path):
    path = tmp_path / "a.csv"
    _write(path, [{"steps": s, "x": 10 * s} for s in (0, 5, 10, 15)])
    with open(path, "a") as file:
        file.write("10,1")  # killed here, in the middle of 10,100
    _write(path, [{"steps": 12, "x": 1}], resume_step=10)
    assert read_csv(path)[1] == [{"steps": s, "x": x} for s, x in [("0", "0"), ("5", "50"), ("10", "100"), ("12", "1")]]


def test_resume_at_step_zero_keeps_step_zero_only(tmp_path):
    path = tmp_path / "a.csv"
    _write(path, [{"steps": 0}, {"steps": 1}])
    _write(path, [], resume_step=0)
    assert read_csv(path)[1] == [{"steps": "0"}]


@pytest.mark.parametrize("row", [{}, {"steps": 15_000, "new": 1}])
def test_a_long_log_goes_on_without_being_held_in_memory(tmp_path, row):
    """Of a run of weeks it has gigabytes, and an actor that is started again has minutes."""
    path = tmp_path / "a.csv"
    path.write_text("steps,x\n" + "".join(f"{step},{step * step}\n" for step in range(20_000)))
    logger = CsvLogger(path, resume_step=15_000)
    tracemalloc.start()
    try:
        if row:
            logger.write(row)
        else:
            CsvLogger(path, resume_step=14_000).close()
        assert tracemalloc.get_traced_memory()[1] < 300_000  # The text has 300,000, as lists or dicts millions.
    finally:
        tracemalloc.stop()
        logger.close()
    columns, rows = read_csv(path)
    assert columns == ["steps", "x", *(["new"] if row else [])] and len(rows) == (15_002 if row else 14_001)


def test_names_with_newlines_and_quotes_stay_over_a_resume(tmp_path):
    path = tmp_path / "a.csv"
    names = ["two\nlines", 'a "quoted" one', "a, comma", "\u2028"]
    _write(path, [{"steps": 1, **dict.fromkeys(names, 2)}, {"steps": 2}])
    path.write_text(path.read_text() + '"3","4",5,6,7\n')  # A spreadsheet may quote all.
    _write(path, [{"steps": 4, "new": 0}], resume_step=3)
    columns, rows = read_csv(path)
    assert columns == ["steps", *names, "new"] and [row["steps"] for row in rows] == ["1", "2", "3", "4"]
    assert rows[2]["two\nlines"] == "4" and rows[0]["new"] == ""


@pytest.mark.parametrize("text", [b"steps,x\nabc,1\n", b"steps,x\n1,\xff\n", b"steps\n" + b"1" * (2**24 + 1)])
def test_a_damaged_log_is_told_and_stays(tmp_path, text):
    path = tmp_path / "a.csv"
    path.write_bytes(text)
    with pytest.raises(ConfigError, match=r"log .*a\.csv is damaged: .*\. Mend it"):
        CsvLogger(path, resume_step=3)
    assert path.read_bytes() == text and list(tmp_path.iterdir()) == [path]


def test_resume_of_a_log_that_was_never_written(tmp_path):
    _write(tmp_path / "a.csv", [{"steps": 1}], resume_step=0)
    assert read_csv(tmp_path / "a.csv")[1] == [{"steps": "1"}]


def test_an_old_log_is_not_overwritten(tmp_path):
    path = tmp_path / "a.csv"
    _write(path, [{"steps": 1}])
    with pytest.raises(ConfigError, match="exists already"):
        CsvLogger(path)
    assert read_csv(path)[1] == [{"steps": "1"}]


_ROWS = st.lists(st.dictionaries(st.sampled_from("abcd"), st.floats() | st.integers(-99, 99), min_size=1), min_size=1)


@pytest.mark.full
@given(rows=_ROWS)
def test_what_is_written_is_read(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("csv") / "a.csv"
    _write(path, rows)
    columns, read = read_csv(path)
    assert set(columns) == set().union(*rows)
    for written, found in zip(rows, read, strict=True):
        for name in columns:
            if name not in written:
                assert found[name] == ""
            else:
                value = float(found[name])
                assert value == written[name] or (math.isnan(value) and math.isnan(written[name]))


def _small_files(*rows, limit):
    """Code of a process that writes rows to the log in its first argument, no file of which may pass `limit` bytes."""
    return f"""
import resource, signal, sys
from agentkit.loggers import CsvLogger
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # So that a write past the limit is an OSError, as on a full disk.
with CsvLogger(sys.argv[1]) as logger:
    for row in {rows!r}:
        soft = {limit} if row.pop("full", 0) else resource.RLIM_INFINITY
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, resource.RLIM_INFINITY))
        try:
            logger.write(row)
        except OSError as error:
            print(error.strerror)
"""


@pytest.mark.parametrize("column", ["loss", "new"])
def test_a_row_without_room_leaves_the_log_whole_and_it_goes_on(tmp_path, column):
    """A new column rewrites the file, another value appends to it: both may find the disk full."""
    path = tmp_path / "a.csv"
    rows = [{"steps": 1, "loss": 0.5}, {"steps": 2, column: 123456.789, "full": 1}, {"steps": 3, column: 2}]
    code = _small_files(*rows, limit=len("steps,loss\n1,0.5\n") + 4)
    done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, timeout=60.0)
    assert done.stdout == "File too large\n", done.stderr
    assert [row["steps"] for row in read_csv(path)[1]] == ["1", "3"]
    assert list(tmp_path.iterdir()) == [path] and path.read_text().count("\n") == 3


@pytest.mark.parametrize("column", [{}, {"loss": 1.0}, {"other": 1.0}])
def test_a_log_that_cannot_be_opened_for_a_while_goes_on(tmp_path, monkeypatch, column):
    def refuse(path):
        raise OSError(errno.EMFILE, "Too many open files", str(path))

    with CsvLogger(tmp_path / "a.csv") as logger:
        logger.write({"steps": 1})
        with monkeypatch.context() as patched:
            patched.setattr(csv, "open_to_append", refuse)
            for step in (2, 3):
                with pytest.raises(OSError, match="Too many open files"):
                    logger.write({"steps": step, "loss": 0.5})
        logger.write({"steps": 4, **column})
        logger.write({"steps": 5})
    columns, rows = read_csv(tmp_path / "a.csv")
    assert columns == list(dict.fromkeys(["steps", "loss", *column]))
    found = [{name: float(cell) for name, cell in row.items() if cell} for row in rows]
    assert found == [{"steps": 1}, {"steps": 4, **column}, {"steps": 5}]
    with pytest.raises(ValueError, match="closed"):
        logger.write({"steps": 6, "new": 1})


def test_a_first_row_without_columns_is_refused(tmp_path):
    with CsvLogger(tmp_path / "a.csv") as logger, pytest.raises(ValueError, match=r"first row.*is empty"):
        logger.write({})
