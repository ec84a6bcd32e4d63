"""tools/train.py as a user runs it, on a few generated pictures."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
CONFIG = 'configs/ibot/ibot_demo.py'


def call(*command: str, **env: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [str(part) for part in command],
        cwd=ROOT,
        env={**os.environ, 'OMP_NUM_THREADS': '1', **env},
        capture_output=True,
        text=True,
        timeout=300,
    )


def python(script: str, *args: str) -> str:
    done = call(sys.executable, f'tools/{script}', *args)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def options(data: Path, **more) -> list[str]:
    arch = 'model.student.arch'
    values = {
        f'{arch}.embed_dims': 24,
        f'{arch}.num_layers': 2,
        f'{arch}.feedforward_channels': 32,
        'model.head.hidden_dim': 32,
        'train_dataloader.batch_size': 8,
        'train_dataloader.num_workers': 0,
        'train_dataloader.persistent_workers': False,
        'train_cfg.max_epochs': 1,
        'train_cfg.val_interval': 1,
        'default_hooks.checkpoint.interval': 1,
        'default_hooks.checkpoint.max_keep_ckpts': 2,
        'default_hooks.logger.interval': 2,
        'train_dataloader.dataset.source.data_root': data / 'train',
        'val_dataloader.dataset.data_root': data / 'val',
        'val_cfg.bank_dataloader.dataset.data_root': data / 'train',
        'test_dataloader.dataset.data_root': data / 'val',
        'test_cfg.bank_dataloader.dataset.data_root': data / 'train',
        **more,
    }
    return ['--cfg-options', *(f'{k}={v}' for k, v in values.items())]


@pytest.fixture(scope='module')
def data(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp('data') / 'demo'
    sizes = ['--train', '32', '--val', '20', '--size', '40']
    python('make_demo_data.py', str(out), *sizes, '--layouts', 'imagenet')
    return out / 'imagenet'


@pytest.fixture(scope='module')
def trained(data, tmp_path_factory) -> tuple[Path, str]:
    """Work folder and output of a run of one epoch."""
    work_dir = tmp_path_factory.mktemp('run')
    out = python(
        'train.py', CONFIG, '--work-dir', str(work_dir), *options(data)
    )
    return work_dir, out


def scalars(work_dir: Path) -> list[dict]:
    lines = []
    for path in sorted(work_dir.glob('*/vis_data/scalars.json')):
        lines += [json.loads(line) for line in path.read_text().splitlines()]
    return lines


def test_a_run_logs_checkpoints_and_evaluates(trained):
    work_dir, out = trained
    assert (work_dir / 'epoch_1.pth').is_file()
    assert 'effective lr 0.001' in out and 'global batch 8' in out
    rows = scalars(work_dir)
    logged = set().union(*rows)
    assert {
        'loss_cls', 'loss_patch', 'lr', 'weight_decay', 'teacher_momentum',
        'cls_temperature', 'cls_target_entropy', 'cls_kl', 'feature_rank',
        'feature_std', 'cls_prototypes_used', 'gradient_norm',
        'knn/k20_top1',
    } <= logged  # fmt: skip
    assert re.search(r'nmi: 0\.\d+', out)
    assert list(work_dir.glob('*/vis_data/events.out.tfevents*'))


def test_resume_goes_on_from_the_newest_checkpoint(trained, data):
    work_dir, _ = trained
    out = python(
        'train.py', CONFIG, '--work-dir', str(work_dir), '--resume',
        *options(data, **{'train_cfg.max_epochs': 2}),
    )  # fmt: skip
    assert 'epoch_1.pth' in out
    checkpoint = torch.load(work_dir / 'epoch_2.pth', weights_only=False)
    assert checkpoint['meta']['epoch'] == 2
    assert checkpoint['meta']['iter'] == 8


def test_test_reproduces_the_validation(trained, data, tmp_path):
    work_dir, _ = trained
    result = tmp_path / 'knn.json'
    python(
        'test.py', CONFIG, str(work_dir / 'epoch_1.pth'), '--json',
        str(result), '--work-dir', str(tmp_path), *options(data),
    )  # fmt: skip
    got = json.loads(result.read_text())['metrics']['trained']
    want = [row for row in scalars(work_dir) if 'knn/k20_top1' in row][0]
    assert got['knn/k20_top1'] == pytest.approx(want['knn/k20_top1'])


def test_every_tool_starts_from_any_folder(tmp_path):
    """From a checkout, the package itself not being installed."""
    for tool in sorted((ROOT / 'tools').glob('*.py')):
        done = subprocess.run(
            [sys.executable, '-s', str(tool), '--help'],
            cwd=tmp_path,
            env={k: v for k, v in os.environ.items() if k != 'PYTHONPATH'},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, (tool.name, done.stderr[-1000:])


def test_a_backbone_is_exported_and_loads_into_mmpretrain(trained, tmp_path):
    from mmpretrain.registry import MODELS

    work_dir, _ = trained
    out = tmp_path / 'backbone.pth'
    python('export_backbone.py', str(work_dir / 'epoch_1.pth'), str(out))
    vit = MODELS.build(
        dict(
            type='VisionTransformer',
            arch=dict(
                embed_dims=24,
                num_layers=2,
                num_heads=3,
                feedforward_channels=32,
            ),
            img_size=32,
            patch_size=8,
        )
    )
    vit.load_state_dict(torch.load(out)['state_dict'])


def test_dry_run_prints_and_trains_nothing(data, tmp_path):
    out = python(
        'train.py', CONFIG, '--work-dir', str(tmp_path / 'run'), '--dry-run',
        *options(data, **{'optim_wrapper.accumulative_counts': 2}),
    )  # fmt: skip
    assert "type='IBOT'" in out
    assert 'global batch 16 = 8 images x 1 processes x accumulation 2' in out
    assert 'Parameters that are trained' in out
    assert not list(tmp_path.rglob('*.pth'))


def test_a_folder_without_labels_needs_only_its_path(data, tmp_path):
    config = 'configs/ibot/ibot_vit-small-p16_own-images.py'
    out = python(
        'train.py', config, '--data-root', str(data / 'val'), '--dry-run',
        '--work-dir', str(tmp_path), '--cfg-options',
        'train_dataloader.batch_size=4', 'train_dataloader.num_workers=0',
        'train_dataloader.persistent_workers=False',
    )  # fmt: skip
    assert 'Images: 20, batch on this process: 4' in out


def test_two_processes_without_cuda_use_gloo(data, tmp_path):
    done = call(
        'bash', 'tools/dist_train.sh', CONFIG, '2',
        '--work-dir', str(tmp_path),
        *options(data, **{'train_dataloader.batch_size': 4}),
        VIRTUAL_ENV=sys.prefix, PORT='29617', CUDA_VISIBLE_DEVICES='',
    )  # fmt: skip
    out = done.stdout + done.stderr
    assert done.returncode == 0, out
    assert 'global batch 8 = 4 images x 2 processes' in out
    assert (tmp_path / 'epoch_1.pth').is_file()
    assert 'knn/k20_top1' in out


@pytest.mark.full
@pytest.mark.parametrize(
    'command, number',
    [
        ((sys.executable, 'tools/train.py', CONFIG), signal.SIGTERM),
        (('bash', 'tools/dist_train.sh', CONFIG, '2'), signal.SIGTERM),
        (('bash', 'tools/dist_train.sh', CONFIG, '2'), signal.SIGUSR1),
    ],
)
def test_a_stopped_run_leaves_with_75_and_goes_on(
    command, number, data, tmp_path
):
    env = {
        **os.environ, 'OMP_NUM_THREADS': '1', 'VIRTUAL_ENV': sys.prefix,
        'PORT': '29618', 'CUDA_VISIBLE_DEVICES': '',
    }  # fmt: skip
    changes = {
        'train_dataloader.batch_size': 4,
        'train_dataloader.num_workers': 1,
        'default_hooks.logger.interval': 1,
        'train_cfg.max_epochs': 200,
    }
    arguments = ['--work-dir', str(tmp_path), '--resume']
    process = subprocess.Popen(
        [*command, *arguments, *options(data, **changes)],
        cwd=ROOT, env=env, text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    for line in process.stdout:
        if 'Epoch(train)' in line:
            os.killpg(process.pid, number)
            break
    out = process.stdout.read()
    assert process.wait() == 75, out
    (saved,) = tmp_path.glob('iter_*.pth')
    changes['train_cfg.max_epochs'] = 1
    done = call(*command, *arguments, *options(data, **changes), **env)
    out = done.stdout + done.stderr
    assert done.returncode == 0, out
    assert f'Resuming from {saved}' in out
    assert (tmp_path / 'epoch_1.pth').is_file() and not saved.exists()


@pytest.mark.parametrize(
    'change, sentence',
    [
        ({'train_dataloader.batch_size': 64}, 'smaller than one batch'),
        (
            {'train_dataloader.dataset.source.data_root': '/nowhere'},
            '/nowhere',
        ),
    ],
)
def test_mistakes_end_in_one_sentence(change, sentence, data, tmp_path):
    """More of them in test_mistakes.py, without a new process for each."""
    done = call(
        sys.executable, 'tools/train.py', CONFIG, '--work-dir',
        str(tmp_path), *options(data, **change),
    )  # fmt: skip
    assert done.returncode == 1 and 'Traceback' not in done.stderr
    assert sentence in done.stderr.splitlines()[-1], done.stderr[-2000:]


def test_a_missing_config_is_named():
    done = call(sys.executable, 'tools/train.py', 'configs/none.py')
    assert done.returncode != 0
    assert 'There is no config configs/none.py' in done.stderr
