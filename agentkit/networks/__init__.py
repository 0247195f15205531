"""Networks: Haiku modules and distributions; pure once transformed."""

from agentkit.networks.action_mask import action_mask, mask_illegal, mean_legal, refuse_action_mask
from agentkit.networks.distributional import (
    action_outputs,
    categorical_mean,
    evenly_spaced_atoms,
    implicit_quantiles,
)
from agentkit.networks.distributions import Categorical, DiagonalNormal, Joint
from agentkit.networks.dropout import dropout_critic
from agentkit.networks.mlp import (
    AtariTorso,
    critic,
    duelling_q_values,
    mlp,
    orthogonal_mlp,
    q_values,
    tanh_action,
    torso,
)
from agentkit.networks.noisy import NoisyLinear, noisy_duelling_logits, noisy_mlp
from agentkit.networks.policy_heads import Sampled, check_policy_actions, policy_head, sample_to_action, sampled_spec
from agentkit.networks.pure import Network, network
from agentkit.networks.recurrent import (
    RecurrentNetwork,
    hidden_layers,
    recurrent_network,
    state_spec,
    step_one,
    unroll_after_burn_in,
)
from agentkit.networks.residual import ResidualTorso, residual_torso
from agentkit.networks.tanh_normal import TanhNormal, mode, sample, sample_and_log_prob

__all__ = [
    "AtariTorso",
    "Categorical",
    "DiagonalNormal",
    "Joint",
    "Network",
    "NoisyLinear",
    "RecurrentNetwork",
    "ResidualTorso",
    "Sampled",
    "TanhNormal",
    "action_mask",
    "action_outputs",
    "categorical_mean",
    "check_policy_actions",
    "critic",
    "dropout_critic",
    "duelling_q_values",
    "evenly_spaced_atoms",
    "hidden_layers",
    "implicit_quantiles",
    "mask_illegal",
    "mean_legal",
    "mlp",
    "mode",
    "network",
    "noisy_duelling_logits",
    "noisy_mlp",
    "orthogonal_mlp",
    "policy_head",
    "q_values",
    "recurrent_network",
    "refuse_action_mask",
    "residual_torso",
    "sample",
    "sample_and_log_prob",
    "sample_to_action",
    "sampled_spec",
    "state_spec",
    "step_one",
    "tanh_action",
    "torso",
    "unroll_after_burn_in",
]
