"""Training objectives and their parts, selected in a config by class name."""

from captioning.objectives.base import Objective, OutputTerm
from captioning.objectives.box_supervision import BoxSupervision
from captioning.objectives.cross_entropy import CrossEntropy
from captioning.objectives.estimators import (
    GradientEstimator,
    LearnedBaseline,
    LeaveOneOut,
    Reinforce,
    StraightThroughGumbel,
    TopKMarginalized,
)
from captioning.objectives.neighbors import NeighborRewardConfig
from captioning.objectives.rollout import BeamRollout, Rollout, SampledRollout
from captioning.objectives.self_critical import SelfCritical
from captioning.objectives.terms import Distillation, DoublyStochastic
from captioning.objectives.variational_bound import VariationalBound
from captioning.objectives.weighted_sum import WeightedSum

__all__ = [
    "BeamRollout",
    "BoxSupervision",
    "CrossEntropy",
    "Distillation",
    "DoublyStochastic",
    "GradientEstimator",
    "LearnedBaseline",
    "LeaveOneOut",
    "NeighborRewardConfig",
    "Objective",
    "OutputTerm",
    "Reinforce",
    "Rollout",
    "SampledRollout",
    "SelfCritical",
    "StraightThroughGumbel",
    "TopKMarginalized",
    "VariationalBound",
    "WeightedSum",
]
