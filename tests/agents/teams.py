"""Small games of several agents that act together, for teams of them."""

from typing import Any, ClassVar

import dm_env
import numpy as np

from agentkit import envs, specs
from agentkit.core import MultiAgentEnvironment
from agentkit.envs.multi_agent.team import TeamEnvironment

LENGTH = 6
_NUM_ACTIONS = {"ann": 2, "ben": 2, "cy": 3}


class Hints(MultiAgentEnvironment):
    """Three agents are rewarded for the action that each is shown; ann ends after 1 to 5 steps, the others after 6.

    Ann and ben are alike and choose one of 2; cy chooses one of 3, of which a mask rules one out. To take that raises
    ValueError where the game is `strict`, and an action of who has ended always does. There is no state.
    """

    def __init__(self, seed: int, strict: bool = False):
        self._strict = strict
        self.reseed(seed)

    def reseed(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def reset(self) -> dict[str, dm_env.TimeStep]:
        self._step, self._last_of_ann = 0, int(self._rng.integers(1, LENGTH))
        self._live = set(_NUM_ACTIONS)
        self._draw()
        return {agent: dm_env.restart(self._observe(agent)) for agent in _NUM_ACTIONS}

    def step(self, action: dict[str, Any]) -> dict[str, dm_env.TimeStep]:
        if action.keys() != self._live:
            raise ValueError(f"Expected actions of {sorted(self._live)}, found {sorted(action)}.")
        if self._strict and action["cy"] == self._forbidden:
            raise ValueError(f"Action {action['cy']} is ruled out.")
        self._step += 1
        rewards = {agent: float(chosen == self._hints[agent]) for agent, chosen in action.items()}
        ended = {agent for agent in action if self._step == (self._last_of_ann if agent == "ann" else LENGTH)}
        self._live -= ended
        self._draw()
        return {
            agent: (dm_env.termination if agent in ended else dm_env.transition)(reward, self._observe(agent))
            for agent, reward in rewards.items()
        }

    def _draw(self) -> None:
        self._forbidden, chosen = self._rng.permutation(3)[:2].tolist()
        self._hints = {"ann": int(self._rng.integers(2)), "ben": int(self._rng.integers(2)), "cy": chosen}

    def _observe(self, agent: str) -> Any:
        hint = np.eye(_NUM_ACTIONS[agent], dtype=np.float32)[self._hints[agent]]
        allowed = (np.arange(3) != self._forbidden).astype(np.int8)
        return {"observation": hint, "action_mask": allowed} if agent == "cy" else hint

    def agent_specs(self) -> dict[str, specs.EnvironmentSpec]:
        hint = specs.BoundedArray((2,), np.float32, 0, 1, "hint")
        mask = specs.BoundedArray((3,), np.int8, 0, 1, "action_mask")
        masked = {"observation": specs.BoundedArray((3,), np.float32, 0, 1, "hint"), "action_mask": mask}
        scalar = specs.Array((), np.float32)
        return {
            agent: specs.EnvironmentSpec(
                masked if agent == "cy" else hint, specs.DiscreteArray(count, np.int32, agent), scalar, scalar
            )
            for agent, count in _NUM_ACTIONS.items()
        }


class Dials(MultiAgentEnvironment):
    """Three agents set what each is shown, for four steps: dial two numbers, knob one, and switch one of two.

    A number's reward is 1 minus its distance, the switch's 1 or 0, so that 16 is perfect, in sum of all.
    """

    _SHOWN: ClassVar = {"dial": 2, "knob": 1, "switch": 1}

    def __init__(self, seed: int):
        self.reseed(seed)

    def reseed(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def reset(self) -> dict[str, dm_env.TimeStep]:
        self._step = 0
        self._draw()
        return {agent: dm_env.restart(shown) for agent, shown in self._shown.items()}

    def step(self, action: dict[str, Any]) -> dict[str, dm_env.TimeStep]:
        self._step += 1
        rewards = {
            "dial": 2.0 - float(np.sum(np.abs(action["dial"] - self._shown["dial"]))),
            "knob": 1.0 - float(np.abs(action["knob"] - self._shown["knob"])[0]),
            "switch": float(action["switch"] == (self._shown["switch"][0] > 0)),
        }
        self._draw()
        ended = dm_env.termination if self._step == 4 else dm_env.transition
        return {agent: ended(reward, self._shown[agent]) for agent, reward in rewards.items()}

    def _draw(self) -> None:
        self._shown = {name: self._rng.uniform(-1, 1, size).astype(np.float32) for name, size in self._SHOWN.items()}

    def agent_specs(self) -> dict[str, specs.EnvironmentSpec]:
        def spec(name: str, size: int) -> specs.EnvironmentSpec:
            shown = specs.BoundedArray((size,), np.float32, -1, 1, name)
            scalar = specs.Array((), np.float32)
            return specs.EnvironmentSpec(
                shown, specs.DiscreteArray(2, np.int32, name) if name == "switch" else shown, scalar, scalar
            )

        return {name: spec(name, size) for name, size in self._SHOWN.items()}


def make_dials(seed: int) -> TeamEnvironment:
    return TeamEnvironment(Dials(seed))


def make_hints(seed: int, strict: bool = False) -> TeamEnvironment:
    return TeamEnvironment(Hints(seed, strict))


envs.register("hints", lambda name, seed: make_hints(seed))
