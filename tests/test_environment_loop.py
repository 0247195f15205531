from types import SimpleNamespace
from typing import Any

import dm_env
import numpy as np
import pytest

from agentkit import checkpoint, core, environment_loop, envs, specs, types
from agentkit.counting import Counter
from agentkit.environment_loop import BatchedEnvironmentLoop, EnvironmentLoop, Observer
from agentkit.errors import ConfigError

FIRST, MID, LAST = dm_env.StepType


def test_agentkits_plain_step_types_are_those_of_dm_env() -> None:
    assert (types.FIRST, types.MID, types.LAST) == (FIRST, MID, LAST)


class Scripted(dm_env.Environment):
    """Episodes of given rewards; the observation is the step's number in the episode."""

    def __init__(self, episodes: list[list[Any]], last_discount: float = 0.0):
        self._episodes = episodes
        self._last_discount = last_discount
        self._number = -1
        self._t = 0
        self.actions: list[Any] = []

    def reset(self) -> dm_env.TimeStep:
        self._number = (self._number + 1) % len(self._episodes)
        self._t = 0
        return dm_env.TimeStep(FIRST, None, None, np.float32(0))

    def step(self, action: Any) -> dm_env.TimeStep:
        self.actions.append(action)
        rewards = self._episodes[self._number]
        reward = rewards[self._t]
        self._t += 1
        if self._t < len(rewards):
            return dm_env.TimeStep(MID, reward, 1.0, np.float32(self._t))
        return dm_env.TimeStep(LAST, reward, self._last_discount, np.float32(self._t))

    def observation_spec(self) -> Any:
        return specs.Array((), np.float32)

    def action_spec(self) -> Any:
        return specs.DiscreteArray(10)


class Recorder(core.Actor):
    """Acts by counting up; keeps everything it is told."""

    def __init__(self, num_envs: int | None = None):
        self.calls: list[tuple] = []
        self.num_updates = 0
        self._num_envs = num_envs
        self._next = 0

    def select_action(self, observation: Any) -> Any:
        self._next += 1
        self.calls.append(("select", np.copy(observation)))
        return self._next if self._num_envs is None else np.full(self._num_envs, self._next % 3)

    def observe_first(self, timestep: dm_env.TimeStep) -> None:
        self.calls.append(("first", timestep))

    def observe(self, action: Any, next_timestep: dm_env.TimeStep) -> None:
        self.calls.append(("observe", action, next_timestep))

    def update(self, wait: bool = False) -> None:
        self.num_updates += 1


def test_returns_lengths_and_counts_of_each_episode() -> None:
    counter, logged = Counter(), []
    loop = EnvironmentLoop(Scripted([[1.0, 2.0, 4.0], [-1.0]]), Recorder(), counter=counter, log=logged.append)
    records = loop.run(num_episodes=3)
    assert [r["episode_return"] for r in records] == [7.0, -1.0, 7.0]
    assert [r["episode_length"] for r in records] == [3, 1, 3]
    assert [(r["steps"], r["episodes"]) for r in records] == [(3, 1), (4, 2), (7, 3)]
    assert all(r["steps_per_second"] > 0 for r in records)
    assert counter.counts() == {"steps": 7, "episodes": 3}
    assert loop.num_steps == 7
    assert logged == records


def test_the_actor_is_told_every_step_once_and_in_order() -> None:
    environment, actor = Scripted([[1.0, 2.0], [3.0]]), Recorder()
    EnvironmentLoop(environment, actor).run(num_steps=3)
    names = [call[0] for call in actor.calls]
    assert names == ["first", "select", "observe", "select", "observe", "first", "select", "observe"]
    assert environment.actions == [1, 2, 3]
    assert [call[1] for call in actor.calls if call[0] == "observe"] == [1, 2, 3]
    assert [float(call[1]) for call in actor.calls if call[0] == "select"] == [0, 1, 0]
    assert actor.num_updates == 3


@pytest.mark.parametrize("last_discount", [0.0, 1.0])
def test_termination_and_truncation_reach_the_actor_as_they_are(last_discount: float) -> None:
    actor = Recorder()
    EnvironmentLoop(Scripted([[1.0, 1.0]], last_discount), actor).run(num_episodes=2)
    timesteps = [call[2] for call in actor.calls if call[0] == "observe"]
    assert [t.discount for t in timesteps] == [1.0, last_discount, 1.0, last_discount]
    assert [t.step_type for t in timesteps] == [MID, LAST, MID, LAST]


def test_nested_rewards_are_summed() -> None:
    reward = {"a": np.float32(1), "b": np.array([2.0, 3.0])}
    (record,) = EnvironmentLoop(Scripted([[reward, reward]]), Recorder()).run(num_episodes=1)
    assert record["episode_return"] == 12.0


def test_steps_of_an_unfinished_episode_count_in_the_loop_only() -> None:
    counter = Counter()
    loop = EnvironmentLoop(Scripted([[1.0] * 5]), Recorder(), counter=counter)
    assert loop.run(num_steps=4) == []
    assert loop.num_steps == 4 and counter.get("steps") == 0
    (record,) = loop.run(num_steps=1)
    assert record["episode_length"] == 5 and record["steps"] == 5


