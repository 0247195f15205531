"""The file that says which run of a tracking service belongs to a run folder, also on a disk without hard links."""

import errno
import os
import threading

import pytest

from agentkit.loggers.claims import claim


def no_link(*rest):
    raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))


@pytest.fixture(params=[True, False], ids=["links", "no_links"])
def path(request, tmp_path, monkeypatch):
    if not request.param:
        monkeypatch.setattr(os, "link", no_link)
    return tmp_path / "logs" / "wandb.json"


def test_of_many_at_once_one_is_first_and_all_have_its_id(path):
    found, start = [], threading.Barrier(8)

    def join(own):
        start.wait()
        found.append(claim(path, own))

    threads = [threading.Thread(target=join, args=(f"run-{i}",)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8 and len(set(found)) == 1
    assert claim(path, "later") == found[0]
    assert list(path.parent.iterdir()) == [path]


def test_a_full_disk_without_links_leaves_no_half_file(tmp_path, monkeypatch):
    def fail(*rest):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path = tmp_path / "wandb.json"
    monkeypatch.setattr(os, "link", no_link)
    with monkeypatch.context() as patch:
        patch.setattr("pathlib.Path.read_bytes", fail)  # Where the file has its name already.
        with pytest.raises(OSError, match="No space left"):
            claim(path, "run")
    assert list(tmp_path.iterdir()) == []
    assert claim(path, "run") == "run"
