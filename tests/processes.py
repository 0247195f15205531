"""Which processes live."""

import pathlib


def is_alive(pid: int) -> bool:
    """Whether a process of this number runs; one that has ended and is not yet waited for does not."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
