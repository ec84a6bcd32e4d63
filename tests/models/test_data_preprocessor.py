import numpy as np
import pytest
import torch
from mmpretrain.registry import MODELS
from mmpretrain.structures import DataSample

import mim_plugins.models.data_preprocessor  # noqa: F401

MEAN = [123.675, 116.28, 103.53]
STD = [58.395, 57.12, 57.375]


def build(**options):
    return MODELS.build({'type': 'ViewDataPreprocessor', **options})


def images_of(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, shape, generator=generator).to(torch.uint8)


def expected_of(images, mean=MEAN, std=STD):
    mean = np.array(mean)[:, None, None]
    std = np.array(std)[:, None, None]
    return (images.numpy().astype(np.float64) - mean) / std


def assert_normalised(output, images, **statistics):
    assert output.dtype == torch.float32
    np.testing.assert_allclose(
        output.numpy(), expected_of(images, **statistics), atol=1e-5
    )


def test_training_batch():
    views = {'global': images_of(4, 3, 8, 8), 'local': images_of(6, 3, 4, 4)}
    masks = {'mask': torch.zeros(4, 4, dtype=torch.bool), 'grid': (2, 2)}
    masks.update(index=torch.arange(4), count=4)
    samples = [DataSample(), DataSample()]
    inputs = {
        'views': dict(views),
        'num_views': {'global': 2, 'local': 3},
        'boxes': {'global': torch.ones(4, 5)},
        'masks': {'global': masks},
    }
    before = {name: images.clone() for name, images in views.items()}
    data = {'inputs': inputs, 'data_samples': samples}
    output = build()(data, training=True)
    assert output['data_samples'] is samples
    out = output['inputs']
    for name, images in views.items():
        assert_normalised(out['views'][name], images)
        assert torch.equal(images, before[name])
    assert out['num_views'] == {'global': 2, 'local': 3}
    assert out['masks']['global']['grid'] == (2, 2)
    assert out['masks']['global']['count'] == 4
    assert torch.equal(out['masks']['global']['index'], masks['index'])
    assert out['masks']['global']['mask'].dtype == torch.bool
    assert torch.equal(out['boxes']['global'], torch.ones(4, 5))


def test_evaluation_batches():
    images = images_of(3, 3, 6, 5)
    for inputs in (images, list(images), tuple(images)):
        output = build()({'inputs': inputs, 'data_samples': None})
        assert_normalised(output['inputs'], images)
        assert output['data_samples'] is None


def test_float_images_are_not_changed_in_place():
    images = images_of(2, 3, 4, 4).float()
    before = images.clone()
    output = build()({'inputs': images})['inputs']
    assert torch.equal(images, before)
    assert_normalised(output, before)


@pytest.mark.parametrize('channels', [1, 4])
def test_any_number_of_channels(channels):
    mean = [10.0 * c + 1 for c in range(channels)]
    std = [c + 2.0 for c in range(channels)]
    images = images_of(2, channels, 4, 4)
    output = build(mean=mean, std=std)({'inputs': images})['inputs']
    assert_normalised(output, images, mean=mean, std=std)


def test_one_mean_serves_all_channels():
    images = images_of(2, 5, 4, 4)
    output = build(mean=[100], std=[50])({'inputs': images})['inputs']
    assert_normalised(output, images, mean=[100], std=[50])


def test_statistics_are_not_in_the_checkpoint():
    assert not build().state_dict()


def test_errors_say_what_is_wrong():
    with pytest.raises(ValueError, match='do not fit 3 means'):
        build()({'inputs': images_of(2, 4, 4, 4)})
    with pytest.raises(ValueError, match='different shapes'):
        build()({'inputs': [images_of(3, 4, 4), images_of(3, 4, 5)]})
    with pytest.raises(ValueError, match='one number for each channel'):
        build(mean=[1, 2], std=[1])
    with pytest.raises(ValueError, match='above 0'):
        build(mean=[1], std=[0])
