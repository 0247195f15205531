"""The loop on several devices: they share environments, batches and members, and learn what one learns."""

import pytest

from agentkit.agents import dqn
from agentkit.errors import ConfigError
from agentkit.experiment import ExperimentConfig, run, run_seeds
from tests.experiment.test_devices import on_two_devices

SETUP = """
import jax, jax.numpy as jnp, numpy as np
from agentkit.envs.jax.cartpole import CartPole
from agentkit.experiment.on_device.loop import DeviceLoop, make_rounds
from agentkit.experiment.on_device.members import ALONE, Members
from agentkit.experiment.on_device.population import Population
from agentkit.learning.finite import start_tally
from tests.experiment.on_device_runs import assert_equal
from tests.experiment.test_populations import EXPERIENCES, Learner, random_policy, summing_update

def devices_of(nest):
    return {(len(leaf.sharding.device_set), leaf.sharding.is_fully_replicated) for leaf in jax.tree.leaves(nest)}

def make_loop(experience, members=ALONE, devices=None):
    update = summing_update(getattr(experience.config, "prioritized", False))
    rounds = make_rounds(CartPole(max_steps=30), random_policy(), update, experience, 2, members)
    return DeviceLoop(rounds, members, devices)

def assert_close(one, other):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), one, other)
"""


@pytest.mark.both_stacks
@pytest.mark.parametrize(
    "number", [0, pytest.param(1, marks=pytest.mark.full), pytest.param(2, marks=pytest.mark.full)]
)
def test_two_devices_share_environments_and_batches(tmp_path, number):
    code = f"""
{SETUP}
experience, found = EXPERIENCES[{number}], []
for devices in (None, jax.devices()):
    loop = make_loop(experience, devices=devices)
    found.append(loop.run(jnp.float32(0), loop.start(jax.random.PRNGKey(1)), start_tally(0), 300, 100))
one, two = found
assert_close(one, two)
assert_equal((one.state.acting.timestep, one.tally), (two.state.acting.timestep, two.tally))
assert int(one.tally[0]) > 3 and int(one.state.acting.num_episodes) > 4
acting = two.state.acting
assert devices_of((acting.environment, acting.timestep, acting.policy, acting.returns)) == {{(2, False)}}
assert devices_of((two.training, two.state.store, acting.key)) == {{(2, True)}}
"""
    on_two_devices(code, tmp_path)


@pytest.mark.both_stacks
def test_two_devices_share_the_rows_that_are_picked_out_of_a_batch(tmp_path):
    code = """
import jax.numpy as jnp
from agentkit.learning.sharing import make_mesh, shared_among, split, split_rows

mesh = make_mesh(jax.devices())

def pick(rows, places):
    with shared_among(mesh):
        return split_rows(rows[places])

rows, places = jnp.arange(8.0)[:, None], jnp.array([3, 0, 7, 7])
pick_on_two = jax.jit(pick, in_shardings=(split(mesh), None))
picked = pick_on_two(rows, places)
assert not picked.sharding.is_fully_replicated and picked[:, 0].tolist() == [3, 0, 7, 7]
assert pick_on_two(rows, places[:3])[:, 0].tolist() == [3, 0, 7]  # No device could have half of it.
assert split_rows(rows) is rows  # The mesh is that of one tracing.
"""
    on_two_devices(code, tmp_path)


@pytest.mark.both_stacks
@pytest.mark.full
def test_two_devices_share_the_members_of_a_population(tmp_path):
    code = f"""
{SETUP}
experience, seen = EXPERIENCES[0], []
for devices in (None, jax.devices()):
    keys = [jax.random.PRNGKey(i) for i in range(4)]
    population = Population(lambda _: make_loop(experience, Members(True)), {{}}, keys, devices)
    population.start()
    learners, targets = [Learner(jnp.float32(i)) for i in range(4)], (150, 70, 150, 150)
    for _ in range(6):
        population.run(learners, targets)
        for i, learner in enumerate(learners):
            ran = population.ran(i)
            learner.state, learner.tally = ran.training, ran.tally
    seen.append(([learner.state for learner in learners], [population.state_of(i) for i in range(4)]))
    if devices:
        assert devices_of(population._state) == {{(2, False)}}
        assert devices_of(learners[1].state) == {{(1, True)}}
assert_close(*seen)
assert int(seen[0][1][1].acting.num_steps) < 90 < int(seen[0][1][0].acting.num_steps)
"""
    on_two_devices(code, tmp_path)


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("ppo", {"segment_length": 8, "batch_size": 8}),
        ("dqn", {"batch_size": 8, "min_replay_size": 20, "updates_per_step": 0.5}),
    ],
)
def test_a_run_on_two_devices_is_that_on_one_and_goes_on_to_the_bit(tmp_path, name, settings):
    code = f"""
from agentkit.agents import registry
from agentkit.experiment.on_device.build import find_parts, keys_of

def plan(devices, folder, **settings):
    quiet = {{"num_steps": 400, "evaluation_period": 0, "num_envs": 8}} | settings
    agent = registry.make({name!r}, {settings!r} | {{"hidden_sizes": (16,)}})
    folder = f"{{sys.argv[1]}}/{{folder}}"
    return ExperimentConfig(agent, "jax:cartpole", devices=devices, run_directory=folder, on_device=True, **quiet)

for devices in (None, 2):
    assert run(plan(devices, devices)).updates > 5
assert_same(parameters(sys.argv[1] + "/None"), parameters(sys.argv[1] + "/2"))
run(plan(2, "halves", num_steps=200))
run(plan(2, "halves"), resume=True)
for a, b in zip(parameters(sys.argv[1] + "/2"), parameters(sys.argv[1] + "/halves"), strict=True):
    np.testing.assert_array_equal(a, b)

def products(devices):
    # How many numbers matrix products give on a device, in the program as it was compiled.
    import math, re
    import jax.numpy as jnp
    from agentkit.learning.finite import start_tally
    parts = find_parts(plan(devices, "none", num_envs=64))
    loop, keys = parts.make_loop(), keys_of(0)
    whole = parts.agent.compiled_update.init(keys[0]), loop.start(keys[1]), jnp.asarray(start_tally(0))
    program = loop._run.lower(*whole, jnp.int32(1), jnp.int32(1)).compile().as_text()
    return sum(math.prod(map(int, shape.split(","))) for shape in re.findall(r"f32\\[([0-9,]+)\\]\\S* dot\\(", program))

assert 0 < products(2) < 0.6 * products(None), (products(2), products(None))
"""
    on_two_devices(code, tmp_path)


def test_devices_that_cannot_share_the_environments_or_the_runs_are_refused(tmp_path):
    agent, settings = dqn.make_agent(dqn.Config(batch_size=8)), {"num_steps": 10, "devices": 2, "on_device": True}
    odd = ExperimentConfig(agent, "jax:cartpole", num_envs=3, run_directory=tmp_path / "run", **settings)
    with pytest.raises(ConfigError, match="devices=2 and 3 environments: each device takes as many"):
        run(odd)
    alone = ExperimentConfig(agent, "jax:cartpole", run_directory=tmp_path / "seeds", **settings)
    with pytest.raises(ConfigError, match="devices=2 and 3 runs: each device takes as many"):
        run_seeds(alone, seeds=range(3))
    assert list(tmp_path.iterdir()) == []
