"""A learner's batches from several replay servers in turn; and the small parts of programs of one's own."""

import contextlib
import dataclasses
import re
import time
import types

import cloudpickle
import numpy as np
import pytest

from agentkit import envs, specs
from agentkit.agents import bc, dqn, ppo, registry
from agentkit.agents.addons import with_normalization
from agentkit.agents.common.experience_wrappers import WithRateLimiter
from agentkit.distributed import RunStore, RunStoreClient
from agentkit.errors import ConfigError, ReplayClosedError, ReplayTimeoutError
from agentkit.experiment import ExperimentConfig
from agentkit.experiment.launching.nodes import gradient_actor
from agentkit.experiment.launching.nodes.gradient_actor import with_gradients
from agentkit.experiment.launching.nodes.learner import learner_node
from agentkit.experiment.launching.sharing import transports
from agentkit.experiment.launching.sharing.priorities import LargestPriorities
from agentkit.experiment.launching.sharing.transports import parameters_name
from agentkit.experiment.runs.learner_folders import contents_name
from agentkit.loggers.program_table import all_tables
from agentkit.replay import MinSize
from tests.agents.spaces import environment_of
from tests.replay.served.pair import Host

pytestmark = pytest.mark.both_stacks

SECRET = "0123456789abcdef0123456789abcdef"
SPEC = specs.make_environment_spec(envs.make("agentkit:catch", seed=0))


def make_agent(**settings):
    agent = dqn.make_agent(dqn.Config(n_step=1, batch_size=4, prioritized=True, **settings))
    return dataclasses.replace(agent, experience=WithRateLimiter(agent.experience, MinSize(1)))


def fill(agent, replay, reward):
    adder = agent.make_adder(replay, SPEC)
    environment = envs.make("agentkit:catch", seed=0)
    timestep = environment.reset()
    adder.add_first(timestep)
    while not timestep.last():
        timestep = environment.step(1)
        adder.add(np.int32(1), timestep._replace(reward=reward))
    adder.close()


def next_batch(data):
    deadline = time.monotonic() + 60.0
    while True:
        try:
            return next(data)
        except ReplayTimeoutError:
            assert time.monotonic() < deadline


@pytest.fixture
def shards():
    from agentkit.experiment.launching.nodes.learner_data import make_data
    from agentkit.replay import ReverbReplay

    agent = make_agent()
    servers = [ReverbReplay(agent.make_tables(SPEC)) for _ in range(2)]
    endpoints = [
        {"node": f"replay-{i}", "address": server.address, "pid": -1, "process": ""} for i, server in enumerate(servers)
    ]
    data = make_data(agent, SPEC, endpoints)
    yield agent, servers, data
    data.close()
    for server in servers:
        server.close()


@pytest.mark.reverb
def test_shards_take_turns_and_get_their_own_priorities(shards):
    agent, servers, data = shards
    for number, server in enumerate(servers):
        fill(agent, server, float(number))
    seen = []
    for _ in range(12):
        batch = next_batch(data)
        (shard,) = set(batch.sample.data.reward.tolist())  # All of one server.
        seen.append(int(shard))
        data.write_priorities(batch.keys, np.full(4, 10.0 + shard))
    assert seen.count(0) >= 3 and seen.count(1) >= 3
    for number, server in enumerate(servers):
        found = set()
        deadline = time.monotonic() + 60.0
        while found - {1.0} != {10.0 + number} and time.monotonic() < deadline:
            found |= set(next(server.sampler("transitions", 4, timeout=30.0)).sample.info.priority.tolist())
        assert found - {1.0} == {10.0 + number}
    assert data.waited_seconds > 0.0
    assert sorted(data.writers_of_contents()) == ["replay", "replay-1"]


@pytest.mark.reverb
def test_actors_learn_of_the_largest_priority_of_their_own_shard(shards):
    """From the run store: the learner gave it, and Reverb's server does not know it."""
    from agentkit.experiment.launching.nodes.replay import connect_to_replay

    agent, servers, data = shards
    for number, server in enumerate(servers):
        fill(agent, server, float(number))
    for _ in range(4):
        batch = next_batch(data)
        data.write_priorities(batch.keys, np.full(4, 7.0 + batch.sample.data.reward[0]))
    endpoints = [{"node": f"replay-{i}", "address": s.address, "pid": -1, "process": ""} for i, s in enumerate(servers)]
    with contextlib.ExitStack() as stack:
        store = stack.enter_context(RunStore(SECRET))
        client = stack.enter_context(contextlib.closing(RunStoreClient(store.address, SECRET, node="learner-0")))
        replays = [connect_to_replay(agent.make_tables(SPEC), each, timeout=30.0, wait=30.0) for each in endpoints]
        for replay in replays:
            stack.callback(replay.close)
        for told in (False, True):
            for number, (endpoint, replay) in enumerate(zip(endpoints, replays, strict=True)):
                LargestPriorities(client, endpoint).share(replay)
                assert replay.largest_priorities == {"transitions": 7.0 + number if told else 1.0}
            data.share_priorities(client)
        for number, replay in enumerate(replays):
            fill(agent, replay, 3.0)
            found, sampler = set(), servers[number].sampler("transitions", 4, timeout=30.0)
            for _ in range(30):
                sample = next(sampler).sample
                found |= set(sample.info.priority[sample.data.reward == 3.0].tolist())
            assert found == {7.0 + number}


