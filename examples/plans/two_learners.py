"""Two learners on one stream: one acts, the other only watches, as in tandem reinforcement learning.

Ostrovski, Castro & Dabney 2021, "The Difficulty of Passive Learning in Deep Reinforcement Learning". One actor acts
with the active learner's parameters and feeds two replay servers, each with a table of its own (here 3-step and
1-step returns, at two discounts). Rate limits stay apart, and the slower learner sets the actor's pace.

    python examples/plans/two_learners.py
    python examples/plans/two_learners.py --run-directory RUN   # and with --resume to go on
"""

import argparse
import contextlib
import dataclasses

from agentkit import distributed, experiment
from agentkit.agents import dqn
from agentkit.experiment.launching.nodes.actor import actor_node
from agentkit.experiment.launching.nodes.learner import learner_node
from agentkit.experiment.launching.nodes.replay import replay_node
from agentkit.experiment.launching.sharing.common import find_spec
from agentkit.experiment.launching.sharing.transports import make_source
from agentkit.learning import Linear


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


def main(num_steps: int = 4_000, run_directory: str | None = None, resume: bool = False) -> None:
    """Trains both on catch for as long as the actor takes for its steps."""
    active = dqn.Config(n_step=3, min_replay_size=500, epsilon=Linear(1.0, 0.2, 2_000), target_update_period=100)
    passive = dataclasses.replace(active, n_step=1, discount=0.9, double=False)
    folder = {"run_directory": run_directory, "checkpoint_period": 1_000}
    configs = {
        name: experiment.ExperimentConfig(dqn.make_agent(config), "agentkit:catch", num_steps, seed, **folder)
        for seed, (name, config) in enumerate({"active": active, "passive": passive}.items())
    }
    spec = find_spec(configs["active"])

    program = distributed.Program("two learners", experiment.make_roles(num_actors=1))
    replays, learners = {}, {}
    for name, config in configs.items():
        replays[name] = program.add_node("replay", replay_node, config, spec, learner_id=name)
        learners[name] = program.add_node("learner", learner_node, config, spec, replays[name], learner_id=name)
    program.add_node("evaluator", report, configs, spec, learners)
    program.add_node(
        "actor", actor_node, configs["active"], spec, replays["active"], learners["active"],
        extra_learners=[(configs["passive"].agent, replays["passive"])],
    )  # fmt: skip

    status = experiment.run_learners(program, configs, resume=resume)

    for i, name in enumerate(configs):
        updates = status["nodes"][f"learner-{i}"]["gauges"]["updates"]
        result = status["values"].get("returns", {}).get(name, float("nan"))
        print(f"{name}: return {result:.2f} after {updates} updates (1 is perfect)")
    print(f"{status['totals']['steps']} steps of one actor; {status['stop']}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num_steps", type=int, default=4_000)
    parser.add_argument("--run-directory", metavar="RUN", help="has the checkpoints of both; default: none")
    parser.add_argument("--resume", action="store_true", help="go on with the run in RUN")
    main(**vars(parser.parse_args()))
