"""Sweeps in one compiled program: what some of its runs cannot do is refused before there is a folder."""

import pytest

from agentkit.errors import ConfigError
from agentkit.experiment.sweeps import Choice, SweepPlan, run_sweep
from agentkit.experiment.sweeps import run as sweep
from agentkit.experiment.sweeps.run import check_on_device
from tests.experiment.sweeps.curves import Curves
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


@pytest.mark.parametrize(
    ("space", "message"),
    [
        ({"min_replay_size": Choice((10, 100))}, "would wait for ever: sampling starts at 100 items"),
        ({"max_grad_norm": Choice((1.0, 2.0, None))}, "several values of max_grad_norm in one program"),
        ({"updates_per_step": Choice((0.25, 0.5, 0.12345))}, "updates_per_step=0.12345"),
    ],
    ids=["table", "third", "here"],
)
def test_each_trial_is_looked_at(tmp_path, space, message):
    assert message in refusal(tmp_path, space)


def test_a_trial_whose_settings_are_impossible_together_refuses_no_other(tmp_path):
    """It ends as a failed trial, as everywhere."""

    def make_experiment(parameters):
        if parameters["learning_rate"] in impossible:
            raise ConfigError("impossible together")
        return plan_of_trial({"batch_size": 12, "learning_rate": parameters["learning_rate"]})

    plan = SweepPlan({"learning_rate": Choice((1e-3, 1e-2))}, make_experiment, "grid", on_device=True)
    impossible = (1e-2,)
    check_on_device(plan, 1)
    impossible = (1e-3, 1e-2)
    with pytest.raises(ConfigError, match="impossible together"):
        check_on_device(plan, 1)


def test_trials_that_can_train_do_so_behind_many_that_cannot(tmp_path, monkeypatch):
    """All begin at once, so that nothing is complete when the impossible ones have failed."""

    def make_experiment(parameters):
        if parameters["learning_rate"] > 1e-3:
            raise ConfigError("impossible together")
        return plan_of_trial({"batch_size": 12, **parameters})

    class Together(Curves):
        def __init__(self, stop):
            super().__init__(lambda experiment, steps: 0.0, [])

    monkeypatch.setattr(sweep, "JobsTogether", Together)
    values = Choice((1.0, 0.1, 0.01, 1e-3))
    plan = SweepPlan({"learning_rate": values}, make_experiment, "grid", on_device=True, pruner="none")
    result = run_sweep(plan, tmp_path / "sweep")
    assert [record.state for record in result.trials] == ["failed"] * 3 + ["complete"]
