"""A node of your own in a program: it watches the run store, and raises an alarm.

All nodes tell the run store how they are: counts, gauges, and for each replay table who waits for whom. Here a node
writes that to a CSV file, and stops the program once one side has waited for the other in most of the last looks. The
learner has far too much to do (many updates per step), so actors come to wait for it.

    python examples/plans/watcher.py --path waits.csv
"""

import argparse
import collections
import csv
import pathlib
import tempfile
import time

from agentkit import distributed, experiment
from agentkit.agents import dqn
from agentkit.loggers.program_table import all_tables

COLUMNS = ("seconds", "table", "items", "inserted", "sampled", "waiting", "updates", "learner_waited_seconds")
LOOKS, SHARE = 10, 0.7  # An alarm where one side waits in more than this share of so many looks, two a second.
ADVICE = {
    "writers": "the learner is too slow. Lower updates_per_step, or give it an accelerator",
    "samplers": "actors are too slow. Add some, or raise updates_per_step",
}


def watch(context, path):
    """Writes a row for each table twice a second; asks the program to stop if one side always waits."""
    recent = collections.defaultdict(lambda: collections.deque(maxlen=LOOKS))
    start = time.monotonic()
    with open(path, "w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(COLUMNS)
        context.ready()
        while not context.wait(0.5):
            status = context.store.status()
            learner = status["nodes"]["learner-0"]["gauges"]
            for name, table in all_tables(status).items():
                waiting = table["waiting"]
                counts = (table["size"], table["num_inserted"], table["num_sampled"], waiting)
                told = (learner.get("updates", 0), round(learner.get("waited_for_data_seconds", 0.0), 1))
                rows.writerow((round(time.monotonic() - start, 1), name, *counts, *told))
                file.flush()
                if learner.get("updates", 0):  # Before the first update, samplers wait for the first items.
                    recent[name].append(waiting)
                if waiting in ADVICE and recent[name].count(waiting) > SHARE * LOOKS:
                    context.request_stop(f"alarm: {waiting} of {name} wait: {ADVICE[waiting]}")


def main(num_steps: int = 100_000, path: str | None = None, updates_per_step: float = 20.0) -> None:
    """Trains DQN on catch, watched, and prints who waited."""
    agent = dqn.make_agent(dqn.Config(updates_per_step=updates_per_step, min_replay_size=200))
    config = experiment.ExperimentConfig(agent, "agentkit:catch", num_steps, evaluation_period=0)
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(path or f"{folder}/waits.csv").absolute()

        program = experiment.make_program(config, experiment.LaunchConfig(num_actors=1))
        program.add_role(distributed.Role("watcher", stop_order=0))
        program.add_node("watcher", watch, str(file))
        status = experiment.run_program(program)

        with open(file, newline="") as rows:
            waits = collections.Counter(row["waiting"] for row in csv.DictReader(rows) if float(row["updates"]))
    print(
        f"{waits.total()} looks since the first update: "
        + ", ".join(f"{who} waited in {count}" for who, count in waits.most_common())
    )
    print(f"{status['totals'].get('steps', 0)} steps; {status['stop']}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num_steps", type=int, default=100_000)
    parser.add_argument("--path", help="of the CSV file; by default a temporary one")
    parser.add_argument("--updates_per_step", type=float, default=20.0)
    main(**vars(parser.parse_args()))
