import itertools
import json
import os
import pathlib
import platform
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import tree

import agentkit
from agentkit import checkpoint
from agentkit.errors import CheckpointError, ConfigError, ReplayTimeoutError
from agentkit.learning import Learner, LearnerCallbacks, Update, UpdateOutput, periodic, sgd
from agentkit.learning import learner as learner_module
from agentkit.learning.compiled import return_memory
from agentkit.types import DrawnBatch, LossOutput, ReplaySample, SampleInfo
from agentkit.variables import VariableStore

pytestmark = pytest.mark.both_stacks

KEY = jax.random.PRNGKey(3)
SIZE = 4


def _init(key: jax.Array, hidden: int = 3) -> dict[str, Any]:
    keys = jax.random.split(key, 2)
    return {"w": jax.random.normal(keys[0], (2, hidden)), "v": jax.random.normal(keys[1], (hidden,))}


def _loss(params: Any, state: Any, batch: ReplaySample, key: jax.Array) -> LossOutput:
    target = jax.lax.stop_gradient(jnp.tanh(batch.data["x"] @ state.target_params["w"]) @ state.target_params["v"])
    error = jnp.tanh(batch.data["x"] @ params["w"]) @ params["v"] - batch.data["y"] - 0.1 * target
    weighted = error * jnp.asarray(batch.info.probability, jnp.float32)
    noise = jax.random.normal(key)
    return LossOutput(jnp.mean(weighted**2) * (1 + 0.1 * noise), {"noise": noise}, jnp.abs(error))


def _update(hidden: int = 3) -> Update:
    return sgd(_loss, lambda key: _init(key, hidden), optax.adam(0.05), periodic(2))


class FixedDataset:
    """Cycles through a list for ever."""

    def __init__(self, batches: list[DrawnBatch]):
        self._batches = itertools.cycle(batches)

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> DrawnBatch:
        return next(self._batches)