@pytest.mark.parametrize("arguments", [{}, {"num_steps": 1, "num_episodes": 1}])
def test_a_run_has_one_end(arguments: dict[str, int]) -> None:
    loop = EnvironmentLoop(Scripted([[1.0]]), Recorder())
    with pytest.raises(ConfigError, match="either num_episodes or num_steps"):
        loop.run(**arguments)


@pytest.mark.parametrize("arguments", [{"num_steps": 0}, {"num_episodes": 0}])
def test_a_run_of_nothing_does_nothing(arguments: dict[str, int]) -> None:
    actor = Recorder()
    assert EnvironmentLoop(Scripted([[1.0]]), actor).run(**arguments) == []
    assert actor.calls == []


class Rewarded(Observer):
    """How many steps of the episode had a reward, and what it began with."""

    def observe_first(self, environment: Any, timestep: dm_env.TimeStep) -> None:
        assert timestep.first()
        self._count = 0

    def observe(self, environment: Any, action: Any, timestep: dm_env.TimeStep) -> None:
        assert isinstance(environment, Scripted)
        self._count += timestep.reward != 0

    def metrics(self) -> dict[str, float]:
        return {"rewarded": float(self._count)}


def test_observers_add_to_the_record_of_their_episode() -> None:
    loop = EnvironmentLoop(Scripted([[0.0, 1.0], [1.0, 1.0, 1.0]]), Recorder(), observers=[Rewarded()])
    assert [r["rewarded"] for r in loop.run(num_episodes=3)] == [1.0, 3.0, 1.0]


def test_an_error_in_mid_episode_comes_through() -> None:
    class Broken(Scripted):
        def step(self, action: Any) -> dm_env.TimeStep:
            if len(self.actions) == 2:
                raise ZeroDivisionError("the simulator blew up")
            return super().step(action)

    with pytest.raises(ZeroDivisionError, match="blew up"):
        EnvironmentLoop(Broken([[1.0] * 9]), Recorder()).run(num_episodes=1)


class Cycle(Recorder):
    """Actions that follow from their number alone, for the point mass, which is rewarded at every step."""

    def select_action(self, observation: Any) -> Any:
        super().select_action(observation)
        numbers = np.full(2, self._next) if self._num_envs is None else self._next + np.arange(2 * self._num_envs)
        shape = (2,) if self._num_envs is None else (self._num_envs, 2)
        return (0.3 * np.sin(numbers)).astype(np.float32).reshape(shape)


def _trace(actor: Recorder) -> list[np.ndarray]:
    return [np.asarray(call[1]) for call in actor.calls if call[0] == "select"]


@pytest.mark.parametrize("num_envs", [None, 3])
@pytest.mark.parametrize("stop", [0, 4, 20, 27])
def test_restored_in_mid_episode_it_goes_on_as_if_never_stopped(tmp_path: Any, num_envs: int | None, stop: int) -> None:
    """Stops before the first reset, in mid-episode, right after an episode, and in the second one."""

    def make(actor: Recorder, counter: Counter) -> Any:
        environment = envs.make("agentkit:point_mass", seed=3, num_envs=num_envs)
        cls = EnvironmentLoop if num_envs is None else BatchedEnvironmentLoop
        loop = cls(environment, actor, counter=counter)
        assert loop.resumable
        return loop

    def advance(loop: Any, calls: int) -> list[dict[str, float]]:
        records = []
        for _ in range(calls):
            found = loop.step()
            records += [] if found is None else found if isinstance(found, list) else [found]
        return [{k: v for k, v in r.items() if k != "steps_per_second"} for r in records]

    whole, counter = Cycle(num_envs), Counter()
    loop = make(whole, counter)
    advance(loop, stop)
    saved_counter, calls = counter.save(), whole._next
    checkpoint.write(tmp_path, 0, {"loop": loop.save()})
    num_before = len(_trace(whole))
    expected = advance(loop, 25)

    resumed, counter = Cycle(num_envs), Counter()
    resumed._next = calls
    counter.restore(saved_counter)
    again = make(resumed, counter)
    found = checkpoint.read_latest(tmp_path)
    assert found is not None
    again.restore(found.state["loop"])
    assert advance(again, 25) == expected and expected
    np.testing.assert_array_equal(np.stack(_trace(resumed)), np.stack(_trace(whole)[num_before:]))
    assert again.num_steps == loop.num_steps


