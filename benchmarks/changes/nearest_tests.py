"""Which tests `mutants.py` runs for a file of agentkit: the nearest ones first, then the wider set."""

from __future__ import annotations

import os
import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[2]

NEAREST: dict[str, tuple[str, ...]] = {
    "losses/continuous": ("losses/test_continuous.py",),
    "losses/distributional": ("losses/test_distributional.py", "losses/test_categorical.py"),
    "losses/library": ("losses/test_value.py", "replay/reverb/test_library.py"),
    "losses/planning": ("losses/test_planning.py",),
    "losses/regression": ("losses/test_offline.py",),
    "losses/v_trace": ("losses/test_vtrace.py",),
    "losses/value": ("losses/test_value.py", "losses/test_offline.py"),
    "adders": ("adders",),
    "adders/postprocessing": ("agents/addons/test_postprocessing.py", "adders"),
    "adders/postprocessed_segments": ("agents/addons/test_postprocessing.py", "adders"),
    "adders/columns": ("experiment/test_columns.py", "adders"),
    "actors": ("actors",),
    "actors/inference_server": ("actors/test_remote.py", "actors/test_remote_strangers.py", "actors/test_ready.py"),
    "actors/batches": ("actors/test_remote.py", "actors/test_remote_strangers.py"),
    "actors/step_count": ("actors/test_epsilon_greedy.py", "actors/test_exploring_together.py"),
    "variables": ("variables",),
    "learning/compiled": ("learning/test_learner.py", "experiment/test_shared_parts.py"),
    "learning/finite": ("learning/test_learner.py", "experiment/test_not_finite.py"),
    "learning/gradients": ("learning/test_apply_gradients.py",),
    "learning/optimizers": ("learning", "agents/test_updates_by_hand.py"),
    "replay/in_process": ("replay/in_process", "replay/test_lockstep.py"),
    "replay/in_process/slots": ("replay/in_process/test_slots.py", "replay/in_process"),
    "replay/in_process/sum_tree": ("replay/in_process/test_sum_tree.py", "replay/in_process"),
    "agents/common/advantages": ("agents/test_losses_by_hand.py", "agents/test_a2c.py"),
    "agents/common/agent": ("agents/test_composition.py", "agents/test_dqn.py"),
    "agents/common/compose": ("experiment/test_own_boxes.py",),
    "agents/common/epochs": ("agents/test_minibatches.py",),
    "agents/common/experience": ("agents/test_dqn.py", "agents/test_r2d2.py", "agents/test_a2c.py"),
    "agents/common/experience_wrappers": ("agents/test_composition.py", "experiment/test_reverb_run.py"),
    "agents/common/natural_gradient": ("agents/test_natural_gradient.py", "agents/test_npg.py"),
    "agents/common/prioritized": ("losses/test_value.py", "agents/test_losses_by_hand.py", "agents/test_schedules.py"),
    "agents/common/ranges": ("agents/test_ranges.py",),
    "agents/common/soft_policy": ("agents/test_droq.py", "agents/test_tqc.py"),
    "agents/common/torso": ("agents/test_torso.py",),
    "agents/common/drq": ("agents/addons/test_drq.py",),
    "agents/common/past": ("agents/addons/test_views.py",),
    "agents/common/views": ("agents/addons/test_views.py",),
    "agents/addons/prior_data": ("experiment/test_prior_data.py",),
    "agents/addons/rewards": ("agents/addons",),
    "agents/dqn": ("agents/test_losses_by_hand.py", "agents/test_dqn.py"),
    "agents/munchausen_dqn": ("agents/test_munchausen.py",),
    "agents/c51": ("agents/test_distributional_by_hand.py", "agents/test_c51.py"),
    "agents/iqn": ("agents/test_distributional_by_hand.py", "agents/test_iqn.py"),
    "agents/qr_dqn": ("agents/test_distributional_by_hand.py", "agents/test_qr_dqn.py"),
    "agents/rainbow": ("agents/test_distributional_by_hand.py", "agents/test_rainbow.py"),
    "agents/ppo": ("agents/test_losses_by_hand.py", "agents/test_ppo.py", "agents/test_minibatches.py"),
    "experiment": ("experiment/test_local.py",),
    "experiment/runs/lock": ("experiment/test_run_lock.py",),
    "experiment/runs/open_run": ("experiment/test_run_folder.py",),
    "experiment/runs/loggers": ("experiment/test_run_loggers.py",),
    "experiment/multi_agent": ("experiment/test_multi_agent.py", "experiment/test_self_play.py"),
    "experiment/policies/agent_parts": ("experiment/test_shared_parts.py",),
    "experiment/evaluation/training_films": ("experiment/test_films.py",),
    "experiment/checks/user_tracebacks": ("experiment/test_mistakes.py",),
    "experiment/train_by_name": ("experiment/test_by_name.py",),
    "experiment/policies/make_actor": ("experiment/test_local.py", "experiment/test_evaluate.py"),
    "experiment/config/callback_record": ("experiment/test_callbacks.py",),
    "experiment/config/codes": (
        "experiment/test_recipes.py",
        "experiment/test_strangers.py",
        "experiment/test_identity.py",
    ),
    "experiment/config/experiment_config": ("experiment/test_config_ranges.py", "experiment/test_local.py"),
    "experiment/runs/config_json": ("experiment/test_identity.py", "experiment/test_strangers.py"),
    "experiment/checks/agent_fits": ("experiment/test_own_networks.py", "experiment/test_own_functions.py"),
    "experiment/training/hooks": ("experiment/test_callbacks.py", "experiment/test_keep_best.py"),
    "experiment/iteration": ("experiment/test_by_name.py", "experiment/test_callbacks.py"),
    "experiment/sweeps/job_process": ("experiment/test_seeds.py", "experiment/sweeps"),
    "experiment/sweeps/jobs": ("experiment/test_seeds.py", "experiment/sweeps"),
    "experiment/evaluation/judging": ("experiment/test_evaluate.py", "experiment/test_loading.py"),
    "experiment/runs/logs": (
        "experiment/test_run_loggers.py",
        "experiment/test_columns.py",
        "experiment/test_local.py",
    ),
    "experiment/runs/new_folder": ("experiment/test_by_name.py", "experiment/test_mistakes.py", "cli/test_main.py"),
    "experiment/policies/policy_file": (
        "experiment/test_loading.py",
        "experiment/test_strangers.py",
        "experiment/deploy",
    ),
    "experiment/config/preset_table": ("experiment/test_presets.py", "experiment/test_by_name.py"),
    "experiment/profiling/table": ("experiment/test_profile.py",),
    "experiment/evaluation/record_episodes": ("experiment/test_offline.py", "experiment/test_prior_data.py"),
    "experiment/policies/restore_policy": ("experiment/test_loading.py", "experiment/test_evaluate.py"),
    "experiment/policies/result": ("experiment/test_local.py", "experiment/test_loading.py"),
    "experiment/runs/resume_checks": ("experiment/test_life_cycle.py", "experiment/test_local.py"),
    "experiment/training/signals": ("experiment/test_life_cycle.py", "cli/test_interrupts.py"),
    "experiment/config/source_code": ("experiment/test_recipes.py", "experiment/test_identity.py"),
    "experiment/checks/step_watch": ("experiment/test_step_timeout.py", "envs/test_workers.py"),
    "experiment/training/training_loop": (
        "experiment/test_local.py",
        "experiment/test_short_runs.py",
        "experiment/test_sampling.py",
    ),
    "experiment/config/trust": ("experiment/test_strangers.py",),
    "experiment/policies/export": ("experiment/deploy",),
    "experiment/sweeps/together": ("experiment/test_populations.py",),
    "experiment/sweeps/varied_settings": ("experiment/test_populations.py",),
    "experiment/on_device": ("experiment/test_on_device.py", "experiment/test_replay_on_device.py"),
    "experiment/on_device/replay": ("experiment/test_replay_on_device.py", "experiment/test_rings_on_device.py"),
    "experiment/on_device/population": ("experiment/test_populations.py",),
    "experiment/on_device/members": ("experiment/test_populations.py",),
    "experiment/on_device/evaluation": ("experiment/test_evaluation_on_device.py",),
    "learning/sharing": ("experiment/test_shared_loop.py", "experiment/test_devices.py"),
    "envs/jax/pooled": ("experiment/test_on_device.py",),
    "experiment/sweeps": ("experiment/sweeps", "cli/test_sweep.py"),
    "experiment/launching": (
        "experiment/test_learner_data.py",
        "experiment/test_launch_config.py",
        "experiment/test_exploring.py",
        "experiment/test_shards.py",
        "experiment/test_launch.py",
    ),
    "experiment/launching/external": ("experiment/test_claims.py", "experiment/test_run_lock.py", "cli/test_node.py"),
    "experiment/launching/nodes/inference": ("experiment/test_inference.py",),
    "experiment/launching/sharing/step_goal": ("experiment/test_step_goal.py",),
}
"""Tests nearest to a file of agentkit/, for those whose own file is not all; of a folder, what follows the own file."""

