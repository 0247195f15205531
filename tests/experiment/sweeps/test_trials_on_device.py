"""Sweeps in one compiled program: what some of its runs cannot do is refused before there is a folder."""

import pytest

from agentkit.errors import ConfigError
from agentkit.experiment.sweeps import Choice, SweepPlan, run_sweep
from tests.experiment.test_populations import plan_of_trial

FOUR = {"learning_rate": Choice((1e-3, 1e-2)), "target_update_period": Choice((5, 50))}


def refusal(folder, space, **settings):
    def make_experiment(parameters):
        return plan_of_trial({"batch_size": 12} | parameters, **settings)

    with pytest.raises(ConfigError) as error:
        run_sweep(SweepPlan(space, make_experiment, "grid", seeds=(0, 1), on_device=True), folder / "sweep")
    assert not (folder / "sweep").exists()
    return str(error.value)


@pytest.mark.parametrize(
    ("devices", "message"),
    [(3, "devices=3 and 8 runs"), (2, "at least devices=2 JAX devices")],  # 2 divide them, but the tests have one.
)
def test_devices_share_all_runs_of_a_sweep(tmp_path, devices, message):
    assert message in refusal(tmp_path, FOUR, devices=devices)
