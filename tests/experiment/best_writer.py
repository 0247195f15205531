"""Keeps ever better policies in a folder until it is killed. Run by test_keep_best.py."""

import pathlib
import sys
import types

import numpy as np

from agentkit.callbacks import RunView, keep_best


class Experiment:
    """As much of an experiment as is asked for."""

    agent = types.SimpleNamespace(make_learner=None)

    def describe(self) -> dict[str, int]:
        return {"seed": 0}


def policy_of(value: int) -> dict[str, np.ndarray]:
    return {"weights": np.full(20_000, value, np.int64)}


def main(directory: str, start: int) -> None:
    callback, step = keep_best(), start
    run = RunView(Experiment(), "run", pathlib.Path(directory), count_steps=lambda: step)
    run.get_params = lambda: policy_of(step)
    callback.on_start(run, None)
    while True:
        step += 1
        callback.on_evaluation(run, {"episode_return": float(step)})
        print(step, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
