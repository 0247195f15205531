"""Trains on a gymnasium class of one's own and evaluates what was learned."""

import gymnasium

import agentkit


class Thermostat(gymnasium.Env):
    """Rewards a small error of the temperature; actions cool, wait and heat."""

    observation_space, action_space = gymnasium.spaces.Box(-40, 40, (1,)), gymnasium.spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        """Begins with any error of up to ten degrees."""
        super().reset(seed=seed)
        self.error, self.steps = self.np_random.uniform(-10, 10, 1), 0
        return self.error, {}

    def step(self, action):
        """Changes the temperature by a degree or none."""
        self.error, self.steps = self.error + action - 1, self.steps + 1
        return self.error, -abs(self.error[0]), False, self.steps == 30, {}


agentkit.train("dqn", Thermostat, "5k", run_directory="runs/thermostat")
print(agentkit.evaluate("runs/thermostat", environment=Thermostat)["episode_return"])
