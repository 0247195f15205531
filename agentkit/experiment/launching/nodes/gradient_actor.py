"""Gradients computed by actors (A3C; Mnih et al. 2016, "Asynchronous Methods for Deep Reinforcement Learning").

A3C is asynchronous A2C, the agent to take here; others need a `gradient` and an `apply` in their update, as
`learning.sgd` has without a target network. `gradient_node` acts, draws batches from a replay of its own process, and
sends each gradient to a replay node; that one and the learner run `with_gradients(agent)`, whose items are gradients.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping
from typing import Any, final

import jax

from agentkit import specs
from agentkit.agents import registry
from agentkit.agents.common.agent import Agent
from agentkit.core import Adder, BatchPlan
from agentkit.datasets import ReplayDataset
from agentkit.distributed.context import NodeContext
from agentkit.errors import ConfigError, ReplayClosedError
from agentkit.experiment.config.experiment_config import ExperimentConfig
from agentkit.experiment.launching.nodes.actor import close_on_stop, connect, find_actor_index
from agentkit.experiment.launching.sharing.callbacks import node_hooks
from agentkit.experiment.launching.sharing.common import STATUS_SECONDS, watch_steps
from agentkit.experiment.launching.sharing.exploring import find_start
from agentkit.experiment.launching.sharing.step_goal import StepGoal
from agentkit.experiment.launching.sharing.transports import make_source
from agentkit.experiment.policies.make_actor import make_actor, make_adder, make_loop, make_own_tables
from agentkit.learning import Update, apply_gradients
from agentkit.replay import InProcessReplay, Table, queue_table, row_layout
from agentkit.types import Nest
from agentkit.variables import VariableClient

TABLE = "gradients"
ABLE = "a2c or impala (normalize_observations=False, normalize_values=False, no schedules), or bc"
"""Says which agents have a `gradient`."""


def with_gradients(agent: Any, queue_size: int = 4) -> Agent:
    """Returns the agent that replay, learner and evaluator nodes run where `gradient_node`s compute gradients.

    Args:
        agent: whose update has `gradient` and `apply`.
        queue_size: gradients that may wait, on which those who send more wait: what waits grows stale.
    """
    return Agent(
        agent.config,
        experience=GradientQueue(agent, queue_size),
        make_networks=agent.make_networks,
        make_policy=agent.make_policy,
        make_update=AppliedGradients(agent),
    )


@final
@dataclasses.dataclass(frozen=True)
class GradientQueue:
    """Keeps an agent's gradients in a queue, from which the learner draws one at a time: an `Experience`."""

    agent: Any
    queue_size: int

    @property
    def batch_plan(self) -> BatchPlan:
        """Returns the plan of one gradient after the other."""
        return BatchPlan(TABLE, batch_size=1)

    def with_num_envs(self, num_envs: int) -> GradientQueue:
        """Returns itself: nodes that compute gradients have the steps."""
        del num_envs
        return self

    def make_tables(self, environment_spec: specs.EnvironmentSpec, extras_spec: Nest) -> list[Table]:
        """Returns a queue of gradients, which are shaped as the parameters."""
        del extras_spec
        update = self.agent.make_update(self.agent.make_networks(environment_spec))
        shapes = jax.eval_shape(lambda key: update.variables(update.init(key))["policy"], jax.random.PRNGKey(0))
        params = jax.tree.map(lambda leaf: specs.Array(leaf.shape, leaf.dtype), shapes)
        return [queue_table(TABLE, row_layout(params), self.queue_size)]

    def make_adder(
        self, replay: Any, environment_spec: specs.EnvironmentSpec, extras_spec: Nest, num_envs: int | None = None
    ) -> Adder:
        """Refuses to take steps.

        Raises:
            ConfigError: always.
        """
        raise ConfigError("No steps go to a replay of gradients. Start gradient_node for actors, not actor_node.")


