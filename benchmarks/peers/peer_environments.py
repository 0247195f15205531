"""What agentkit is compared with: how each peer is installed and run. Standard library only."""

from __future__ import annotations

import dataclasses
import pathlib
import shutil
import subprocess
import sys

_TORCH = "torch==2.13.0"
_GYMNASIUM = ("gymnasium[mujoco]", "mujoco<4")
_TIANSHOU = (_TORCH, "tianshou", "envpool", *_GYMNASIUM)


@dataclasses.dataclass(frozen=True)
class Peer:
    """A library to compare with.

    Attributes:
        label: its name in tables.
        script: its side, in this folder.
        folder: its virtual environment's; None if it runs in the Reverb stack's.
        packages: what is installed into it, torch before all others.
        slow: takes part in the first `--slow-pairs` rounds only.
        startup: seconds that a run takes beside its steps, about.
        more: what the job has beside a workload's.
    """

    label: str
    script: str
    folder: str | None
    packages: tuple[str, ...] = ()
    slow: bool = False
    startup: float = 5.0
    more: dict[str, bool | str] = dataclasses.field(default_factory=dict)


PEERS = {
    "sb3": Peer(
        "Stable-Baselines3",
        "sb3_side.py",
        "sb3",
        (_TORCH, "stable-baselines3", "envpool", *_GYMNASIUM),
        more={"peer": "sb3"},
    ),
    "sbx": Peer("sbx", "sb3_side.py", "sbx", (_TORCH, "sbx-rl", *_GYMNASIUM), startup=7.0, more={"peer": "sbx"}),
    "tianshou": Peer("Tianshou", "tianshou_side.py", "tianshou", _TIANSHOU, slow=True),
    "tianshou_envpool": Peer(
        "Tianshou with EnvPool",
        "tianshou_side.py",
        "tianshou",
        _TIANSHOU,
        slow=True,
        more={"pool": True},
    ),
    "rllib": Peer("RLlib", "rllib_side.py", "rllib", (_TORCH, "ray[rllib]", *_GYMNASIUM), slow=True, startup=12.0),
    "acme_like": Peer("Acme-like loop", "acme_like_side.py", None, startup=12.0),
}


def interpreter(peer: str, environments: pathlib.Path, reverb_python: str | None) -> str:
    """The interpreter that runs a peer; its virtual environment is made if it is not there.

    Raises:
        SystemExit: the installation failed, or the Reverb stack's interpreter is needed and was not given.
    """
    folder = PEERS[peer].folder
    if folder is None:
        if reverb_python is None:
            raise SystemExit(
                "The Acme-like loop needs Reverb: give --reverb-python, one with agentkit-rl[reverb,gymnasium], "
                "or leave acme_like out of --peers."
            )
        return reverb_python
    return _install(environments / folder, PEERS[peer].packages)


def _install(directory: pathlib.Path, packages: tuple[str, ...]) -> str:
    """Makes the virtual environment, or completes it, and leaves a complete one as it is; its interpreter."""
    python = str(directory / "bin" / "python")
    names = [package.partition("[")[0].partition("=")[0].partition("<")[0] for package in packages]
    check = f"import importlib.metadata as m; [m.version(name) for name in {names!r}]"
    if pathlib.Path(python).exists() and not subprocess.run([python, "-c", check], capture_output=True).returncode:
        return python
    print(f"installing {', '.join(packages)} into {directory}", flush=True)
    uv = shutil.which("uv")
    try:
        if not pathlib.Path(python).exists():
            make = [uv, "venv", "--python", sys.executable] if uv else [sys.executable, "-m", "venv"]
            subprocess.run([*make, str(directory)], check=True)
        install = [uv, "pip", "install", "-q", "--python", python] if uv else [python, "-m", "pip", "install", "-q"]
        # torch first: what needs it then takes the one that is there.
        for part in (packages[:1], packages[1:]):
            subprocess.run([*install, *part], check=True)
    except subprocess.CalledProcessError as error:
        raise SystemExit(
            f"Could not install {', '.join(packages)} into {directory}: {error}. Is the package registry reachable? "
            "Leave the peer out with --peers, or fill the folder by hand."
        ) from error
    return python
