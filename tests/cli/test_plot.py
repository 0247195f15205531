import csv
import json
import re

import numpy as np
import pytest

from agentkit.agents import dqn
from agentkit.agents.addons import View, with_normalization, with_views
from agentkit.cli import main
from agentkit.cli.drawing.curves import (
    EVALUATION,
    TRAINING,
    Curve,
    find_runs,
    group_runs,
    on_common_points,
    read_run,
    smooth,
    steps_title,
    summarise,
)
from agentkit.errors import ConfigError
from agentkit.experiment.config import identity
from agentkit.loggers import CsvLogger


def make_run(
    folder,
    seed=0,
    agent="sac",
    environment="gymnasium:Pendulum-v1",
    evaluation=((0, 1.0), (10, 3.0)),
    training=(),
    parts=None,
    record=None,
    **config,
):
    """Makes the folder of a run with this `config` of its agent; `record` has other keys of its ``config.json``."""
    folder.mkdir(parents=True)
    record = {
        "agent": agent,
        "environment": environment,
        "seed": seed,
        "replay": "in_process",
        "agent_config": config,
        **({} if parts is None else {"agent_parts": parts}),
        **(record or {}),
    }
    (folder / "config.json").write_text(json.dumps(record))
    for name, points in (("evaluation", evaluation), ("train", training)):
        if points:
            with CsvLogger(folder / "logs" / f"{name}.csv") as logger:
                for number, (step, value) in enumerate(points):
                    row = {"steps": step, "episode_return": value, "seconds": step / 10}
                    logger.write(row | ({"episodes": number} if name == "train" else {}))
    return folder


def test_curves_of_a_run_against_each_axis(tmp_path):
    run = make_run(tmp_path / "a", training=[(step, float(step)) for step in range(0, 21, 5)])
    curves = read_run(run).curves
    np.testing.assert_array_equal(curves[EVALUATION].steps, [0, 10])
    np.testing.assert_array_equal(curves[EVALUATION].returns, [1.0, 3.0])
    np.testing.assert_array_equal(curves[TRAINING].steps, [0, 5, 10, 15, 20])
    by_time, by_episodes = (read_run(run, axis=axis).curves[EVALUATION].steps for axis in ("time", "episodes"))
    np.testing.assert_array_equal(by_time, [0, 1])
    np.testing.assert_array_equal(by_episodes, [0, 2])  # The log of evaluations has none: from that of training.
    assert read_run(run, axis="updates").curves == {}


def test_episodes_before_the_learners_first_row_are_points_of_their_own(tmp_path):
    run = make_run(tmp_path / "a", training=[(step, float(step)) for step in (100, 1_000, 2_000, 2_250, 2_500)])
    with CsvLogger(run / "logs" / "learner.csv") as logger:
        for step, updates in ((2_000, 500), (2_500, 750)):
            logger.write({"steps": step, "updates": updates})
    curve = read_run(run, axis="updates").curves[TRAINING]
    np.testing.assert_array_equal(curve.steps, [25, 250, 500, 625, 750])
    np.testing.assert_array_equal(curve.returns, [100, 1_000, 2_000, 2_250, 2_500])


def test_training_of_clipped_rewards_is_drawn_beside_evaluations_in_the_environments_own(tmp_path):
    run = make_run(tmp_path / "a")
    with CsvLogger(run / "logs" / "train.csv") as logger:
        for step in (0, 5):
            logger.write({"steps": step, "episode_return": 1.0, "episode_raw_return": 100.0 * step})
    curves = read_run(run).curves
    np.testing.assert_array_equal(curves[TRAINING].returns, [0.0, 500.0])
    np.testing.assert_array_equal(curves[EVALUATION].returns, [1.0, 3.0])
    as_asked = read_run(run, [TRAINING]).curves  # By --metric.
    np.testing.assert_array_equal(as_asked[TRAINING].returns, [1.0, 1.0])


