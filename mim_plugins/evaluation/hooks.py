"""What the log says about a run beside its loss."""

from collections.abc import Sequence

import torch
from mmengine.hooks import Hook, LoggerHook
from mmengine.model import is_model_wrapper
from mmengine.runner import EpochBasedTrainLoop
from mmpretrain.registry import HOOKS
from torch import Tensor, nn

from .cluster_metrics import cluster_metrics
from .diagnostics import collapse_signature
from .features import class_label
from .gathering import every_process, gather_vector

ADVICE = {
    'uniform': (
        'the targets of the {part} objective are uniform and the student '
        'follows them: the loss sits at ln K = {limit:.3f}, the known sign '
        'of collapse to the uniform output. Nothing is learnt from here on. '
        'Lower the teacher temperature (0.04 rather than 0.05 and more), '
        'raise the teacher momentum (0.99 or more for short runs, 0.996 for '
        'long ones), lower the learning rate or the batch size, and start '
        'again.'
    ),
    'single': (
        'all targets of the {part} objective name one prototype of {number} '
        '(entropy near 0): the known sign of collapse to a single output. '
        'Nothing is learnt from here on. Keep centring on (centre momentum '
        '0.9), raise the teacher temperature or lower the learning rate, and '
        'start again.'
    ),
}


@HOOKS.register_module()
class DiagnosticsHook(Hook):
    """Statistics of targets and features in the log, and a collapse warning.

    On iterations that are logged it sets ``model.diagnose``, upon which the
    model adds the statistics to its log (entropy of the targets and KL to
    the student, share of prototypes in use, effective rank and deviation of
    the features), and it logs the optimizer wrapper's ``grad_norm`` as
    ``gradient_norm``. Other iterations are not touched, so there is no
    synchronisation with the device in them.

    Args:
        interval (int, optional): iterations of an epoch between checks; that
            of the LoggerHook by default.
        patience (int): checks in a row with the same signature before the
            warning; it is given once for each time that a run gets there.
        parts (sequence of str): objectives that are watched, where the model
            logs ``{part}_target_entropy`` and ``{part}_kl``.
        num_prototypes (int, optional): K; read from the last layer of
            ``model.head`` by default.
        tolerance (float): see :func:`.diagnostics.collapse_signature`.
    """

    priority = 'NORMAL'

    def __init__(
        self,
        interval: int | None = None,
        patience: int = 5,
        parts: Sequence[str] = ('cls', 'patch'),
        num_prototypes: int | None = None,
        tolerance: float = 0.01,
    ):
        self.interval = interval
        self.patience = patience
        self.parts = tuple(parts)
        self.num_prototypes = num_prototypes
        self.tolerance = tolerance
        self.streaks: dict[str, tuple[str | None, int]] = {}
        self.said_no_norm = False

    def before_train(self, runner) -> None:
        if self.interval is None:
            intervals = [
                hook.interval
                for hook in runner.hooks
                if isinstance(hook, LoggerHook)
            ]
            self.interval = intervals[0] if intervals else 50
        if runner.iter:  # resumed
            streaks = runner.message_hub.get_info('collapse_streaks')
            self.streaks = dict(streaks or {})

    def before_train_iter(self, runner, batch_idx, data_batch=None) -> None:
        _unwrapped(runner.model).diagnose = self._due(runner, batch_idx)

    def after_train_iter(
        self, runner, batch_idx, data_batch=None, outputs=None
    ) -> None:
        if not self._due(runner, batch_idx):
            return
        self._log_gradient_norm(runner)
        outputs = outputs or {}
        for part in self.parts:
            if f'{part}_target_entropy' in outputs:
                self._watch(runner, part, outputs)

    def after_train(self, runner) -> None:
        _unwrapped(runner.model).diagnose = False

    def _due(self, runner, batch_idx: int) -> bool:
        """Whether the LoggerHook writes a line after this iteration."""
        if self.every_n_inner_iters(batch_idx, self.interval):
            return True
        length = len(runner.train_dataloader)
        return length <= self.interval and batch_idx + 1 == length

    def _log_gradient_norm(self, runner) -> None:
        norm = getattr(runner.optim_wrapper, 'grad_norm', None)
        if norm is not None:
            # Not "grad_norm": the log would average it over past lines.
            runner.message_hub.update_scalar(
                'train/gradient_norm', float(norm)
            )
        elif not self.said_no_norm and not hasattr(
            runner.optim_wrapper, 'grad_norm'
        ):
            self.said_no_norm = True
            runner.logger.warning(
                f'{type(runner.optim_wrapper).__name__} does not give the '
                'gradient norm: it is left out of the log.'
            )

    def _watch(self, runner, part: str, outputs: dict) -> None:
        number = self.num_prototypes or count_prototypes(
            _unwrapped(runner.model), part
        )
        if number is None or number < 2:
            return
        used = outputs.get(f'{part}_prototypes_used')
        signature = collapse_signature(
            float(outputs[f'{part}_target_entropy']),
            float(outputs[f'{part}_kl']),
            number,
            None if used is None else float(used),
            self.tolerance,
        )
        last, length = self.streaks.get(part, (None, 0))
        length = length + 1 if signature == last else 1
        self.streaks[part] = (signature, length)
        runner.message_hub.update_info('collapse_streaks', dict(self.streaks))
        if signature is not None and length == self.patience:
            runner.logger.warning(
                f'Iteration {runner.iter + 1}: in {length} checks in a row '
                + ADVICE[signature].format(
                    part=part,
                    number=number,
                    limit=float(torch.tensor(float(number)).log()),
                )
            )


