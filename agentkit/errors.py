"""agentkit's errors. Each message says what was expected, what was found and what to do."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import inspect
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

DISTRIBUTION = "agentkit-rl"
"""What pip installs; the package that is imported is `agentkit`. The registry's `agentkit` is somebody else's."""


OnNan = Literal["stop", "warn"]
"""What to do about a number that is NaN or infinite: end the run, or warn and go on."""


class AgentkitError(Exception):
    """Marks an error that agentkit raises for something a user can cause."""


class ConfigError(AgentkitError, ValueError):
    """Says that a setting is impossible, unknown, or contradicts another one."""


class SpecError(AgentkitError, ValueError):
    """Says that data does not have the structure, shape or dtype that its spec or signature promises."""


class UnknownNameError(AgentkitError, KeyError):
    """Says that a name (of an agent, environment, table, config field, ...) is not among the known ones."""

    def __str__(self) -> str:  # KeyError would print the message's repr.
        return str(self.args[0])


class MissingExtraError(AgentkitError, ImportError):
    """Says that an optional package is needed and not installed; the message names the extra."""


class ReplayTimeoutError(AgentkitError, TimeoutError):
    """Says that replay did not let an insert or a sample through before its deadline."""


class VariablesTimeoutError(AgentkitError, TimeoutError):
    """Says that no parameters were published before the deadline."""


class ReplayClosedError(AgentkitError, RuntimeError):
    """Says that replay was closed or its server is gone."""


class CheckpointError(AgentkitError, RuntimeError):
    """Says that a checkpoint cannot be written or read, or does not fit the object it is restored into."""


class NonFiniteError(AgentkitError, FloatingPointError):
    """Says that a number of the training is NaN or infinite; starting again does not mend that."""


class NonFiniteWarning(RuntimeWarning):
    """Says that a number of the training is NaN or infinite, and that it goes on."""


class RawFramesWarning(UserWarning):
    """Says that an agent would see an Atari game's single frames, as the screen has them."""


class OwnStatisticsWarning(UserWarning):
    """Says that each environment of a run normalises by statistics of its own."""


def tell_not_finite(message: str, on_nan: str) -> None:
    """Raises an error that says what is NaN or infinite; where `on_nan` is "warn", warns instead.

    Raises:
        NonFiniteError: `on_nan` is "stop".
    """
    if on_nan == "warn":
        warnings.warn(f"{message} Training goes on.", NonFiniteWarning, stacklevel=3)
        return
    raise NonFiniteError(f"{message} on_nan='warn' (--on-nan warn) goes on all the same.")


_MANY_NAMES = 12


def unknown_name(kind: str, name: str, known: Iterable[str], advice: str = "") -> UnknownNameError:
    """Returns an error that says `name` is no `kind`, proposes the nearest match and lists the known names.

    Many names are not listed where one of them is very near.

    Args:
        kind: what the name should have been, e.g. "agent".
        name: what was found.
        known: the names that exist.
        advice: a closing sentence on what to do, if there is more to say.
    """
    known = sorted(known)
    in_lower_case = {each.lower(): each for each in known}
    nearest = difflib.get_close_matches(name.lower(), in_lower_case, n=1, cutoff=0.5)
    is_slip = bool(difflib.get_close_matches(name.lower(), nearest, cutoff=0.8)) and len(known) > _MANY_NAMES
    hint = f" Did you mean {in_lower_case[nearest[0]]!r}?" if nearest else ""
    listing = f" Known: {', '.join(known)}." if known and not is_slip else ""
    return UnknownNameError(f"Unknown {kind} {name!r}.{hint}{listing}{' ' + advice if advice else ''}")


def missing_extra(package: str, extra: str) -> MissingExtraError:
    """Returns an error that says which extra brings `package`."""
    return MissingExtraError(
        f"The package {package!r} is needed for this and is not installed. "
        f"Install it with: pip install '{DISTRIBUTION}[{extra}]'"
    )


_SYNONYMS = (
    ("environment", "env", "env_id", "env_name"),
    ("environment_settings", "env_set", "env_kwargs"),
    ("agent", "algo", "algorithm"),
    ("steps", "num_steps", "total_timesteps", "timesteps", "total_steps"),
    ("run_directory", "out", "log_dir", "logdir", "output_dir", "folder", "path", "run"),
    ("evaluation_period", "eval_every", "eval_freq"),
    ("evaluation_episodes", "num_episodes", "eval_episodes", "n_eval_episodes", "episodes"),
    ("evaluation_max_steps", "max_steps"),
    ("evaluation_samples", "evaluate_samples"),
    ("checkpoint_period", "checkpoint_every", "save_freq"),
    ("video_period", "video_every"),
    ("loggers", "log"),
    ("wrappers", "wrapper"),
    ("columns", "column"),
    ("num_envs", "n_envs"),
    ("replay_size", "buffer_size"),
    ("clip_epsilon", "clip_range"),
    ("entropy_cost", "ent_coef"),
    ("discount", "gamma"),
    ("min_replay_size", "learning_starts"),
    ("learning_rate", "lr"),
    ("num_epochs", "n_epochs"),
    ("segment_length", "n_steps"),
    ("hidden_sizes", "net_arch"),
    ("value_cost", "vf_coef"),
)
"""Words for one thing: of Python, of the command line, and of other libraries."""


