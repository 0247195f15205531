"""An agent is a value of its boxes; its experience says what is stored and how the learner draws it."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, cast, final

from agentkit.actors import Policy
from agentkit.adders.columns import with_columns
from agentkit.agents.common.optimizers import check_optimizer
from agentkit.core import Actor, ActorParts, Adder, BatchPlan, Learner, LearnerParts
from agentkit.errors import ConfigError, Function, SaysWhatWasMeant, SpecError, says_what_was_meant
from agentkit.learning import Update
from agentkit.replay import Replay, Table
from agentkit.specs import EnvironmentSpec
from agentkit.types import Nest

Networks = TypeVar("Networks")
Config = TypeVar("Config")
Losses = TypeVar("Losses")
First = TypeVar("First")
Result = TypeVar("Result")
Rest = ParamSpec("Rest")
NetworksIn = TypeVar("NetworksIn", contravariant=True)
ConfigIn = TypeVar("ConfigIn", contravariant=True)


class PolicyOf(Protocol[NetworksIn]):
    """Makes an agent's policy of its networks: ``(networks, evaluation=False) -> Policy``."""

    def __call__(self, networks: NetworksIn, /, evaluation: bool = False) -> Policy:
        """Returns the policy to explore with, or the one to be judged by."""
        ...


class MakePolicy(Protocol[NetworksIn, ConfigIn]):
    """Makes a policy of networks and settings: ``(networks, config, evaluation=False) -> Policy``."""

    def __call__(self, networks: NetworksIn, config: ConfigIn, /, evaluation: bool = False) -> Policy:
        """Returns the policy to explore with, or the one to be judged by."""
        ...


class Experience(Protocol):
    """Says what an agent stores and how its learner draws it: tables, adder and batches.

    `extras_spec` is the `Policy`'s: specs of what it emits beside an action, ``()`` for nothing; with the columns that
    a run asks for (`adders.with_columns`).
    """

    @property
    def batch_plan(self) -> BatchPlan:
        """Says how the learner draws its data."""
        ...

    def with_num_envs(self, num_envs: int) -> Experience:
        """Returns the experience of actors with `num_envs` environments each; itself where that changes nothing."""
        ...

    def make_tables(self, environment_spec: EnvironmentSpec, extras_spec: Nest) -> Sequence[Table]:
        """Returns the replay tables, as data.

        Raises:
            ConfigError: the settings contradict each other.
        """
        ...

    def make_adder(
        self, replay: Replay, environment_spec: EnvironmentSpec, extras_spec: Nest, num_envs: int | None = None
    ) -> Adder:
        """Makes an adder with a writer of its own.

        Args:
            replay: where it writes.
            environment_spec: of the environment.
            extras_spec: of the policy.
            num_envs: N, for leaves ``[N, ...]`` of environments that step together; None for one, unbatched.
        """
        ...


_OF_EXPERIENCE = ("batch_plan", "with_num_envs", "make_tables", "make_adder")


def no_networks(environment_spec: EnvironmentSpec) -> Any:
    """Returns None: the networks of an agent whose actor and learner are its own."""
    del environment_spec


def no_policy(networks: Any, evaluation: bool = False) -> Policy:
    """Refuses to make a policy.

    Raises:
        ConfigError: always.
    """
    del networks, evaluation
    raise ConfigError(
        "This agent acts by an actor of its own (make_actor), which is no function that JAX compiles, and this needs "
        "such a policy. Give the agent a make_policy, or do without this."
    )


def no_update(networks: Any) -> Update:
    """Refuses to make an update.

    Raises:
        ConfigError: always.
    """
    del networks
    raise ConfigError(
        "This agent learns by a learner of its own (make_learner), which is no function that JAX compiles, and this "
        "needs such an update. Give the agent a make_update, or do without this."
    )


