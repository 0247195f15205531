"""What the tests of the training on the device share."""

import csv
import dataclasses
import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np

from agentkit import checkpoint, specs
from agentkit.actors.policy import stateless_policy
from agentkit.agents.common.experience import ReplayConfig, Transitions
from agentkit.envs.jax.base import JaxEnvironment
from agentkit.envs.jax.multi_agent_base import JaxMultiAgentEnvironment
from agentkit.envs.jax.time_steps import first_step, first_step_of, next_step, next_step_of
from agentkit.experiment.on_device.loop import DeviceLoop, make_rounds
from agentkit.experiment.on_device.several.acting import Party
from agentkit.experiment.on_device.several.rounds import SeveralRounds
from agentkit.learning import Update, UpdateOutput
from agentkit.learning.finite import start_tally

ROOT = pathlib.Path(__file__).resolve().parents[2]


@dataclasses.dataclass(frozen=True)
class Endless(JaxEnvironment):
    """Gives reward 1 a step for ever, cut off after 3 steps. Observations are 10, and `at_reset` at the start."""

    at_reset: float = 10.0
    reward: float = 1.0

    def observation_spec(self):
        return specs.Array((1,), np.float32)

    def action_spec(self):
        return specs.DiscreteArray(2, dtype=np.int32)

    def reset(self, key):
        return jnp.int32(0), first_step(jnp.full(1, self.at_reset))

    def step(self, state, action, key):
        return state + 1, next_step(jnp.full(1, 10.0), self.reward, truncated=state + 1 == 3)


@dataclasses.dataclass(frozen=True)
class Marked(Endless):
    """Shows all along the number that its reset has drawn."""

    reset_pool: int | None = None

    def reset(self, key):
        mark = jax.random.uniform(key, (1,))
        return (jnp.int32(0), mark), first_step(mark)

    def step(self, state, action, key):
        time, timestep = super().step(state[0], action, key)
        return (time, state[1]), timestep._replace(observation=state[1])


@dataclasses.dataclass(frozen=True)
class Counting(JaxMultiAgentEnvironment):
    """Ends after 2 steps; agent "b" is paid ten times "a"'s number of the step. "a" terminates, and "b" is cut off.

    An observation is the agent's number and the step's; who does not choose its own number pays 100.
    """

    bad_at: int = -1

    def observation_spec(self):
        return dict.fromkeys("ab", specs.Array((2,), np.float32))

    def action_spec(self):
        return dict.fromkeys("ab", specs.DiscreteArray(3, dtype=np.int32))

    def _observe(self, count):
        return {name: jnp.float32([number, count]) for number, name in enumerate("ab")}

    def reset(self, key):
        return jnp.int32(0), first_step_of(self._observe(0))

    def step(self, state, action, key):
        count = state + 1
        wrong = {name: 100.0 * (action[name] != number) for number, name in enumerate("ab")}
        rewards = {"a": jnp.where(count == self.bad_at, jnp.nan, count) - wrong["a"], "b": 10.0 * count - wrong["b"]}
        timestep = next_step_of(self._observe(count), rewards, truncated=count == 2)
        return count, timestep._replace(discount={"a": jnp.where(count == 2, 0.0, 1.0), "b": jnp.float32(1.0)})


@dataclasses.dataclass(frozen=True)
class Alone(JaxMultiAgentEnvironment):
    """Is an environment of one agent as one of several."""

    inside: JaxEnvironment
    reset_pool: int | None = None

    def observation_spec(self):
        return {"only": self.inside.observation_spec()}

    def action_spec(self):
        return {"only": self.inside.action_spec()}

    def reset(self, key):
        state, timestep = self.inside.reset(key)
        return state, self._of(timestep)

    def step(self, state, action, key):
        state, timestep = self.inside.step(state, action["only"], key)
        return state, self._of(timestep)

    def _of(self, timestep):
        return type(timestep)(timestep.step_type, *({"only": field} for field in timestep[1:]))


def idle_loop(several):
    """A loop in which nothing is learnt: of `Marked` with a pool of 3 in 2 environments, or of it as one of several."""
    update = Update(lambda key: (), lambda training, batch: (training, UpdateOutput({})), lambda _: {"policy": ()})
    policy = stateless_policy(lambda params, key, observation: jnp.int32(0))
    experience = Transitions(ReplayConfig(n_step=1, replay_size=300, min_replay_size=300))
    if not several:
        return DeviceLoop(make_rounds(Marked(reset_pool=3), policy, update, experience, 2))
    parties = [Party("only", ("only",), policy, update, experience)]
    return DeviceLoop(SeveralRounds(Alone(Marked(), reset_pool=3), parties, 2))


def begin(loop, init):
    """Arguments of the first chunk; each is donated, so that they are made anew."""
    return init(jax.random.PRNGKey(0)), loop.start(jax.random.PRNGKey(1)), start_tally(0)


def assert_equal(one, other):
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(np.asarray(a), np.asarray(b), strict=True), one, other)


def rows_of(folder, log):
    with open(folder / "logs" / f"{log}.csv") as file:
        return [{name: float(value) for name, value in row.items()} for row in csv.DictReader(file)]


def leaves_of(folder):
    found = checkpoint.read_latest(folder / "checkpoints")
    return found.step, {
        "learner": {path: np.asarray(x).tobytes() for path, x in found.state["learner"]["state"].items()},
        "acting": {path: np.asarray(x).tobytes() for path, x in found.state["acting"].items()},
    }


_KILLED = """
import os, pathlib, sys
from agentkit.experiment.on_device.work import ActAndLearnOnDevice
sys.path.insert(0, {root!r})
from tests.experiment.{module} import plan
import agentkit
step = ActAndLearnOnDevice.step
def deadly(self):
    step(self)
    if self.num_steps > 170:
        os.kill(os.getpid(), 9)
ActAndLearnOnDevice.step = deadly
agentkit.run(plan(num_steps=300, checkpoint_period=90, run_directory=pathlib.Path({folder!r})))
"""


def kill_after_170_steps(module, folder):
    """Runs a module's `plan` in a process that kills itself between two chunks, after a checkpoint at 90 steps."""
    code = _KILLED.format(root=str(ROOT), module=module, folder=str(folder))
    assert subprocess.run([sys.executable, "-c", code], timeout=280).returncode == -9
    assert checkpoint.read_latest(folder / "checkpoints").step < 170
