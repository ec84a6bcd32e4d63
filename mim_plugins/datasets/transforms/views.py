"""Random views of an image."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import cv2
import numpy as np
import torch
from PIL import Image

from .blur import gaussian_blur
from .checks import as_probability, as_range, as_size, check_keys
from .colour import ADJUSTMENTS, solarize, to_gray
from .pixels import as_pixels
from .resize import INTERPOLATIONS, resize
from .view_settings import read_blur, read_jitter, read_solarize

CROP_TRIES = 10
# Every decision has its own uniform number, so that changing one setting
# (say, the blur probability) leaves all other draws of a sample as they were.
_CROP = 0
_POSITION = _CROP + 2 * CROP_TRIES
_FLIP = _POSITION + 2
_JITTER = _FLIP + 1
_FACTOR = _JITTER + 1
_ORDER = _FACTOR + len(ADJUSTMENTS)
_GRAY = _ORDER + len(ADJUSTMENTS)
_BLUR = _GRAY + 1
_RADIUS = _BLUR + 1
_SOLARIZE = _RADIUS + 1
_DRAWS = _SOLARIZE + 1


class ViewParameters(NamedTuple):
    """What was drawn for one view.

    Attributes:
        box: left, top, width, height of the crop in source pixels.
        flip: whether the crop is mirrored.
        jitter: (adjustment, factor) in the order in which they are applied.
        gray: whether colour is removed.
        blur: radius of the Gaussian (PIL's, a standard deviation), or None.
        solarize: whether levels from the threshold on are inverted.
    """

    box: tuple[int, int, int, int]
    flip: bool
    jitter: tuple[tuple[str, float], ...]
    gray: bool
    blur: float | None
    solarize: bool


class ViewAugmentation:
    """Random resized crop, flip, colour jitter, grey, blur, solarize.

    With equal parameters the result is that of torchvision's transforms on
    PIL images up to rounding: each operation differs on average by at most
    half a grey level. It is computed by torch and OpenCV in a fraction of
    the time; :mod:`.resize`, :mod:`.colour` and :mod:`.blur` say what differs.

    Images may have any number of channels. Three are taken for RGB; with
    another number, contrast takes the mean of each channel for itself, and
    saturation, hue and grey must be switched off.

    Args:
        size (int | tuple): size of the view, an int or (h, w).
        scale (tuple): range of the crop's share of the image area.
        ratio (tuple): range of the crop's width / height, drawn
            log-uniformly.
        flip (float): probability of a horizontal flip.
        jitter (dict, optional): ``brightness``, ``contrast``, ``saturation``:
            x for factors in [max(0, 1 - x), 1 + x], or a pair; ``hue``: x for
            [-x, x], at most 0.5, or a pair; ``prob`` (default 1).
        gray (float): probability of removing colour.
        blur (dict, optional): ``prob`` (default 1) and ``radius``, the range
            from which a radius is drawn for every view.
        solarize (dict, optional): ``prob`` (default 1), ``threshold``
            (default 128).
        interpolation (str): 'bicubic' or 'bilinear', antialiased.
        name (str, optional): what errors call the view, such as
            'views.local'.

    Raises:
        TypeError: unknown key, with the closest known one.
        ValueError: value out of range; when called: saturation, hue or grey
            for an image that is not RGB.

    Source: iBOT's and DINO's augmentation (official code's defaults).
    """

    draws_from_rng = True

    def __init__(
        self,
        size: int | Sequence[int],
        scale: Sequence[float] = (0.25, 1.0),
        ratio: Sequence[float] = (3 / 4, 4 / 3),
        flip: float = 0.5,
        jitter: Mapping | None = None,
        gray: float = 0.0,
        blur: Mapping | None = None,
        solarize: Mapping | None = None,
        interpolation: str = 'bicubic',
        name: str = 'view',
    ):
        self.name = name
        self.size = as_size(size, 'size')
        self.scale = as_range(scale, 'scale')
        self.ratio = as_range(ratio, 'ratio')
        for name, (low, _) in (('scale', self.scale), ('ratio', self.ratio)):
            if low <= 0:
                raise ValueError(f'{name} must be above 0, got {low}.')
        self._log_ratio = tuple(math.log(r) for r in self.ratio)
        self.flip = as_probability(flip, 'flip')
        self.gray = as_probability(gray, 'gray')
        self.jitter_prob, self.jitter = read_jitter(jitter)
        self.blur_prob, self.radius = read_blur(blur)
        self.solarize_prob, self.threshold = read_solarize(solarize)
        check_keys([interpolation], INTERPOLATIONS, 'interpolation')
        self.interpolation = interpolation

    def draw_box(
        self, width: int, height: int, u: Sequence[float]
    ) -> tuple[int, int, int, int]:
        """Crop of a width x height image from 22 numbers in [0, 1).

        After ten tries that do not fit, the central crop with the nearest
        allowed aspect ratio, as torchvision does.
        """
        area = width * height
        for k in range(_CROP, _CROP + 2 * CROP_TRIES, 2):
            target = area * _within(self.scale, u[k])
            aspect = math.exp(_within(self._log_ratio, u[k + 1]))
            w = round(math.sqrt(target * aspect))
            h = round(math.sqrt(target / aspect))
            if 0 < w <= width and 0 < h <= height:
                left = int(u[_POSITION] * (width - w + 1))
                top = int(u[_POSITION + 1] * (height - h + 1))
                return left, top, w, h
        w, h = width, height
        if width < height * self.ratio[0]:
            h = min(max(round(width / self.ratio[0]), 1), height)
        elif width > height * self.ratio[1]:
            w = min(max(round(height * self.ratio[1]), 1), width)
        return (width - w) // 2, (height - h) // 2, w, h

    def draw(
        self, width: int, height: int, rng: np.random.Generator
    ) -> ViewParameters:
        """Parameters of one view of a width x height image."""
        u = rng.random(_DRAWS).tolist()
        jitter: tuple[tuple[str, float], ...] = ()
        if u[_JITTER] < self.jitter_prob:
            names = list(ADJUSTMENTS)
            order = sorted(range(len(names)), key=lambda i: u[_ORDER + i])
            jitter = tuple(
                (names[i], _within(self.jitter[names[i]], u[_FACTOR + i]))
                for i in order
                if names[i] in self.jitter
            )
        blur = None
        if u[_BLUR] < self.blur_prob:
            blur = _within(self.radius, u[_RADIUS])
        return ViewParameters(
            box=self.draw_box(width, height, u),
            flip=u[_FLIP] < self.flip,
            jitter=jitter,
            gray=u[_GRAY] < self.gray,
            blur=blur,
            solarize=u[_SOLARIZE] < self.solarize_prob,
        )

    def apply(
        self, image: np.ndarray, parameters: ViewParameters
    ) -> np.ndarray:
        """The view of an image with given parameters.

        Args:
            image: uint8 array (H, W, C).
            parameters: of this view, for this image size.

        Returns:
            ndarray: uint8 (h, w, C).
        """
        view = self.recolour(self.crop(image, parameters), parameters)
        return view.reshape(*self.size, -1)

    def crop(
        self, image: np.ndarray, parameters: ViewParameters
    ) -> np.ndarray:
        """Crop, resize and flip: the first half of :meth:`apply`."""
        left, top, w, h = parameters.box
        # nothing beyond the crop may enter through the filter
        view = image[top : top + h, left : left + w]
        view = resize(view, self.size, self.interpolation)
        return cv2.flip(view, 1) if parameters.flip else view

    def recolour(
        self, view: np.ndarray, parameters: ViewParameters
    ) -> np.ndarray:
        """Jitter, grey, blur, solarize: the second half of :meth:`apply`."""
        for name, factor in parameters.jitter:
            view = ADJUSTMENTS[name](view, factor)
        if parameters.gray:
            view = to_gray(view)
        if parameters.blur is not None:
            view = gaussian_blur(view, parameters.blur)
        if parameters.solarize:
            view = solarize(view, self.threshold)
        return view

    def __call__(
        self, image: Image.Image | np.ndarray, rng: np.random.Generator
    ) -> tuple[torch.Tensor, np.ndarray]:
        """One view and where it comes from; see :func:`make_views`."""
        return make_views(image, [self], rng)[0]

    def check_channels(self, channels: int) -> None:
        """Refuse images that are not RGB where a setting needs colour.

        Raises:
            ValueError: names the setting.
        """
        if channels == 3:
            return
        jitter = self.jitter if self.jitter_prob else {}
        settings = {
            'jitter.saturation': 'saturation' in jitter,
            'jitter.hue': 'hue' in jitter,
            'gray': self.gray > 0,
        }
        for name, used in settings.items():
            if used:
                raise ValueError(
                    f'{self.name}.{name} needs RGB images, but the image has '
                    f'{channels} channel(s): set it to 0, or '
                    'load.channels to 3.'
                )


def make_views(
    image: Image.Image | np.ndarray,
    augmentations: Sequence[ViewAugmentation],
    rng: np.random.Generator,
) -> list[tuple[torch.Tensor, np.ndarray]]:
    """A view by each augmentation, and where it comes from.

    Args:
        image: PIL image (converted to RGB), or uint8 array (H, W, C).
        augmentations: one for each view; one may occur several times.
        rng: where all random numbers come from.

    Returns:
        list: uint8 tensor (C, h, w) and float32 array (5,) of each view:
        left, top, width, height of the crop in source pixels, 1 if flipped.
    """
    pixels = as_pixels(image)
    height, width, channels = pixels.shape
    for augmentation in augmentations:
        augmentation.check_channels(channels)
    drawn = [(a, a.draw(width, height, rng)) for a in augmentations]
    # all crops first, while the image is in the processor's cache
    crops = [a.crop(pixels, parameters) for a, parameters in drawn]
    pairs = []
    for (augmentation, parameters), crop in zip(drawn, crops):
        planes = torch.empty((channels, *augmentation.size), dtype=torch.uint8)
        view = augmentation.recolour(crop, parameters)
        cv2.split(view, list(planes.numpy()))  # writes into the planes
        box = (*parameters.box, parameters.flip)
        pairs.append((planes, np.array(box, dtype=np.float32)))
    return pairs


def _within(pair: Sequence[float], u: float) -> float:
    return pair[0] + (pair[1] - pair[0]) * u