@final
@dataclasses.dataclass(frozen=True)
class Agent(Generic[Networks], metaclass=SaysWhatWasMeant):
    """Holds an algorithm as a value: change a part, though not the settings, with `dataclasses.replace`.

    Each file of `agentkit.agents` makes one with its `make_agent`, and `agentkit.compose` one of an actor and a learner
    of your own. Agents of equal settings and functions are equal.

    Attributes:
        config: the settings, for logs and checkpoints; the functions hold their own copy, so that `make_agent` alone
            changes them.
        experience: what is stored, and how the learner draws it.
        make_networks: ``environment_spec -> networks``.
        make_policy: ``(networks, evaluation=False) -> Policy``, to explore with or to be judged by.
        make_update: ``networks -> Update``.
        make_actor: ``core.ActorParts -> core.Actor``; None for an actor of the policy.
        make_learner: ``core.LearnerParts -> core.Learner``; None for a learner of the update.
        make_extras_spec: ``environment_spec -> nest of specs``, of what an actor of its own stores beside each action;
            None for the policy's extras, or for nothing where there is no policy.
    """

    config: Any
    experience: Experience
    make_networks: Callable[[EnvironmentSpec], Networks] = no_networks
    make_policy: PolicyOf[Networks] = no_policy
    make_update: Callable[[Networks], Update] = no_update
    make_actor: Callable[[ActorParts], Actor] | None = None
    make_learner: Callable[[LearnerParts], Learner] | None = None
    make_extras_spec: Callable[[EnvironmentSpec], Nest] | None = None

    def __post_init__(self) -> None:
        """Refuses an agent that cannot act or cannot learn, and settings that none of its parts has."""
        boxes: tuple[tuple[str, Any, bool, str], ...] = (
            ("make_actor", self.make_actor, self.make_policy is no_policy, "a make_policy with make_networks"),
            ("make_learner", self.make_learner, self.make_update is no_update, "a make_update with make_networks"),
        )
        for box, own, lacks, instead in boxes:
            if own is None and lacks:
                raise ConfigError(f"{box}: expected a function, or {instead}; found neither. Give the agent one.")
            if own is not None and not callable(own):
                takes = "core.ActorParts -> core.Actor" if box == "make_actor" else "core.LearnerParts -> core.Learner"
                raise ConfigError(f"{box}: expected a function {takes}, found {own!r:.80}.")
        lacks_one = not all(hasattr(self.experience, name) for name in _OF_EXPERIENCE)
        if isinstance(self.experience, type) or lacks_one:
            raise ConfigError(
                f"experience: expected an Experience such as agentkit.agents.Transitions(config), found "
                f"{self.experience!r:.80}. Give one with {', '.join(_OF_EXPERIENCE)}."
            )
        self._check_config()

    def _check_config(self) -> None:
        """Refuses settings that would be written down, and that no part is bound to."""
        parts = [self.make_networks, self.make_policy]
        parts += [self.make_update] if self.make_learner is None else []  # Else no update learns, which is told later.
        bound = [config for part in parts for config in _bound_settings(part)]  # None where all are the user's own.
        own = type(self.config)
        # Settings of a class of the user's own may hold those that the parts are bound to.
        of_agentkit = own.__module__.startswith("agentkit.agents.")
        alike = [config for config in bound if of_agentkit or type(config) is own]
        if alike and self.config not in alike:
            home = type(alike[0]).__module__
            make = f"{home.rpartition('.')[2]}.make_agent" if home.startswith("agentkit.agents.") else "its make_agent"
            raise ConfigError(
                "config: expected the settings that the agent's functions were made with, found others, which none of "
                f"them would use: each has a copy. Make the agent anew instead of replacing its config: {make}(config)."
            )

    @property
    def batch_plan(self) -> BatchPlan:
        """Says how the learner draws its data."""
        return self.experience.batch_plan

    def with_num_envs(self, num_envs: int) -> Agent[Networks]:
        """Returns this agent for actors with `num_envs` environments each."""
        return dataclasses.replace(self, experience=self.experience.with_num_envs(num_envs))

    def make_tables(self, environment_spec: EnvironmentSpec) -> list[Table]:
        """Makes the replay tables for the data that the environment and the policy emit."""
        return list(self.experience.make_tables(environment_spec, self._extras_spec(environment_spec)))

    def make_adder(self, replay: Replay, environment_spec: EnvironmentSpec, num_envs: int | None = None) -> Adder:
        """Makes an adder for the data that the environment and the policy emit; see `Experience.make_adder`."""
        return self.experience.make_adder(replay, environment_spec, self._extras_spec(environment_spec), num_envs)

    def with_parts(self, **parts: Any) -> Agent[Any]:
        """Returns this agent with other parts, of other networks too; an actor and a learner of its own stay."""
        if self.make_policy is no_policy:  # There is none to put something around.
            parts.pop("make_policy", None)
        return dataclasses.replace(self, **parts)

    def refuse_own_actor(self, what: str) -> None:
        """Refuses what is shown to the policy alone, where an actor of the agent's own would act without it.

        Raises:
            ConfigError: the agent has a `make_actor`.
        """
        if self.make_actor is not None:
            raise ConfigError(
                f"make_actor: an actor of the agent's own sees the environment's observations, and its policy would "
                f"see {what}. Let the environment show them (a wrapper), or leave one of the two out."
            )

    def _extras_spec(self, environment_spec: EnvironmentSpec) -> Nest:
        columns = dict(environment_spec.columns)
        if self.make_extras_spec is not None:
            return with_columns(self.make_extras_spec(environment_spec), columns)
        if self.make_policy is no_policy:
            return with_columns((), columns)
        policy = self.make_policy(self.make_networks(environment_spec))
        if not hasattr(policy, "extras_spec"):
            raise SpecError(f"make_policy: expected an actors.Policy of it, found {policy!r:.80}.")
        return with_columns(policy.extras_spec, columns)