def test_steps_of_offline_runs_are_called_updates(tmp_path, capsys):
    runs = [
        read_run(make_run(tmp_path / name, agent=name, record=record))
        for name, record in (("sac", None), ("td3_bc", {"offline": {"dataset": "a.npz"}}))
    ]
    found = [steps_title(each) for each in (runs[:1], runs[1:], runs)]
    assert found == ["environment steps", "updates", "environment steps; of offline runs updates"]
    assert main(["compare", *(str(tmp_path / name) for name in ("sac", "td3_bc")), "-o", str(tmp_path / "c.svg")]) == 0
    assert "At step: environment steps; of offline runs updates." in capsys.readouterr().out
    assert main(["plot", str(tmp_path / "td3_bc"), "-o", str(tmp_path / "p.svg")]) == 0
    picture = (tmp_path / "p.svg").read_text()
    assert ">updates<" in picture and "environment steps" not in picture
    make_run(tmp_path / "other", environment="bsuite:catch/0")
    assert main(["plot", *(str(tmp_path / name) for name in ("td3_bc", "other")), "-o", str(tmp_path / "p.svg")]) == 0
    assert re.findall(">(updates|environment steps.*)<", (tmp_path / "p.svg").read_text()) == [
        "updates",
        "environment steps",
    ], "each panel has its own"


def test_smoothing_is_a_mean_over_the_last_points():
    curve = Curve(np.arange(40.0), np.arange(1.0, 41.0))
    found = smooth(curve, 20).returns
    assert found[0] == 1.0 and found[1] == 1.5 and found[-1] == np.mean(np.arange(21, 41))
    np.testing.assert_array_equal(smooth(curve, 1).returns, curve.returns)


@pytest.mark.parametrize("window", [1, 2, 3, 7, 8, 30])
def test_a_large_return_is_in_no_mean_but_its_own(window):
    returns = np.array([3.0, 1e17, 1.0, 0.1, 3.0, -4.0, 5.0, 0.7])
    expected = [np.mean(returns[max(k + 1 - window, 0) : k + 1]) for k in range(len(returns))]
    np.testing.assert_allclose(smooth(Curve(np.arange(8.0), returns), window).returns, expected, rtol=1e-15)


def test_points_that_all_runs_share_are_kept_and_a_band_is_over_runs():
    curves = [Curve(np.array([10.0, 20.0]), np.array(values)) for values in ([1.0, 2.0], [3.0, 6.0], [5.0, 7.0])]
    band = summarise(curves, "range")
    np.testing.assert_array_equal(band.points, [10, 20])
    np.testing.assert_allclose([band.middle, band.low, band.high], [[3, 5], [1, 2], [5, 7]])
    np.testing.assert_allclose(summarise(curves, "std").high - 3.0, [np.std([1, 3, 5]), 2 + np.std([2, 6, 7])])
    np.testing.assert_allclose(summarise(curves, "ci", iqm=True).middle, [3, 5])
    interval = summarise(curves, "ci")
    assert np.all(interval.low >= band.low) and np.all(interval.low < interval.middle)


def test_runs_whose_points_differ_are_one_smooth_line():
    """As launched programs' are. All runs lie on a line of their own; their mean at a step that one has must, too."""
    generator, curves = np.random.default_rng(0), []
    for offset in (0.0, 100.0, 200.0):
        steps = np.sort(generator.uniform(0, 1000, 30))
        curves.append(Curve(steps, offset + steps))
    points, values = on_common_points(curves)
    assert values.shape == (3, len(points)) and 25 <= len(points) <= 30
    band = summarise(curves, "range")
    inside = band.num_runs == 3
    np.testing.assert_allclose(band.middle[inside], 100 + band.points[inside], atol=1000 / 30)
    assert np.all(np.diff(band.middle[inside]) > 0)  # No zigzag between runs that are 100 apart.


