"""Makes environments: by name, as handed in, singly, in batches and in processes of their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agentkit.envs import given
from agentkit.envs.members import Members
from agentkit.envs.prefixes import factory_of, split
from agentkit.envs.wrapping import Wrapper, prepare, wrap, wrap_inside
from agentkit.errors import ConfigError


def make(
    name: Any,
    /,
    seed: int = 0,
    *,
    raw: bool = False,
    num_envs: int | None = None,
    evaluation: bool = False,
    workers: int = 0,
    ready: int | None = None,
    wrappers: Sequence[Wrapper] = (),
    **kwargs: Any,
) -> Any:
    """Makes an environment, ready for an agent.

    Args:
        name: ``prefix:name``, e.g. ``gymnasium:HalfCheetah-v5``, ``gymnasium_vector:CartPole-v1``,
            ``dm_control:cheetah/run``, ``bsuite:catch/0``, ``envpool:HalfCheetah-v4``, ``agentkit:catch``, or by a
            standard protocol ``atari:Breakout``, ``minatar:Breakout``, ``minigrid:DoorKey-5x5``,
            ``robotics:PointMaze_UMaze``, ``metaworld:reach``, ``dm_control_pixels:cheetah/run``; see `available`. A
            class, a function that makes an environment, and an instance are taken, too, and so is a
            `gymnasium.vector.VectorEnv`: see `agentkit.envs.given`.
        seed: seeds everything; the same seed gives the same episodes for the same actions.
        raw: True gives the simulator as it is, behind dm_env's interface only. False (the default) gives single
            precision, bounded continuous actions in [-1, 1] (clipped), dm_control's and EnvPool's dict observations as
            one vector, and `save`/`restore` in mid-episode (`ResumableEnvironment`) where it can be reseeded.
        num_envs: a batch of this many environments (`BatchedEnvironment`, or EnvPool's or gymnasium's own); None for a
            single one. EnvPool is always a batch, of 1 by default; so is a vector environment that is handed in.
        evaluation: whether the episodes are to be judged by; told to a factory with a parameter of this name, as
            Atari's, which clips rewards in training only.
        workers: processes that the `num_envs` environments are shared out to (`envs.workers.WorkerBatchedEnvironment`);
            0 for this one.
        ready: of environments in workers, or of EnvPool's, how many are acted for at a time, whichever are ready first;
            None for all.
        wrappers: applied in this order around each single environment, inside the resumable layer.
        **kwargs: go to the environment (e.g. ``render_mode="rgb_array"``, ``size=10``).

    Returns:
        A dm_env environment; a batch has `num_envs` and leaves ``[N, ...]``.

    Raises:
        UnknownNameError: for an unknown prefix or name, with the nearest match.
        ConfigError: for impossible settings.
        MissingExtraError: if the simulator is not installed.
    """
    prefix = rest = ""
    if isinstance(name, str):
        prefix, rest = split(name)  # An unknown one is refused before anything starts.
    else:
        given.check(name, kwargs)
    _check_numbers(seed, num_envs)
    if prefix == "envpool" and not workers:
        return _make_envpool(rest, seed, raw, num_envs or 1, ready, wrappers, {**kwargs, "evaluation": evaluation})
    members = Members(name, seed, raw=raw, wrappers=wrappers, settings=kwargs, evaluation=evaluation)
    if workers or ready is not None:
        from agentkit.envs.workers import WorkerBatchedEnvironment, check_workers

        num_envs = check_workers(name, num_envs, workers, ready)
        return WorkerBatchedEnvironment(members, num_envs, workers, ready)
    if not isinstance(name, str):
        return given.make(name, seed, kwargs, wrappers=wrappers, num_envs=num_envs, single=evaluation)
    if num_envs is None:
        return members.make_named(seed)
    if prefix == "gymnasium_vector":
        return members.fit_out(factory_of(prefix)(rest, seed, num_envs=num_envs, evaluation=evaluation, **kwargs))
    return members.make(range(num_envs))


def _check_numbers(seed: int, num_envs: int | None) -> None:
    if not 0 <= seed < 2**31:
        raise ConfigError(f"seed: expected 0 <= seed < 2**31, which every simulator takes; found {seed}.")
    if num_envs is not None and num_envs < 1:
        raise ConfigError(f"num_envs: expected at least 1, or None for a single one; found {num_envs}.")


def _make_envpool(
    name: str,
    seed: int,
    raw: bool,
    num_envs: int,
    ready: int | None,
    wrappers: Sequence[Wrapper],
    kwargs: dict[str, Any],
) -> Any:
    from agentkit.envs.workers import check_ready

    check_ready(num_envs, ready)
    environment: Any = factory_of("envpool")(name, seed, num_envs=num_envs, ready=ready, **kwargs)
    if not raw:
        environment = prepare(environment, concatenate=True)
    environment, wrappers = wrap_inside(environment, wrappers)
    for wrapper in wrappers:
        environment = wrap(environment, [wrapper])
        if ready is not None and not environment.stateless:
            raise ConfigError(
                f"ready={ready}: expected wrappers that keep nothing from step to step, found "
                f"{type(environment).__name__}. Leave --ready out, or the wrapper."
            )
    if ready is None:
        return environment
    from agentkit.envs.envpool import ReadyEnvPool

    return ReadyEnvPool(environment)