@final
@dataclasses.dataclass(frozen=True)
class Configured(Generic[First, Config, Rest, Result]):
    """Calls a function of an algorithm's file with the settings as its second argument.

    Unlike a closure it can be compared, pickled, and named in a run's config.json.
    """

    function: Callable[Concatenate[First, Config, Rest], Result]
    config: Config

    def __call__(self, first: First, *rest: Rest.args, **named: Rest.kwargs) -> Result:
        """Returns ``function(first, config, *rest, **named)``."""
        return self.function(first, self.config, *rest, **named)


@final
@dataclasses.dataclass(frozen=True)
class UpdateOfLoss(Generic[Networks, Losses, Config]):
    """Makes an update of networks, their loss (or losses) and the settings.

    Attributes:
        make_update: ``(networks, loss, config) -> Update``.
        make_loss: ``(networks, config) -> loss``.
        config: the settings.
    """

    make_update: Callable[[Networks, Losses, Config], Update]
    make_loss: Callable[[Networks, Config], Losses]
    config: Config

    def __call__(self, networks: Networks) -> Update:
        """Returns the update."""
        loss = self.make_loss(networks, self.config)
        if loss is None:
            name = getattr(self.make_loss, "__qualname__", type(self.make_loss).__qualname__)
            raise SpecError(f"{name} returned None; expected what the agent's own returns. Does it end in a return?")
        return self.make_update(networks, loss, self.config)


def _bound_settings(function: Any) -> list[Any]:
    """Returns the settings that a part is bound to, or what an add-on has put itself around."""
    if isinstance(function, Configured | UpdateOfLoss):
        return [function.config]
    if isinstance(function, type) or not dataclasses.is_dataclass(function):
        return []
    inside = [getattr(function, field.name, None) for field in dataclasses.fields(function)]
    return [config for part in inside for config in _bound_settings(part)]


def given(function: Function, **own: Any) -> Function:
    """Returns a function of an algorithm's file with those of its keywords bound that a user gave.

    Args:
        function: the file's own, or the user's.
        own: parts by the names of its keywords; None for those that were not given.

    Raises:
        ConfigError: the function is the user's, and takes no such part.
    """
    own = {name: part for name, part in own.items() if part is not None}
    if not own:
        return function
    parameters = inspect.signature(function).parameters
    for name in own:
        if name not in parameters and not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
            called = getattr(function, "__qualname__", repr(function))
            raise ConfigError(
                f"{name}: {called}, which would use it, takes no argument of that name. Give it one, or leave {name} "
                "out of make_agent."
            )
    return cast(Function, functools.partial(function, **own))


