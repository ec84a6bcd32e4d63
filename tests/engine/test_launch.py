"""What train.py does to a config."""

import pytest
from mmengine.config import Config

from mim_plugins.engine import launch


def tiny_config(tmp_path, **hooks) -> Config:
    import torch

    return Config(
        dict(
            model=torch.nn.Linear(1, 1),
            work_dir=str(tmp_path),
            default_hooks=hooks,
            default_scope='mmpretrain',
            experiment_name=tmp_path.name,
        )
    )


@pytest.mark.parametrize(
    'name, hook',
    [('logger', 'LoggerHook'), ('checkpoint', 'CheckpointHook')],
)
def test_none_switches_a_hook_of_mmengine_off(name, hook, tmp_path):
    on = launch.build_runner(tiny_config(tmp_path / 'on'))
    off = launch.build_runner(tiny_config(tmp_path / 'off', **{name: None}))
    assert hook in [type(h).__name__ for h in on.hooks]
    assert hook not in [type(h).__name__ for h in off.hooks]


def test_none_switches_any_other_hook_off(tmp_path):
    cfg = tiny_config(tmp_path, diagnostics=None, nmi=dict(type='NMIHook'))
    names = [type(h).__name__ for h in launch.build_runner(cfg).hooks]
    assert 'NMIHook' in names and 'DiagnosticsHook' not in names


@pytest.mark.parametrize(
    'asked, hook, expected',
    [
        ('auto', 'AtomicCheckpointHook', ('auto', 'start.pth')),
        ('auto', 'CheckpointHook', (True, None)),
        ('named.pth', 'AtomicCheckpointHook', (True, 'named.pth')),
    ],
)
def test_resume_leaves_load_from_for_the_first_start(
    asked, hook, expected, tmp_path
):
    cfg = tiny_config(tmp_path, checkpoint=dict(type=hook))
    cfg.load_from = 'start.pth'
    launch.set_resume(cfg, asked)
    assert (cfg.resume, cfg.load_from) == expected


def test_data_root_reaches_every_data_set():
    cfg = Config(
        dict(
            train=dict(dataset=dict(source=dict(data_root='a'))),
            val=[dict(data_root='b'), dict(other=1)],
        )
    )
    assert launch.set_data_root(cfg, 'new') == 2
    assert cfg.train.dataset.source.data_root == 'new'
    assert cfg.val[0].data_root == 'new'
    assert launch.set_data_root(Config(dict(a=1)), 'new') == 0
