import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmpretrain.registry import MODELS
from PIL import Image
from torch import nn

from mim_plugins.analysis import (
    attention_maps,
    cls_attention,
    draw_attention,
    visualize_attention,
)
from mim_plugins.analysis.attention import (
    load_square,
    model_backbone,
    visualize_checkpoint,
)


class BrightnessBackbone(nn.Module):
    """Head i attends to a patch by its mean brightness, to the power i."""

    def __init__(self, sign=1.0):
        super().__init__()
        self.sign = nn.Parameter(torch.tensor(sign))

    def grid(self, x):
        return x.shape[-2] // 4, x.shape[-1] // 4

    def last_attention(self, x):
        light = nn.functional.avg_pool2d(x.mean(1), 4).flatten(1)
        light = torch.cat([torch.zeros(len(x), 1), light], dim=1)
        logits = torch.stack([self.sign * light, 2 * self.sign * light], 1)
        return logits.softmax(-1)[:, :, None].expand(-1, -1, 5, -1)


class Preprocessor(nn.Module):
    def forward(self, batch, training):
        assert not training
        return {'inputs': torch.stack(batch['inputs']).float() / 64}


@MODELS.register_module()
class ToyAttentive(nn.Module):
    def __init__(self):
        super().__init__()
        self.data_preprocessor = Preprocessor()
        self.teacher, self.student = (
            BrightnessBackbone(),
            BrightnessBackbone(-1.0),
        )

    def evaluation_backbone(self, network=None):
        return getattr(self, network or 'teacher')


def picture(width=24, height=16):
    """Dark, with a bright patch at row 1, column 4 of the grid."""
    pixels = np.zeros((height, width, 3), dtype=np.uint8)
    pixels[4:8, 16:20] = 250
    return Image.fromarray(pixels)


def test_map_is_the_attention_of_cls_to_the_patches():
    backbone = BrightnessBackbone()
    inputs = torch.rand(2, 3, 8, 12)
    maps = cls_attention(backbone, inputs)
    assert maps.shape == (2, 2, 2, 3)
    whole = backbone.last_attention(inputs)[:, :, 0]
    assert torch.equal(maps[1, 0, 1], whole[1, 0, 4:7])


def test_maps_show_the_place_and_restore_the_mode():
    model = ToyAttentive().train()
    maps = attention_maps(model, [picture(), picture()])
    assert maps.shape == (2, 2, 4, 6)
    assert np.unravel_index(maps[0, 1].argmax(), (4, 6)) == (1, 4)
    student = attention_maps(model, [picture()], 'student')
    assert np.unravel_index(student[0, 1].argmin(), (4, 6)) == (1, 4)
    assert model.training and model.teacher.training


def test_pictures_are_cut_at_the_centre(tmp_path):
    pixels = np.zeros((10, 30, 3), dtype=np.uint8)
    pixels[:, 10:20] = 255
    Image.fromarray(pixels).save(tmp_path / 'wide.png')
    image = load_square(tmp_path / 'wide.png', 20)
    assert image.size == (20, 20)
    assert np.array(image).min() > 150
    assert load_square(tmp_path / 'wide.png', (8, 12)).size == (12, 8)


def test_one_picture_with_a_column_for_each_head(tmp_path):
    picture(48, 48).save(tmp_path / 'a.png')
    picture(48, 48).convert('L').save(tmp_path / 'b.png')
    out = visualize_attention(
        ToyAttentive(),
        [tmp_path / 'a.png', tmp_path / 'b.png'],
        tmp_path / 'new' / 'maps.png',
        size=48,
    )
    two = Image.open(out)
    assert two.format == 'PNG'
    one = Image.open(
        draw_attention([picture()], np.zeros((1, 5, 4, 6)), tmp_path / 'c.png')
    )
    assert one.width > two.width
    assert one.height < two.height
    with pytest.raises(ValueError, match='No picture was given'):
        visualize_attention(ToyAttentive(), [], tmp_path / 'd.png', 48)


def test_a_model_without_attention_is_named():
    backbone = BrightnessBackbone()
    assert model_backbone(backbone) is backbone
    with pytest.raises(TypeError, match='Linear has neither'):
        model_backbone(nn.Linear(1, 1))


def test_from_a_config_and_a_checkpoint(tmp_path, monkeypatch):
    """Pictures of the validation set, at twice its size."""
    for name in 'abc':
        picture(40, 30).save(tmp_path / f'{name}.png')
    cfg = Config(
        {
            'model': {'type': 'ToyAttentive'},
            'val_dataloader': {
                'dataset': {
                    'type': 'CustomDataset',
                    'data_root': str(tmp_path),
                    'with_label': False,
                    'pipeline': [
                        {'type': 'LoadImageFromFile'},
                        {'type': 'CenterCrop', 'crop_size': 24},
                        {'type': 'PackInputs'},
                    ],
                }
            },
        }
    )
    checkpoint = str(tmp_path / 'model.pth')
    torch.save({'state_dict': ToyAttentive().state_dict()}, checkpoint)
    shapes = []
    monkeypatch.setattr(
        'mim_plugins.analysis.attention.draw_attention',
        lambda images, maps, out: (
            shapes.append(maps.shape) or draw_attention(images, maps, out)
        ),
    )
    out = visualize_checkpoint(cfg, checkpoint, tmp_path / 'x.png', num=2)
    assert shapes == [(2, 2, 12, 12)]
    assert Image.open(out).format == 'PNG'
    cfg.val_dataloader = None
    with pytest.raises(ValueError, match='name the images and a size'):
        visualize_checkpoint(cfg, checkpoint, tmp_path / 'x.png')
