"""An experiment as a program of many processes: which nodes there are, and what each needs."""

from __future__ import annotations

import dataclasses
import sys
import warnings
from collections.abc import Mapping
from typing import Any

from agentkit.agents.common.ranges import Count, CountFromZero, NotNegative, Positive, check_ranges
from agentkit.callbacks.base import has
from agentkit.distributed import Program, RestartPolicy, Role
from agentkit.distributed.program import ONE_CORE
from agentkit.errors import ConfigError, SaysWhatWasMeant, unknown_name
from agentkit.experiment.config.evaluation_plan import evaluation_plan
from agentkit.experiment.config.experiment_config import ExperimentConfig
from agentkit.experiment.config.run_config import RunConfig
from agentkit.experiment.launching.nodes.actor import actor_node
from agentkit.experiment.launching.nodes.evaluator import evaluator_node
from agentkit.experiment.launching.nodes.inference import inference_node, inference_role
from agentkit.experiment.launching.nodes.learner import learner_node
from agentkit.experiment.launching.nodes.replay import backend_of, replay_node
from agentkit.experiment.launching.sharing.transports import SERVED_SECONDS
from agentkit.experiment.training.devices import num_cores
from agentkit.ports import check_device
from agentkit.specs import EnvironmentSpec

ENGINES = ("processes", "ray", "threads")


@dataclasses.dataclass(frozen=True)
class LaunchConfig(metaclass=SaysWhatWasMeant):
    """Says how an experiment is spread over processes.

    Attributes:
        num_actors: actor nodes, each with `ExperimentConfig.num_envs` environments.
        num_evaluators: evaluator nodes; they take turns.
        engine: "processes" (this machine), "ray", or "threads" (for a debugger).
        ray_address: of an existing Ray cluster; None starts a private one on this machine.
        listen: the network device that servers listen on: "lo" is this machine alone.
        max_parameter_age_seconds: actors wait where their parameters are older; above 0.1; None for no limit.
        max_restarts: of one node within ten minutes; one more stops the program.
        learner_gpus: accelerators that engine "ray" reserves for the learner, which then sees these alone; a part,
            such as 0.5, shares one. Nothing is reserved for 0, nor by other engines: there the learner sees all
            that the machine has, as does no other node.
        num_inference: inference nodes, which choose the actions of all actors; 0: each actor does so itself.
    """

    num_actors: Count = 2
    num_evaluators: CountFromZero = 1
    engine: str = "processes"
    ray_address: str | None = None
    listen: str = "lo"
    max_parameter_age_seconds: Positive | None = None
    max_restarts: CountFromZero = RestartPolicy.max_restarts
    learner_gpus: NotNegative = 0.0
    num_inference: CountFromZero = 0

    def __post_init__(self) -> None:
        """Refuses impossible settings."""
        check_ranges(self)
        if self.engine not in ENGINES:
            raise unknown_name("engine", self.engine, ENGINES)
        if self.num_inference > self.num_actors:
            expected = f"Expected 0 to num_actors={self.num_actors} inference nodes"
            raise ConfigError(f"{expected}, found {self.num_inference}.")
        if self.learner_gpus > 1 and self.learner_gpus % 1:
            raise ConfigError(f"learner_gpus must be a part of one or a whole number, found {self.learner_gpus}.")
        age = self.max_parameter_age_seconds
        if age is not None and not age > SERVED_SECONDS:
            raise ConfigError(
                f"max_parameter_age_seconds must be longer than {SERVED_SECONDS} s, since actors look for newer "
                f"parameters as often as that; found {age}."
            )
        if self.ray_address is None:  # On a cluster, the devices are those of other machines.
            check_device(self.listen)
        if self.ray_address is not None and self.engine != "ray":
            raise ConfigError(f"ray_address belongs to engine='ray', found engine={self.engine!r}.")


