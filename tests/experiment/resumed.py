"""What must hold of every training that is stopped half-way and resumed."""

import pathlib
from collections.abc import Callable

from agentkit.experiment import Result


def check_resumes(train: Callable[..., Result], tmp_path: pathlib.Path, num_steps: int) -> None:
    """A run ends with the same arrays, to the bit, as one that stops half-way and is resumed.

    Args:
        train: ``(directory, num_steps, **resume) -> Result``: runs in that folder of `tmp_path`.
        tmp_path: an empty folder.
        num_steps: of the whole run.
    """
    whole = train("whole", num_steps)
    train("parts", num_steps // 2)
    parts = train("parts", num_steps, resume=True)
    assert whole.updates == parts.updates > 0
    saved = [sorted((tmp_path / name / "checkpoints").iterdir())[-1] for name in ("whole", "parts")]
    files = [{p.name: p.read_bytes() for p in folder.rglob("*.npz")} for folder in saved]
    assert files[0] == files[1] and files[0]
