"""What a process of Reverb's imports of TensorFlow, and what is left for others to import."""

import subprocess
import sys
import textwrap

import pytest

pytestmark = pytest.mark.reverb

pytest.importorskip("reverb")

RUN = """
    import sys
    from agentkit.agents import sac
    from agentkit.experiment import ExperimentConfig, run
    config = sac.Config(hidden_sizes=(8,), min_replay_size=20, num_random_steps=20)
    result = run(ExperimentConfig(sac.make_agent(config), "agentkit:point_mass", 60, replay="reverb"))
    assert result.updates > 0
    assert "reverb" not in sys.modules and "tensorflow" not in sys.modules
    names = [name for name in sys.modules if name.startswith(("tensorflow.", "keras"))]
    assert "tensorflow.python.data.ops.dataset_ops" in names and len(names) < 1_000, len(names)
"""
LOSSES = """
    import sys
    from agentkit.replay.reverb import library
    before = {name for name in sys.modules if name.startswith("tensorflow.")}
    import agentkit.losses.library
    assert {name for name in sys.modules if name.startswith("tensorflow.")} == before
    import tensorflow as tf
    assert tf.keras.layers.Dense(2)(tf.ones((1, 3))).shape == (1, 2)
"""
OTHERS = """
    from agentkit.replay.reverb import library, replay
    from tensorflow.python.ops import array_ops  # Of which the package has to run first.
    import tensorflow.compat.v1 as v1
    from tensorflow.keras import layers
    import reverb
    import tensorflow as tf
    assert array_ops.reshape is tf.reshape and array_ops.__spec__.loader.name == array_ops.__name__
    assert v1.TensorSpec is tf.TensorSpec is library.TensorSpec
    assert reverb.Client is library.reverb.Client
    assert reverb.TrajectoryDataset is library.sampling().TrajectoryDataset
    assert layers.Dense(2)(tf.ones((1, 3))).shape == (1, 2)
    import tensorflow_probability as tfp
    assert tfp.distributions.Normal(0.0, 1.0).sample().shape == ()
"""


@pytest.mark.full
@pytest.mark.parametrize("program", [RUN, LOSSES, OTHERS], ids=["a run", "losses", "others"])
def test_little_of_tensorflow_is_imported_and_all_of_it_is_left(program):
    command = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(program)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