def test_a_resumed_episode_is_timed_from_where_it_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step takes a second, by a clock that stands at 0 where the resumed process begins."""
    actor = Cycle()
    monkeypatch.setattr(environment_loop, "time", SimpleNamespace(monotonic=lambda: actor._next))
    loop = EnvironmentLoop(envs.make("agentkit:point_mass", seed=3), actor)
    for _ in range(15):
        loop.step()
    state = loop.save()
    actor._next = 0
    resumed = EnvironmentLoop(envs.make("agentkit:point_mass", seed=3), actor)
    resumed.restore(state)
    assert [record["steps_per_second"] for record in resumed.run(num_episodes=2)] == [1.0, 1.0]


@pytest.mark.parametrize("num_envs", [None, 3])
def test_restored_without_its_episode_it_counts_the_steps_and_starts_another_one(num_envs: int | None) -> None:
    cls = EnvironmentLoop if num_envs is None else BatchedEnvironmentLoop

    def make() -> tuple[Any, Counter]:
        counter = Counter()
        environment = envs.make("agentkit:point_mass", seed=3, num_envs=num_envs)
        return cls(environment, Cycle(num_envs), counter=counter), counter

    loop, _ = make()
    for _ in range(7):
        loop.step()
    again, counter = make()
    again.restore(loop.save(), mid_episode=False)
    assert again.num_steps == loop.num_steps == counter.get("steps") == 7 * (num_envs or 1)
    records = again.run(num_episodes=1)
    assert records[0]["episode_length"] == 20  # A whole episode of its own.
    assert counter.get("steps") == again.num_steps


def test_a_plain_environment_is_not_resumable() -> None:
    assert not EnvironmentLoop(Scripted([[1.0]]), Recorder()).resumable


class Batch:
    """Environments of scripted lengths stepped together, each reset by the call after its LAST."""

    def __init__(self, lengths: list[int], discounts: list[float]):
        self.num_envs = len(lengths)
        self._lengths, self._discounts = np.array(lengths), np.array(discounts, np.float32)
        self._t = np.zeros(self.num_envs, int)

    def reset(self) -> dm_env.TimeStep:
        n = self.num_envs
        self._t[:] = 0
        return dm_env.TimeStep(np.full(n, FIRST), np.zeros(n, np.float32), np.ones(n, np.float32), self._t.copy())

    def step(self, action: np.ndarray) -> dm_env.TimeStep:
        assert action.shape == (self.num_envs,)
        reset = self._t == self._lengths
        self._t = np.where(reset, 0, self._t + 1)
        step_type = np.where(reset, FIRST, np.where(self._t == self._lengths, LAST, MID))
        # What a FIRST step carries as reward is no reward; this one would show.
        reward = np.where(reset, 1_000.0, np.arange(1, self.num_envs + 1)).astype(np.float32)
        discount = np.where(step_type == LAST, self._discounts, 1.0).astype(np.float32)
        return dm_env.TimeStep(step_type, reward, discount, self._t.copy())


class Apart(Batch):
    """Begins episodes in steps of their own; can be saved."""

    begins_apart = resumable = True

    def action_spec(self) -> Any:
        return specs.DiscreteArray(3)

    def save(self) -> Any:
        return self._t.copy()

    def restore(self, state: Any) -> dm_env.TimeStep:
        self._t = state - 1
        return super().step(np.zeros(self.num_envs))


def test_restored_right_after_an_end_a_batch_begins_its_episodes_with_an_action() -> None:
    loop = BatchedEnvironmentLoop(Apart([2, 2], [0.0, 0.0]), Recorder(num_envs=2))
    loop.run(num_episodes=2)
    actor = Recorder(num_envs=2)
    again = BatchedEnvironmentLoop(Apart([2, 2], [0.0, 0.0]), actor)
    again.restore(loop.save())
    assert again.step() is None
    ((name, action, timestep),) = actor.calls  # Nobody was asked to act.
    assert name == "observe" and action.shape == (2,) and (timestep.step_type == FIRST).all()
    assert len(again.run(num_episodes=2)) == 2 and again.num_steps == 8


def test_a_batch_counts_each_environment_by_itself() -> None:
    counter, logged, actor = Counter(), [], Recorder(num_envs=2)
    loop = BatchedEnvironmentLoop(Batch([2, 3], [0.0, 1.0]), actor, counter=counter, log=logged.append)
    # Calls:        1    2      3          4          5
    # environment 0 MID  LAST   FIRST      MID        LAST
    # environment 1 MID  MID    LAST       FIRST      MID
    found = [loop.step() for _ in range(5)]
    assert [None if f is None else [r["episode_return"] for r in f] for f in found] == [None, [2.0], [6.0], None, [2.0]]
    assert [r["episode_length"] for r in logged] == [2, 3, 2]
    assert [(r["steps"], r["episodes"]) for r in logged] == [(4, 1), (5, 2), (8, 3)]
    assert loop.num_steps == 8 and counter.get("steps") == 7
    assert [call[0] for call in actor.calls].count("first") == 1
    last = [call[2] for call in actor.calls if call[0] == "observe"][1]
    assert last.step_type[0] == LAST and last.discount[0] == 0.0


def test_a_batch_runs_until_the_number_is_reached() -> None:
    actor = Recorder(num_envs=2)
    loop = BatchedEnvironmentLoop(Batch([2, 3], [0.0, 1.0]), actor)
    assert len(loop.run(num_steps=7)) == 3 and loop.num_steps == 8  # One call takes two steps.
    assert actor.num_updates == 5
