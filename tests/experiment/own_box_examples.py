"""The examples of own boxes as modules, whose names run folders and other processes find on the path."""

import pathlib
import sys

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "examples" / "own_boxes"
if str(FOLDER) not in sys.path:
    sys.path.append(str(FOLDER))

import human_at_the_keyboard  # noqa: E402
import planner  # noqa: E402
import tabular_q_learning  # noqa: E402

__all__ = ["FOLDER", "human_at_the_keyboard", "planner", "tabular_q_learning"]
