from typing import Any

import dm_env
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentkit import checkpoint, core
from agentkit.actors import BatchedPolicyActor, Policy, PolicyActor, stateless_policy
from agentkit.errors import CheckpointError, ConfigError

pytestmark = pytest.mark.both_stacks

KEY = jax.random.PRNGKey(7)
FIRST, MID, LAST = dm_env.StepType


class Client:
    """Parameters at hand."""

    def __init__(self, params: Any = 1.0):
        self.params = params
        self.updates: list[bool] = []

    def update(self, wait: bool = False) -> None:
        self.updates.append(wait)


class FakeAdder(core.Adder):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.calls: list[tuple] = []
        self.closed = False

    def add_first(self, timestep: dm_env.TimeStep) -> None:
        self.calls.append(("first", timestep))

    def add(self, action: Any, next_timestep: dm_env.TimeStep, extras: Any = ()) -> None:
        self.calls.append(("add", action, next_timestep, extras))

    def reset(self) -> None:
        self.calls.append(("reset",))

    def close(self) -> None:
        self.closed = True

    def save(self) -> dict[str, Any]:
        return {"num_calls": len(self.calls)}

    def restore(self, state: dict[str, Any]) -> None:
        self.calls = [("restored",)] * state["num_calls"]


def _first(observation: Any = 0.0) -> dm_env.TimeStep:
    return dm_env.TimeStep(FIRST, None, None, np.float32(observation))


def _mid(observation: Any) -> dm_env.TimeStep:
    return dm_env.TimeStep(MID, np.float32(1), np.float32(1), np.float32(observation))


def _counting() -> Policy:
    """The action is noise; the state counts steps of the episode (reset to 0) and of all time."""

    def act(params: Any, key: jax.Array, observation: Any, state: Any) -> tuple:
        in_episode, ever = state
        extras = {"in_episode": in_episode, "ever": ever}
        return params * jax.random.normal(key, (2,)), (in_episode + 1, ever + 1), extras

    zero = jnp.zeros((), jnp.int32)
    return Policy(act, init=lambda key: (zero, zero), reset=lambda state: (jnp.zeros_like(state[0]), state[1]))


def test_actions_are_numpy_of_the_policys_dtype() -> None:
    policy = stateless_policy(lambda params, key, o: {"a": jnp.int32(2), "b": o * jnp.ones(2)})
    action = PolicyActor(policy, KEY, Client()).select_action(np.float32(3))
    assert isinstance(action["a"], np.ndarray) and action["a"].dtype == np.int32 and action["a"].shape == ()
    np.testing.assert_array_equal(action["b"], np.float32([3, 3]))


def test_equal_keys_give_equal_actions_and_no_key_is_used_twice() -> None:
    def actions(key: jax.Array) -> np.ndarray:
        actor = PolicyActor(_counting(), key, Client())
        actor.observe_first(_first())
        return np.stack([actor.select_action(np.float32(0)) for _ in range(5)])

    np.testing.assert_array_equal(actions(KEY), actions(KEY))
    assert len(np.unique(actions(KEY))) == 10
    assert not np.intersect1d(actions(KEY), actions(jax.random.PRNGKey(8))).size


def test_parameters_are_the_clients_at_each_step() -> None:
    client = Client(jnp.float32(1))
    actor = PolicyActor(stateless_policy(lambda params, key, o: params * o), KEY, client)
    assert actor.select_action(np.float32(3)) == 3
    client.params = jnp.float32(2)
    assert actor.select_action(np.float32(3)) == 6
    actor.update()
    actor.update(wait=True)
    assert client.updates == [False, True]


def test_the_adder_gets_action_timestep_and_the_extras_of_that_action() -> None:
    adder = FakeAdder()
    actor = PolicyActor(_counting(), KEY, Client(), adder)
    actor.observe_first(_first())
    for t in range(2):
        action = actor.select_action(np.float32(t))
        actor.observe(action, _mid(t))
    name, first_action, timestep, extras = adder.calls[1]
    assert [call[0] for call in adder.calls] == ["first", "add", "add"]
    assert name == "add" and first_action.shape == (2,) and timestep.observation == 0
    assert isinstance(extras["ever"], np.ndarray) and extras["ever"] == 0
    assert adder.calls[2][3]["ever"] == 1
    actor.close()
    assert adder.closed


