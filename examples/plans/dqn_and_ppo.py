"""Two kinds of learner on one stream: PPO acts and learns on-policy, a DQN learns off-policy from the same steps.

The actor acts with PPO's policy. Each segment goes to PPO's queue, where it is learned from once, and each transition
to DQN's replay table, where it is drawn many times. Writers wait while PPO's queue is full or DQN is far behind.

    python examples/plans/dqn_and_ppo.py
    python examples/plans/dqn_and_ppo.py --run-directory RUN   # and with --resume to go on
"""

import argparse
import contextlib
import dataclasses

from agentkit import distributed, experiment
from agentkit.agents import dqn, ppo
from agentkit.agents.common.experience_wrappers import DroppingExtras
from agentkit.experiment.launching.nodes.actor import actor_node
from agentkit.experiment.launching.nodes.learner import learner_node
from agentkit.experiment.launching.nodes.replay import replay_node
from agentkit.experiment.launching.sharing.common import find_spec
from agentkit.experiment.launching.sharing.transports import make_source


def report(context, configs, spec, learners):
    """A node of our own: at the end, judges both learners by the same episodes."""
    with contextlib.ExitStack() as stack:
        evaluators = {
            name: stack.enter_context(
                experiment.Evaluator(config, config.agent.make_networks(spec), make_source(context, learners[name]))
            )
            for name, config in configs.items()
        }
        context.ready()
        while not context.wait(1.0):
            pass  # Evaluators stop after learners: what these published last is still there.
        with context.busy("judging both learners", 300.0):  # Compiling may take longer than a stop waits otherwise.
            returns = {name: evaluator.run(100, number=0)["episode_return"] for name, evaluator in evaluators.items()}
        context.store.put("returns", returns)


def main(num_steps: int = 16_000, run_directory: str | None = None, resume: bool = False) -> None:
    """Trains both on catch for as long as the actor takes for its steps."""
    follower = dqn.make_agent(dqn.Config(n_step=1, min_replay_size=500, target_update_period=100))
    agents = {
        "ppo": ppo.make_agent(ppo.Config(segment_length=32, num_minibatches=2)),
        "dqn": dataclasses.replace(follower, experience=DroppingExtras(follower.experience)),
    }
    folder = {"run_directory": run_directory, "checkpoint_period": 1_000}
    configs = {
        name: experiment.ExperimentConfig(agent, "agentkit:catch", num_steps, num_envs=8, **folder)
        for name, agent in agents.items()
    }
    spec = find_spec(configs["ppo"])
    program = distributed.Program("dqn and ppo", experiment.make_roles(num_actors=1))
    replays, learners = {}, {}
    for name, config in configs.items():
        replays[name] = program.add_node("replay", replay_node, config, spec, learner_id=name)
        given = {"publish_seconds": 0.0, "learner_id": name}
        learners[name] = program.add_node("learner", learner_node, config, spec, replays[name], **given)
    program.add_node("evaluator", report, configs, spec, learners)
    program.add_node(
        "actor", actor_node, configs["ppo"], spec, replays["ppo"], learners["ppo"],
        extra_learners=[(configs["dqn"].agent, replays["dqn"])],
    )  # fmt: skip

    status = experiment.run_learners(program, configs, resume=resume)
    for i, name in enumerate(configs):
        updates = status["nodes"][f"learner-{i}"]["gauges"]["updates"]
        result = status["values"].get("returns", {}).get(name, float("nan"))
        print(f"{name}: return {result:.2f} after {updates} updates (1 is perfect)")
    print(f"{status['totals']['steps']} steps of one actor; {status['stop']}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num_steps", type=int, default=16_000)
    parser.add_argument("--run-directory", metavar="RUN", help="has the checkpoints of both; default: none")
    parser.add_argument("--resume", action="store_true", help="go on with the run in RUN")
    main(**vars(parser.parse_args()))
