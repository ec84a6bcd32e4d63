"""What is refused, or warned of, before anything is built."""

import logging
import os
import os.path as osp
from collections.abc import Iterator, Mapping

from mmengine.config import Config
from mmengine.logging import print_log
from mmpretrain.datasets import CustomDataset
from mmpretrain.registry import DATASETS

from ..datasets.source import is_image, walk
from ..evaluation.loops import merge_dataloader
from .config_keys import near_misses, refusals_explained
from .errors import ConfigError


def check_config(cfg: Config) -> None:
    """Refuse what would only fail deep inside, or not at all.

    The data are not looked at; :func:`check_folders` does that. Keys that
    nothing reads but that resemble a known one are warned of.

    Raises:
        ConfigError: a sentence with the keys and values to change.
    """
    if os.environ.get('RANK', os.environ.get('SLURM_PROCID', '0')) == '0':
        for key in near_misses(cfg):
            print_log(str(key), 'current', logging.WARNING)
    if cfg.get('train_dataloader') is None:
        raise ConfigError(
            'The config has no train_dataloader, so there is nothing to '
            'train on.'
        )
    check_sizes(cfg)
    check_channels(cfg)


def check_sizes(cfg: Config) -> None:
    """Patches tile all views and images, and are those of the masks.

    Raises:
        ConfigError: names the keys and the sizes.
    """
    student = (cfg.get('model') or {}).get('student') or {}
    patch = student.get('patch_size', 16)
    dataset = cfg.train_dataloader.get('dataset', {})
    mask = dataset.get('mask')
    if mask and mask.get('patch_size', patch) != patch:
        raise ConfigError(
            f'The masks are made for patches of {mask.patch_size} pixels '
            '(train_dataloader.dataset.mask.patch_size), the student has '
            f'patches of {patch} (model.student.patch_size): make them equal.'
        )
    sides = _pair(patch)
    for key, size in _sizes(cfg):
        height, width = _pair(size)
        if height % sides[0] or width % sides[1]:
            raise ConfigError(
                f'{key} is {height}x{width} pixels, which does not divide '
                f'into patches of {sides[0]}x{sides[1]} '
                '(model.student.patch_size): set it to a multiple.'
            )


def _sizes(cfg: Config) -> Iterator[tuple[str, int | tuple]]:
    """Where the config says a size that the student sees, and the size."""
    dataset = cfg.train_dataloader.get('dataset', {})
    for name, view in (dataset.get('views') or {}).items():
        if view and view.get('num', 1) and 'size' in view:
            yield f'train_dataloader.dataset.views.{name}.size', view.size
    student = (cfg.get('model') or {}).get('student') or {}
    if student.get('img_size'):
        yield 'model.student.img_size', student.img_size
    if student:
        for key, step in _steps(cfg, 'CenterCrop'):
            yield f'{key}.crop_size', step.get('crop_size', 224)


def check_channels(cfg: Config) -> None:
    """Images, student and means agree on the number of channels.

    Raises:
        ConfigError: names the keys and the numbers, or a colour operation
            where there is no RGB.
    """
    dataset = cfg.train_dataloader.get('dataset', {})
    model = cfg.get('model') or {}
    student = model.get('student')
    if dataset.get('type') != 'ViewDataset' or not student:
        return
    channels = {
        'model.student.in_channels': student.get('in_channels', 3),
    }
    load = dataset.get('load') or {'type': 'LoadImage'}
    if load['type'] == 'LoadImage':
        key = 'train_dataloader.dataset.load.channels'
        channels[key] = load.get('channels', 3)
    for key, step in _steps(cfg, 'LoadImage'):
        channels[f'{key}.channels'] = step.get('channels', 3)
    preprocessor = model.get('data_preprocessor') or {}
    preprocessor = preprocessor or cfg.get('data_preprocessor') or {}
    for name in ('mean', 'std'):
        number = len(preprocessor.get(name, (0, 0, 0)))
        if number != 1:  # one for all channels
            channels[f'the length of model.data_preprocessor.{name}'] = number
    if len(set(channels.values())) > 1:
        listed = ', '.join(f'{key} is {n}' for key, n in channels.items())
        raise ConfigError(
            f'The numbers of channels differ: {listed}. Make them equal.'
        )
    if 3 not in channels.values():
        _refuse_colour(dataset.get('views') or {})