@final
@dataclasses.dataclass(frozen=True)
class AppliedGradients:
    """Makes the update that applies gradients to the parameters of an agent."""

    agent: Any

    def __call__(self, networks: Any) -> Update:
        """Returns the update of networks.

        Raises:
            ConfigError: the agent's update cannot be cut in two.
        """
        return apply_gradients(make_halves(self.agent, networks))


def make_halves(agent: Agent, networks: Any) -> Update:
    """Makes the update of an agent whose actors compute gradients.

    Raises:
        ConfigError: the agent's update has no `gradient`.
    """
    update = agent.make_update(networks)
    if update.gradient is None:
        name = registry.name_of(agent) or "this agent"
        raise ConfigError(
            f"Actors cannot compute the gradients of {name}: its update takes several steps on a batch, or "
            "needs more than the policy's parameters, such as a target network, or keeps statistics, as "
            f"normalisation does. Take {ABLE}; or let the learner compute them, with actor_node."
        )
    return update


def gradient_node(
    context: NodeContext, experiment: ExperimentConfig, spec: specs.EnvironmentSpec | None,
    replay: Mapping[str, Any], variables: Mapping[str, Any], *, queue_size: int = 4,
) -> None:  # fmt: skip
    """Acts, and sends the gradients of the agent's loss on its own steps, at the newest parameters that it has.

    Args:
        context: the node's.
        experiment: of the agent itself; its tables are of this process alone, with their own rate limit.
        spec: the environment's; None looks at it.
        replay: the endpoint of a replay node of `with_gradients`.
        variables: the endpoint of the learner that applies them.
        queue_size: as given to `with_gradients`.

    Raises:
        ConfigError: the agent's update has no `gradient`.
    """
    agent = experiment.agent
    seed, num_steps = find_start(context, experiment.seed, 4)
    acting_key, loss_key = jax.random.split(jax.random.PRNGKey(seed))
    with contextlib.ExitStack() as stack:
        watch = stack.enter_context(watch_steps(context, experiment))
        hooks = node_hooks(context, experiment)
        environment = watch.make(lambda: hooks.wrap(experiment).make_training_environment(seed))
        stack.enter_context(contextlib.closing(environment))
        spec = spec or specs.make_environment_spec(environment)
        networks = agent.make_networks(spec)
        update = make_halves(agent, networks)
        assert update.gradient is not None
        gradient = jax.jit(update.gradient)
        tables = with_gradients(agent, queue_size).make_tables(spec)
        server = connect(context, tables, replay, stack)
        writer = server.writer(history=1)
        tables = make_own_tables(experiment, spec, environment)
        local = stack.enter_context(InProcessReplay(tables, seed=seed, in_turns=True))
        batches = stack.enter_context(contextlib.closing(ReplayDataset(local, agent.batch_plan)))
        client = VariableClient(make_source(context, variables), timeout=120.0)
        adder = make_adder(environment, spec, [(agent, local)])
        policy = agent.make_policy(networks)
        place = find_actor_index(context, num_steps)
        actor = make_actor(environment, policy, acting_key, client, adder, place)
        loop = make_loop(environment, actor, on_nan=experiment.on_nan, observers=hooks.observers())
        client.update(wait=True)
        hooks.watch(count_updates=lambda: client.version)
        hooks.emit("on_start", environment)
        context.ready()
        close_on_stop(context, [server.close])
        goal, num_sent = StepGoal(context, place.num_actors), 0
        try:
            while not context.should_stop:
                if goal.reached():
                    context.wait(STATUS_SECONDS)
                    continue
                loop.step()
                while batches.ready():
                    grads = gradient(client.params, next(batches).sample, jax.random.fold_in(loss_key, num_sent))
                    index = writer.append(jax.device_get(grads))
                    writer.create_item(TABLE, 1.0, index, index + 1)
                    num_sent += 1
                    client.update()
                context.heartbeat(steps=loop.num_steps, gradients=num_sent)
                context.gauge(parameter_age_seconds=client.age_seconds, parameter_version=client.version)
        except ReplayClosedError:
            if not context.should_stop:
                raise
