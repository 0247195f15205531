"""Agents that see images: one encoder, which the critics' loss alone trains, on images that are shifted at random."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import agentkit
from agentkit import checkpoint, nests, specs
from agentkit import networks as nets
from agentkit.agents import dqn, registry, sac
from agentkit.agents.addons import drq, with_drq
from agentkit.errors import ConfigError, SpecError
from agentkit.experiment import ExperimentConfig, run
from agentkit.learning import Update, UpdateOutput
from agentkit.testing.learning import learns
from agentkit.types import ReplaySample, SampleInfo, Transition
from tests.agents.images import SIZE, drawn_point_mass, narrow_torso, run_once

NAMES = ["td3", "mpo", "sac", "d4pg", "ddpg"]
KEY = jax.random.PRNGKey(5)
RNG = np.random.default_rng(2)
SMALL: dict[str, Any] = {"hidden_sizes": (8,), "batch_size": 8, "min_replay_size": 10, "num_random_steps": 5}


def make(name: str, changes: dict[str, Any] | None = None, config: drq.Config | None = None, **parts: Any) -> Any:
    fields = registry.config_class(name).__dataclass_fields__
    settings = {key: value for key, value in {**SMALL, **(changes or {})}.items() if key in fields}
    agent = registry.module(name).make_agent(registry.config_class(name)(**settings), torso=narrow_torso, **parts)
    return agent if config is None else with_drq(agent, config)


def spec_of(observations: Any) -> specs.EnvironmentSpec:
    actions, reward = specs.BoundedArray((2,), np.float32, -1, 1), specs.Array((), np.float32)
    return specs.EnvironmentSpec(observations, actions, reward, specs.BoundedArray((), np.float32, 0, 1))


IMAGE = specs.BoundedArray((SIZE, SIZE, 1), np.uint8, 0, 255)
IMAGES = spec_of(IMAGE)


def a_batch(size: int = 4) -> ReplaySample:
    o_tm1, o_t = RNG.integers(0, 256, (2, size, SIZE, SIZE, 1), np.uint8)
    action, reward = RNG.uniform(-1, 1, (size, 2)).astype(np.float32), RNG.normal(size=size).astype(np.float32)
    data = Transition(o_tm1, action, reward, np.full(size, 0.9, np.float32), o_t, np.zeros(size, bool))
    return ReplaySample(SampleInfo(*(np.ones(size, np.float32) for _ in SampleInfo._fields)), data)


def differ(one: Any, other: Any) -> bool:
    return any(np.any(a != b) for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True))


def halves(nest: Any) -> list[Any]:
    """The first and the second of leaves ``[2, ...]``."""
    return [jax.tree.map(lambda x, i=i: np.asarray(x)[i], nest) for i in range(2)]


def with_scaled_policy_loss(name: str, scale: jax.Array) -> Any:
    module = registry.module(name)

    def make_losses(networks: Any, config: Any) -> Any:
        losses = module.make_losses(networks, config)

        def policy(*arguments: Any) -> Any:
            output = losses.policy(*arguments)
            return output._replace(loss=scale * output.loss)

        return losses._replace(policy=policy)

    return make(name, {"policy_delay": 1} if name == "td3" else {}, make_losses=make_losses)


@pytest.mark.full
@pytest.mark.parametrize("name", ["td3", "mpo"])
def test_the_policys_loss_does_not_reach_the_encoder(name: str) -> None:
    """Another loss of the policy changes the policy, and not one bit of the encoder; the critics' loss does."""
    batch = a_batch()

    def updated(scale: jax.Array) -> Any:
        agent = with_scaled_policy_loss(name, scale)
        update = agent.make_update(agent.make_networks(IMAGES))
        before = update.init(KEY)
        return before, update.update(before, batch)[0]

    # Both losses at once: what is compiled for one of them serves the other.
    before, after = run_once(lambda scales: jax.lax.map(updated, scales), jnp.array([1.0, -0.5], jnp.float32))
    (start, _), (encoder, other) = halves(before.encoder), halves(after.encoder)
    assert differ(encoder, start)
    assert not differ(encoder, other)
    assert differ(*halves(after.agent.opt_states))


