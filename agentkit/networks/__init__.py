"""Networks: Haiku modules and distributions; pure once transformed."""

from agentkit.networks.mlp import AtariTorso, duelling_q_values, mlp, orthogonal_mlp, q_values, torso
from agentkit.networks.tanh_normal import TanhNormal, mode, sample, sample_and_log_prob

__all__ = [
    "AtariTorso",
    "TanhNormal",
    "duelling_q_values",
    "mlp",
    "mode",
    "orthogonal_mlp",
    "q_values",
    "sample",
    "sample_and_log_prob",
    "torso",
]
