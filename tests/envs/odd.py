"""Environments that break their own promises, each in one way, for tables of bad environments."""

import dm_env
import numpy as np
from dm_env import specs

STEP = 4
"""The step at which an odd one is odd."""


class Plain(dm_env.Environment):
    """Episodes of 7 steps, observations of 3 floats, 2 actions; what follows changes one thing of it."""

    observation = specs.Array((3,), np.float32, "observation")
    action = specs.DiscreteArray(2, dtype=np.int32, name="action")
    reward = specs.Array((), np.float32, "reward")
    discount = specs.BoundedArray((), np.float32, 0.0, 1.0, "discount")

    def __init__(self):
        self.num_steps = 0
        self._last = True

    def observe(self):
        return np.ones(3, np.float32)

    def reset(self):
        self._last, self._length = False, 0
        return dm_env.restart(self.observe())

    def step(self, action):
        if self._last:
            return self.reset()
        self.num_steps += 1
        self._length += 1
        self._last = self._length == 7
        return self.change((dm_env.termination if self._last else dm_env.transition)(0.5, self.observe()))

    def change(self, timestep):
        return timestep

    @property
    def is_odd(self):
        return self.num_steps == STEP

    def observation_spec(self):
        return self.observation

    def action_spec(self):
        return self.action

    def reward_spec(self):
        return self.reward

    def discount_spec(self):
        return self.discount


def with_specs(observe=None, **of_class):
    """A class of environments with other specs, and observations (and rewards) that keep them."""

    class Odd(Plain):
        def observe(self):
            return Plain.observe(self) if observe is None else observe()

    for name, value in of_class.items():
        setattr(Odd, name, value)
    return Odd


def with_step(change):
    """A class of environments whose time step number `STEP` is changed."""

    class Odd(Plain):
        def change(self, timestep):
            return change(timestep) if self.is_odd else timestep

    return Odd


def _array(*shape, dtype=np.float32):
    return specs.Array(shape, dtype)


def _bounded(low, high, shape=(2,)):
    spec = specs.BoundedArray(shape, np.float32, -1.0, 1.0)
    spec._minimum, spec._maximum = np.full(shape, low, np.float32), np.full(shape, high, np.float32)
    return spec


NAN = float("nan")
BAD_SPECS = {
    # name: (class, what the message says)
    "nested rewards": (with_specs(reward={"a": _array(), "b": _array()}), "needs one reward"),
    "listed rewards": (with_specs(reward=[_array(), _array()]), "needs one reward"),
    "tuple rewards": (with_specs(reward=(_array(),)), "needs one reward"),
    "vector rewards": (with_specs(reward=_array(3)), "needs one reward"),
    "rewards of one": (with_specs(reward=_array(1)), "needs one reward"),
    "nested discounts": (with_specs(discount={"a": _array()}), "needs one discount"),
    "vector discounts": (with_specs(discount=_array(2)), "needs one discount"),
    "no observation": (
        with_specs(lambda: np.zeros(0, np.float32), observation=_array(0)),
        "observations have no numbers",
    ),
    "empty image": (with_specs(lambda: np.zeros((0, 5), np.float32), observation=_array(0, 5)), "have no numbers"),
    "empty dict": (with_specs(lambda: {}, observation={}), "observations have no numbers"),
    "dict of nothing": (with_specs(lambda: {"a": np.zeros(0, np.float32)}, observation={"a": _array(0)}), "no numbers"),
    "observation bounds of NaN": (with_specs(observation=_bounded(NAN, NAN, (3,))), "minimum of at most the maximum"),
    "a lower bound of NaN": (with_specs(observation=_bounded(NAN, 1.0, (3,))), "minimum of at most the maximum"),
    "bounds the wrong way": (with_specs(observation=_bounded(1.0, -1.0, (3,))), "minimum of at most the maximum"),
    "text observations": (with_specs(observation=specs.StringArray(())), "expected numbers, found dtype object"),
    "object observations": (with_specs(observation=_array(dtype=object)), "expected numbers, found dtype object"),
    "a spec that is an array": (with_specs(observation=np.zeros(3)), "expected a dm_env spec"),
    "a spec that is None": (with_specs(observation=None), r"expected a dm_env spec .*found None"),
    "a reward spec that is None": (with_specs(reward=None), r"expected a dm_env spec .*found None"),
    "text actions": (with_specs(action=specs.StringArray(())), "expected numbers"),
    "no actions": (with_specs(action=_array(0)), "actions have no numbers"),
    "complex rewards": (with_specs(reward=_array(dtype=np.complex64)), "expected numbers, found dtype complex64"),
}
"""Specs that every agent refuses before a run folder is made."""