def _refuse_colour(views: Mapping) -> None:
    """What :class:`ViewAugmentation` would refuse at the first image."""
    for name, view in views.items():
        if not view or not view.get('num', 1):
            continue
        jitter = view.get('jitter') or {}
        settings = {
            'jitter.saturation': jitter.get('saturation'),
            'jitter.hue': jitter.get('hue'),
            'gray': view.get('gray'),
        }
        for setting, value in settings.items():
            if value:
                raise ConfigError(
                    f'train_dataloader.dataset.views.{name}.{setting} needs '
                    'RGB images, but the student takes another number of '
                    'channels (model.student.in_channels): set it to 0.'
                )


def check_folders(cfg: Config) -> None:
    """Folders and list files exist, and hold images.

    Raises:
        ConfigError: names the key, the folder and what was looked for.
    """
    with refusals_explained(cfg, ConfigError):
        for where, dataset in _data_sets(cfg):
            kind = dataset.get('type')
            kind = DATASETS.get(kind) if isinstance(kind, str) else kind
            if isinstance(kind, type) and issubclass(kind, CustomDataset):
                settings = {**dataset, 'pipeline': [], 'lazy_init': True}
                _check_source(where, DATASETS.build(settings))


def _check_source(where: str, source: CustomDataset) -> None:
    root, listed = source.img_prefix, source.ann_file
    if '://' in root or '://' in listed:
        return
    if listed:
        if not osp.isfile(listed):
            raise ConfigError(
                f'There is no list file {listed} ({where}.ann_file).'
            )
        if not osp.getsize(listed):
            raise ConfigError(
                f'The list file {listed} is empty ({where}.ann_file).'
            )
        return
    if not osp.isdir(root):
        raise ConfigError(
            f'There is no folder {root}. Correct {where}.data_root (or '
            'data_prefix), or give --data-root.'
        )
    flat = False
    for entry, depth in walk(root):
        if is_image(source, entry):
            if depth or not source.with_label:
                _check_classes(where, source)
                return
            flat = True
    if flat:
        raise ConfigError(
            f'{root} has images but no folder for each class. Set '
            f'{where}.with_label=False to use them without labels.'
        )
    raise ConfigError(
        f'{root} has no image: no file in it ends with '
        f'{", ".join(sorted(source.extensions))}. Correct '
        f'{where}.data_root, or give {where}.extensions.'
    )


def _check_classes(where: str, source: CustomDataset) -> None:
    if not source.with_label or source.CLASSES is None:
        return
    folders = sum(entry.is_dir() for entry in os.scandir(source.img_prefix))
    if folders != len(source.CLASSES):
        raise ConfigError(
            f'{source.img_prefix} has {folders:,} class folders, but '
            f'{type(source).__name__} has {len(source.CLASSES):,} classes. '
            f"Set {where}.type='CustomDataset' for data of your own."
        )


def _data_sets(cfg: Config) -> Iterator[tuple[str, Mapping]]:
    """Where the config says a data set that training reads, and its config."""
    dataset = cfg.train_dataloader.get('dataset', {})
    if isinstance(dataset.get('source'), Mapping):
        yield 'train_dataloader.dataset.source', dataset.source
    else:
        yield 'train_dataloader.dataset', dataset
    queries, loop = cfg.get('val_dataloader'), cfg.get('val_cfg') or {}
    if not queries:
        return
    yield 'val_dataloader.dataset', queries.get('dataset', {})
    bank = loop.get('bank_dataloader')
    if bank is not None:
        merged = merge_dataloader(queries, bank)
        yield 'val_cfg.bank_dataloader.dataset', merged['dataset']


def _steps(cfg: Config, kind: str) -> Iterator[tuple[str, Mapping]]:
    """Steps of one type in the pipelines of evaluation while training."""
    for where, dataset in _data_sets(cfg):
        for i, step in enumerate(dataset.get('pipeline') or ()):
            if isinstance(step, Mapping) and step.get('type') == kind:
                yield f'{where}.pipeline.{i}', step


def _pair(size: int | tuple) -> tuple:
    return tuple(size) if isinstance(size, (list, tuple)) else (size, size)