@pytest.mark.full
def test_the_encoders_step_is_adams_on_the_critics_loss_of_the_shifted_images() -> None:
    """All by hand: both shifts, the features, the loss with its gradient, and the first step of Adam."""
    agent, batch = make("sac", {"learning_rate": 1e-2}, drq.Config(max_shift=2)), a_batch()
    networks = agent.make_networks(IMAGES)
    update, losses = agent.make_update(networks), sac.make_losses(networks.agent, agent.config)
    encode = networks.encoder.apply

    def both() -> Any:
        before = update.init(KEY)
        _, key_tm1, key_t = jax.random.split(before.key, 3)
        _, critic_key, _ = jax.random.split(before.agent.key, 3)
        o_tm1, o_t = batch.data.observation, batch.data.next_observation
        o_tm1, o_t = nets.random_shift(o_tm1, key_tm1, 2), nets.random_shift(o_t, key_t, 2)

        def loss(params: Any) -> Any:
            data = batch.data._replace(observation=encode(params, o_tm1), next_observation=encode(before.encoder, o_t))
            return losses.critic(before.agent.critics, before.agent, batch._replace(data=data), critic_key).loss

        return before, update.update(before, batch)[0], jax.grad(loss)(before.encoder), (o_tm1, o_t)

    before, state, grads, shifted = run_once(both)
    assert differ(shifted, (batch.data.observation, batch.data.next_observation))
    adam = optax.adam(1e-2)
    step, _ = adam.update(grads, adam.init(before.encoder))
    expected = optax.apply_updates(before.encoder, step)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), state.encoder, expected)


@pytest.mark.parametrize("field", ["observation", "next_observation"])
def test_targets_train_nobody(field: str) -> None:
    """The loss of an update that looks at one of both: it moves the encoder by the observations alone."""

    def update(state: Any, batch: Any) -> Any:
        return state, UpdateOutput({"critic_loss": jnp.sum(getattr(batch.data, field))})

    encoder = nets.Network(lambda key: jnp.ones(()), lambda params, x: params * x)
    whole = drq.learn_from_images(Update(lambda key: (), update, lambda state: {}), encoder, optax.sgd(1.0), None)
    batch = a_batch()
    vectors = np.ones((4, 3), np.float32)
    batch = batch._replace(data=batch.data._replace(observation=vectors, next_observation=vectors))
    state, _ = whole.update(whole.init(KEY), batch)
    assert state.encoder == (1 - vectors.sum() if field == "observation" else 1)


@pytest.mark.full
def test_policies_see_the_images_as_they_are_through_the_published_encoder() -> None:
    agent = make("sac", {"num_random_steps": 0})
    networks = agent.make_networks(IMAGES)
    update = agent.make_update(networks)
    state = run_once(update.init, KEY)
    published, image = update.variables(state)["policy"], a_batch().data.observation[0]
    policy = agent.make_policy(networks, evaluation=True)

    def act(published: Any, state: Any) -> Any:
        actions = [policy.act(published, jax.random.PRNGKey(i), image, policy.init(KEY))[0] for i in range(2)]
        features = networks.encoder.apply(state.encoder, image[None])
        return *actions, nets.mode(networks.agent.policy.apply(state.agent.policy, features))[0]

    one, other, expected = run_once(act, published, state)
    np.testing.assert_allclose(one, expected, rtol=1e-5)
    np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("name", NAMES)
def test_without_an_image_the_agent_is_as_it_is_in_its_file(name: str) -> None:
    module, spec = registry.module(name), spec_of(specs.Array((3,), np.float32))
    agent = registry.make(name)
    networks = agent.make_networks(spec)
    assert type(networks) is module.Networks
    state = jax.eval_shape(agent.make_update(networks).init, jax.ShapeDtypeStruct((2,), np.uint32))
    assert type(state) is module.State


def test_what_sees_the_images_itself() -> None:
    """A torso that learns nothing, and networks of the user's own that take no torso."""
    plain = registry.module("sac").make_agent(torso="flatten").make_networks(IMAGES)
    assert type(plain) is sac.Networks

    def make_networks(spec: Any, config: Any) -> Any:
        assert spec.observations == IMAGE
        return sac.make_networks(spec, config)

    assert type(sac.make_agent(make_networks=make_networks).make_networks(IMAGES)) is sac.Networks


