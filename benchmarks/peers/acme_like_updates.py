"""The algorithms of `acme_like_side.py`: networks, policy and one plain SGD step each, as dm-acme writes them.

Mirrors acme/agents/jax/{dqn,sac,d4pg}/{networks,learning,learning_lib,losses}.py. Every step is one function for
`jax.jit`, without donated buffers, on losses that each take their own gradient. What is set otherwise than Acme's
defaults, so that both sides do the same work: network sizes, uniform replay and Huber loss for DQN, no layer norm
in D4PG. In Acme's favour: its learners of DQN and D4PG call `jax.pmap` on one device, which costs more than `jit`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import haiku as hk
import jax
import jax.numpy as jnp
import optax
import rlax


class Transition(NamedTuple):
    """What replay holds, ``[B, ...]`` (acme/types.py). The discount lacks one factor gamma, as in Acme."""

    observation: Any
    action: Any
    reward: Any
    discount: Any
    next_observation: Any


class Algorithm(NamedTuple):
    """What learner and actor need.

    Attributes:
        init: ``key -> state``.
        step: ``(state, Transition) -> (state, metrics)``.
        policy_params: ``state -> params``.
        act: ``(params, key, observation [1, ...], num_steps []) -> action [1, ...]``.
        fetches: whether Acme's learner fetches the metrics at every step (DQN and D4PG do, SAC does not), and
            hands the actor numpy arrays.
    """

    init: Callable[[jax.Array], Any]
    step: Callable[[Any, Transition], tuple[Any, dict[str, jax.Array]]]
    policy_params: Callable[[Any], Any]
    act: Callable[[Any, jax.Array, jax.Array, jax.Array], jax.Array]
    fetches: bool


class ValueState(NamedTuple):
    """Of DQN (learning_lib.py, `TrainingState`)."""

    params: Any
    target_params: Any
    opt_state: Any
    steps: jax.Array
    key: jax.Array


class ActorCriticState(NamedTuple):
    """Of SAC and D4PG (learning.py, `TrainingState`)."""

    policy: Any
    critic: Any
    target_policy: Any
    target_critic: Any
    policy_opt: Any
    critic_opt: Any
    steps: jax.Array
    key: jax.Array
    alpha: Any = ()
    alpha_opt: Any = ()


def _mlp(sizes: list[int], activate_final: bool = False) -> hk.nets.MLP:
    w_init = hk.initializers.VarianceScaling(1.0, "fan_in", "uniform")
    return hk.nets.MLP(sizes, w_init=w_init, activation=jax.nn.relu, activate_final=activate_final)


def _transform(function: Callable[..., Any]) -> hk.Transformed:
    return hk.without_apply_rng(hk.transform(function))


def dqn(settings: dict[str, Any], observation: jax.Array, num_actions: int) -> Algorithm:
    """DQN (dqn/learning_lib.py `SGDLearner`, dqn/losses.py `QLearning`, dqn/actor.py)."""
    network = _transform(lambda o: _mlp([*settings["hidden_sizes"], num_actions])(o))
    optimizer = optax.chain(optax.clip_by_global_norm(settings["max_grad_norm"]), optax.adam(settings["learning_rate"]))

    def loss(params: Any, target_params: Any, transition: Transition, key: jax.Array) -> Any:
        del key
        q_tm1 = network.apply(params, transition.observation)
        q_t = network.apply(target_params, transition.next_observation)
        d_t = (transition.discount * settings["discount"]).astype(jnp.float32)
        r_t = transition.reward.astype(jnp.float32)
        errors = jax.vmap(rlax.q_learning)(q_tm1, transition.action, r_t, d_t, q_t)
        return jnp.mean(rlax.huber_loss(errors, 1.0)), {}

    def init(key: jax.Array) -> ValueState:
        key_params, key_target, key_state = jax.random.split(key, 3)
        params, target_params = network.init(key_params, observation), network.init(key_target, observation)
        return ValueState(params, target_params, optimizer.init(params), jnp.zeros((), jnp.int32), key_state)

    def step(state: ValueState, transition: Transition) -> tuple[ValueState, dict[str, jax.Array]]:
        next_key, key = jax.random.split(state.key)
        (value, metrics), grads = jax.value_and_grad(loss, has_aux=True)(
            state.params, state.target_params, transition, key
        )
        updates, opt_state = optimizer.update(grads, state.opt_state)
        params = optax.apply_updates(state.params, updates)
        steps = state.steps + 1
        target_params = optax.periodic_update(params, state.target_params, steps, settings["target_update_period"])
        return ValueState(params, target_params, opt_state, steps, next_key), {**metrics, "total_loss": value}

    def act(params: Any, key: jax.Array, observation: jax.Array, num_steps: jax.Array) -> jax.Array:
        start, end = settings["epsilon_start"], settings["epsilon_end"]
        epsilon = start + (end - start) * jnp.minimum(num_steps / settings["epsilon_steps"], 1.0)
        return rlax.epsilon_greedy(epsilon).sample(key, network.apply(params, observation)).astype(jnp.int32)

    return Algorithm(init, step, lambda state: state.params, act, fetches=True)


def sac(settings: dict[str, Any], observation: jax.Array, action_size: int) -> Algorithm:
    """SAC with a learned temperature (sac/learning.py, sac/networks.py)."""
    discount, tau, target_entropy = settings["discount"], settings["tau"], -float(action_size)

    def policy_head(o: jax.Array) -> tuple[jax.Array, jax.Array]:  # jax/networks/distributional.py
        features = _mlp(settings["hidden_sizes"], activate_final=True)(o)
        mean, scale = hk.Linear(action_size)(features), hk.Linear(action_size)(features)
        return mean, jax.nn.softplus(scale) + 1e-3

    def critics(o: jax.Array, a: jax.Array) -> jax.Array:
        both = jnp.concatenate([o, a], axis=-1)
        return jnp.concatenate([_mlp([*settings["hidden_sizes"], 1])(both) for _ in range(2)], axis=-1)

    policy, critic = _transform(policy_head), _transform(critics)
    optimizer, alpha_optimizer = optax.adam(settings["learning_rate"]), optax.adam(settings["learning_rate"])

    def sample(params: Any, o: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        mean, scale = policy.apply(params, o)
        raw = mean + scale * jax.random.normal(key, mean.shape)
        # The density of tanh(raw), with the logarithm of its slope in a form that does not overflow.
        log_prob = -0.5 * jnp.square((raw - mean) / scale) - jnp.log(scale) - 0.5 * jnp.log(2 * jnp.pi)
        log_slope = 2 * (jnp.log(2.0) - raw - jax.nn.softplus(-2 * raw))
        return jnp.tanh(raw), jnp.sum(log_prob - log_slope, axis=-1)

    def alpha_loss(log_alpha: jax.Array, policy_params: Any, transition: Transition, key: jax.Array) -> jax.Array:
        _, log_prob = sample(policy_params, transition.observation, key)
        return jnp.mean(jnp.exp(log_alpha) * jax.lax.stop_gradient(-log_prob - target_entropy))

    def critic_loss(
        params: Any, state: ActorCriticState, alpha: jax.Array, transition: Transition, key: jax.Array
    ) -> jax.Array:
        q_old = critic.apply(params, transition.observation, transition.action)
        action, log_prob = sample(state.policy, transition.next_observation, key)
        q_next = critic.apply(state.target_critic, transition.next_observation, action)
        value = jnp.min(q_next, axis=-1) - alpha * log_prob
        target = jax.lax.stop_gradient(transition.reward + transition.discount * discount * value)
        return 0.5 * jnp.mean(jnp.square(q_old - target[:, None]))

    def policy_loss(
        params: Any, critic_params: Any, alpha: jax.Array, transition: Transition, key: jax.Array
    ) -> jax.Array:
        action, log_prob = sample(params, transition.observation, key)
        q = critic.apply(critic_params, transition.observation, action)
        return jnp.mean(alpha * log_prob - jnp.min(q, axis=-1))

    def init(key: jax.Array) -> ActorCriticState:
        key_policy, key_critic, key = jax.random.split(key, 3)
        policy_params = policy.init(key_policy, observation)
        critic_params = critic.init(key_critic, observation, jnp.zeros((1, action_size)))
        opts = optimizer.init(policy_params), optimizer.init(critic_params)
        alpha = jnp.zeros(())
        steps = jnp.zeros((), jnp.int32)
        alpha_opt = alpha_optimizer.init(alpha)
        return ActorCriticState(policy_params, critic_params, (), critic_params, *opts, steps, key, alpha, alpha_opt)

    def step(state: ActorCriticState, transition: Transition) -> tuple[ActorCriticState, dict[str, jax.Array]]:
        key, key_alpha, key_critic, key_policy = jax.random.split(state.key, 4)
        loss_alpha, grads_alpha = jax.value_and_grad(alpha_loss)(state.alpha, state.policy, transition, key_alpha)
        alpha = jnp.exp(state.alpha)
        loss_critic, grads_critic = jax.value_and_grad(critic_loss)(state.critic, state, alpha, transition, key_critic)
        loss_policy, grads_policy = jax.value_and_grad(policy_loss)(
            state.policy, state.critic, alpha, transition, key_policy
        )
        updates, policy_opt = optimizer.update(grads_policy, state.policy_opt)
        policy_params = optax.apply_updates(state.policy, updates)
        updates, critic_opt = optimizer.update(grads_critic, state.critic_opt)
        critic_params = optax.apply_updates(state.critic, updates)
        target = jax.tree.map(lambda x, y: x * (1 - tau) + y * tau, state.target_critic, critic_params)
        updates, alpha_opt = alpha_optimizer.update(grads_alpha, state.alpha_opt)
        log_alpha = optax.apply_updates(state.alpha, updates)
        metrics = {"critic_loss": loss_critic, "actor_loss": loss_policy, "alpha_loss": loss_alpha, "alpha": alpha}
        metrics["rewards_mean"] = jnp.abs(jnp.mean(transition.reward))
        metrics["rewards_std"] = jnp.std(transition.reward)
        opts = policy_opt, critic_opt
        steps = state.steps + 1
        state = ActorCriticState(policy_params, critic_params, (), target, *opts, steps, key, log_alpha, alpha_opt)
        return state, metrics

    def act(params: Any, key: jax.Array, observation: jax.Array, num_steps: jax.Array) -> jax.Array:
        del num_steps
        return sample(params, observation, key)[0]

    return Algorithm(init, step, lambda state: state.policy, act, fetches=False)


def d4pg(settings: dict[str, Any], observation: jax.Array, action_size: int) -> Algorithm:
    """D4PG (d4pg/learning.py, d4pg/networks.py), with gradient clipping as its default has it."""
    atoms = jnp.linspace(settings["vmin"], settings["vmax"], settings["num_atoms"])
    hidden = list(settings["hidden_sizes"])

    def policy_head(o: jax.Array) -> jax.Array:
        near_zero = hk.initializers.VarianceScaling(1e-4)
        return jnp.tanh(hk.Linear(action_size, w_init=near_zero)(_mlp(hidden, activate_final=True)(o)))

    policy = _transform(policy_head)
    critic = _transform(lambda o, a: _mlp([*hidden, settings["num_atoms"]])(jnp.concatenate([o, a], axis=-1)))
    clip = optax.clip_by_global_norm(40.0)
    policy_optimizer = optax.chain(clip, optax.adam(settings["policy_learning_rate"]))
    critic_optimizer = optax.chain(clip, optax.adam(settings["critic_learning_rate"]))

    def critic_mean(critic_params: Any, o: jax.Array, a: jax.Array) -> jax.Array:  # of one transition
        logits = critic.apply(critic_params, o[None], a[None])[0]
        return jnp.sum(jax.nn.softmax(logits) * atoms, axis=-1)

    def policy_loss(policy_params: Any, critic_params: Any, o_t: jax.Array) -> jax.Array:
        action = policy.apply(policy_params, o_t)
        slope = jax.vmap(jax.grad(critic_mean, argnums=2), in_axes=(None, 0, 0))(critic_params, o_t, action)
        return jnp.mean(jax.vmap(rlax.dpg_loss, in_axes=(0, 0, None))(action, slope, 1.0))

    def critic_loss(critic_params: Any, state: ActorCriticState, transition: Transition) -> jax.Array:
        logits_tm1 = critic.apply(critic_params, transition.observation, transition.action)
        action = policy.apply(state.target_policy, transition.next_observation)
        logits_t = critic.apply(state.target_critic, transition.next_observation, action)
        discount = settings["discount"] * transition.discount
        learn = jax.vmap(rlax.categorical_td_learning, in_axes=(None, 0, 0, 0, None, 0))
        return jnp.mean(learn(atoms, logits_tm1, transition.reward, discount, atoms, logits_t))

    def init(key: jax.Array) -> ActorCriticState:
        key_policy, key_critic, key = jax.random.split(key, 3)
        policy_params = policy.init(key_policy, observation)
        critic_params = critic.init(key_critic, observation, jnp.zeros((1, action_size)))
        opts = policy_optimizer.init(policy_params), critic_optimizer.init(critic_params)
        steps = jnp.zeros((), jnp.int32)
        return ActorCriticState(policy_params, critic_params, policy_params, critic_params, *opts, steps, key)

    def step(state: ActorCriticState, transition: Transition) -> tuple[ActorCriticState, dict[str, jax.Array]]:
        loss_policy, grads_policy = jax.value_and_grad(policy_loss)(
            state.policy, state.critic, transition.next_observation
        )
        loss_critic, grads_critic = jax.value_and_grad(critic_loss)(state.critic, state, transition)
        updates, policy_opt = policy_optimizer.update(grads_policy, state.policy_opt)
        policy_params = optax.apply_updates(state.policy, updates)
        updates, critic_opt = critic_optimizer.update(grads_critic, state.critic_opt)
        critic_params = optax.apply_updates(state.critic, updates)
        steps = state.steps + 1
        targets = optax.periodic_update(
            (policy_params, critic_params),
            (state.target_policy, state.target_critic),
            steps,
            settings["target_update_period"],
        )
        state = ActorCriticState(policy_params, critic_params, *targets, policy_opt, critic_opt, steps, state.key)
        return state, {"policy_loss": loss_policy, "critic_loss": loss_critic}

    def act(params: Any, key: jax.Array, observation: jax.Array, num_steps: jax.Array) -> jax.Array:
        del num_steps
        return rlax.add_gaussian_noise(key, policy.apply(params, observation), settings["exploration_noise"])

    # Acme's actor gets the target policy.
    return Algorithm(init, step, lambda state: state.target_policy, act, fetches=True)


ALGORITHMS = {"dqn": dqn, "sac": sac, "d4pg": d4pg}
