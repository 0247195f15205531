"""What can be said of the Ray engine without a cluster; launch/ray_cluster.yaml and launch/ray_job.py."""

import os
import pathlib
import subprocess
import sys
import tempfile
import types

import pytest

from agentkit.distributed.ray import RayEngine
from agentkit.distributed.ray_cluster import RayStartError, start_private
from agentkit.errors import ConfigError, MissingExtraError

pytestmark = pytest.mark.both_stacks

ROOT = pathlib.Path(__file__).parents[2]
LAUNCH = ROOT / "launch"


@pytest.mark.ray
def test_the_cluster_file_is_what_ray_expects():
    import yaml
    from ray.autoscaler._private.util import prepare_config, validate_config

    config = yaml.safe_load((LAUNCH / "ray_cluster.yaml").read_text())
    validate_config(prepare_config(config))  # Raises on an unknown or missing field.
    for commands in (config["head_start_ray_commands"], config["worker_start_ray_commands"]):
        assert not any("ray stop" in command for command in commands)
        assert all("RAY_AUTH_MODE=token" in command for command in commands)


def test_the_job_explains_itself():
    command = [sys.executable, str(LAUNCH / "ray_job.py"), "--help"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
    assert "--address HOST:PORT" in done.stdout
    assert len((LAUNCH / "ray_job.py").read_text().splitlines()) < 80


@pytest.mark.ray
@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("auto", "somebody else's cluster"),
        ("local", "host:port"),
        ("ray://10.0.0.1:10001", "cannot host the run store"),
        ("127.0.0.1:1", "No Ray cluster answers"),
    ],
)
def test_only_an_explicit_address_is_taken(address, reason):
    with pytest.raises(ConfigError, match=reason):
        RayEngine(address)


def test_without_ray_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"agentkit-rl\[ray\]"):
        RayEngine()


def test_a_ray_that_does_not_start_is_an_error_that_says_what_to_do(monkeypatch):
    """Seen with 40 processes in line for 4 cores; here nothing is slow, so Ray's part is played."""

    class Slow:
        stopped = False
        _private = types.SimpleNamespace(ray_constants=types.SimpleNamespace(ENABLE_RAY_CLUSTER=True))

        def init(self, **settings):
            self.folder = pathlib.Path(settings["_temp_dir"])
            raise Exception("The current node timed out during startup.")

        def shutdown(self):
            self.stopped = True

    killed = pathlib.Path(tempfile.mkdtemp(prefix=f"agentkit-ray-{os.getuid()}-", dir="/tmp"))
    os.utime(killed, (0, 0))  # Left by a program that was killed long ago.
    slow = Slow()
    monkeypatch.setenv("RAY_AUTH_TOKEN", "0" * 32)
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    with pytest.raises(RayStartError, match=r"timed out during startup.*Try again.*--ray-address"):
        start_private(slow, "n", 1)
    assert slow.stopped and not slow.folder.exists() and not killed.exists()
    assert slow._private.ray_constants.ENABLE_RAY_CLUSTER  # A cluster may be joined later.
