"""Learning on several devices: the same parameters as on one, and bad settings are refused before anything starts."""

import os
import pathlib
import subprocess
import sys
import textwrap

import jax
import pytest

from agentkit.agents import dqn, ppo
from agentkit.errors import ConfigError
from agentkit.experiment import ExperimentConfig, OfflineConfig, run
from agentkit.experiment.training.devices import describe_devices

pytestmark = pytest.mark.both_stacks

SETUP = """
import pathlib
import sys
import numpy as np
import jax
from agentkit import checkpoint
from agentkit.agents import bc, dqn
from agentkit.experiment import ExperimentConfig, OfflineConfig, run, run_offline

def make_experiment(folder, devices, **settings):
    config = dqn.Config(hidden_sizes=(16,), batch_size=8, min_replay_size=20, updates_per_step=1.0)
    quiet = {"num_steps": 60, "evaluation_period": 30, "evaluation_episodes": 2, "run_directory": folder}
    return ExperimentConfig(dqn.make_agent(config), "agentkit:catch", devices=devices, **{**quiet, **settings})

def parameters(folder):
    state = checkpoint.read_latest(pathlib.Path(folder, "checkpoints")).state["learner"]["state"]
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(state)]
    return [leaf for leaf in leaves if np.issubdtype(leaf.dtype, np.floating)]

def assert_same(one, two):
    assert len(one) == len(two) > 4
    for a, b in zip(one, two, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5)

assert len(jax.devices()) == 2
used = []
"""

NOTE_DEVICES = """
module = sys.modules["agentkit.experiment{module}"]
Original = module.Learner

class Noting(Original):
    def __init__(self, *args, **named):
        used.append(named["devices"])
        super().__init__(*args, **named)
        assert len(jax.tree.leaves(self.state)[0].sharding.device_set) == len(named["devices"] or [0])

module.Learner = Noting
"""


def on_two_devices(code: str, *arguments: pathlib.Path) -> None:
    environment = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=2", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", SETUP + textwrap.dedent(code), *map(str, arguments)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


@pytest.mark.full
def test_two_devices_learn_what_one_learns(tmp_path: pathlib.Path) -> None:
    code = NOTE_DEVICES.format(module=".training.own_learner") + textwrap.dedent("""
        ends = [run(make_experiment(f"{sys.argv[1]}/{devices}", devices)) for devices in (None, 2)]
        assert ends[0].updates == ends[1].updates > 20
        assert used == [None, jax.devices()]
        assert_same(parameters(sys.argv[1] + "/None"), parameters(sys.argv[1] + "/2"))
        more = run(make_experiment(sys.argv[1] + "/2", None, num_steps=70), resume=True)  # On one device again.
        assert more.steps == 70
        try:
            run(make_experiment(sys.argv[1] + "/4", 4))
        except Exception as error:
            assert "at least devices=4 JAX devices in this process, found 2" in str(error), error
        else:
            raise AssertionError("not refused")
        import os
        assert not os.path.exists(sys.argv[1] + "/4")
    """)
    on_two_devices(code, tmp_path)


@pytest.mark.full
def test_two_devices_learn_from_data_what_one_learns(tmp_path: pathlib.Path) -> None:
    code = NOTE_DEVICES.format(module=".training.own_learner") + textwrap.dedent("""
        from tests.agents import offline_data
        episodes = offline_data.make_episodes(offline_data.CATCH, 20, [0.5])
        for devices in (None, 2):
            config = OfflineConfig(
                bc.make_agent(bc.Config(hidden_sizes=(16,), batch_size=8)), episodes, num_updates=20,
                run_directory=f"{sys.argv[1]}/{devices}", devices=devices,
            )
            assert run_offline(config).updates == 20
        assert used == [None, jax.devices()]
        assert_same(parameters(sys.argv[1] + "/None"), parameters(sys.argv[1] + "/2"))
    """)
    on_two_devices(code, tmp_path)


