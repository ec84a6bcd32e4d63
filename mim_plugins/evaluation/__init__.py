"""Evaluation: features in, numbers out; loops and hooks plug them in."""

from .cluster_metrics import (
    adjusted_rand_index,
    cluster_metrics,
    clustering_accuracy,
    fowlkes_mallows_index,
    normalized_mutual_information,
)
from .diagnostics import effective_rank, feature_statistics
from .features import extract_features
from .gathering import FeatureSet
from .hooks import DiagnosticsHook, NMIHook
from .knn import knn_classify, nearest_neighbours
from .knn_accuracy import KNNAccuracy
from .loops import KNNLoop

__all__ = [
    'DiagnosticsHook',
    'FeatureSet',
    'KNNAccuracy',
    'KNNLoop',
    'NMIHook',
    'adjusted_rand_index',
    'cluster_metrics',
    'clustering_accuracy',
    'effective_rank',
    'extract_features',
    'feature_statistics',
    'fowlkes_mallows_index',
    'knn_classify',
    'nearest_neighbours',
    'normalized_mutual_information',
]
