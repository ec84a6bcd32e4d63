"""Views as the official codes make them: torchvision's transforms on PIL.

iBOT's, DINO's and MSN's pipelines differ in settings only.
"""

import random
from collections.abc import Mapping, Sequence

from PIL import Image, ImageFilter
from torchvision import transforms
from torchvision.transforms import InterpolationMode
from torchvision.transforms import functional as F

from mim_plugins.datasets.transforms.views import ViewParameters

_ADJUST = {
    'brightness': F.adjust_brightness,
    'contrast': F.adjust_contrast,
    'saturation': F.adjust_saturation,
    'hue': F.adjust_hue,
}


class RandomBlur:
    """Pillow's Gaussian blur with a random radius."""

    def __init__(self, prob: float, radius: Sequence[float]):
        self.prob = prob
        self.radius = radius

    def __call__(self, image: Image.Image) -> Image.Image:
        if random.random() >= self.prob:
            return image
        radius = random.uniform(*self.radius)
        return image.filter(ImageFilter.GaussianBlur(radius))


def literal_transform(
    view: Mapping, mean: Sequence[float], std: Sequence[float]
) -> transforms.Compose:
    """From a PIL RGB image to one random view, a normalised float tensor.

    Args:
        view: settings of ``ViewAugmentation``, as in a config.
        mean, std: of each channel, in units of grey levels 0 to 255.
    """
    jitter = dict(view.get('jitter') or {'prob': 0.0})
    jitter_prob = jitter.pop('prob', 1.0)
    blur = view.get('blur') or {'prob': 0.0}
    solarize = view.get('solarize') or {'prob': 0.0}
    return transforms.Compose(
        [
            transforms.RandomResizedCrop(
                view['size'],
                view.get('scale', (0.25, 1.0)),
                view.get('ratio', (3 / 4, 4 / 3)),
                InterpolationMode(view.get('interpolation', 'bicubic')),
            ),
            transforms.RandomHorizontalFlip(view.get('flip', 0.5)),
            transforms.RandomApply(
                [transforms.ColorJitter(**jitter)], jitter_prob
            ),
            transforms.RandomGrayscale(view.get('gray', 0.0)),
            RandomBlur(blur.get('prob', 1.0), blur.get('radius', (0.1, 2.0))),
            transforms.RandomSolarize(
                solarize.get('threshold', 128), solarize.get('prob', 1.0)
            ),
            transforms.ToTensor(),
            transforms.Normalize(
                [m / 255 for m in mean], [s / 255 for s in std]
            ),
        ]
    )


def literal_view(
    image: Image.Image,
    size: Sequence[int],
    parameters: ViewParameters,
    interpolation: str = 'bicubic',
    threshold: int = 128,
) -> Image.Image:
    """The view of a PIL RGB image with given parameters."""
    left, top, width, height = parameters.box
    view = F.resized_crop(
        image,
        top,
        left,
        height,
        width,
        list(size),
        InterpolationMode(interpolation),
    )
    if parameters.flip:
        view = F.hflip(view)
    for name, factor in parameters.jitter:
        view = _ADJUST[name](view, factor)
    if parameters.gray:
        view = F.rgb_to_grayscale(view, 3)
    if parameters.blur is not None:
        view = view.filter(ImageFilter.GaussianBlur(parameters.blur))
    if parameters.solarize:
        view = F.solarize(view, threshold)
    return view
