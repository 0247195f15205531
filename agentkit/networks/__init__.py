"""Networks: Haiku modules and distributions; pure once transformed."""

from agentkit.networks.action_mask import action_mask, is_legal, mask_illegal, mean_legal, refuse_action_mask
from agentkit.networks.action_values import value_network
from agentkit.networks.batch_renorm import batch_renorm, renormalized_critic
from agentkit.networks.continuous import (
    ActorCriticNetworks,
    action_value,
    actor_critic_networks,
    deterministic_networks,
    gaussian_action,
    state_value,
    tanh_normal_action,
    twin_action_values,
)
from agentkit.networks.convolution import Conv2D, conv2d
from agentkit.networks.cores import Core, CoreName, check_core
from agentkit.networks.distributional import (
    CategoricalNetwork,
    action_outputs,
    categorical_mean,
    evenly_spaced_atoms,
    implicit_quantiles,
    share_at_edge,
)
from agentkit.networks.distributions import Categorical, DiagonalNormal, Distribution, Joint
from agentkit.networks.dropout import dropout_critic
from agentkit.networks.drq import DrqTorso, default_shift, drq_torso, random_shift, trunk
from agentkit.networks.equinox_modules import from_equinox
from agentkit.networks.flax_modules import from_flax
from agentkit.networks.gtrxl import GTrXL
from agentkit.networks.mlp import (
    critic,
    duelling_q_values,
    mlp,
    orthogonal,
    orthogonal_mlp,
    q_values,
    tanh_action,
)
from agentkit.networks.network import Network, PolicyCritic, make_network
from agentkit.networks.noisy import NoisyLinear, noisy_duelling_logits, noisy_mlp
from agentkit.networks.normalization import (
    NestStatistics,
    RunningStatistics,
    init_nest_statistics,
    init_statistics,
    normalize,
    normalize_nest,
    std,
    update_nest_statistics,
    update_statistics,
)
from agentkit.networks.own_torso import TORSOS, OwnTorso, torso_named
from agentkit.networks.policy_heads import (
    PolicyExtras,
    check_policy_actions,
    policy_extras_spec,
    policy_head,
    sample_to_action,
)
from agentkit.networks.policy_value import (
    Memory,
    PolicyValue,
    policy_value,
    recurrent_policy_value,
    separate_policy_value,
    stored_memory,
)
from agentkit.networks.recurrent import (
    RecurrentNetwork,
    as_recurrent,
    hidden_layers,
    recurrent_network,
    state_spec,
    step_one,
    unroll_after_burn_in,
)
from agentkit.networks.residual import ResidualTorso, residual_torso
from agentkit.networks.simba import simba_torso
from agentkit.networks.tanh_normal import TanhNormal, mode, sample, sample_and_log_prob
from agentkit.networks.team import Team, active_agents, of_each_agent, seen_by_all, team_of
from agentkit.networks.torsos import (
    AtariTorso,
    GridTorso,
    ShallowTorso,
    Torso,
    encode_inputs,
    flatten_torso,
    nature_torso,
    shallow_torso,
    to_unit_image,
    torso,
)
from agentkit.specs import is_image

__all__ = [
    "TORSOS",
    "ActorCriticNetworks",
    "AtariTorso",
    "Categorical",
    "CategoricalNetwork",
    "Conv2D",
    "Core",
    "CoreName",
    "DiagonalNormal",
    "Distribution",
    "DrqTorso",
    "GTrXL",
    "GridTorso",
    "Joint",
    "Memory",
    "NestStatistics",
    "Network",
    "NoisyLinear",
    "OwnTorso",
    "PolicyCritic",
    "PolicyExtras",
    "PolicyValue",
    "RecurrentNetwork",
    "ResidualTorso",
    "RunningStatistics",
    "ShallowTorso",
    "TanhNormal",
    "Team",
    "Torso",
    "action_mask",
    "action_outputs",
    "action_value",
    "active_agents",
    "actor_critic_networks",
    "as_recurrent",
    "batch_renorm",
    "categorical_mean",
    "check_core",
    "check_policy_actions",
    "conv2d",
    "critic",
    "default_shift",
    "deterministic_networks",
    "dropout_critic",
    "drq_torso",
    "duelling_q_values",
    "encode_inputs",
    "evenly_spaced_atoms",
    "flatten_torso",
    "from_equinox",
    "from_flax",
    "gaussian_action",
    "hidden_layers",
    "implicit_quantiles",
    "init_nest_statistics",
    "init_statistics",
    "is_image",
    "is_legal",
    "make_network",
    "mask_illegal",
    "mean_legal",
    "mlp",
    "mode",
    "nature_torso",
    "noisy_duelling_logits",
    "noisy_mlp",
    "normalize",
    "normalize_nest",
    "of_each_agent",
    "orthogonal",
    "orthogonal_mlp",
    "policy_extras_spec",
    "policy_head",
    "policy_value",
    "q_values",
    "random_shift",
    "recurrent_network",
    "recurrent_policy_value",
    "refuse_action_mask",
    "renormalized_critic",
    "residual_torso",
    "sample",
    "sample_and_log_prob",
    "sample_to_action",
    "seen_by_all",
    "separate_policy_value",
    "shallow_torso",
    "share_at_edge",
    "simba_torso",
    "state_spec",
    "state_value",
    "std",
    "step_one",
    "stored_memory",
    "tanh_action",
    "tanh_normal_action",
    "team_of",
    "to_unit_image",
    "torso",
    "torso_named",
    "trunk",
    "twin_action_values",
    "unroll_after_burn_in",
    "update_nest_statistics",
    "update_statistics",
    "value_network",
]