def test_without_extras_the_adder_gets_an_empty_tuple() -> None:
    adder = FakeAdder()
    actor = PolicyActor(stateless_policy(lambda params, key, o: o), KEY, Client(), adder)
    actor.observe_first(_first())
    actor.observe(actor.select_action(np.float32(0)), _mid(1))
    assert adder.calls[1][3] == ()


def test_state_is_reset_at_each_episode_as_the_policy_says() -> None:
    adder = FakeAdder()
    actor = PolicyActor(_counting(), KEY, Client(), adder)
    for length in (3, 2):
        actor.observe_first(_first())
        for t in range(length):
            actor.observe(actor.select_action(np.float32(t)), _mid(t))
    extras = [call[3] for call in adder.calls if call[0] == "add"]
    assert [int(e["in_episode"]) for e in extras] == [0, 1, 2, 0, 1]
    assert [int(e["ever"]) for e in extras] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("stop", [0, 1, 3])
def test_a_restored_actor_goes_on_bit_for_bit(tmp_path: Any, stop: int) -> None:
    """Before its first action, in mid-episode, and just after the first step of its second episode."""

    def advance(actor: PolicyActor, start: int, end: int) -> list[np.ndarray]:
        actions = []
        for t in range(start, end):
            if t % 3 == 0 and not (t == start == stop):
                actor.observe_first(_first())
            actions.append(actor.select_action(np.float32(t)))
            actor.observe(actions[-1], _mid(t))
        return actions

    adder, again = FakeAdder(), FakeAdder()
    whole = PolicyActor(_counting(), KEY, Client(), adder)
    advance(whole, 0, stop)
    if stop % 3 == 0:
        whole.observe_first(_first())
    checkpoint.write(tmp_path, 0, whole.save())
    num_calls = len(adder.calls)
    expected = advance(whole, stop, 8)

    resumed = PolicyActor(_counting(), jax.random.PRNGKey(99), Client(), again)
    found = checkpoint.read_latest(tmp_path)
    assert found is not None
    resumed.restore(found.state)
    assert len(again.calls) == num_calls
    np.testing.assert_array_equal(advance(resumed, stop, 8), expected)
    assert [c[3] for c in again.calls if c[0] == "add"] == [c[3] for c in adder.calls[num_calls:] if c[0] == "add"]


@pytest.mark.parametrize("num_envs", [None, 2])
def test_saved_without_its_episode_it_starts_another_one_with_its_key_and_state(num_envs: int | None) -> None:
    """What a resume on a replay that cannot keep an unfinished episode needs."""

    def make() -> Any:
        if num_envs is None:
            return PolicyActor(_counting(), KEY, Client(), FakeAdder())
        return BatchedPolicyActor(_counting(), KEY, Client(), [FakeAdder(), FakeAdder()], num_envs=num_envs)

    zero = np.float32(0) if num_envs is None else np.zeros(num_envs, np.float32)
    whole, resumed = make(), make()
    for _ in range(3):
        whole.select_action(zero)
    state = whole.save(mid_episode=False)
    assert state["adders"] is None
    resumed.restore(state)
    np.testing.assert_array_equal(resumed.select_action(zero), whole.select_action(zero))
    extras = resumed._extras
    assert np.all(extras["in_episode"] == 0) and np.all(extras["ever"] == 3)


def test_state_that_does_not_fit_is_refused() -> None:
    with_adder = PolicyActor(_counting(), KEY, Client(), FakeAdder()).save()
    with pytest.raises(CheckpointError, match=r"2 policy state arrays and 0 adders; the checkpoint has 2 and 1"):
        PolicyActor(_counting(), KEY, Client()).restore(with_adder)
    batch = BatchedPolicyActor(_counting(), KEY, Client(), num_envs=3)
    with pytest.raises(CheckpointError, match=r"array 0: expected int32\[2\], found int32\[3\]"):
        BatchedPolicyActor(_counting(), KEY, Client(), num_envs=2).restore(batch.save())


