"""QMIX, and VDN as its sum: by hand, by the contract of agents, and in the QMIX paper's two-step game."""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentkit import envs, specs
from agentkit.actors.epsilon_greedy import explore
from agentkit.agents import qmix
from agentkit.errors import SpecError
from agentkit.experiment import ExperimentConfig, run
from agentkit.learning import SgdState
from agentkit.testing.agent import AgentContract, Change
from agentkit.testing.learning import learns
from agentkit.testing.programs import quickly_compiled
from agentkit.types import ReplaySample, SampleInfo, Transition
from tests.agents import settings
from tests.agents.teams import make_hints

KEY = jax.random.PRNGKey(0)


@pytest.mark.both_stacks
class TestQmix(AgentContract):
    unsuitable_environment = "agentkit:catch"
    refused: ClassVar = {**settings.VALUE_REFUSED, "mixer": "mean", "mixing_size": 0}
    changes: ClassVar = {
        **settings.VALUE_CHANGES,
        "mixer": "sum",
        "mixing_size": 4,
        "double": Change(True, {"learning_rate": 0.1}),
    }

    @pytest.mark.full
    def test_every_setting_changes_what_the_agent_does(self) -> None:
        """Each is traced anew."""
        super().test_every_setting_changes_what_the_agent_does()

    def make_agent(self, **changes: Any) -> Any:
        return qmix.make_agent(qmix.Config(**{**settings.SMALL_VALUES, "mixing_size": 8, **changes}))

    def make_environment(self, seed: int) -> Any:
        return envs.make(make_hints, seed=seed)


def networks_of(environment: Any, **config: Any) -> tuple[specs.EnvironmentSpec, qmix.Networks]:
    spec = specs.make_environment_spec(envs.make(environment))
    return spec, qmix.make_agent(qmix.Config(hidden_sizes=(8,), **config)).make_networks(spec)


def observations_of(spec: specs.EnvironmentSpec, size: int) -> Any:
    """Random ones of all agents, all active, with nothing ruled out."""
    rng = np.random.default_rng(0)

    def draw(leaf: specs.Array) -> np.ndarray:
        shape = (size, *leaf.shape)
        return rng.normal(size=shape).astype(leaf.dtype) if leaf.dtype.kind == "f" else np.ones(shape, leaf.dtype)

    return jax.tree.map(draw, spec.observations, is_leaf=specs.is_spec)


def test_agents_that_are_alike_share_parameters_and_see_who_they_are() -> None:
    spec, networks = networks_of(make_hints)
    assert networks.team.ids == ("ann", "ben", "cy") and networks.team.kinds == ((0, 1), (2,))
    params, seen = quickly_compiled(networks.init)(KEY), observations_of(spec, 4)
    seen["agents"]["ben"] = seen["agents"]["ann"]
    q_values = quickly_compiled(networks.q_values)
    q = q_values(params, seen)
    assert q.shape == (4, 3, 3)
    np.testing.assert_array_equal(q[:, :2, 2], specs.ILLEGAL_VALUE)  # They choose one of 2.
    assert np.all(q[:, 0, :2] != q[:, 1, :2])
    weights = [leaf.shape for leaf in jax.tree.leaves(params.agents) if leaf.ndim == 2]
    assert sorted(weights) == [(5, 8), (6, 8), (8, 2), (8, 3)]  # 2 or 3 numbers seen, and an indicator of 3 agents.
    moved = {**seen, "agents": {**seen["agents"], "ben": seen["agents"]["ben"] + 1}}
    changed = np.any(q_values(params, moved) != q, axis=(0, 2))
    assert changed.tolist() == [False, True, False], "an agent's values depend on what another one sees"


