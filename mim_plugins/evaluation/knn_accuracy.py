"""Weighted k-NN as a metric of the Runner."""

import logging
from collections.abc import Sequence

import torch
from mmengine.dist import all_reduce, get_dist_info
from mmengine.logging import print_log
from mmpretrain.registry import METRICS

from .gathering import FeatureSet
from .knn import CHUNKS, count_hits, knn_classify


@METRICS.register_module()
class KNNAccuracy:
    """Top-1 and top-5 accuracy of weighted k-NN, in percent.

    Takes the features from the ``KNNLoop``. The test samples are shared
    between the processes in fixed blocks, so the figures are the same for
    any number of them. A k larger than the bank is left out, which is said
    once.

    Args:
        k (int or sequence of int): numbers of neighbours.
        temperature (float): of the weights exp(cosine / temperature).
        chunks (tuple[int, int]): see :func:`.knn.nearest_neighbours`.
        prefix (str): of the names: ``knn/k20_top1``.

    Source: iBOT's k-NN evaluation (k = 10, 20, 100, 200; T = 0.07).
    """

    def __init__(
        self,
        k: int | Sequence[int] = (10, 20, 100, 200),
        temperature: float = 0.07,
        chunks: tuple[int, int] = CHUNKS,
        prefix: str = 'knn',
    ):
        self.prefix = prefix
        self.dataset_meta: dict | None = None
        self.k = tuple([k] if isinstance(k, int) else k)
        self.temperature = temperature
        self.chunks = tuple(chunks)
        self.said: set[str] = set()

    def process(self, data_batch, data_samples) -> None:
        """Refuse to work in a loop that provides predictions."""
        raise RuntimeError(
            'KNNAccuracy compares features with a bank of features: use it '
            "with val_cfg=dict(type='KNNLoop', bank_dataloader=...)."
        )

    def evaluate_features(
        self,
        bank: FeatureSet,
        queries: FeatureSet,
        device: torch.device | str = 'cpu',
    ) -> dict[str, float]:
        """Accuracy of the queries by their neighbours in the bank.

        Args:
            bank (FeatureSet): with labels; the same on every process.
            queries (FeatureSet): with labels; the same on every process.
            device: where to compare.

        Returns:
            dict: ``{prefix}/k{k}_top1`` and ``_top5``, in percent.

        Raises:
            ValueError: No k fits the bank, or there is no query.
        """
        fitting = self._fitting(len(bank))
        if not len(queries):
            raise ValueError('k-NN: the validation data set is empty.')
        rank, world_size = get_dist_info()
        rows = torch.arange(len(queries)).split(self.chunks[0])
        mine = torch.cat([*rows[rank::world_size], rows[0][:0]])
        classes = int(max(bank.labels.max(), queries.labels.max())) + 1
        ranked = knn_classify(
            bank.features,
            bank.labels,
            queries.features[mine],
            fitting,
            self.temperature,
            classes,
            chunks=self.chunks,
            device=device,
        )
        labels = queries.labels[mine]
        hits = torch.tensor([count_hits(ranked[k], labels) for k in fitting])
        all_reduce(hits)
        metrics = {}
        for k, (first, among_five) in zip(fitting, hits.tolist()):
            metrics[f'{self.prefix}/k{k}_top1'] = 100 * first / len(queries)
            metrics[f'{self.prefix}/k{k}_top5'] = (
                100 * among_five / len(queries)
            )
        return metrics

    def _fitting(self, size: int) -> list[int]:
        fitting = [k for k in self.k if k <= size]
        if not fitting:
            raise ValueError(
                f'k-NN: the bank holds {size} samples, fewer than the '
                f'smallest k = {min(self.k)}. Set val_evaluator.k to smaller '
                'numbers, or use more training images.'
            )
        left_out = [str(k) for k in self.k if k > size]
        message = (
            f'k-NN: k = {", ".join(left_out)} is left out, the bank holds '
            f'{size} samples only.'
        )
        if left_out and message not in self.said:
            self.said.add(message)
            print_log(message, 'current', level=logging.WARNING)
        return fitting