def _batch(step_types: list[int], observations: list[float]) -> dm_env.TimeStep:
    n = len(step_types)
    return dm_env.TimeStep(
        np.array(step_types, np.int32),
        np.arange(n, dtype=np.float32),
        np.array([0.0 if s == LAST else 1.0 for s in step_types], np.float32),
        np.array(observations, np.float32),
    )


def test_a_batch_gives_each_environment_its_own_noise_state_and_adder() -> None:
    adders = [FakeAdder(), FakeAdder()]
    actor = BatchedPolicyActor(_counting(), KEY, Client(), adders, num_envs=2)
    first = _batch([FIRST, FIRST], [10.0, 20.0])
    actor.observe_first(first)
    action = actor.select_action(first.observation)
    assert action.shape == (2, 2) and len(np.unique(action)) == 4
    # Environment 1 ends, then is reset while environment 0 goes on.
    for step_types in ([MID, LAST], [MID, FIRST], [MID, MID]):
        timestep = _batch(step_types, [11.0, 21.0])
        actor.observe(action, timestep)
        action = actor.select_action(timestep.observation)
    assert [call[0] for call in adders[0].calls] == ["first", "add", "add", "add"]
    assert [call[0] for call in adders[1].calls] == ["first", "add", "first", "add"]
    _, _, last, _ = adders[1].calls[1]
    assert last.last() and last.discount == 0.0 and last.reward == 1.0 and last.observation == 21.0
    again = adders[1].calls[2][1]
    assert again.first() and again.reward is None and again.discount is None
    assert [int(call[3]["in_episode"]) for call in adders[0].calls[1:]] == [0, 1, 2]
    assert [int(call[3]["in_episode"]) for call in adders[1].calls if call[0] == "add"] == [0, 0]
    assert [int(call[3]["ever"]) for call in adders[1].calls if call[0] == "add"] == [0, 2]
    actor.close()
    assert all(adder.closed for adder in adders)


def test_a_batch_of_nested_observations_and_actions() -> None:
    policy = stateless_policy(lambda params, key, o: {"x": o["p"] * 2, "y": o["q"][0]})
    adders = [FakeAdder(), FakeAdder()]
    actor = BatchedPolicyActor(policy, KEY, Client(), adders, num_envs=2)
    observation = {"p": np.float32([1, 2]), "q": np.ones((2, 3), np.float32)}
    actor.observe_first(_batch([FIRST, FIRST], [0, 0])._replace(observation=observation))
    action = actor.select_action(observation)
    np.testing.assert_array_equal(action["x"], [2, 4])
    actor.observe(action, _batch([MID, MID], [0, 0])._replace(observation=observation))
    assert adders[1].calls[1][1]["x"] == 4 and adders[1].calls[1][2].observation["q"].shape == (3,)


def test_a_restored_batch_goes_on_bit_for_bit() -> None:
    def advance(actor: BatchedPolicyActor, steps: range) -> list[np.ndarray]:
        actions = []
        for t in steps:
            action = actor.select_action(np.zeros(2, np.float32))
            actor.observe(action, _batch([MID, FIRST if t % 3 == 0 else MID], [0, 0]))
            actions.append(action)
        return actions

    whole = BatchedPolicyActor(_counting(), KEY, Client(), [FakeAdder(), FakeAdder()], num_envs=2)
    whole.observe_first(_batch([FIRST, FIRST], [0, 0]))
    advance(whole, range(1, 4))
    state = whole.save()
    resumed = BatchedPolicyActor(_counting(), jax.random.PRNGKey(1), Client(), [FakeAdder(), FakeAdder()], num_envs=2)
    resumed.restore(state)
    np.testing.assert_array_equal(advance(resumed, range(4, 9)), advance(whole, range(4, 9)))


def test_one_adder_for_each_environment() -> None:
    with pytest.raises(ConfigError, match="each of 3 environments, found 2"):
        BatchedPolicyActor(_counting(), KEY, Client(), [FakeAdder(), FakeAdder()], num_envs=3)