@pytest.mark.parametrize("environment", [make_hints, "team:agentkit:two_step_game"])
def test_no_agents_value_lowers_the_teams_and_the_state_decides_by_how_much_each_raises_it(environment: Any) -> None:
    spec, networks = networks_of(environment)
    seen, num_agents = observations_of(spec, 64), len(networks.team.ids)
    values = jnp.asarray(np.random.default_rng(1).normal(size=(64, num_agents)), jnp.float32)
    params, mix = quickly_compiled(networks.init)(KEY), quickly_compiled(networks.mix)
    # A row's mixture depends on its own values only, so the sum's gradient is that of each.
    slopes = quickly_compiled(jax.grad(lambda v: jnp.sum(networks.mix(params, v, seen))))(values)
    assert np.all(slopes >= 0) and np.all(np.std(slopes, axis=0) > 1e-3)
    hidden = "agents" if "state" in seen else "state"
    moved = {name: part if name != hidden else jax.tree.map(lambda x: x + 1, part) for name, part in seen.items()}
    mixed = [mix(params, values, o) for o in (seen, moved)]
    np.testing.assert_array_equal(*mixed)  # Where there is a state, the mixer sees nothing else.


def test_the_monotonic_mixture_is_the_papers() -> None:
    """Its hypernetworks by numpy, of parameters that are drawn."""
    spec, networks = networks_of("team:agentkit:two_step_game", mixing_size=4)
    params, seen = quickly_compiled(networks.init)(KEY), observations_of(spec, 5)
    leaves = params.mixer
    layers = [leaves[name] for name in ("linear", "linear_1", "linear_2", "linear_3", "linear_4")]
    first, bias, final, inner, last = (lambda x, p=p: x @ np.asarray(p["w"]) + np.asarray(p["b"]) for p in layers)
    state = np.concatenate([seen["active"], seen["state"]], axis=1)
    values = np.random.default_rng(1).normal(size=(5, 2)).astype(np.float32)
    hidden = np.einsum("bn,bns->bs", values, np.abs(first(state)).reshape(5, 2, 4)) + bias(state)
    hidden = np.where(hidden > 0, hidden, np.exp(np.minimum(hidden, 0)) - 1)
    expected = np.sum(hidden * np.abs(final(state)), 1) + last(np.maximum(inner(state), 0))[:, 0]
    np.testing.assert_allclose(quickly_compiled(networks.mix)(params, values, seen), expected, rtol=2e-5)


def tabular(q: Any) -> qmix.Networks:
    """Values that are the parameters, for two agents, whose sum is the team's."""
    spec, _ = networks_of("team:agentkit:two_step_game")
    return qmix.Networks(
        init=lambda key: q,
        q_values=lambda params, o: params[o["agents"]["agent_1"][:, 0].astype(int)],
        mix=lambda params, values, o: jnp.sum(values, axis=-1),
        team=qmix.nets.team_of(spec, "QMIX"),
    )


@pytest.mark.parametrize(("double", "bootstrapped"), [(False, 5.0 + 6.0), (True, 5.0 + 3.0)])
def test_the_loss_is_half_the_squared_error_of_the_teams_value(double: bool, bootstrapped: float) -> None:
    """In place 0 the values are [[1, 2], [3, 4]], in place 1 of the target network's [[5, 0], [3, 6]]."""
    params = jnp.array([[[1.0, 2.0], [3.0, 4.0]], [[1.0, 0.0], [1.0, 0.0]]])
    target = jnp.array([[[0.0, 0.0], [0.0, 0.0]], [[5.0, 0.0], [3.0, 6.0]]])
    networks = tabular(params)
    loss = qmix.make_loss(networks, qmix.Config(double=double))

    def seen(place: float, active: Any) -> Any:
        agent = np.full((1, 3), place, np.float32)
        return {"agents": {"agent_1": agent, "agent_2": agent}, "active": np.array([active])}

    def loss_of(active: Any, next_active: Any, discount: float = 0.5) -> float:
        action = {"agent_1": np.int32([0]), "agent_2": np.int32([1])}
        data = Transition(seen(0, active), action, np.float32([10]), np.float32([discount]), seen(1, next_active))
        info = SampleInfo(*(np.ones(1, np.float32) for _ in SampleInfo._fields))
        state = SgdState(params, target, (), KEY, jnp.int32(0))
        return float(loss(params, state, ReplaySample(info, data), KEY).loss)

    both = (True, True)
    assert loss_of(both, both) == pytest.approx(0.5 * (10 + 0.5 * bootstrapped - (1 + 4)) ** 2)
    assert loss_of(both, both, discount=0.0) == pytest.approx(0.5 * (10 - 5) ** 2)
    assert loss_of(both, (True, False)) == pytest.approx(0.5 * (10 + 0.5 * 5 - 5) ** 2)
    assert loss_of((False, True), (False, False)) == pytest.approx(0.5 * (10 - 4) ** 2)


