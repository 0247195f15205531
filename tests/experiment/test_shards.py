"""Several replay servers in one run folder: what each held is in the checkpoint, and comes back to it."""

import pytest

from agentkit import checkpoint, distributed, experiment
from agentkit.agents import dqn
from agentkit.experiment.launching.nodes.actor import actor_node
from agentkit.experiment.launching.nodes.learner import learner_node
from agentkit.experiment.launching.nodes.replay import replay_node
from agentkit.experiment.launching.sharing.common import find_spec
from agentkit.loggers.program_table import all_tables
from tests.experiment.launched import REPLAY

pytestmark = [pytest.mark.both_stacks, pytest.mark.full]


def run(folder, num_steps, totals=None):
    """The status at its first sight of both shards, and at its end."""
    agent = dqn.make_agent(dqn.Config(hidden_sizes=(16,), n_step=3, min_replay_size=100, updates_per_step=0.1))
    plan = {"run_directory": folder, "evaluation_period": 0, "replay": REPLAY}
    config = experiment.ExperimentConfig(agent, "agentkit:catch", num_steps, **plan)
    spec = find_spec(config)
    program = distributed.Program("shards", experiment.make_roles(num_actors=2, replay=REPLAY))
    shards = [program.add_node("replay", replay_node, config, spec) for _ in range(2)]
    learner = program.add_node("learner", learner_node, config, spec, shards)
    for shard in shards:
        program.add_node("actor", actor_node, config, spec, shard, learner)
    first = []

    def look(status):
        if not first and len(all_tables(status)) == 2:
            first.append(status)

    last = experiment.run_program(program, run_directory=folder, totals=totals, on_status=look)
    return first[0], last


@pytest.mark.full
def test_shards_are_saved_and_come_back(tmp_path):
    _, ended = run(tmp_path, 1_500)
    sizes = {name: table["size"] for name, table in all_tables(ended).items()}
    assert len(sizes) == 2 and min(sizes.values()) > 100
    saved = checkpoint.read_latest(tmp_path / "checkpoints")
    assert (saved.path / "replay").is_dir() and (saved.path / "replay-1").is_dir()
    began, ended = run(tmp_path, saved.step + 500, saved.state["totals"])
    for name, table in all_tables(began).items():
        assert table["size"] >= 0.9 * sizes[name], (name, table, sizes)  # The tables were seen before the last save.
    assert ended["totals"]["steps"] >= saved.step + 500
    assert ended["nodes"]["learner-0"]["gauges"]["updates"] > saved.state["learner"]["num_updates"]
