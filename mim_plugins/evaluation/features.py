"""Features of a whole data set, in its order, from any number of processes."""

import inspect
import time
from collections.abc import Callable
from contextlib import contextmanager
from itertools import chain

import torch
from mmengine.logging import print_log
from mmengine.model import is_model_wrapper
from mmengine.structures import BaseDataElement
from torch import Tensor, nn
from torch.nn.functional import interpolate
from torch.utils.data import DataLoader

from .gathering import FeatureSet, every_process, gather_features

DTYPES = {'fp32': None, 'bf16': torch.bfloat16, 'fp16': torch.float16}


def network_encoder(
    model: nn.Module, network: str | None = None
) -> Callable[[Tensor], Tensor]:
    """A function from normalised pictures (B, C, H, W) to features (B, D).

    Args:
        model (nn.Module): has ``extract_feat(inputs, network=...)``; a plain
            ``extract_feat(inputs)``, as mmpretrain's classifiers have it,
            serves where ``network`` is None. Of a tuple the last is taken.
        network (str, optional): ``'teacher'`` or ``'student'``; None leaves
            the choice to the model.

    Raises:
        TypeError: The model cannot do this.
    """
    extract = getattr(model, 'extract_feat', None)
    if extract is None:
        raise TypeError(
            f'{type(model).__name__} has no extract_feat(inputs), which the '
            'evaluation of features needs.'
        )
    options = {}
    if network is not None:
        if 'network' not in inspect.signature(extract).parameters:
            raise TypeError(
                f"network='{network}' was asked for, but "
                f'{type(model).__name__} has one network only: leave the '
                'option out.'
            )
        options['network'] = network

    def encode(inputs: Tensor) -> Tensor:
        features = extract(inputs, **options)
        while isinstance(features, (tuple, list)):
            features = features[-1]
        if features.dim() != 2:
            raise TypeError(
                f'extract_feat of {type(model).__name__} gave shape '
                f'{tuple(features.shape)}; features must be (B, D).'
            )
        return features

    return encode


def pixel_encoder(size: int | None = 32) -> Callable[[Tensor], Tensor]:
    """The picture itself as its feature: (B, C, H, W) -> (B, C * h * w).

    Args:
        size (int, optional): the shorter side that larger pictures are
            reduced to, bilinear and antialiased; None keeps every pixel.
    """

    def encode(inputs: Tensor) -> Tensor:
        height, width = inputs.shape[-2:]
        short = min(height, width)
        if size is not None and short > size:
            inputs = interpolate(
                inputs.float(),
                (round(height * size / short), round(width * size / short)),
                mode='bilinear',
                antialias=True,
            )
        return inputs.flatten(1)

    return encode


@torch.no_grad()
def extract_features(
    model: nn.Module,
    dataloader: DataLoader,
    encode: Callable[[Tensor], Tensor] | None = None,
    precision: str = 'fp32',
    name: str = 'features',
    need_labels: bool = False,
) -> FeatureSet | None:
    """Run a data set through a network in evaluation mode.

    Every process handles its own part; all of them get the whole, in the
    order of the data set and with samples that the sampler repeated counted
    once, so the result is the same for any number of processes. Each process
    then holds ``4 * N * D`` bytes on the CPU, and sends and receives in
    blocks.

    Args:
        model (nn.Module): its ``data_preprocessor`` prepares the pictures;
            modules get back the mode (train, eval) that they were in. A
            data-parallel wrapper is taken off.
        dataloader (DataLoader): in a fixed order (``DefaultSampler`` or
            torch's ``SequentialSampler``), batches
            ``dict(inputs=..., data_samples=...)``.
        encode (callable, optional): see :func:`network_encoder`, which is
            the default.
        precision (str): ``'fp32'`` (autocast off), ``'bf16'`` or ``'fp16'``.
        name (str): of the work, for the lines on its progress.
        need_labels (bool): give up after the first batch where the data set
            has no labels.

    Returns:
        FeatureSet or None: None where labels are needed and missing.

    Raises:
        ValueError: The order of the samples is unknown, or labels are not
            one class for each image.
    """
    model = model.module if is_model_wrapper(model) else model
    encode = encode or network_encoder(model)
    indices = sample_indices(dataloader)
    features, labels = None, None
    progress = _Progress(name, len(dataloader))
    with evaluation_mode(model), _autocast(model, precision):
        batches = iter(dataloader)
        first = next(batches, None)
        labelled = first is None or _labels_of(first) is not None
        labelled = every_process(labelled)
        if need_labels and not labelled:
            return None
        labels = torch.full((len(indices),), -1) if labelled else None
        row = 0
        for batch in chain([] if first is None else [first], batches):
            found = encode(_pictures(model, batch))
            end = row + len(found)
            if features is None:
                features = _storage(found, len(indices))
            features[row:end] = found
            if labelled:
                labels[row:end] = _required_labels(batch)
            row = end
            progress.update()
    return gather_features(features, labels, indices, len(dataloader.dataset))


