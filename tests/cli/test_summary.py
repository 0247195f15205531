"""What the last lines of a training say of its evaluations."""

from agentkit import checkpoint
from agentkit.cli.summary import returns
from tests.cli.test_plot import make_run


def said(folder, evaluations, kept=None, score=None, name="episode_return"):
    run = make_run(folder, evaluation=evaluations)
    if kept is not None:
        best = {"score": score, "is_sure": True, "score_name": name, "num_updates": 1, "policy": {}}
        checkpoint.write(run / "best", kept, {"experiment": {}, "best": {**best, "evaluation": {}}})
    (line,) = returns(run)
    return line


def test_the_best_is_the_highest_where_nothing_else_is_kept(tmp_path):
    assert said(tmp_path / "a", [(1, 2.0), (2, 3.0)]) == "Evaluation return: 3.0 at step 2, the last and best."
    text = "Evaluation return: 2.0 at step 2, the last; 3.0 at step 1, the best."
    assert said(tmp_path / "b", [(1, 3.0), (2, 2.0)]) == text
    assert said(tmp_path / "c", [(1, 3.0), (2, 2.0)], kept=1, score=3.0) == text


def test_a_best_one_that_is_not_the_highest_says_by_which_rule(tmp_path):
    evaluations = [(100, 22.0), (800, 11.5), (1_000, 9.0)]
    rule = "kept as the best: an evaluation of few episodes counts together with those just before it"
    line = said(tmp_path / "a", evaluations, kept=800, score=10.25)
    assert line.startswith(f"Evaluation return: 9.0 at step 1,000, the last; 11.5 at step 800, {rule}")
    assert line.endswith("score is 10.2.")
    line = said(tmp_path / "b", evaluations, kept=1_000, score=8.0)
    assert line.startswith(f"Evaluation return: 9.0 at step 1,000, the last and {rule}")
    line = said(tmp_path / "c", evaluations, kept=800, score=8.0, name="episode_return_min")
    assert line.endswith("11.5 at step 800, kept as the best by episode_return_min.")