def make_program(experiment: ExperimentConfig, config: LaunchConfig, spec: EnvironmentSpec | None = None) -> Program:
    """Builds the program of an experiment: replay <- learner <- actors, evaluators.

    To build one of your own, take its parts: `replay_node` and the other three are its functions.

    Args:
        experiment: what to run.
        config: how many processes of which kind.
        spec: of the environment; None lets each node look at one.
    """
    if config.num_inference and experiment.ready is not None:
        raise ConfigError(
            "ready (--ready): inference nodes choose actions for all environments of an actor together. Leave one of "
            "the two out."
        )
    if config.num_inference and experiment.agent.make_actor is not None:
        raise ConfigError(
            f"num_inference={config.num_inference} (--inference): the agent's own actor (make_actor) chooses its "
            "actions itself. Leave num_inference out."
        )
    program = Program(program_name(experiment.describe()))
    roles = make_roles(
        config.num_actors,
        config.learner_gpus,
        backend_of(experiment),
        has_own_learner=experiment.agent.make_learner is not None,
    )
    if config.num_inference:
        roles.append(inference_role(config.num_actors, config.num_inference))
    for role in roles:
        if role.name in ("actor", "evaluator"):
            role = allow_steps(role, experiment.step_timeout)
        program.add_role(dataclasses.replace(role, restart=RestartPolicy(max_restarts=config.max_restarts)))
    replay = program.add_node("replay", replay_node, experiment, spec, listen=config.listen)
    learner = program.add_node("learner", learner_node, experiment, spec, replay, listen=config.listen)
    age = config.max_parameter_age_seconds
    inference = [
        program.add_node(
            "inference", inference_node, experiment, spec, learner, listen=config.listen, max_parameter_age_seconds=age
        )
        for _ in range(config.num_inference)
    ]
    for _ in range(config.num_actors):
        program.add_node(
            "actor", actor_node, experiment, spec, replay, learner,
            max_parameter_age_seconds=age, inference=inference,
        )  # fmt: skip
    for _ in range(number_of_evaluators(experiment, config)):
        program.add_node("evaluator", evaluator_node, experiment, spec, learner, num_evaluators=config.num_evaluators)
    return program


_OTHER_USES = ("on_step", "on_episode", "on_learner_log", "on_checkpoint", "on_end", "wrap")


def number_of_evaluators(experiment: RunConfig, config: LaunchConfig) -> int:
    """Returns how many evaluators a program has; warns where callbacks look at nothing but evaluations, without any."""
    number = config.num_evaluators if evaluation_plan(experiment).period else 0
    idle = [
        type(each).__name__
        for each in experiment.callbacks
        if (has(each, "on_evaluation") or has(each, "on_evaluation_episode"))
        and not any(has(each, use) for use in _OTHER_USES)
    ]
    if idle and not number:
        why = "evaluation_period=0 (--eval-every)" if config.num_evaluators else "num_evaluators=0 (--evaluators)"
        warnings.warn(
            f"{', '.join(idle)}: looks at evaluations, and {why} makes none. Ask for them, or leave the callback out.",
            stacklevel=2,
        )
    return number


def allow_steps(role: Role, seconds: float) -> Role:
    """Returns the role with limits for an environment's step, which the node's own comes before, with its name."""
    allowed = seconds or sys.float_info.max
    return dataclasses.replace(role, held_seconds=allowed, idle_seconds=max(role.idle_seconds, allowed + 60.0))


def program_name(record: Mapping[str, Any]) -> str:
    """Returns a name for the program of an experiment that `ExperimentConfig.describe` described."""
    return f"{record['agent'] or 'own agent'} on {record['environment'] or 'own environment'}"


def make_roles(
    num_actors: int, learner_gpus: float = 0.0, replay: str = "served", has_own_learner: bool = False
) -> list[Role]:
    """Builds the roles of an experiment, in the order in which they stop: actors, learner, evaluators, replay.

    All but the learner take one core, and only the learner may see an accelerator.

    Args:
        num_actors: how many share the machine's cores with the learner.
        learner_gpus: see `LaunchConfig`.
        replay: what the replay node runs, see `backend_of`.
        has_own_learner: the learner is a user's own, and loads no losses.
    """
    cores = num_cores()
    learner = {"NPROC": str(max(1, cores - min(num_actors, cores // 2)))}
    client = ("agentkit.replay.reverb.replay" if replay == "reverb" else "agentkit.replay.served",)
    return [
        Role("actor", stop_order=0, stop_seconds=5.0, environment=ONE_CORE, preload=client),
        Role(
            "learner",
            stop_order=1,
            finishes=True,  # What is left to learn, and the last checkpoint.
            stop_seconds=120.0,
            start_seconds=300.0,
            idle_seconds=900.0,
            num_gpus=learner_gpus,
            environment=learner,
            preload=client if has_own_learner else (*client, "agentkit.losses.library"),
        ),
        Role("evaluator", stop_order=2, finishes=True, environment=ONE_CORE),
        Role("replay", stop_order=3, stop_seconds=20.0, start_seconds=600.0, num_cpus=0.0, environment=ONE_CORE),
    ]