def test_a_run_that_is_shorter_ends_where_it_ends():
    long, short = (
        Curve(np.arange(0.0, end, 10.0), np.full(end // 10, value)) for end, value in ((200, 1.0), (100, 5.0))
    )
    band = summarise([long, short], "range")
    assert set(band.middle[band.points < 90]) == {3.0} and set(band.middle[band.points > 120]) == {1.0}


def test_seeds_are_one_group_and_labels_name_what_differs(tmp_path):
    own = {"make_loss": {"function": "mine:my_loss", "digest": "0"}}
    runs = [
        make_run(tmp_path / "a", seed=0, batch_size=256, discount=0.9),
        make_run(tmp_path / "b", seed=1, batch_size=256, discount=0.9),
        make_run(tmp_path / "c", seed=0, batch_size=64, discount=0.9),
        make_run(tmp_path / "d", agent="dqn", double=True),
        make_run(tmp_path / "e", agent="dqn", double=True, parts=own),
        make_run(tmp_path / "f", agent="ppo", clip=0.1),
        make_run(tmp_path / "g", agent="ppo", clip=0.2, environment="agentkit:catch"),
    ]
    groups = group_runs([read_run(run) for run in runs])
    assert {label: len(group) for label, group in groups.items()} == {
        "sac batch_size=256": 2,
        "sac batch_size=64": 1,
        "dqn parts=None": 1,
        "dqn parts=my_loss": 1,
        "ppo": 2,  # In each environment it has one set of settings.
    }


def schedule(name, *values):
    fields = dict(zip(("start", "end", "duration"), values, strict=True))
    return {"type": f"agentkit.learning.schedules:{name}", "digest": "0", "fields": fields}


WRAPPER = {"partial": {"function": "agentkit.wrappers:FrameStack"}, "args": [], "keywords": {"num_frames": 4}}


@pytest.mark.parametrize(
    ("record", "label"),
    [
        ({"num_envs": 4}, "num_envs=4"),
        ({"environment_settings": {"rows": 8}}, "env_set.rows=8"),
        ({"wrappers": [WRAPPER]}, "wrappers=(FrameStack(num_frames=4),)"),
        ({"data": "/data/expert.npz"}, "data=/data/expert.npz"),
        ({"init_from": "/runs/first"}, "init_from=/runs/first"),
        ({"on_device": True}, "on_device=True"),
        ({"offline": {"dataset": None, "evaluates": True}}, "offline=True"),
        ({"agent_parts": {"make_loss": {"function": "mine:my_loss", "digest": "0"}}}, "parts=my_loss"),
        ({"agent_parts": {"make_loss": {"function": "agentkit.losses.dqn:other"}}}, "parts=make_loss"),
        ({"agent_config": {"clip": schedule("Cosine", 0.1, 0, 9)}}, "clip=cosine(0.1, 0, 9)"),
    ],
)
def test_runs_of_other_settings_are_other_lines_and_old_folders_have_the_defaults(tmp_path, record, label):
    plain = {"num_envs": None, "environment_settings": {}, "wrappers": [], "data": None, "init_from": None}
    config = {"clip": schedule("Linear", 0.1, 0, 9)}
    old = make_run(tmp_path / "old", **config)
    new = make_run(tmp_path / "new", record=plain | {"on_device": False}, **config)
    launched = make_run(tmp_path / "launched", record={"launch": {"num_actors": 2}}, **config)
    other = make_run(tmp_path / "other", record=plain | {"agent_config": config} | record)
    groups = group_runs([read_run(run) for run in (old, new, launched, other)])
    assert sorted(map(len, groups.values())) == [1, 3]
    assert next(name for name, group in groups.items() if len(group) == 1) == f"sac {label}"


def test_an_edited_source_makes_no_other_line_and_other_policies_do(tmp_path):
    def run(name, digest, **config):
        parts = {"make_loss": {"function": "mine:my_loss", "digest": digest}}
        policy = {"agent": "dqn", "agent_config": config, "agent_parts": parts, "agent_code": {"digest": digest}}
        several = {"policies": {"shared": policy}, "policy_of": "shared", "num_steps": 9, "loggers": []}
        record = several | {"agent": None}
        clip = schedule("Linear", 0.1, 0, 9) | {"digest": digest}
        return read_run(make_run(tmp_path / name, record=record, clip=clip))

    assert list(map(len, group_runs([run("a", "0", size=1), run("b", "1", size=1)]).values())) == [2]
    assert list(group_runs([run("c", "0", size=1), run("d", "0", size=2)])) == ["dqn size=1", "dqn size=2"]


def test_groups_that_words_do_not_tell_apart_are_numbered_and_not_merged(tmp_path):
    """The schedules are of classes of one name in two modules."""
    one, other = ({"type": f"{module}:Step", "fields": {"size": 1}} for module in ("mine", "yours"))
    runs = [make_run(tmp_path / f"{i}", clip=clip) for i, clip in enumerate((one, other, one))]
    sizes = {label: len(group) for label, group in group_runs([read_run(run) for run in runs]).items()}
    assert sizes == {"sac clip=step(1) #1": 2, "sac clip=step(1) #2": 1}


def test_torsos_and_add_ons_of_agentkit_are_named_as_their_options(tmp_path):
    agents = {
        "None": dqn.make_agent(),
        "simba": dqn.make_agent(torso="simba"),
        "impala": dqn.make_agent(torso="impala"),
        "normalization(observations)": with_normalization(dqn.make_agent()),
        "normalization(observations, rewards)": with_normalization(dqn.make_agent(), rewards=True),
        "views": with_views(dqn.make_agent(), {"window": View("observation", "-3:0")}),
    }
    runs = [
        make_run(tmp_path / f"{i}", record=identity.describe_agent(agent, 1)) for i, agent in enumerate(agents.values())
    ]
    assert list(group_runs([read_run(run) for run in runs])) == [f"dqn parts={words}" for words in agents]


@pytest.mark.full
def test_the_command_writes_a_picture_of_each_kind_and_the_points(tmp_path, capsys):
    runs = [str(make_run(tmp_path / f"s{seed}", seed=seed, training=[(5, 1.0)])) for seed in range(2)]
    runs.append(str(make_run(tmp_path / "other", environment="bsuite:catch/0", evaluation=(), training=[(5, 1.0)])))
    runs.append(str(make_run(tmp_path / "begun", evaluation=())))
    for suffix, start in ((".png", b"\x89PNG"), (".pdf", b"%PDF"), (".svg", b"<?xml")):
        output, points = tmp_path / "new" / f"picture{suffix}", tmp_path / "points.csv"
        assert main(["plot", *runs, "-o", str(output), "--csv", str(points)]) == 0
        assert output.read_bytes().startswith(start) and output.stat().st_size > 5_000
        said = capsys.readouterr().out
        assert str(output) in said and f"nothing is logged there yet: {tmp_path / 'begun'}\n" in said
    svg = output.read_text()
    # Training is faint, also of the run that has nothing else, and so is its sign in the legend.
    assert (svg.count("stroke-width: 1.6"), svg.count("stroke-width: 0.9")) == (1, 3)
    assert "sac (1 to 2 seeds)" in svg and "95 % bootstrap interval" in svg and "bsuite:catch/0" in svg
    with points.open(newline="") as file:
        rows = list(csv.DictReader(file))
    wanted = [row for row in rows if row["metric"] == EVALUATION]
    assert [(row["steps"], row["middle"], row["num_runs"]) for row in wanted] == [
        ("0.0", "1.0", "2"),
        ("10.0", "3.0", "2"),
    ]


def test_every_one_of_many_lines_looks_different(tmp_path):
    runs = [str(make_run(tmp_path / f"size{size}", batch_size=size)) for size in range(1, 17)]
    assert main(["plot", *runs, "-o", str(tmp_path / "many.svg")]) == 0
    styles = re.findall(r'style="fill: none; ([^"]*stroke-width: 1.6[^"]*)"', (tmp_path / "many.svg").read_text())
    assert len(set(styles)) == len(styles) / 2 == 16  # Each is in the panel and in the legend.


def test_what_cannot_be_drawn(tmp_path, capsys):
    run = str(make_run(tmp_path / "a"))
    for words, said in (
        ([str(tmp_path)], "not a run folder"),
        ([str(make_run(tmp_path / "empty", evaluation=()))], "empty holds no returns yet"),
        (
            [str(make_run(tmp_path / "one")), "--metric", "evaluation/episode_retrn"],
            "Did you mean evaluation/episode_return",
        ),
        ([run, "--metric", "learner/loss"], "holds no learner/loss against steps yet. There are: "),
        ([run, "--metric", "loss"], "expected LOG/COLUMN, such as learner/loss, found 'loss'"),
        ([run, "-o", str(tmp_path / "picture.doc")], "Cannot write the picture"),
        ([run, "-o", f"{run}/config.json/to/a.png"], "a.png cannot be written: Not a directory. Free some space"),
        ([run, "-o", str(tmp_path / "a.png"), "--csv", str(tmp_path)], "cannot be written: Is a directory. Free"),
    ):
        assert main(["plot", *words]) == 2
        assert said in capsys.readouterr().err


def test_a_run_without_the_metric_is_left_out_beside_what_it_has(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("agentkit.cli.drawing.pictures.draw_curves", lambda *args, **settings: None)
    runs = [str(make_run(tmp_path / name)) for name in ("one", "several", "begun")]
    for run, log in zip(runs, ("learner", "learner-first"), strict=False):
        with CsvLogger(f"{run}/logs/{log}.csv") as logger:
            logger.write({"steps": 1, "loss": 0.5})
    assert main(["plot", *runs, "--metric", "learner/loss"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert f"they have no learner/loss against steps yet: {runs[1]} (nearest: learner-first/loss), {runs[2]}" in said


def test_folders_of_seeds_and_sweeps_stand_for_their_runs_and_strays_are_left_out(tmp_path, capsys):
    """As ``runs/*`` gives them."""
    single = make_run(tmp_path / "runs" / "single")
    seeds = [make_run(tmp_path / "runs" / "group" / f"seed{seed}", seed) for seed in range(2)]
    trials = [make_run(tmp_path / "runs" / "sweep" / f"trial-000{number}" / "seed0") for number in range(2)]
    (tmp_path / "runs" / "returns.png").touch()
    (tmp_path / "runs" / "empty").mkdir()
    given = [str(path) for path in (tmp_path / "runs").iterdir()]
    assert set(find_runs(given)) == {str(run) for run in (single, *seeds, *trials)}
    said = capsys.readouterr().err
    assert "returns.png" in said and "empty" in said and "single" not in said and said.count("\n") == 1
    with pytest.raises(ConfigError, match="no group or sweep"):
        find_runs([str(tmp_path / "runs" / "empty")])
    assert main(["plot", str(single), str(tmp_path / "typo")]) == 2  # Nothing is left out that may be a slip.
    assert "typo is not a run folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    "records",
    [
        [{"data": "/data/catch.npz"}, {"data": "/data/deep_sea.npz"}],
        [{"environment_settings": {"rows": 8}}, {"num_envs": 4}],
        [{"wrappers": [WRAPPER]}, {}],
        [{"offline": {"dataset": "/data/catch.npz"}}, {"offline": {"dataset": "/data/deep_sea.npz"}}],
    ],
)
def test_what_differs_by_environment_makes_no_line_of_its_own(tmp_path, records):
    environments = dict(zip(("agentkit:catch", "agentkit:deep_sea"), records, strict=True))
    runs = [
        make_run(tmp_path / f"{i}-{size}", environment=name, record=record, size=size)
        for i, (name, record) in enumerate(environments.items())
        for size in (1, 2)
    ]
    groups = group_runs([read_run(run) for run in runs])
    found = {label: [run.environment for run in group] for label, group in groups.items()}
    assert found == {f"sac size={size}": list(environments) for size in (1, 2)}
    more = make_run(tmp_path / "more", environment="agentkit:catch", record={"num_envs": 2}, size=1)
    assert len(group_runs([read_run(run) for run in (*runs, more)])) > 2  # It does differ in one environment.


def test_seeds_that_begin_with_seeds_are_one_line_and_those_of_several_beginnings_are_not(tmp_path):
    def lines(*runs):
        folder = tmp_path / f"{len(list(tmp_path.iterdir()))}"
        made = [
            make_run(folder / f"{i}", seed, environment=environment, record={"init_from": path}, size=size)
            for i, (environment, path, seed, size) in enumerate(runs)
        ]
        groups = group_runs([read_run(run) for run in made])
        return {label: len(group) for label, group in groups.items()}

    a, b = "agentkit:catch", "agentkit:deep_sea"
    tuned = [(a, f"/runs/first-{seed}", seed, 1) for seed in range(3)]
    scratch = [(a, None, seed, 1) for seed in range(3)]
    assert lines(*tuned) == {"sac": 3}
    assert lines(*tuned, *scratch) == {"sac init_from=another run": 3, "sac init_from=None": 3}
    wider = [(a, f"/runs/wide-{seed}", seed, 2) for seed in range(3)]
    assert lines(*tuned, *wider) == {"sac size=1": 3, "sac size=2": 3}
    there = [(b, path, seed, 1) for path in (None, "/runs/there") for seed in range(2)]
    assert lines(*tuned, *scratch, *there) == {"sac init_from=another run": 5, "sac init_from=None": 5}
    one, other = (
        [(a, f"/runs/{name}", seed, 1) for seed in seeds] for name, seeds in (("one", (0, 1)), ("two", (2, 3)))
    )
    assert lines(*one, *other) == {"sac init_from=/runs/one": 2, "sac init_from=/runs/two": 2}
    assert lines(one[0], (a, "/runs/two", 0, 1)) == {"sac init_from=/runs/one": 1, "sac init_from=/runs/two": 1}
