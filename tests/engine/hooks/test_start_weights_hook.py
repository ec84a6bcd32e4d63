"""``load_from`` with checkpoints of other layouts, through the Runner."""

import copy

import pytest
import torch
from toy_ibot import make_batch, total_loss
from toy_runs import make_images, toy_runner

from mim_plugins.checkpoints import (
    CheckpointMismatch,
    convert,
    load_file,
    ours_to_ibot,
)


@pytest.fixture(scope='module')
def images(tmp_path_factory):
    return make_images(tmp_path_factory.mktemp('images') / 'train')


def loaded(folder, images, **options):
    runner = toy_runner(folder, images, **options)
    runner.model.init_weights()
    runner.load_or_resume()
    return runner.model


@pytest.fixture
def trained(tmp_path, images):
    """A model whose networks, heads and centres all differ."""
    model = loaded(tmp_path / 'first', images)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
        for objective in model.objectives.values():
            objective.normalization.centre.normal_()
    return model


def loss(model):
    """Of noise in the sizes of the demo's views."""
    size = model.student.patch_embed.projection.kernel_size[0]
    torch.manual_seed(1)
    inputs = make_batch(dtype=torch.float32)
    views = {
        name: torch.randn(len(v), 3, *(n * size for n in grid))
        for (name, v), grid in zip(inputs['views'].items(), ((3, 3), (2, 2)))
    }
    return total_loss(model.eval().loss({**inputs, 'views': views}))


def test_an_official_checkpoint_goes_on(trained, tmp_path, images):
    path = tmp_path / 'checkpoint.pth'
    content = ours_to_ibot(trained.state_dict())
    torch.save({**content, 'epoch': 800}, path)
    expected = loss(trained)
    model = loaded(tmp_path / 'second', images, load_from=str(path))
    torch.testing.assert_close(loss(model), expected)
    fresh = loss(loaded(tmp_path / 'third', images))
    assert abs(fresh - expected) > 0.01


def test_a_backbone_alone_leaves_the_heads(trained, tmp_path, images):
    whole, path = tmp_path / 'whole.pth', tmp_path / 'backbone.pth'
    torch.save({'state_dict': copy.deepcopy(trained.state_dict())}, whole)
    convert(whole, path, 'timm')
    model = loaded(tmp_path / 'second', images, load_from=str(path))
    for part in (model.student, model.teacher.backbone):
        assert torch.equal(
            part.layers[1].attn.qkv.weight,
            trained.teacher.backbone.layers[1].attn.qkv.weight,
        )
    assert not torch.equal(
        model.head.last_layer.weight, trained.head.last_layer.weight
    )
    assert torch.equal(
        model.head.last_layer.weight, model.teacher.head.last_layer.weight
    )


def test_training_goes_on_from_a_backbone(trained, tmp_path, images):
    whole, path = tmp_path / 'whole.pth', tmp_path / 'backbone.pth'
    torch.save({'state_dict': copy.deepcopy(trained.state_dict())}, whole)
    convert(whole, path, 'timm')
    runner = toy_runner(tmp_path / 'run', images, load_from=str(path))
    runner.train()
    assert runner.iter == 5
    saved = load_file(tmp_path / 'run' / 'epoch_1.pth')['state_dict']
    assert all(value.isfinite().all() for value in saved.values())
    name = 'layers.1.attn.qkv.weight'
    start = trained.teacher.backbone.state_dict()[name]
    for place in ('student', 'teacher.backbone'):
        moved = (saved[f'{place}.{name}'] - start).abs().max()
        assert 0 < moved < 0.1


def test_another_number_of_prototypes_is_refused(trained, tmp_path, images):
    path = tmp_path / 'checkpoint.pth'
    torch.save(ours_to_ibot(trained.state_dict()), path)
    with pytest.raises(
        CheckpointMismatch, match='6 weights have another shape'
    ):
        loaded(
            tmp_path / 'second',
            images,
            load_from=str(path),
            **{'model.head.out_dim': 9},
        )
