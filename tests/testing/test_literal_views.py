import random

import numpy as np
import torch
from PIL import Image
from torchvision.transforms import functional as F
from toy_pictures import picture

from mim_plugins.datasets.transforms import ViewParameters
from mim_plugins.testing.literal_views import (
    RandomBlur,
    literal_transform,
    literal_view,
)

MEAN, STD = (120.0, 110.0, 100.0), (60.0, 50.0, 40.0)


def test_a_transform_that_draws_nothing_is_the_literal_view():
    image = Image.fromarray(picture(40, 30))
    settings = {
        'size': 16,
        'scale': (1.0, 1.0),
        'ratio': (0.75, 0.75),
        'flip': 1.0,
        'jitter': {'brightness': (0.7, 0.7), 'prob': 1.0},
        'gray': 1.0,
        'blur': {'radius': (1.2, 1.2)},
        'solarize': {'threshold': 90},
        'interpolation': 'bilinear',
    }
    parameters = ViewParameters(
        (0, 0, 30, 40), True, (('brightness', 0.7),), True, 1.2, True
    )
    expected = literal_view(image, (16, 16), parameters, 'bilinear', 90)
    view = literal_transform(settings, MEAN, STD)(image)
    levels = torch.tensor(np.asarray(expected)).permute(2, 0, 1).float()
    normalised = F.normalize(levels, MEAN, STD)
    torch.testing.assert_close(view, normalised)


def test_settings_left_out_mean_what_they_mean_to_our_views():
    image = Image.fromarray(picture(40, 40))
    transform = literal_transform({'size': 8, 'flip': 0.0}, MEAN, STD)
    names = {type(t).__name__: t for t in transform.transforms}
    assert names['RandomResizedCrop'].scale == (0.25, 1.0)
    assert names['RandomApply'].p == 0
    assert names['RandomGrayscale'].p == 0
    assert names['RandomBlur'].prob == 0
    assert names['RandomSolarize'].p == 0
    assert transform(image).shape == (3, 8, 8)


def test_blur_comes_with_its_probability():
    random.seed(0)
    image = Image.fromarray(picture(8, 8))
    blur = RandomBlur(0.3, (1.0, 2.0))
    unchanged = sum(blur(image) is image for _ in range(400))
    assert 240 < unchanged < 320
