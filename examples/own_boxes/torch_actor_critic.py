"""An actor-critic in PyTorch, which is yours to install: agentkit keeps, launches and resumes what it cannot compile.

Actor-critic with nine-step returns and importance weights from replay (after Degris et al. 2012): the actor samples
from softmax logits and stores their log-probability, the learner corrects by that of the first action.

    python examples/own_boxes/torch_actor_critic.py
"""

import numpy as np
import torch

import agentkit
from agentkit import core, specs
from agentkit.agents import Agent, ReplayConfig, Transitions

CONFIG = ReplayConfig(n_step=9, batch_size=64, min_replay_size=200, replay_size=1_000)


def make_network():
    """Returns logits and, behind them, the value: ``[B, 4]``."""
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(50, 64), torch.nn.Tanh(), torch.nn.Linear(64, 4))


def load(network, arrays):
    """Gives a network the arrays that `dump` returned."""
    network.load_state_dict({name: torch.from_numpy(np.array(array)) for name, array in arrays.items()})


def dump(network):
    """Returns a network's parameters as arrays by name."""
    return {name: tensor.detach().numpy() for name, tensor in network.state_dict().items()}


def make_extras_spec(environment_spec):
    """Says what the actor stores beside each action: its log-probability."""
    return specs.Array((), np.float32, "log_prob")


class TorchActor(core.Actor):
    """Samples from the network's logits; in evaluation takes the likeliest action."""

    def __init__(self, parts):
        self.parts, self.network, self.loaded = parts, make_network(), None
        self.random = torch.Generator().manual_seed(parts.seed)
        self.log_prob = np.float32(0)

    def select_action(self, observation):
        """Returns a number of an action."""
        params = self.parts.variables.params
        if params is not self.loaded:
            load(self.network, params)
            self.loaded = params
        with torch.no_grad():
            log_pi = torch.log_softmax(self.network(torch.from_numpy(observation[None]))[0, :3], -1)
        greedy = self.parts.evaluation
        action = log_pi.argmax() if greedy else torch.multinomial(log_pi.exp(), 1, generator=self.random)[0]
        self.log_prob = np.float32(log_pi[action])
        return np.int32(action)

    def observe_first(self, timestep):
        """Records the start of an episode."""
        self.parts.adder.add_first(timestep)

    def observe(self, action, next_timestep):
        """Records a step, with the action's log-probability."""
        self.parts.adder.add(action, next_timestep, self.log_prob)

    def update(self, wait=False):
        """Fetches the newest parameters."""
        self.parts.variables.update(wait)


class TorchLearner:
    """Learns policy and value by Adam; has the methods of `core.Learner`."""

    def __init__(self, parts):
        torch.set_num_threads(1)  # In so small a network, threads would wait for one another.
        torch.manual_seed(parts.seed)
        self.dataset, self.network = parts.dataset, make_network()
        self.optimizer = torch.optim.Adam(self.network.parameters(), 5e-3)

    def step(self):
        """Draws a batch and learns from it."""
        _, sample = next(self.dataset)
        t = type(sample.data)(*[torch.from_numpy(np.array(leaf)) for leaf in sample.data])
        output, next_value = self.network(t.observation), self.network(t.next_observation)[:, 3].detach()
        log_pi = torch.log_softmax(output[:, :3], -1)
        taken = log_pi.gather(1, t.action.long()[:, None])[:, 0]
        advantage = t.reward + t.discount * next_value - output[:, 3]
        weight = (taken - t.extras).exp().clamp(max=1.0).detach()
        entropy = -(log_pi.exp() * log_pi).sum(-1)
        loss = (weight * (advantage.square() - advantage.detach() * taken) - 0.02 * entropy).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

    def variables(self):
        """Returns what actors may fetch."""
        return {"policy": dump(self.network)}

    def save(self):
        """Returns network and optimiser as arrays."""
        moments = self.optimizer.state_dict()["state"]
        adam = {f"{i}": {name: x.numpy().copy() for name, x in state.items()} for i, state in moments.items()}
        return {"network": {name: x.copy() for name, x in dump(self.network).items()}, "adam": adam}

    def restore(self, state):
        """Takes them back."""
        load(self.network, state["network"])
        whole = self.optimizer.state_dict()
        moments = {
            int(i): {k: torch.from_numpy(np.array(x)) for k, x in each.items()} for i, each in state["adam"].items()
        }
        self.optimizer.load_state_dict({**whole, "state": moments})


def make_agent():
    """Returns the agent: two boxes in PyTorch, and replay of transitions."""
    return Agent(
        CONFIG, Transitions(CONFIG), make_actor=TorchActor, make_learner=TorchLearner, make_extras_spec=make_extras_spec
    )


if __name__ == "__main__":
    experiment = agentkit.ExperimentConfig(make_agent(), "agentkit:catch", 10_000, evaluation_period=0)
    returns = agentkit.evaluate(agentkit.run(experiment), num_episodes=50)["episode_return"]
    print(f"return {np.mean(returns):.2f} (1 is perfect)")