def checks_parts(make_agent: Function) -> Function:
    """Makes a `make_agent` refuse parts that cannot be called as its own are, in the words of `says_what_was_meant`."""
    call, stock = says_what_was_meant(make_agent), inspect.signature(make_agent).parameters

    @functools.wraps(make_agent)
    def checked(*args: Any, **parts: Any) -> Any:
        for name, part in parts.items():
            if name in stock and part is not stock[name].default and part is not None and name != "config":
                check_is_jax(name, part)
                if name == "optimizer":
                    check_optimizer(part)
                if name.startswith("make_"):
                    _check_called_as(name, part, stock[name].default, has_torso=parts.get("torso") is not None)
                if name.startswith("estimate_"):
                    own = inspect.signature(stock["make_update"].default).parameters[name].default
                    _check_called_as(name, part, own, has_torso=False)
        return call(*args, **parts)

    return cast(Function, checked)


def _check_called_as(name: str, part: Any, stock: Callable[..., Any], has_torso: bool) -> None:
    """Refuses a user's function that does not take the arguments that are given to an agent's own."""
    parameters = inspect.signature(stock).parameters.values()
    given = [p for p in parameters if p.default is p.empty or p.name == "evaluation"]
    expected = ", ".join(p.name if p.default is p.empty else f"{p.name}={p.default}" for p in given)
    found = f"{part!r:.80}"
    if callable(part):
        try:
            signature = inspect.signature(part)
        except (TypeError, ValueError):  # Some classes written in C have none.
            return
        try:
            signature.bind(*given, **({"torso": None} if has_torso and "torso" in signature.parameters else {}))
        except TypeError as error:
            code = getattr(inspect.unwrap(part), "__code__", None)
            where = "" if code is None else f" of {code.co_filename}, line {code.co_firstlineno}"
            found = f"{getattr(part, '__qualname__', type(part).__qualname__)}{signature}{where}: {error}"
        else:
            return
    raise ConfigError(f"{name}: expected a function ({expected}), found {found}.")


_NOT_JAX = {"keras": "Keras", "tensorflow": "TensorFlow", "torch": "PyTorch"}


def check_is_jax(name: str, part: object) -> None:
    """Refuses a module of a library whose networks JAX cannot differentiate.

    Raises:
        ConfigError: it says which libraries' modules are taken.
    """
    made = part if isinstance(part, type) else type(part)
    for cls in made.__mro__:
        library = _NOT_JAX.get(cls.__module__.partition(".")[0])
        if library is not None:
            raise ConfigError(
                f"{name}: found {made.__qualname__}, a module of {library}, which cannot be used here: networks "
                "are functions that JAX compiles and differentiates. Write it with Haiku, Flax or Equinox; "
                "docs/environments.md shows how, under 'A torso of your own'."
            )


def check_is_agent(value: object) -> None:
    """Refuses what is no `Agent`.

    Raises:
        ConfigError: `value` is something else.
    """
    if not isinstance(value, Agent):
        found = value.__qualname__ + " itself" if isinstance(value, type) else type(value).__qualname__
        raise ConfigError(
            f"Expected an Agent, e.g. dqn.make_agent() or agents.registry.make('dqn'), found {value!r:.80} "
            f"({found}). A function such as dqn.make_agent must be called."
        )


def check_config(config: object, expected: type) -> None:
    """Refuses another agent's settings.

    Raises:
        ConfigError: `config` is no `expected`.
    """
    if not isinstance(config, expected):
        home = expected.__module__
        name, found = home.rpartition(".")[2], f"a {type(config).__qualname__}: {config!r:.80}"
        if isinstance(config, type):
            found = f"the class {config.__module__}.{config.__qualname__} itself"
        raise ConfigError(
            f"config: expected the settings of {name}, {home}.{expected.__qualname__}(...), found {found}. Make them "
            f"with {name}.Config(...)."
        )