@HOOKS.register_module()
class NMIHook(Hook):
    """Agreement of the teacher's assignments with the classes, per epoch.

    Gathers ``model.assignments`` of each training batch and the labels of
    its ``data_samples``, and at the end of the epoch (in iteration-based
    loops: of a pass over the data) logs NMI, ARI and the Fowlkes-Mallows
    index over the images of all processes. Nothing is synchronised during
    the epoch. Without labels, or without assignments, it is left out, which
    is said once. After resuming in the middle of an epoch, that epoch's
    figures are those of the rest, and the log says so.
    """

    priority = 'NORMAL'

    def __init__(self):
        self.assignments: list[Tensor] = []
        self.labels: list[int] = []
        self.missing: str | None = None
        self.said = False
        self.unseen = 0

    def before_train_epoch(self, runner) -> None:
        self._clear()

    def after_train_iter(
        self, runner, batch_idx, data_batch=None, outputs=None
    ) -> None:
        done, length = runner.iter + 1, len(runner.train_dataloader)
        if not self.labels:
            self.unseen = batch_idx % length  # above 0 after resuming
        if self.missing is None:
            self._collect(runner, data_batch)
        by_epoch = isinstance(runner.train_loop, EpochBasedTrainLoop)
        if not by_epoch and done % length == 0:
            self._report(runner, done // length, done)

    def after_train_epoch(self, runner) -> None:
        if isinstance(runner.train_loop, EpochBasedTrainLoop):
            # The loop has counted the last iteration, not yet the epoch.
            self._report(runner, runner.epoch + 1, runner.iter)

    def _collect(self, runner, data_batch) -> None:
        assignments = getattr(_unwrapped(runner.model), 'assignments', None)
        if assignments is None:
            self.missing = 'the model assigns no prototypes'
            return
        samples = (data_batch or {}).get('data_samples') or []
        labels = [class_label(sample) for sample in samples]
        if not labels or None in labels:
            self.missing = 'the training data have no labels'
            return
        self.assignments.append(assignments.detach().to(torch.int32))
        self.labels += labels

    def _report(self, runner, epoch: int, done: int) -> None:
        if not every_process(self.missing is None):
            if not self.said:
                self.said = True
                reason = self.missing or 'a process has no labels'
                runner.logger.warning(f'NMI is left out: {reason}.')
            self._clear()
            return
        clusters = torch.cat(self.assignments or [torch.zeros(0).int()])
        clusters = gather_vector(clusters.cpu())
        labels = gather_vector(torch.tensor(self.labels, dtype=torch.int32))
        unseen = self.unseen
        self._clear()
        if not len(labels):
            runner.logger.info(
                f'NMI of epoch {epoch} is left out: its batches were before '
                'resuming.'
            )
            return
        # With thousands of prototypes the one-to-one assignment says little.
        metrics = cluster_metrics(
            labels.numpy(), clusters.numpy(), accuracy=False
        )
        text = '  '.join(f'{k}: {v:.4f}' for k, v in metrics.items())
        runner.logger.info(
            f'Epoch {epoch}, teacher assignments of {len(labels)} images '
            f'({len(clusters.unique())} prototypes) and classes:  {text}'
            + (f'  (without the first {unseen} batches)' if unseen else '')
        )
        runner.visualizer.add_scalars(metrics, step=done)

    def _clear(self) -> None:
        self.assignments, self.labels = [], []


def count_prototypes(model: nn.Module, part: str = 'cls') -> int | None:
    """Rows of the last layer that an objective uses, None if unknown.

    Args:
        model (nn.Module): with ``head.last_layer`` and, where patches have
            their own, ``head.patch_last_layer``.
        part (str): ``'cls'`` or ``'patch'``.
    """
    head = getattr(model, 'head', None)
    layer = getattr(head, 'last_layer', None)
    if part != 'cls':
        layer = getattr(head, f'{part}_last_layer', None) or layer
    weight = getattr(layer, 'weight', None)
    return None if weight is None else len(weight)


def _unwrapped(model: nn.Module) -> nn.Module:
    return model.module if is_model_wrapper(model) else model
