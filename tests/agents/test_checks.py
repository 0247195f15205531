import dataclasses
from typing import Annotated, Any

import pytest

from agentkit.agents.common import ranges as checks
from agentkit.agents.common.ranges import Count, Fraction, NotNegative, Positive, Range
from agentkit.errors import ConfigError


@dataclasses.dataclass(frozen=True)
class Base:
    share: Fraction = 0.5
    number: int = 0  # Any.

    def __post_init__(self) -> None:
        checks.check_ranges(self)


@dataclasses.dataclass(frozen=True)
class Derived(Base):
    number: Count = 1
    size: Positive = 1.0
    cost: NotNegative = 0.0
    limit: Count | None = None
    bound: Annotated[float | None, Range("at most 2", lambda value: value <= 2)] = None


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("share", -0.1, r"in \[0, 1\]"),
        ("share", 1.1, r"in \[0, 1\]"),
        ("share", float("nan"), r"in \[0, 1\]"),
        ("number", 0, "at least 1"),
        ("size", 0.0, "> 0"),
        ("cost", -1e-9, "at least 0"),
        ("bound", 2.5, "at most 2"),
        ("limit", 0, "at least 1"),
    ],
)
def test_a_value_out_of_its_fields_range_is_refused(name: str, value: Any, expected: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} must be {expected}, found {value}"):
        Derived(**{name: value})


def test_the_ends_of_ranges_none_and_fields_without_one_are_taken() -> None:
    assert Base(share=0.0).number == 0
    assert Derived(share=1.0, number=1, cost=0.0, bound=2.0).bound == 2.0
    assert Derived(bound=None, limit=3).bound is None and Derived().limit is None
