import dataclasses
from typing import Annotated, Any

import pytest

from agentkit.agents import dqn, registry
from agentkit.agents.common import ranges as checks
from agentkit.agents.common.ranges import Count, Fraction, NotNegative, Positive, Range, Sizes, check_order, unranged
from agentkit.errors import ConfigError
from agentkit.learning import Linear, Schedule


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
        ("number", 0, "a whole number of at least 1"),
        ("size", 0.0, "> 0 and finite"),
        ("cost", -1e-9, "at least 0 and finite"),
        ("bound", 2.5, "at most 2"),
        ("limit", 0, "a whole number of at least 1"),
    ],
)
def test_a_value_out_of_its_fields_range_is_refused(name: str, value: Any, expected: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} must be {expected}, found {value}"):
        Derived(**{name: value})


def test_a_schedule_in_words_is_refused_with_how_to_write_it() -> None:
    with pytest.raises(ConfigError, match=r"found the string 'linear\(1, 0, 9\)'. .*learning.Linear\(1e-3"):
        dqn.Config(learning_rate="linear(1, 0, 9)")
    with pytest.raises(ConfigError, match=r"batch_size must be a whole number of at least 1, found the string '8'.$"):
        dqn.Config(batch_size="8")


def test_the_ends_of_ranges_none_and_fields_without_one_are_taken() -> None:
    assert Base(share=0.0).number == 0
    assert Derived(share=1.0, number=1, cost=0.0, bound=2.0).bound == 2.0
    assert Derived(bound=None, limit=3).bound is None and Derived().limit is None


@dataclasses.dataclass(frozen=True)
class Scheduled(Base):
    rate: Positive | Schedule = 1e-3
    sizes: Sizes = (8,)
    low: float = 0.0
    high: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_order(self, "low", "high")


@pytest.mark.parametrize("value", [Linear(1.0, -1.0, 10), Linear(-1.0, 0.0, 10), "fast", None, True, float("inf")])
def test_a_schedule_is_checked_by_its_values(value: Any) -> None:
    with pytest.raises(ConfigError, match="rate must be > 0"):
        Scheduled(rate=value)


def test_a_schedule_may_fall_to_0_and_is_taken_only_where_the_type_says_so() -> None:
    assert Scheduled(rate=Linear(1.0, 0.0, 10)).rate == Linear(1.0, 0.0, 10)
    with pytest.raises(ConfigError, match="share must be"):
        Scheduled(share=Linear(1.0, 0.0, 10))


@pytest.mark.parametrize("sizes", [(0,), (8, -4), (8.5,), [8], 8, None])
def test_layers_have_whole_positive_sizes(sizes: Any) -> None:
    with pytest.raises(ConfigError, match="sizes must be a tuple of whole numbers"):
        Scheduled(sizes=sizes)


def test_fields_in_the_wrong_order_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"low must be less than high, found low=1.0 and high=1.0"):
        Scheduled(low=1.0)


def test_a_numeric_field_without_a_range_is_found() -> None:
    assert unranged(Scheduled) == ["number", "low", "high"]


@pytest.mark.parametrize("name", registry.names())
def test_every_number_of_every_agent_has_a_range(name: str) -> None:
    assert unranged(registry.config_class(name)) == []