def our_name(name: str, known: Collection[str]) -> str | None:
    """Returns which of the known names means the same as another one; None where none does.

    >>> our_name("gamma", ["discount", "n_step"]), our_name("n_step", ["discount"])
    ('discount', None)
    """
    same = [word for words in _SYNONYMS if name in words for word in words if word != name]
    return next((word for word in same if word in known), None)


Function = TypeVar("Function", bound=Callable[..., Any])


def says_what_was_meant(function: Function) -> Function:
    """Makes the error of arguments that the function does not have name what was meant."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except TypeError as error:
            if _is_of_the_call(error):
                _refuse_arguments(function, args, kwargs)
            raise

    return cast(Function, call)


def accepts_old_words(**ours: str) -> Callable[[Function], Function]:
    """Makes a function take keywords that documents showed before, with a DeprecationWarning, for one version.

    Args:
        **ours: today's words by the old ones.
    """

    def accepts(function: Function) -> Function:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            for old in ours.keys() & kwargs.keys():
                label = f"agentkit.{function.__qualname__}"
                text = f"{old}: {label} calls it {ours[old]!r} now, and will not take the old word in the next version."
                warnings.warn(text, DeprecationWarning, stacklevel=2)
                if ours[old] in kwargs:
                    raise ConfigError(f"{old} and {ours[old]} are one thing. Give {ours[old]} alone.")
                kwargs[ours[old]] = kwargs.pop(old)
            return function(*args, **kwargs)

        return cast(Function, call)

    return accepts


class SaysWhatWasMeant(type):
    """Does for a class of settings what `says_what_was_meant` does for a function."""

    if not TYPE_CHECKING:  # Where a metaclass's call would hide the fields.

        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            """Makes the settings."""
            try:
                return super().__call__(*args, **kwargs)
            except TypeError as error:
                if _is_of_the_call(error):
                    _refuse_arguments(cls, args, kwargs)
                raise

    @property
    def __signature__(cls) -> inspect.Signature:
        """Returns the signature of the class itself, which Python would look for in `__call__`."""
        signature = inspect.signature(cls.__init__)  # type: ignore[misc]
        return signature.replace(parameters=list(signature.parameters.values())[1:])


def _is_of_the_call(error: TypeError) -> bool:
    """Returns whether the arguments themselves were refused, and nothing inside the function."""
    return error.__traceback__ is not None and error.__traceback__.tb_next is None


_TAKEN_ELSEWHERE = {"agentkit.run": " agentkit.train takes an agent, an environment and steps."}
"""What takes the arguments that somebody gives a function in the wrong form, by the function's name."""


def _refuse_arguments(called: Callable[..., Any], args: Collection[Any], given: Mapping[str, Any]) -> None:
    """Raises an error for the first argument that there is not, or for too many, where that is the reason."""
    parameters = inspect.signature(called).parameters
    package, _, module = called.__module__.rpartition(".")
    of_agent = package == "agentkit.agents"
    label = f"{module if of_agent else 'agentkit'}.{called.__qualname__}"
    default = parameters["config"].default if "config" in parameters else None
    settings = {field.name for field in dataclasses.fields(default)} if dataclasses.is_dataclass(default) else set()
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    for name in [name for name in given if name not in parameters]:
        if (ours := our_name(name, parameters)) is not None:
            raise ConfigError(f"{name}: {label} calls it {ours!r}.")
        if (setting := name if name in settings else our_name(name, settings)) is not None:
            raise ConfigError(f"{name} is a setting. Give: {label}({module}.Config({setting}=...)).")
        if not takes_any:
            raise unknown_name(f"argument of {label}", name, parameters)
    in_order = [
        parameter.name for parameter in parameters.values() if parameter.kind is parameter.POSITIONAL_OR_KEYWORD
    ]
    if (num_given := len(args)) > len(in_order):
        by_name = ", ".join(name for name in parameters if name not in in_order)
        if in_order[:1] == ["self"]:
            in_order, num_given = in_order[1:], num_given - 1
        raise ConfigError(
            f"{label}: expected at most {len(in_order)} without a name ({', '.join(in_order)}), found {num_given}."
            f"{f' By name it takes {by_name}.' if by_name else ''}{_TAKEN_ELSEWHERE.get(label, '')}"
        )