def sample_indices(dataloader: DataLoader) -> Tensor:
    """(n,) places in the data set of this process's samples, in order.

    Raises:
        ValueError: The sampler draws a new order each time it is asked.
    """
    from mmengine.dataset import DefaultSampler
    from torch.utils.data import SequentialSampler

    known = isinstance(dataloader.sampler, (DefaultSampler, SequentialSampler))
    if not known or dataloader.batch_sampler is None:
        raise ValueError(
            'Features are evaluated in the order of the data set, which a '
            f'{type(dataloader.sampler).__name__} does not keep: use '
            "sampler=dict(type='DefaultSampler', shuffle=False), or leave it "
            'out.'
        )
    places = [int(i) for batch in dataloader.batch_sampler for i in batch]
    return torch.tensor(places, dtype=torch.int64)


@contextmanager
def evaluation_mode(model: nn.Module):
    """Evaluation mode inside; each module's own mode again outside."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield model
    finally:
        for module, training in modes:
            module.training = training


def _autocast(model: nn.Module, precision: str):
    if precision not in DTYPES:
        raise ValueError(
            f"precision='{precision}' is not known: {', '.join(DTYPES)}."
        )
    parameter = next(model.parameters(), torch.zeros(()))
    dtype = DTYPES[precision]
    return torch.autocast(
        parameter.device.type, dtype=dtype, enabled=dtype is not None
    )


def _pictures(model: nn.Module, batch: dict) -> Tensor:
    preprocessor = getattr(model, 'data_preprocessor', None)
    if preprocessor is not None:
        batch = preprocessor(batch, False)
    inputs = batch['inputs']
    if isinstance(inputs, (list, tuple)):
        inputs = torch.stack(list(inputs))
    if not isinstance(inputs, Tensor):
        raise ValueError(
            'Evaluation takes one picture for each sample, but the data '
            f'pre-processor gave inputs of type {type(inputs).__name__}: is '
            'a training data set with views in the evaluation data loader?'
        )
    return inputs


def _labels_of(batch: dict) -> Tensor | None:
    samples = batch.get('data_samples') or []
    labels = [class_label(sample) for sample in samples]
    if not labels or any(label is None for label in labels):
        return None
    return torch.tensor(labels)


def _required_labels(batch: dict) -> Tensor:
    labels = _labels_of(batch)
    if labels is None:
        raise ValueError(
            'Some samples of the evaluation data set have a label and some '
            'have none: label all of them, or none.'
        )
    return labels


def class_label(sample: BaseDataElement) -> int | None:
    """The class of a sample, None where it has none.

    Raises:
        ValueError: The sample has several classes.
    """
    label = sample.get('gt_label', None)
    if label is None:
        return None
    label = torch.as_tensor(label)
    if label.numel() != 1:
        raise ValueError(
            f'A sample has {label.numel()} labels; k-NN and the comparison of '
            'clusters with classes need one class for each image.'
        )
    return int(label)


def _storage(found: Tensor, rows: int) -> Tensor:
    dtype = torch.promote_types(found.dtype, torch.float32)
    return torch.zeros(rows, found.shape[1], dtype=dtype)


class _Progress:
    """A line in the log every half minute, with the time left."""

    def __init__(self, name: str, total: int, seconds: float = 30.0):
        self.name, self.total, self.seconds = name, total, seconds
        self.done, self.start = 0, time.monotonic()
        self.last = self.start

    def update(self) -> None:
        self.done += 1
        now = time.monotonic()
        if now - self.last < self.seconds:
            return
        self.last = now
        left = (now - self.start) / self.done * (self.total - self.done)
        print_log(
            f'{self.name}: {self.done}/{self.total} batches, '
            f'{left:.0f} s left',
            'current',
        )