@pytest.mark.reverb
def test_a_launched_learner_uses_them(tmp_path: pathlib.Path) -> None:
    code = NOTE_DEVICES.format(module=".training.own_learner") + textwrap.dedent("""
        from agentkit.experiment import launch
        result = launch(
            make_experiment(sys.argv[1] + "/run", 2, num_steps=300), num_actors=1, num_evaluators=0, engine="threads"
        )
        assert result.updates > 0 and used == [jax.devices()], used
    """)
    on_two_devices(code, tmp_path)


@pytest.mark.parametrize("devices", [0, -1, 3, 1.5, True])
def test_devices_that_cannot_share_a_batch_are_refused(devices, tmp_path) -> None:
    agent = dqn.make_agent(dqn.Config(batch_size=8))
    for make in (
        lambda: ExperimentConfig(agent, "agentkit:catch", num_steps=10, run_directory=tmp_path, devices=devices),
        lambda: OfflineConfig(agent, "no-file", num_updates=10, run_directory=tmp_path, devices=devices),
    ):
        with pytest.raises(ConfigError, match="devices must be"):
            make()


def test_more_devices_than_there_are_leave_no_run_folder(tmp_path) -> None:
    agent = dqn.make_agent(dqn.Config(batch_size=64))
    experiment = ExperimentConfig(agent, "agentkit:catch", num_steps=10, run_directory=tmp_path / "run", devices=64)
    with pytest.raises(ConfigError, match="at least devices=64 JAX devices"):
        run(experiment)
    assert not (tmp_path / "run").exists()


def test_the_batch_of_segments_is_one_of_all_environments() -> None:
    agent = ppo.make_agent(ppo.Config())
    assert ExperimentConfig(agent, "agentkit:catch", num_steps=10, num_envs=4, devices=2).devices == 2
    with pytest.raises(ConfigError, match="divide the agent's batches of"):
        ExperimentConfig(agent, "agentkit:catch", num_steps=10, num_envs=4, devices=3)


def test_on_the_device_it_is_environments_or_seeds_that_are_shared() -> None:
    on_device = {"environment": "jax:catch", "num_steps": 10, "on_device": True}
    assert ExperimentConfig(ppo.make_agent(), devices=2, **on_device).devices == 2  # One of several seeds'.
    with pytest.raises(ConfigError, match="devices must be a whole number of at least 1"):
        ExperimentConfig(ppo.make_agent(), devices=0, **on_device)
    with pytest.raises(ConfigError, match="devices=2 and 3 environments: each device takes as many"):
        run(ExperimentConfig(ppo.make_agent(), devices=2, num_envs=3, **on_device))


class _Device:
    platform, device_kind = "gpu", "NVIDIA H100"


def test_the_device_is_named(monkeypatch):
    cores = len(os.sched_getaffinity(0))
    assert describe_devices(None) == f"CPU, {cores} {'core' if cores == 1 else 'cores'}"
    monkeypatch.setattr(jax, "local_devices", lambda: [_Device()])
    assert describe_devices(None) == "GPU: NVIDIA H100"
    monkeypatch.setattr(jax, "local_devices", lambda: [_Device()] * 4)
    assert describe_devices(None) == "GPU (1 of 4): NVIDIA H100"
    assert describe_devices(2) == "GPU (2 of 4): NVIDIA H100"


@pytest.mark.parametrize(
    ("error", "why"), [(AssertionError(), "cuda"), (RuntimeError("no libtpu.so\nat all"), r"cuda \(no libtpu.so\)")]
)
def test_a_platform_that_is_not_there_is_named_before_there_is_a_folder(error, why, monkeypatch, tmp_path):
    def fail():
        raise error

    monkeypatch.setattr(jax, "local_devices", fail)
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    with pytest.raises(type(error)):
        describe_devices(None)
    monkeypatch.setenv("JAX_PLATFORMS", "cuda")
    with pytest.raises(ConfigError, match=rf"JAX cannot begin with JAX_PLATFORMS={why}\. Unset it"):
        describe_devices(None)
    for environment, on_device in (("agentkit:catch", False), ("jax:catch", True)):
        experiment = ExperimentConfig(
            dqn.make_agent(), environment, 20, run_directory=tmp_path / "run", on_device=on_device
        )
        with pytest.raises(ConfigError, match="JAX cannot begin"):
            run(experiment)
        assert not (tmp_path / "run").exists()
