"""The loop that evaluates features while training and afterwards."""

import copy
import logging

import torch
from mmengine.config import Config
from mmengine.evaluator import Evaluator
from mmengine.logging import print_log
from mmengine.model import is_model_wrapper
from mmengine.runner import ValLoop
from mmpretrain.registry import LOOPS
from torch.utils.data import DataLoader

from .features import extract_features, network_encoder, pixel_encoder


@LOOPS.register_module()
class KNNLoop(ValLoop):
    """Validation or test by features: a bank, queries, and their metrics.

    ``val_dataloader`` holds the queries. The bank takes from it whatever
    ``bank_dataloader`` does not say, the data set included, and neither needs
    a sampler::

        val_dataloader = dict(
            batch_size=64,
            dataset=dict(type='ImageNet', data_root=..., split='val',
                         pipeline=...))
        val_cfg = dict(type='KNNLoop',
                       bank_dataloader=dict(dataset=dict(split='train')))
        val_evaluator = dict(type='KNNAccuracy')
        test_dataloader, test_cfg = val_dataloader, val_cfg
        test_evaluator = val_evaluator

    Features are taken in float32 from the model in evaluation mode (each
    module gets back the mode it was in), in a way that draws nothing from
    the global random generators. Where a data set has no labels the metrics
    are left out, which is said once. Hooks around the epoch are called, those
    around single batches are not.

    Args:
        runner (Runner): the runner.
        dataloader (DataLoader or dict): of the queries.
        evaluator (Evaluator, dict or list): metrics with
            ``evaluate_features(bank, queries, device)``, e.g. KNNAccuracy.
        bank_dataloader (DataLoader or dict): of the bank. A ``dataset``
            without ``type`` is merged into that of the queries.
        network (str, optional): ``'teacher'`` or ``'student'``; the model's
            own choice by default.
        precision (str): ``'fp32'``, ``'bf16'`` or ``'fp16'``.

    Raises:
        TypeError: A metric does not take features.
    """

    def __init__(
        self,
        runner,
        dataloader: DataLoader | dict,
        evaluator: Evaluator | dict | list,
        bank_dataloader: DataLoader | dict,
        network: str | None = None,
        precision: str = 'fp32',
    ):
        queries = _with_defaults(dataloader)
        bank = bank_dataloader
        if isinstance(bank, dict):
            bank = merge_dataloader(dataloader, bank)
        super().__init__(runner, queries, evaluator)
        if isinstance(bank, dict):
            bank = runner.build_dataloader(_with_defaults(bank), runner.seed)
        self.bank_dataloader = bank
        # Each pass of a loader draws a seed for its workers: not from the
        # global generator, or validation would change the training.
        self.dataloader.generator = torch.Generator()
        bank.generator = torch.Generator()
        self.network, self.precision = network, precision
        self.said_unlabelled = False
        for metric in self.evaluator.metrics:
            if not hasattr(metric, 'evaluate_features'):
                raise TypeError(
                    f'{type(metric).__name__} does not evaluate features: '
                    'KNNLoop needs metrics such as '
                    "dict(type='KNNAccuracy')."
                )

    def run(self) -> dict:
        """Evaluate, between the runner's hooks for the epoch."""
        # The runner holds one loop for each purpose; both may be this class.
        mode = 'test' if self.runner._test_loop is self else 'val'
        self.runner.call_hook(f'before_{mode}')
        self.runner.call_hook(f'before_{mode}_epoch')
        metrics = self.evaluate_network()
        self.runner.call_hook(f'after_{mode}_epoch', metrics=metrics)
        self.runner.call_hook(f'after_{mode}')
        return metrics

    def evaluate_network(self) -> dict[str, float]:
        """Metrics of the runner's model as it is now."""
        model = self._model()
        return self._evaluate(network_encoder(model, self.network))

    def evaluate_pixels(self, size: int | None = 32) -> dict[str, float]:
        """Metrics of the raw pictures, on the same loaders.

        Args:
            size (int, optional): see :func:`.features.pixel_encoder`.
        """
        return self._evaluate(pixel_encoder(size))

    def _evaluate(self, encode) -> dict[str, float]:
        model = self._model()
        sets = []
        for name, loader in (
            ('k-NN, validation images', self.dataloader),
            ('k-NN, bank', self.bank_dataloader),
        ):
            found = extract_features(
                model, loader, encode, self.precision, name, need_labels=True
            )
            if found is None:
                self._say_unlabelled(loader)
                return {}
            sets.append(found)
        queries, bank = sets
        device = next(model.parameters(), torch.zeros(())).device
        metrics = {}
        for metric in self.evaluator.metrics:
            metrics.update(metric.evaluate_features(bank, queries, device))
        return metrics

    def _model(self):
        model = self.runner.model
        return model.module if is_model_wrapper(model) else model

    def _say_unlabelled(self, loader: DataLoader) -> None:
        if not self.said_unlabelled:
            self.said_unlabelled = True
            print_log(
                f'k-NN is left out: the {type(loader.dataset).__name__} of '
                'the evaluation has no labels.',
                'current',
                level=logging.WARNING,
            )


def merge_dataloader(queries: DataLoader | dict, bank: dict) -> dict:
    """The bank's loader: what it says, the rest as the queries' loader.

    Args:
        queries (DataLoader or dict): nothing is taken from a ready-made one.
        bank (dict): its ``dataset`` replaces the queries' if it has a
            ``type``, and is merged into it otherwise.
    """
    bank = copy.deepcopy(dict(bank))
    if not isinstance(queries, dict):
        return bank
    merged = copy.deepcopy(dict(queries))
    dataset = bank.pop('dataset', {})
    merged.update(bank)
    if 'type' not in dataset and isinstance(merged.get('dataset'), dict):
        dataset = Config._merge_a_into_b(dataset, merged['dataset'])
    merged['dataset'] = dataset
    return merged


def _with_defaults(dataloader: DataLoader | dict) -> DataLoader | dict:
    """In a fixed order without repeats, unless the loader says it."""
    if not isinstance(dataloader, dict):
        return dataloader
    dataloader = dict(dataloader)
    dataloader.setdefault(
        'sampler',
        {'type': 'DefaultSampler', 'shuffle': False, 'round_up': False},
    )
    return dataloader
