"""One stream of steps to several adders."""

import numpy as np
import pytest

from agentkit import envs, specs
from agentkit.adders import NStepAdder, TeeAdder, WithoutExtras
from agentkit.errors import CheckpointError, ConfigError, ReplayClosedError
from agentkit.replay import InProcessReplay, MinSize, Table


def make_parts(lengths=(1, 3)):
    environment = envs.make("agentkit:catch", seed=0)
    spec = specs.make_environment_spec(environment)
    tables = [Table("t", NStepAdder.layout(spec), 100, rate_limiter=MinSize(1)) for _ in lengths]
    replays = [InProcessReplay([table], seed=0) for table in tables]
    adders = [
        NStepAdder(replay.writer(NStepAdder.history(n)), spec, tables="t", n=n, discount=0.5)
        for replay, n in zip(replays, lengths, strict=True)
    ]
    return environment, replays, adders


def play(environment, adder, num_episodes):
    for _ in range(num_episodes):
        timestep = environment.reset()
        adder.add_first(timestep)
        while not timestep.last():
            timestep = environment.step(1)
            adder.add(np.int32(1), timestep)


def rewards(replay, count):
    sampler = replay.sampler("t", 1)
    return sorted({float(next(sampler).sample.data.reward[0]) for _ in range(count)})


def test_each_gets_all_steps_as_if_it_were_alone():
    environment, replays, adders = make_parts()
    play(environment, TeeAdder(adders), 2)
    for n, replay in zip((1, 3), replays, strict=True):
        alone_environment, (alone,), (adder,) = make_parts((n,))
        play(alone_environment, adder, 2)
        assert replay.info("t").num_inserted == alone.info("t").num_inserted > 0
        assert rewards(replay, 300) == rewards(alone, 300)
    assert len(rewards(replays[1], 300)) > len(rewards(replays[0], 300)) > 1


def test_reset_and_close_reach_all():
    environment, replays, adders = make_parts()
    tee = TeeAdder(adders)
    tee.add_first(environment.reset())
    tee.reset()
    play(environment, tee, 1)  # Would raise in mid-episode.
    tee.close()
    tee.close()
    for replay in replays:
        replay.close()


def test_one_that_cannot_close_does_not_keep_others_from_it():
    class Broken:
        def close(self):
            raise ReplayClosedError("gone")

    _, _, (adder,) = make_parts((1,))
    closed = []
    adder.close = lambda: closed.append(True)
    with pytest.raises(ReplayClosedError, match="gone"):
        TeeAdder([Broken(), adder]).close()
    assert closed == [True]


def test_goes_on_in_mid_episode_after_save_and_restore(tmp_path):
    results = []
    for interrupted in (False, True):
        environment, replays, adders = make_parts()
        tee = TeeAdder(adders)
        timestep = environment.reset()
        tee.add_first(timestep)
        for step in range(9):
            if interrupted and step == 4:
                state = tee.save()
                for i, replay in enumerate(replays):
                    (tmp_path / str(i)).mkdir()
                    replay.save(tmp_path / str(i))
                _, replays, adders = make_parts()
                for i, replay in enumerate(replays):
                    replay.restore(tmp_path / str(i))
                tee = TeeAdder(adders)
                tee.restore(state)
            timestep = environment.step(1)
            tee.add(np.int32(1), timestep)
        results.append([(replay.info("t").num_inserted, rewards(replay, 200)) for replay in replays])
    assert results[0] == results[1]
    with pytest.raises(CheckpointError):
        tee.restore({"0": state["0"]})


def test_without_extras_it_is_the_adder_that_expects_none():
    environment, (replay,), (adder,) = make_parts((3,))
    bare = WithoutExtras(adder)
    bare.add_first(environment.reset())
    bare.reset()
    timestep = environment.reset()
    bare.add_first(timestep)
    with pytest.raises(CheckpointError, match="lacks"):
        bare.restore({})
    while not timestep.last():
        timestep = environment.step(1)
        bare.add(np.int32(1), timestep, {"log_prob": np.float32(-1.0)})
    assert replay.info("t").num_inserted == 11 and bare.save().keys() == adder.save().keys()
    bare.close()
    with pytest.raises(ReplayClosedError):
        bare.add_first(environment.reset())
        bare.add(np.int32(1), environment.step(1))


def test_of_none_is_refused():
    with pytest.raises(ConfigError, match="at least one"):
        TeeAdder([])