def test_a_server_that_comes_back_elsewhere_is_found():
    """As the node of a vanished machine does on the next one: a learner that waits for it would lose its updates."""
    from agentkit.experiment.launching.nodes.learner_data import make_data

    agent = make_agent()
    with contextlib.ExitStack() as stack:
        store = stack.enter_context(RunStore(SECRET))
        client = stack.enter_context(contextlib.closing(RunStoreClient(store.address, SECRET, node="learner-0")))
        hosts = [stack.enter_context(contextlib.closing(Host(agent.make_tables(SPEC)))) for _ in range(2)]
        here, there = ({"node": "replay-0", "address": host.address} for host in hosts)
        data = stack.enter_context(contextlib.closing(make_data(agent, SPEC, here, client)))
        fill(agent, stack.enter_context(contextlib.closing(hosts[1].connect())), 1.0)
        hosts[0].kill()
        store.put("endpoint/replay-0", {"incarnation": 1, "value": there})
        data.reconnect()
        assert set(next_batch(data).sample.data.reward.tolist()) == {1.0}
        assert data.address == hosts[1].address
        hosts[1].kill()
        (hosts[1].folder / "replay").unlink()  # As a replay node that is started again does.
        store.put("endpoint/replay-0", {"incarnation": 1, "value": {**there, "host": "another container's name"}})
        data.reconnect()
        assert not data.answers(), "it waits for a server that is away, whatever name its host has"


def test_a_run_store_that_is_away_holds_up_neither_learner_nor_actor(monkeypatch):
    from agentkit.experiment.launching.nodes.learner_data import make_data

    agent = make_agent()
    with contextlib.ExitStack() as stack:
        store = stack.enter_context(RunStore(SECRET))
        client = stack.enter_context(contextlib.closing(RunStoreClient(store.address, SECRET, node="learner-0")))
        host = stack.enter_context(contextlib.closing(Host(agent.make_tables(SPEC))))
        endpoint = {"node": "replay-0", "address": host.address}
        data = stack.enter_context(contextlib.closing(make_data(agent, SPEC, endpoint, client)))
        # Reverb's client knows largest priorities; a served replay's needs none.
        replay = types.SimpleNamespace(tables=data.replay.tables, largest_priorities={"transitions": 1.0})
        monkeypatch.setattr(transports, "_open_source", lambda context, endpoint: None)
        source = transports.LearnerSource(types.SimpleNamespace(store=client), {"node": "learner-0"})
        store.close()
        client._client.patience = 60.0  # As if its host had vanished: for long nobody knows that it is away.
        for look in (
            data.reconnect,
            lambda: LargestPriorities(client, endpoint).share(replay),
            source._look_for_learner,
        ):
            started = time.monotonic()
            look()
            assert time.monotonic() - started < 5.0  # `RunStoreClient.get` waits 10 s for an answer.
        assert data.answers()


@pytest.mark.reverb
def test_a_shard_that_is_empty_or_gone_is_passed_over(shards):
    agent, servers, data = shards
    with pytest.raises(ReplayTimeoutError, match="No shard"):
        next(data)
    assert not data.may_draw()
    fill(agent, servers[1], 1.0)
    assert data.may_draw()
    for _ in range(3):
        assert set(next_batch(data).sample.data.reward.tolist()) == {1.0}
    servers[0].close()
    for _ in range(3):
        assert set(next_batch(data).sample.data.reward.tolist()) == {1.0}
    assert data.answers()


@pytest.mark.reverb
def test_without_any_server_it_says_so(shards):
    _, servers, data = shards
    for server in servers:
        server.close()
    deadline = time.monotonic() + 120.0
    with pytest.raises(ReplayClosedError, match="are away"):
        while time.monotonic() < deadline:
            try:
                next(data)
            except ReplayTimeoutError:
                continue
    assert not data.answers()