def _batches(num: int, num_updates: int | None = None, size: int = SIZE) -> list[DrawnBatch]:
    """The same data, as `num` batches of [B] or as stacks of [K, B]."""
    rng = np.random.default_rng(0)
    shape = (num, size)
    info = SampleInfo(
        probability=rng.uniform(0.1, 1, shape),
        table_size=np.full(shape, 100),
        priority=np.ones(shape),
        times_sampled=np.ones(shape, np.int32),
    )
    data = {"x": rng.normal(size=(*shape, 2)).astype(np.float32), "y": rng.normal(size=shape).astype(np.float32)}
    keys = (np.uint64(2**63) + np.arange(num * size, dtype=np.uint64)).reshape(shape)
    whole = DrawnBatch(keys, ReplaySample(info, data))
    if num_updates is None:
        return [tree.map_structure(lambda x, i=i: x[i], whole) for i in range(num)]
    stacked = tree.map_structure(lambda x: x.reshape(num // num_updates, num_updates, *x.shape[1:]), whole)
    return [tree.map_structure(lambda x, i=i: x[i], stacked) for i in range(num // num_updates)]


def _learner(num_updates: int = 1, callbacks: LearnerCallbacks | None = None, key: jax.Array = KEY) -> Learner:
    batches = _batches(6, None if num_updates == 1 else num_updates)
    return Learner(_update(), FixedDataset(batches), key, num_updates=num_updates, callbacks=callbacks)


def _copy(nest: Any) -> Any:
    return tree.map_structure(lambda x: np.array(x, copy=True), nest)


def _assert_same(found: Any, expected: Any) -> None:
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        a, b = np.asarray(a), np.asarray(b)
        assert a.dtype == b.dtype and a.tobytes() == b.tobytes()


@pytest.mark.one_case
@pytest.mark.parametrize("num_updates", [2, 3])
def test_stacked_updates_in_one_call_are_the_single_ones(num_updates: int) -> None:
    single, stacked = _learner(), _learner(num_updates)
    for _ in range(6):
        single.step()
    for _ in range(6 // num_updates):
        stacked.step()
    assert single.num_updates_done == stacked.num_updates_done == 6 == int(stacked.state.num_updates)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-6, atol=1e-7), single.state, stacked.state)
    np.testing.assert_array_equal(single.state.key, stacked.state.key)


def test_equal_keys_learn_the_same_and_different_ones_do_not() -> None:
    states = []
    for key in (KEY, KEY, jax.random.PRNGKey(4)):
        learner = _learner(key=key)
        for _ in range(4):
            learner.step()
        states.append(learner.state)
    _assert_same(states[0], states[1])
    assert np.any(np.asarray(states[0].params["w"]) != np.asarray(states[2].params["w"]))


class Published:
    """Keeps every version as published, and a copy of the learner's parameters at that moment."""

    def __init__(self) -> None:
        self.versions: list[tuple[int, Mapping[str, Any]]] = []

    def publish(self, version: int, variables: Mapping[str, Any]) -> None:
        self.versions.append((version, variables))


@pytest.mark.parametrize("num_updates", [1, 3])
def test_published_parameters_stay_as_they_were_while_the_state_is_donated(num_updates: int) -> None:
    published = Published()
    learner = _learner(num_updates, LearnerCallbacks(publisher=published))
    expected, old = [_copy(learner.state.params)], []
    for _ in range(5):
        old.append(learner.state)
        learner.step()
        expected.append(_copy(learner.state.params))
        # Not the state's own buffers, which the next step gives away.
        ours = {leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(learner.state)}
        theirs = {leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(published.versions[-1][1])}
        assert not ours & theirs
    assert [version for version, _ in published.versions] == [num_updates * i for i in range(6)]
    for (_, variables), params in zip(published.versions, expected, strict=True):
        assert variables.keys() == {"policy"}
        _assert_same(variables["policy"], params)
    # Otherwise donation was off and this test showed nothing.
    assert all(leaf.is_deleted() for state in old for leaf in jax.tree.leaves(state.params))


def test_a_saved_state_stays_as_it_was_while_learning_goes_on() -> None:
    learner = _learner()
    for _ in range(2):
        learner.step()
    saved = learner.save()
    copy = _copy(saved)
    for _ in range(4):
        learner.step()
    _assert_same(saved, copy)
    again = _learner()
    again.restore(saved)
    again.step()
    again.step()
    _assert_same(saved, copy)


@pytest.mark.parametrize("num_updates", [1, 2])
def test_restored_it_goes_on_bit_for_bit(tmp_path: pathlib.Path, num_updates: int) -> None:
    whole = _learner(num_updates)
    whole.step()
    whole.step()
    checkpoint.write(tmp_path, 0, {"learner": whole.save()})
    whole.step()
    whole.step()

    store = VariableStore()
    resumed = _learner(num_updates, LearnerCallbacks(publisher=store), key=jax.random.PRNGKey(99))
    found = checkpoint.read_latest(tmp_path)
    assert found is not None
    resumed.restore(found.state["learner"])
    assert resumed.num_updates_done == 2 * num_updates == store.version
    published = store.get(["policy"])
    assert published is not None
    _assert_same(published.variables["policy"], _copy(resumed.state.params))
    next(resumed._dataset), next(resumed._dataset)  # The dataset is replay's to restore.
    resumed.step()
    resumed.step()
    _assert_same(resumed.state, whole.state)
    saved = found.state["learner"]["state"]
    _assert_same(_copy(published.variables["policy"]), {k: saved[f".params['{k}']"] for k in "vw"})


@pytest.fixture(scope="module")
def fresh() -> Learner:
    """A learner that no test steps."""
    return _learner()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.pop(".params['w']"), r"\.params\['w'\]: expected float32\[2, 3\], found nothing"),
        (lambda s: s.update({".params['w']": np.zeros((2, 4), np.float32)}), r"found float32\[2, 4\]"),
        (lambda s: s.update({".params['w']": np.zeros((2, 3))}), r"\.params\['w'\]: .*found float64\[2, 3\]"),
        (lambda s: s.update({".params['bias']": np.zeros(3)}), r"that this agent lacks: .*\.params\['bias'\]"),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_refused_naming_the_leaf(fresh: Learner, change: Any, message: str) -> None:
    before, saved = _copy(fresh.state), fresh.save()
    change(saved["state"])
    with pytest.raises(CheckpointError, match=message):
        fresh.restore(saved)
    _assert_same(_copy(fresh.state), before)
    assert fresh.num_updates_done == 0


def test_another_networks_checkpoint_is_refused(fresh: Learner) -> None:
    wider = Learner(_update(hidden=5), FixedDataset(_batches(1)), KEY)
    with pytest.raises(CheckpointError, match=r"expected float32\[3\], found float32\[5\].*Resume with the agent"):
        fresh.restore(wider.save())


@pytest.mark.one_case
@pytest.mark.parametrize("num_updates", [1, 3])
def test_priorities_go_back_with_their_own_whole_keys(num_updates: int) -> None:
    written: list[tuple[np.ndarray, np.ndarray]] = []
    callbacks = LearnerCallbacks(write_priorities=lambda keys, priorities: written.append((keys, priorities)))
    learner = _learner(num_updates, callbacks)
    batches = _batches(6)
    for _ in range(6 // num_updates):
        learner.step()
    reference = sgd(_loss, _init, optax.adam(0.05), periodic(2))
    state = jax.jit(reference.init)(KEY)
    keys, priorities = (np.concatenate(part) for part in zip(*written, strict=True))
    assert keys.dtype == np.uint64 and priorities.dtype == np.float64
    assert all(k.shape == p.shape == (num_updates * SIZE,) for k, p in written)
    for i, batch in enumerate(batches):
        chosen = slice(SIZE * i, SIZE * (i + 1))
        np.testing.assert_array_equal(keys[chosen], batch.keys)
        state, output = reference.update(state, batch.sample)
        np.testing.assert_allclose(priorities[chosen], output.priorities, rtol=1e-4, atol=1e-5)


@pytest.mark.full
def test_without_priorities_nothing_is_written() -> None:
    def loss(*arguments: Any) -> LossOutput:
        return _loss(*arguments)._replace(priorities=None)

    def fail(keys: Any, priorities: Any) -> None:
        raise AssertionError("nothing to write")

    update = sgd(loss, _init, optax.sgd(0.1), periodic(1))
    for num_updates, batches in ((1, _batches(2)), (2, _batches(2, 2))):
        callbacks = LearnerCallbacks(write_priorities=fail)
        Learner(update, FixedDataset(batches), KEY, num_updates=num_updates, callbacks=callbacks).step()


def test_metrics_are_floats_and_means_over_stacked_updates() -> None:
    single, stacked = _learner(), _learner(3)
    seen = []
    for _ in range(3):
        single.step()
        seen.append(single.metrics())
    stacked.step()
    metrics = stacked.metrics()
    assert metrics.keys() == {"updates", "updates_per_second", "loss", "grad_norm", "noise"}
    assert all(isinstance(value, float) for value in metrics.values())
    assert metrics["updates"] == 3 and metrics["updates_per_second"] > 0
    in_a_while = single.metrics(time.monotonic() + 1e4)
    assert in_a_while["updates_per_second"] == pytest.approx(3 / 1e4, rel=0.05)
    for name in ("loss", "grad_norm", "noise"):
        np.testing.assert_allclose(metrics[name], np.mean([m[name] for m in seen]), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("seconds", "expected"), [(0.0, [1, 2, 3]), (3600.0, [])])
def test_logs_come_at_their_period(seconds: float, expected: list[int]) -> None:
    rows: list[dict[str, float]] = []
    learner = _learner(callbacks=LearnerCallbacks(log=rows.append, log_seconds=seconds))
    for _ in range(3):
        learner.step()
    assert [row["updates"] for row in rows] == expected


def test_a_training_shorter_than_the_period_is_logged_at_its_end() -> None:
    rows: list[dict[str, float]] = []
    learner = _learner(callbacks=LearnerCallbacks(log=rows.append, log_seconds=3600.0))
    learner.log()  # Nothing was learned: nothing to say.
    for _ in range(3):
        learner.step()
    learner.log()
    learner.log()
    assert [row["updates"] for row in rows] == [3] and rows[0]["loss"] > 0


@pytest.mark.one_case
@pytest.mark.parametrize("num_updates", [1, 2])
def test_without_jit_the_users_functions_run_line_by_line(num_updates: int) -> None:
    """For a debugger or a print in a loss: each update calls it, and learns what a compiled one does."""
    calls = []

    def loss(*arguments: Any) -> LossOutput:
        calls.append(None)
        return _loss(*arguments)

    compiled = _learner(num_updates)
    with jax.disable_jit():
        update = sgd(loss, lambda key: _init(key, 3), optax.adam(0.05), periodic(2))
        learner = Learner(
            update, FixedDataset(_batches(6, None if num_updates == 1 else 2)), KEY, num_updates=num_updates
        )
        for _ in range(3):
            learner.step()
    for _ in range(3):
        compiled.step()
    assert len(calls) == 3 * num_updates
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), learner.state, compiled.state)


def test_an_error_of_the_dataset_leaves_the_learner_usable() -> None:
    class Late(FixedDataset):
        fail = True

        def __next__(self) -> DrawnBatch:
            if self.fail:
                raise ReplayTimeoutError("no data yet")
            return super().__next__()

    dataset = Late(_batches(1))
    learner = Learner(_update(), dataset, KEY)
    with pytest.raises(ReplayTimeoutError):
        learner.step()
    dataset.fail = False
    learner.step()
    assert learner.num_updates_done == 1


def test_an_impossible_number_of_updates_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least 1, found 0"):
        Learner(_update(), FixedDataset([]), KEY, num_updates=0)


def _parameters_after(num_devices: int | None, num_updates: int, folder: pathlib.Path) -> dict[str, Any]:
    """Run in a process that has two devices; see `test_data_parallel`."""
    written: list[np.ndarray] = []
    dataset = FixedDataset(_batches(6, None if num_updates == 1 else num_updates, size=8))

    published = Published()
    callbacks = LearnerCallbacks(publisher=published, write_priorities=lambda keys, p: written.append(p))
    devices = None if num_devices is None else jax.devices()[:num_devices]
    learner = Learner(_update(), dataset, KEY, num_updates=num_updates, callbacks=callbacks, devices=devices)
    learner.step()
    checkpoint.write(folder, num_updates, {"learner": learner.save()})
    found = checkpoint.read_latest(folder)
    assert found is not None
    learner.restore(found.state["learner"])
    while learner.num_updates_done < 6:
        learner.step()
    _assert_same(_copy(published.versions[-1][1]["policy"]), _copy(learner.state.params))
    return {
        "params": {name: np.asarray(leaf).tolist() for name, leaf in learner.state.params.items()},
        "num_devices": len(learner.state.params["w"].sharding.device_set),
        "priorities": np.concatenate(written).tolist(),
    }


_PROGRAM = """
import importlib.util, json, pathlib, sys
spec = importlib.util.spec_from_file_location("test_learner", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
print(json.dumps(module.main(pathlib.Path(sys.argv[2]))))
"""


def main(folder: pathlib.Path) -> dict[str, Any]:
    """All cases of `test_data_parallel`, in a process of their own."""
    cases = {
        f"{devices} {updates}": _parameters_after(devices, updates, folder / f"{devices}-{updates}")
        for devices, updates in ((None, 1), (2, 1), (2, 2))
    }
    try:
        Learner(_update(), FixedDataset(_batches(1, size=3)), KEY, devices=jax.devices()).step()
    except ConfigError as error:
        return cases | {"error": str(error)}
    return cases


@pytest.mark.full
def test_data_parallel_over_two_devices_learns_the_same(tmp_path: pathlib.Path) -> None:
    environment = {
        **os.environ,
        "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
        "PYTHONPATH": str(pathlib.Path(agentkit.__file__).parents[1]),
    }
    command = [sys.executable, "-W", "error", "-c", _PROGRAM, __file__, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    cases = json.loads(done.stdout.splitlines()[-1])
    assert "3 items" in cases.pop("error")
    one = cases["None 1"]
    for two in (cases["2 1"], cases["2 2"]):
        assert (one["num_devices"], two["num_devices"]) == (1, 2)
        for name in ("w", "v"):
            np.testing.assert_allclose(one["params"][name], two["params"][name], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(one["priorities"], two["priorities"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("num_updates", [1, 3])
def test_each_update_is_told_how_many_were_made_before(num_updates: int) -> None:
    def update(seen: jax.Array, batch: ReplaySample) -> tuple[jax.Array, UpdateOutput]:
        return jnp.concatenate([seen[1:], jnp.asarray(batch.num_updates)[None]]), UpdateOutput({})

    def make() -> Learner:
        counting = Update(lambda key: jnp.full(6, -1, jnp.int32), update, lambda state: {"policy": state})
        batches = _batches(6, None if num_updates == 1 else num_updates)
        return Learner(counting, FixedDataset(batches), KEY, num_updates=num_updates)

    first, second = make(), make()
    for _ in range(3 // num_updates):
        first.step()
    second.restore(first.save())
    for _ in range(3 // num_updates):
        second.step()
    assert second.state.tolist() == [0, 1, 2, 3, 4, 5]


def test_a_count_of_steps_beyond_int32_stands_there() -> None:
    def update(seen: jax.Array, batch: ReplaySample) -> tuple[jax.Array, UpdateOutput]:
        return jnp.asarray(batch.num_steps), UpdateOutput({})

    counting = Update(lambda key: jnp.int32(0), update, lambda state: {"policy": state})
    callbacks = LearnerCallbacks(count_steps=lambda: 2**31)
    learner = Learner(counting, FixedDataset(_batches(1)), KEY, callbacks=callbacks)
    learner.step()
    assert learner.state == 2**31 - 1


def test_it_says_once_that_values_are_at_the_end_of_their_support() -> None:
    def loss(params: Any, state: Any, batch: ReplaySample, key: jax.Array) -> LossOutput:
        output = _loss(params, state, batch, key)
        return output._replace(metrics={"at_edge": jnp.float32(0.25)})

    update = sgd(loss, _init, optax.adam(0.05), periodic(2))
    callbacks = LearnerCallbacks(log=lambda metrics: None, log_seconds=0.0)
    learner = Learner(update, FixedDataset(_batches(1)), KEY, callbacks=callbacks)
    with pytest.warns(UserWarning, match="25 % of a batch's values are at an end of their support") as found:
        for _ in range(3):
            learner.step()
    assert len(found) == 1


def _resident() -> float:
    """MiB of this process that are in memory."""
    return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can be told to return memory")
def test_freed_memory_is_returned_below_what_is_still_held() -> None:
    blocks = [bytes(1_000) for _ in range(100_000)]
    held = blocks[-1]
    del blocks
    before = _resident()
    return_memory()
    assert before - _resident() > 60, f"{len(held)} bytes held what lay below them"


def test_memory_is_returned_once_a_learner(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the step that compiles, and no other: it takes 10 ms."""
    calls = []
    monkeypatch.setattr(learner_module, "return_memory", lambda: calls.append(learner.num_updates_done))
    learner = _learner()
    for _ in range(3):
        learner.step()
    assert calls == [1]
