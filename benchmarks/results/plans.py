"""What `runs.py` trains, as tables: agents, environments, steps and settings of each page; and published returns."""

from __future__ import annotations

import dataclasses
import shlex


@dataclasses.dataclass(frozen=True)
class Plan:
    """How an agent is run: steps (offline updates), environments, how many of these at once, settings, seeds."""

    num_steps: int
    environments: tuple[str, ...]
    num_envs: int | None = None
    settings: tuple[str, ...] = ()
    seeds: tuple[int, ...] = (0, 1, 2)


ON_POLICY = ("HalfCheetah", "Hopper", "Walker2d", "InvertedDoublePendulum", "Reacher", "Swimmer")
_A2C = ("initial_std=0.6", "normalize_advantages=True", "entropy_cost=0.0")
_SEGMENTS = ("segment_length=32", "initial_std=0.6", "num_minibatches=32")
# As long at random as in TD3's paper on HalfCheetah: after 1,000 such steps two of three of its seeds stayed near 1,100
# until step 150,000, and on Hopper one stayed near 220.
_LONG_START = ("num_random_steps=10000", "min_replay_size=10000")
_MUJOCO = (
    ("ppo", Plan(1_000_000, ON_POLICY, 64, (*_SEGMENTS, "learning_rate=linear(5e-4,0,1000000)", "target_kl=0.05"))),
    ("trpo", Plan(1_000_000, ON_POLICY, 64, ("segment_length=16", "initial_std=0.6"))),
    (
        "a2c",
        Plan(
            1_000_000,
            ON_POLICY,
            32,
            (*_A2C, "segment_length=16", "learning_rate=linear(1e-3,0,1000000)", "rms_decay=0.9"),
        ),
    ),
    ("sac", Plan(300_000, ("HalfCheetah",))),
    ("td3", Plan(300_000, ("HalfCheetah",), settings=_LONG_START)),
    # MPO learns from 32 samples a step: with 256 a run takes three hours of a core. D4PG's atoms must hold the
    # discounted returns: rewards of at most about 5, for 1 / (1 - 0.99) steps.
    *(
        (agent, Plan(200_000, ("Hopper", "Walker2d"), settings=settings, seeds=(0,)))
        for agent, settings in (
            ("mpo", ("updates_per_step=0.125",)),
            ("d4pg", ("vmin=-50", "vmax=500", "num_atoms=101")),
            ("sac", ()),
            ("td3", _LONG_START),
            ("ddpg", _LONG_START),
        )
    ),
)

# DQN's returns of many steps and a discount that looks further: of one step, values of CartPole grow without end (see
# docs/results/README.md).
_OFF_POLICY = ("munchausen_dqn", "c51", "qr_dqn", "iqn", "rainbow", "discrete_sac", "r2d2", "gumbel_muzero")
_CARTPOLE = (
    ("dqn", Plan(50_000, ("CartPole",), settings=("n_step=20", "discount=0.995"))),
    *((agent, Plan(50_000, ("CartPole",))) for agent in _OFF_POLICY),
    ("reinforce", Plan(200_000, ("CartPole",), 8, ("segment_length=128",))),
    *((agent, Plan(200_000, ("CartPole",), 8, ("segment_length=64",))) for agent in ("npg", "trpo")),
    *((agent, Plan(200_000, ("CartPole",), 8)) for agent in ("a2c", "ppo", "impala")),
)

_OFFLINE = (
    *((agent, Plan(30_000, ("HalfCheetah",))) for agent in ("bc", "td3_bc", "cql", "iql", "crr")),
    *((agent, Plan(10_000, ("CartPole",))) for agent in ("discrete_bcq", "discrete_cql")),
)

TASKS = {"mujoco": _MUJOCO, "cartpole": _CARTPOLE, "offline": _OFFLINE}
"""By the name of the page in docs/results."""

SOURCES = {
    "HalfCheetah": ("sac", "--steps", "100000"),
    "CartPole": ("dqn", "--steps", "20000", "--set", "n_step=20", "--set", "discount=0.995"),
}
"""Whose episodes the offline agents learn from: of the policy that explores, at the end of the run."""

# Maximum average return within 1,000,000 steps: Tianshou (Weng et al. 2021, 2107.14171, table 3).
_COLUMNS = ("HalfCheetah", "Hopper", "Walker2d", "Ant", "InvertedDoublePendulum", "Reacher")
_RETURNS = {
    "sac": (12138.8, 3542.2, 5007.0, 5850.2, 9359.5, -2.6),
    "td3": (10201.2, 3472.2, 3982.4, 5116.4, 9349.2, -2.7),
    "ddpg": (11718.7, 2197.0, 1400.6, 990.4, 8364.3, -3.3),
    "ppo": (5783.9, 2609.3, 3588.5, 3258.4, 9231.3, -4.1),
    "a2c": (1829.9, 1253.2, 1091.6, 3485.4, 9257.7, -6.7),
    "trpo": (4471.2, 2046.0, 3826.7, 2866.7, 8435.2, -5.1),
}
PUBLISHED = {agent: dict(zip(_COLUMNS, returns, strict=True)) for agent, returns in _RETURNS.items()}

NUM_EVALUATIONS = 20


@dataclasses.dataclass(frozen=True)
class Job:
    """One training, of data in a file if `data` names one."""

    agent: str
    environment: str
    seed: int
    plan: Plan
    data: str | None = None

    def __str__(self) -> str:
        """Returns the name by which it is recorded."""
        return f"{self.agent}/{self.environment}/{self.plan.num_steps}/{self.seed}"

    def words(self, out: str) -> list[str]:
        """Returns the command, without ``agentkit``; its run folder is in `out`."""
        plan = self.plan
        steps, environment = str(plan.num_steps), environment_name(self.environment, plan.num_envs)
        if self.data is None:
            words = ["train", self.agent, "--preset", "none", "--env", environment, "--steps", steps]
        else:
            words = ["offline", self.agent, "--data", self.data, "--env", environment, "--updates", steps]
        words += ["--seed", str(self.seed), "--out", out]
        words += ["--eval-every", str(plan.num_steps // NUM_EVALUATIONS), "--checkpoint-every", steps]
        if plan.num_envs is not None:
            words += ["--num-envs", str(plan.num_envs)]
        return words + [word for setting in plan.settings for word in ("--set", setting)]

    def command(self) -> str:
        """Returns what a user types."""
        return "agentkit " + shlex.join(self.words("runs"))


def environment_name(environment: str, num_envs: int | None = None) -> str:
    """Returns EnvPool's name where many are stepped at once, gymnasium's where one is."""
    prefix, version = ("gymnasium", 5) if num_envs is None else ("envpool", 4)
    return f"{prefix}:{environment}-v{1 if environment == 'CartPole' else version}"