def test_changed_tables_change_nothing_else():
    agent = make_agent()
    (table,) = agent.make_tables(SPEC)
    assert table.rate_limiter == MinSize(1) and table.name == "transitions"
    plain = dqn.make_agent(agent.config)
    (other,) = plain.make_tables(SPEC)
    assert table == dataclasses.replace(other, rate_limiter=MinSize(1))
    assert agent.batch_plan == plain.batch_plan
    again = cloudpickle.loads(cloudpickle.dumps(agent))
    assert again.make_tables(SPEC)[0].fingerprint() == table.fingerprint()
    described = ExperimentConfig(agent, "agentkit:catch", 10).describe()
    assert described["agent"] == "dqn" and set(described["agent_parts"]) == {"experience"}


def test_a_changed_rate_limit_survives_another_number_of_environments():
    agent = ppo.make_agent(ppo.Config(num_minibatches=1))
    agent = dataclasses.replace(agent, experience=WithRateLimiter(agent.experience, MinSize(1)))
    (table,) = agent.with_num_envs(7).make_tables(SPEC)
    assert (table.rate_limiter, table.max_size) == (MinSize(1), 7)


def test_gradients_refuse_steps_and_updates_with_targets_or_of_several_steps():
    agent = with_gradients(dqn.make_agent())
    with pytest.raises(ConfigError, match="gradient_node"):
        agent.make_adder(None, SPEC)
    with pytest.raises(ConfigError, match=r"gradients of dqn: .*target network"):
        agent.make_update(agent.make_networks(SPEC))
    ppos = with_gradients(ppo.make_agent(ppo.Config(normalize_observations=False, normalize_values=False)))
    with pytest.raises(ConfigError, match=r"gradients of ppo: .*several steps on a batch.* Take a2c"):
        ppos.make_update(ppos.make_networks(SPEC))


@pytest.mark.full
def test_gradients_of_an_agent_that_cannot_are_refused_in_a_line_that_names_those_that_can():
    able = set()
    for name in registry.names():
        fields = {field.name for field in dataclasses.fields(registry.config_class(name))}
        statistics = fields & {"normalize_observations", "normalize_values"}
        agent = registry.make(name, dict.fromkeys(statistics, False))
        networks = agent.make_networks(specs.make_environment_spec(envs.make(environment_of(name), seed=0)))
        if agent.make_update(networks).gradient is not None:
            able.add(name)
        else:
            for refusing in (
                gradient_actor.make_halves,
                lambda agent, networks: with_gradients(agent).make_update(networks),
            ):
                with pytest.raises(
                    ConfigError, match=f"^Actors cannot compute the gradients of {name}: [^\n]*$"
                ) as error:
                    refusing(agent, networks)
    assert "ppo" not in able
    named = re.search(r"Take (.*); or let the learner", str(error.value))
    assert named is not None and able == set(registry.names()).intersection(re.findall(r"\w+", named[1]))


def test_gradients_refuse_updates_that_keep_statistics():
    """What travels is shaped as the parameters and averaged, which statistics are not to be."""
    plain, spec = bc.make_agent(), specs.make_environment_spec(envs.make("agentkit:point_mass", seed=0))
    assert plain.make_update(plain.make_networks(spec)).gradient is not None
    agent = with_normalization(plain)
    networks = agent.make_networks(spec)
    with pytest.raises(ConfigError, match=r"keeps statistics, as normalisation does.*actor_node"):
        with_gradients(agent).make_update(networks)
    with pytest.raises(ConfigError, match="gradients of bc"):
        gradient_actor.make_halves(agent, networks)


def test_a_second_learner_or_server_has_names_of_its_own():
    assert parameters_name("run", "learner-0") != parameters_name("run", "learner-1")
    assert "run" not in parameters_name("run", "learner-0")
    assert (contents_name("replay-0"), contents_name("replay-2")) == ("replay", "replay-2")
    status = {"values": {"tables": {"t": 1}, "tables/replay-1": {"t": 2, "u": 3}, "tablesets": {"x": 4}}}
    assert all_tables(status) == {"t": 1, "replay-1/t": 2, "replay-1/u": 3}
    of_two = {"tables/row/replay-0": {"t": 1}, "tables/column/replay-1": {"t": 2}, "tables/column/replay-2": {"t": 3}}
    assert all_tables({"values": of_two}) == {"row/t": 1, "column/replay-1/t": 2, "column/replay-2/t": 3}
    assert all_tables({"values": {"tables/shared/replay-0": {"t": 1}}}) == {"t": 1}, "of the only one"


def test_a_second_learner_with_a_run_folder_is_refused(tmp_path):
    context = type("Context", (), {"index": 1, "name": "learner-1", "run_directory": tmp_path})()
    with pytest.raises(ConfigError, match="same checkpoints"):
        learner_node(context, ExperimentConfig(dqn.make_agent(), "agentkit:catch", 10), SPEC, {})