BY_HAND = ("sac", "td3", "td3_bc", "ddpg", "d4pg", "redq", "droq", "cql", "discrete_sac", "crr", "iql", "mpo", "tqc")

PUT_TOGETHER = (
    "agents/test_losses_by_hand.py",
    "agents/test_updates_by_hand.py",
    "agents/test_composition.py",
    "agents/test_dqn.py",
    "replay/test_lockstep.py",
    "test_environment_loop.py",
    "experiment/test_shared_parts.py",
    "experiment/test_local.py",
)
"""Tests in which the parts meet: conformance and whole runs, a minute of processor time together."""


def nearest(path: str) -> tuple[str, ...]:
    """Returns the nearest tests of a file of agentkit, as paths of files below tests/."""
    module = path.removeprefix("agentkit/").removesuffix(".py")
    folder, name = os.path.split(module)
    places = dict.fromkeys((folder, folder.partition("/")[0]))  # Tests of experiment/ and cli/ are in one folder each.
    own = tuple(f"{place}/test_{name}.py" for place in places if (ROOT / "tests" / place / f"test_{name}.py").exists())
    by_hand = ("agents/test_updates_by_hand.py",) if folder == "agents" and name in BY_HAND else ()
    return _files(
        by_hand
        + (NEAREST.get(module) or own + NEAREST.get(folder, () if own else NEAREST.get(folder.partition("/")[0], ())))
    )


def wider(path: str) -> tuple[str, ...]:
    """Returns all tests of the folder of a file of agentkit, and those in which the parts meet, but for the nearest.

    Other agents' own tests are left out for an agent's file: no agent imports another.
    """
    folder = path.split("/")[1]
    others = set(nearest(path))
    if os.path.dirname(path) == "agentkit/agents":
        others |= {f"agents/test_{file.stem}.py" for file in (ROOT / "agentkit/agents").glob("*.py")}
    return tuple(name for name in _files((folder, *PUT_TOGETHER)) if name not in others)


def _files(names: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the files of tests that names of files and folders stand for, each once."""
    files: dict[str, None] = {}
    for name in names:
        path = ROOT / "tests" / name
        found = sorted(path.rglob("test_*.py")) if path.is_dir() else [path]
        files |= dict.fromkeys(file.relative_to(ROOT / "tests").as_posix() for file in found)
    return tuple(files)