def test_each_agent_explores_by_itself() -> None:
    """Were they to explore together, both would act greedily in 0.75 of the cases."""
    q = jnp.array([[0.0, 1.0, specs.ILLEGAL_VALUE], [0.0, 1.0, specs.ILLEGAL_VALUE]])
    keys = jax.random.split(KEY, 2_000)
    chosen = np.asarray(jax.jit(jax.vmap(lambda key: explore(key, q, 0.5)))(keys))
    np.testing.assert_allclose(np.mean(chosen, axis=0), [0.75, 0.75], atol=0.04)
    assert np.mean(chosen.all(axis=1)) == pytest.approx(0.75**2, abs=0.04)
    assert chosen.max() == 1


@pytest.mark.full
@pytest.mark.parametrize("num_envs", [None, 3])
def test_a_team_keeps_to_its_masks_and_nobody_acts_after_its_end(num_envs: int | None) -> None:
    agent = qmix.make_agent(qmix.Config(**settings.SMALL_VALUES, mixing_size=8))
    experiment = ExperimentConfig(
        agent, lambda seed: make_hints(seed, strict=True), num_steps=120, num_envs=num_envs, evaluation_period=60
    )
    assert run(experiment).updates > 0


@pytest.mark.parametrize(
    ("observations", "actions", "found"),
    [
        (specs.Array((3,), np.float32), specs.DiscreteArray(2), "found observations float32.* and actions one of 2"),
        ({"agents": {}}, {}, "needs a team.*The environment team:NAME makes"),
        ({"agents": {"a": specs.Array((3,), np.float32)}}, {"b": specs.DiscreteArray(2)}, "needs a team"),
        (
            {"agents": {"a": specs.Array((3,), np.float32)}},
            {"a": specs.BoundedArray((2,), np.float32, -1, 1)},
            r"one discrete action .* found float32\[2\] from -1 to 1 of 'a'",
        ),
    ],
)
def test_what_is_no_team_is_refused(observations: Any, actions: Any, found: str) -> None:
    scalar = specs.Array((), np.float32)
    with pytest.raises(SpecError, match=found):
        qmix.make_agent().make_networks(specs.EnvironmentSpec(observations, actions, scalar, scalar))


GAME = {
    "hidden_sizes": (64,),
    "mixing_size": 8,
    "epsilon": 1.0,
    "batch_size": 64,
    "replay_size": 1_000,
    "min_replay_size": 100,
    "updates_per_step": 0.25,
    "updates_per_call": 8,
    "learning_rate": 1e-3,
    "target_update_period": 100,
}


@pytest.mark.full
def test_qmix_finds_the_8_of_the_two_step_game() -> None:
    assert learns(qmix.make_agent(qmix.Config(**GAME)), "team:agentkit:two_step_game", 4_000, 8.0) == [8.0] * 3


@pytest.mark.full
def test_vdn_prefers_its_7_which_no_sum_of_values_can_tell_from_the_matrix_of_8() -> None:
    agent = qmix.make_agent(qmix.Config(**GAME, mixer="sum"))
    assert learns(agent, "team:agentkit:two_step_game", 4_000, 7.0) == [7.0] * 3


@pytest.mark.full
def test_it_learns_where_agents_differ_have_masks_and_end_apart() -> None:
    """On average 15 is perfect and 7.5 chance: each of three is paid for what it alone is shown."""
    config = qmix.Config(**{**GAME, "epsilon": 0.3, "discount": 0.0})
    learns(qmix.make_agent(config), make_hints, num_steps=4_000, threshold=14.0, num_episodes=50)