BAD_ACTIONS = {
    "unbounded": (with_specs(action=_array(2)), "sac", "continuous action of shape .* with bounds -1 and 1"),
    "bounds of NaN": (with_specs(action=_bounded(NAN, NAN)), "sac", "minimum of at most the maximum"),
    "infinite bounds": (with_specs(action=_bounded(-np.inf, np.inf)), "sac", "bounds -1 and 1"),
    "bounded on one side": (with_specs(action=_bounded(-1.0, np.inf)), "sac", "bounds -1 and 1"),
    "bounds the wrong way": (with_specs(action=_bounded(1.0, -1.0)), "sac", "minimum"),
    "integers for sac": (
        with_specs(action=specs.BoundedArray((2,), np.int32, 0, 3)),
        "sac",
        "agent for discrete .* ppo",
    ),
    "unbounded for ppo": (with_specs(action=_array(2)), "ppo", "bound_actions"),
    "a million integers": (
        with_specs(action=specs.BoundedArray((2,), np.int32, 0, 10**6)),
        "ppo",
        "at most 16,384 in all, found 2,000,002",
    ),
    "all integers": (
        with_specs(action=specs.BoundedArray((2,), np.int64, -(2**63), 2**63 - 1)),
        "ppo",
        "at most 16,384 in all",
    ),
    "continuous for dqn": (with_specs(action=_bounded(-1.0, 1.0)), "dqn", "one discrete action"),
    "several for dqn": (with_specs(action=(Plain.action, Plain.action)), "dqn", "one discrete action"),
    "discrete for sac": (with_specs(), "sac", "continuous action"),
    "discrete for ddpg": (with_specs(), "ddpg", "continuous action"),
    "unbounded integers": (with_specs(action=_array(dtype=np.int32)), "dqn", "one discrete action"),
}
"""Actions that one agent refuses before a run folder is made."""


def _observation(value):
    return with_step(lambda timestep: timestep._replace(observation=value))


def _reward(value):
    return with_step(lambda timestep: timestep._replace(reward=value))


def _discount(value):
    return with_step(lambda timestep: timestep._replace(discount=value))


BAD_STEPS = {
    # name: (class, what the message says, the same of a batch, if that is another)
    "None": (with_step(lambda timestep: None), "gave None"),
    "a gym tuple": (with_step(lambda t: (t.observation, t.reward, False, {})), "TimeStep"),
    "a gymnasium tuple": (with_step(lambda t: (t.observation, t.reward, False, False, {})), "TimeStep"),
    "a number": (with_step(lambda timestep: 3.0), "TimeStep"),
    "a dict": (with_step(lambda timestep: {"observation": timestep.observation}), "TimeStep"),
    "a longer observation": (_observation(np.ones(4, np.float32)), r"expected float32\[3\], found float32\[4\]"),
    "a shorter observation": (_observation(np.ones(2, np.float32)), r"expected float32\[3\], found float32\[2\]"),
    "one number": (_observation(np.float32(1)), r"expected float32\[3\], found float32\[\]"),
    "a column": (_observation(np.ones((3, 1), np.float32)), r"found float32\[3, 1\]"),
    "an observation of one": (_observation(np.ones(1, np.float32)), r"found float32\[1\]"),
    "an empty observation": (_observation(np.ones(0, np.float32)), r"found float32\[0\]"),
    "doubles": (_observation(np.ones(3)), r"expected float32\[3\], found float64\[3\]"),
    "whole numbers": (_observation(np.ones(3, np.int32)), r"found int32\[3\]"),
    "truth values": (_observation(np.ones(3, bool)), r"found bool\[3\]"),
    "bytes": (_observation(np.ones(3, np.uint8)), r"found uint8\[3\]"),
    "complex numbers": (_observation(np.ones(3, np.complex64)), r"found complex64\[3\]"),
    "text": (_observation("left"), "another structure|found <?U4|found str"),
    "no observation": (_observation(None), "found object"),
    "a list": (_observation([1.0, 1.0, 1.0]), "another structure"),
    "a dict of it": (_observation({"observation": np.ones(3, np.float32)}), "another structure"),
    "a tuple of it": (_observation((np.ones(3, np.float32),)), "another structure"),
    "NaN": (_observation(np.array([1, NAN, 1], np.float32)), r"observation is nan at \[.*1\]"),
    "infinity": (_observation(np.array([np.inf, 1, 1], np.float32)), r"observation is inf at \["),
    "no reward": (_reward(None), "reward is None|with a reward"),
    "a reward of text": (_reward("much"), "reward"),
    "a reward of one": (_reward(np.ones(1, np.float32)), "reward"),
    "two rewards": (_reward(np.ones(2, np.float32)), "reward"),
    "a list of rewards": (_reward([0.5, 0.5]), "reward"),
    "a dict of rewards": (_reward({"a": 0.5}), "reward"),
    "a tuple of rewards": (_reward((0.5,)), "reward"),
    "a reward of NaN": (_reward(NAN), "reward is nan"),
    "an infinite reward": (_reward(-np.inf), "reward is -inf"),
    "a reward beyond float32": (_reward(1e300), "reward is inf|overflow"),
    "a discount of 2": (_discount(2.0), r"discount is .*2\..*; expected 0"),
    "a discount of -1": (_discount(-1.0), "discount is .*-1.*; expected 0"),
    "a discount just above 1": (_discount(1.0 + 1e-6), "discount is .*; expected 0"),
    "a discount of NaN": (_discount(NAN), "discount is .*nan.*; expected 0"),
    "an infinite discount": (_discount(np.inf), "discount is .*inf.*; expected 0"),
    "no discount": (_discount(None), "discount is None|with a reward"),
    "a discount of text": (_discount("one"), "discount"),
    "two discounts": (_discount(np.ones(2, np.float32)), "discount"),
    "a dict of discounts": (_discount({"a": 1.0}), "discount"),
}
"""Time steps that are refused before anyone else sees them, in a single environment and in a batch."""
