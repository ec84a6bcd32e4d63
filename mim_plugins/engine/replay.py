"""What is kept of a step that was not finite, and the step done again."""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from mmengine.config import Config
from mmengine.device import get_device
from mmengine.dist import get_rank, get_world_size, is_main_process
from mmengine.registry import init_default_scope
from mmengine.runner import Runner
from mmpretrain.registry import MODELS

from ..checkpoints import load_file
from ..datasets.samplers import SampleKey
from ..models.randomness import start_iteration
from .hooks.attributes import resolve, unwrapped, write
from .hooks.schedule_hook import ScheduleHook
from .optimizers.precision import DTYPES, resolve_precision

STATE = 'state.pth'
BATCH = 'batch_rank{}.pth'
REPORT = 'rank_{}.json'


@dataclass(frozen=True)
class Incident:
    """An iteration in which something was not finite, as one process saw it.

    Args:
        work_dir: of the run.
        iteration: its number, from 1 as in the log.
        samples: file and key of each image of this process, None where
            unknown.
        losses: what this process's model logged.
    """

    work_dir: str
    iteration: int
    samples: list[tuple[str | None, SampleKey | None]]
    losses: dict[str, float]

    @property
    def folder(self) -> Path:
        """Where it is kept, the same for all processes."""
        return Path(self.work_dir, 'non_finite', f'iter_{self.iteration}')

    @property
    def bad(self) -> dict[str, float]:
        """The parts of the loss that are not finite."""
        return {
            key: value
            for key, value in self.losses.items()
            if 'loss' in key and not math.isfinite(value)
        }

    def save(self, runner: Runner) -> None:
        """Write report and batch of this process, and in rank 0 the state."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._save_report(runner)
        if is_main_process():
            torch.save(self._state(runner), self.folder / STATE)
        batch = self._batch(runner.train_dataloader)
        torch.save(batch, self.folder / BATCH.format(get_rank()))

    def _save_report(self, runner: Runner) -> None:
        report = {
            'iteration': self.iteration,
            'rank': get_rank(),
            'processes': get_world_size(),
            # JSON has no NaN
            'losses': {
                key: value if math.isfinite(value) else str(value)
                for key, value in self.losses.items()
            },
            'schedules': {n: value for n, _, value in self._values(runner)},
            'samples': [
                {'file': path, **({} if key is None else key._asdict())}
                for path, key in self.samples
            ],
        }
        path = self.folder / REPORT.format(get_rank())
        path.write_text(json.dumps(report, indent=1) + '\n')

    def _state(self, runner: Runner) -> dict:
        return {
            'model': unwrapped(runner.model).state_dict(),
            'optimizer': runner.optim_wrapper.state_dict(),
            'iteration': self.iteration,
            'seed': runner.seed,
            'processes': get_world_size(),
            'precision': runner.optim_wrapper.precision,
            'schedules': {
                target: value
                for _, target, value in self._values(runner)
                if target is not None
            },
        }

    def _values(
        self, runner: Runner
    ) -> Iterator[tuple[str, str | None, float]]:
        """Name, target below the model, and value of each schedule."""
        for hook in runner.hooks:
            if isinstance(hook, ScheduleHook):
                for name, value in hook.at(self.iteration - 1).items():
                    yield name, hook.targets[name], value

    def _batch(self, loader) -> dict:
        """The batch, made again: keeping it would keep all since the check.

        Raises:
            ValueError: the samples do not say from which keys they were made.
        """
        keys = [key for _, key in self.samples]
        if not keys or None in keys:
            raise ValueError(
                f'{type(loader.dataset).__name__} gives its data_samples no '
                'sample_key, as ViewDataset does, so the batch was not saved'
            )
        samples = [loader.dataset[key] for key in keys]
        return {
            'inputs': loader.collate_fn(samples)['inputs'],
            'sample_keys': [tuple(key) for key in keys],
        }


def print_replay(
    cfg: Config, folder: str, precision: str | None = None
) -> None:
    """:func:`replay` of this process's batch; alone, of every process's."""
    ranks = [get_rank()]
    if get_world_size() == 1:
        processes = load_file(str(Path(folder, STATE)))['processes']
        ranks = range(processes)
    for rank in ranks:
        found = replay(cfg, folder, rank, precision)
        text = ', '.join(f'{key} {value:g}' for key, value in found.items())
        print(f'Batch of rank {rank}: {text}')


def replay(
    cfg: Config | str,
    folder: str,
    rank: int | None = None,
    precision: str | None = None,
) -> dict[str, float]:
    """Compute the losses of a saved step again; nothing is trained.

    Forward and backward pass of one process, with its batch, in the run's
    precision, from the parameters before the step.  Parts of a model that put
    numbers of all processes together (batch norm in the head) need as many
    processes as the run had; alone, the numbers are near those of the run.

    Args:
        cfg: config of the run, or its path.
        folder: ``<work_dir>/non_finite/iter_<n>``.
        rank: whose batch; this process's by default.
        precision: see :func:`resolve_precision`; that of the run by default.

    Returns:
        dict: the parts of the loss and what else the model logs, and (but
        with fp16) ``gradient_norm``.

    Raises:
        CheckpointError: a file is missing, damaged, or not data only.
    """
    if not isinstance(cfg, Config):
        cfg = Config.fromfile(cfg)
    init_default_scope(cfg.get('default_scope', 'mmpretrain'))
    state = load_file(str(Path(folder, STATE)))
    rank = get_rank() if rank is None else rank
    batch = load_file(str(Path(folder, BATCH.format(rank))))
    device = torch.device(get_device())
    precision = resolve_precision(precision or state['precision'], device.type)
    model = _build(cfg, state).to(device)
    start_iteration(
        model,
        state['seed'],
        state['iteration'] - 1,
        rank,
        state['processes'],
    )
    with torch.autocast(
        device.type, DTYPES.get(precision), enabled=precision in DTYPES
    ):
        data = {'inputs': batch['inputs'], 'data_samples': None}
        data = model.data_preprocessor(data, True)
        losses = model(**data, mode='loss')
    loss, found = model.parse_losses(losses)
    if precision != 'fp16':  # whose gradients would need their scale
        loss.backward()
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        norms = torch.stack([torch.linalg.vector_norm(g) for g in grads])
        found['gradient_norm'] = torch.linalg.vector_norm(norms)
    return {key: value.item() for key, value in found.items()}


def _build(cfg: Config, state: dict) -> torch.nn.Module:
    """The model as it was before the step."""
    settings = dict(cfg.model)
    if cfg.get('data_preprocessor') is not None:
        settings.setdefault('data_preprocessor', cfg.data_preprocessor)
    model = MODELS.build(settings)
    model.load_state_dict(state['model'])
    for target, value in state['schedules'].items():
        write(*resolve(model, target), value)
    return model.train()