@pytest.mark.full
def test_each_part_of_an_observation_reaches_policy_and_critics() -> None:
    """Two cameras and a vector: the features change with each of them."""
    spec = spec_of({"left": IMAGE, "right": IMAGE, "speed": specs.Array((3,), np.float32)})
    networks = sac.make_agent(sac.Config(hidden_sizes=(8,))).make_networks(spec)
    params = run_once(networks.encoder.init, KEY)
    seen = jax.tree.map(lambda leaf: jnp.ones((1, *leaf.shape), leaf.dtype), spec.observations, is_leaf=specs.is_spec)
    cases = [seen, *({**seen, name: 3 * seen[name]} for name in seen)]
    together = jax.tree.map(lambda *leaves: np.concatenate(leaves), *cases)
    features = run_once(networks.encoder.apply, params, together)
    assert len(np.unique(features, axis=0)) == len(cases)


@pytest.mark.full
def test_other_settings_take_the_place_of_the_defaults() -> None:
    agent = with_drq(sac.make_agent(), drq.Config(trunk_size=7))
    assert with_drq(agent) == sac.make_agent()
    params = jax.eval_shape(agent.make_networks(IMAGES).agent.policy.init, jax.ShapeDtypeStruct((2,), np.uint32))
    assert params["trunk"]["w"].shape[1] == 7
    programs = []
    for most in (None, 0, 1, 2):  # None is 1 of 12.
        agent = make("ddpg", {}, drq.Config(max_shift=most))
        update = agent.make_update(agent.make_networks(IMAGES))
        state = jax.eval_shape(update.init, jax.ShapeDtypeStruct((2,), np.uint32))
        programs.append(jax.jit(update.update).lower(state, a_batch()).as_text())
    assert programs[0] == programs[2] and len(set(programs)) == 3
    with pytest.raises(ConfigError, match="max_shift"):
        drq.Config(max_shift=-1)


@pytest.mark.parametrize("name", ["cql", "crr", "droq", "iql", "redq", "td3_bc", "tqc"])
def test_other_agents_with_critics_take_it(name: str) -> None:
    agent = make(name, {}, drq.Config())
    update = agent.make_update(agent.make_networks(IMAGES))
    state = jax.eval_shape(update.init, jax.ShapeDtypeStruct((2,), np.uint32))
    after, output = jax.eval_shape(update.update, state, a_batch())
    assert "critic_loss" in output.metrics
    for evaluation in (False, True):
        policy = agent.make_policy(agent.make_networks(IMAGES), evaluation)
        params, one = update.variables(state)["policy"], a_batch().data.observation[0]
        action, *_ = jax.eval_shape(policy.act, params, KEY, one, jax.eval_shape(policy.init, KEY))
        assert (action.shape, action.dtype) == ((2,), np.float32)
    assert jax.tree.map(lambda x: (x.shape, x.dtype), after) == jax.tree.map(lambda x: (x.shape, x.dtype), state)


def test_what_cannot_have_it_is_refused_in_words() -> None:
    with pytest.raises(ConfigError, match="networks with a policy"):
        with_drq(dqn.make_agent()).make_networks(IMAGES._replace(actions=specs.DiscreteArray(2)))
    masked = spec_of({"image": IMAGE, specs.ACTION_MASK: specs.BoundedArray((2,), bool, False, True)})
    with pytest.raises(SpecError, match="mask"):
        sac.make_agent().make_networks(masked)

    def make_update(networks: Any, losses: Any, config: Any) -> Any:
        update = sac.make_update(networks, losses, config)

        def unnamed(state: Any, batch: Any) -> Any:
            state, output = update.update(state, batch)
            return state, output._replace(metrics={"loss": output.metrics["critic_loss"]})

        return update._replace(update=unnamed)

    agent = make("sac", make_update=make_update)
    update = agent.make_update(agent.make_networks(IMAGES))
    state = jax.eval_shape(update.init, jax.ShapeDtypeStruct((2,), np.uint32))
    with pytest.raises(ConfigError, match=r"metric critic_loss.*found \['loss'\]"):
        jax.eval_shape(update.update, state, a_batch())


class _KilledError(Exception):
    pass


def _train(folder: Path, die_at: float = float("inf"), resume: bool = False) -> dict[str, np.ndarray]:
    """Returns the learner's state in the last checkpoint."""
    taken = []

    def environment(seed: int) -> Any:
        made = drawn_point_mass(seed)
        step = made.step

        def watched(action: Any) -> Any:
            taken.append(action)
            if len(taken) > die_at:
                raise _KilledError
            return step(action)

        made.step = watched
        return made

    experiment = ExperimentConfig(
        make("ddpg"), environment, 50, seed=3, run_directory=folder, evaluation_period=0, checkpoint_period=25
    )
    run(experiment, resume=resume)
    found = checkpoint.read_latest(folder / "checkpoints")
    assert found is not None and found.step == 50
    return found.state["learner"]["state"]


@pytest.mark.full
def test_a_run_from_images_is_resumed_to_the_bit_and_its_policy_loaded(tmp_path: Path) -> None:
    whole = _train(tmp_path / "whole")
    with pytest.raises(_KilledError):
        _train(tmp_path / "killed", die_at=37)
    resumed = _train(tmp_path / "killed", resume=True)
    assert whole.keys() == resumed.keys() and any("encoder" in name for name in whole)
    for name, leaf in whole.items():
        np.testing.assert_array_equal(resumed[name], leaf, err_msg=name)

    policy = agentkit.load(tmp_path / "whole", environment=drawn_point_mass)
    policy.save(tmp_path / "policy.npz")
    again, image = agentkit.load(tmp_path / "policy.npz"), drawn_point_mass(1).reset().observation
    published = nests.flatten_to_paths(again.arrays.encoder)
    assert published
    for name, leaf in published.items():
        np.testing.assert_array_equal(leaf, whole[f".encoder{name}"])
    np.testing.assert_array_equal(policy(image)[0], again(image)[0])


LEARNING: dict[str, Any] = {
    "hidden_sizes": (64,),
    "batch_size": 64,
    "min_replay_size": 100,
    "num_random_steps": 100,
    "updates_per_step": 1.0,
    "discount": 0.9,
    "learning_rate": 1e-3,
    "policy_learning_rate": 1e-3,
    "critic_learning_rate": 1e-3,
}
OF_EACH: dict[str, dict[str, Any]] = {
    "sac": {"tau": 0.02, "initial_temperature": 0.1},
    "td3": {"tau": 0.02, "exploration_noise": 0.2},
    "ddpg": {"tau": 0.02, "exploration_noise": 0.2},
    "d4pg": {"vmin": -10.0, "vmax": 0.0, "n_step": 3, "target_update_period": 20},
    "mpo": {"n_step": 3, "target_update_period": 20, "epsilon_mean": 1e-2},
}


def learner(name: str, **config: Any) -> Any:
    return make(name, {**LEARNING, **OF_EACH[name]}, drq.Config(trunk_size=20, **config))


@pytest.mark.full
def test_sac_learns_from_images() -> None:
    """The best is about -0.5, random play -6, and the encoder as it was at first gives -2.5."""
    learns(learner("sac"), drawn_point_mass, num_steps=1_500, threshold=-1.5)


@pytest.mark.full
@pytest.mark.parametrize(("name", "num_steps"), [("td3", 2_000), ("d4pg", 2_500), ("mpo", 4_000), ("ddpg", 4_000)])
def test_its_siblings_learn_from_images(name: str, num_steps: int) -> None:
    learns(learner(name), drawn_point_mass, num_steps=num_steps, threshold=-2.0, seeds=(0,))


@pytest.mark.full
def test_nothing_is_learned_behind_an_encoder_without_a_gradient() -> None:
    with pytest.raises(AssertionError, match="Expected an evaluation return"):
        learns(learner("sac", learning_rate=1e-30), drawn_point_mass, num_steps=1_500, threshold=-2.0, seeds=(0,))
