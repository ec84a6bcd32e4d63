"""Random views of an image."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image, ImageFilter, ImageOps

from .checks import as_probability, as_range, as_size, check_keys
from .colour import ADJUSTMENTS, to_gray

INTERPOLATIONS = {
    'bilinear': Image.Resampling.BILINEAR,
    'bicubic': Image.Resampling.BICUBIC,
}
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

    All operations are PIL's; with equal parameters the result equals that of
    torchvision's transforms on PIL images.

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

    Raises:
        TypeError: unknown key, with the closest known one.
        ValueError: value out of range.

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
    ):
        self.size = as_size(size, 'size')
        self.scale = as_range(scale, 'scale')
        self.ratio = as_range(ratio, 'ratio')
        for name, (low, _) in (('scale', self.scale), ('ratio', self.ratio)):
            if low <= 0:
                raise ValueError(f'{name} must be above 0, got {low}.')
        self._log_ratio = tuple(math.log(r) for r in self.ratio)
        self.flip = as_probability(flip, 'flip')
        self.gray = as_probability(gray, 'gray')
        self.jitter_prob, self.jitter = _read_jitter(jitter)
        self.blur_prob, self.radius = _read_blur(blur)
        self.solarize_prob, self.threshold = _read_solarize(solarize)
        check_keys([interpolation], INTERPOLATIONS, 'interpolation')
        self.interpolation = INTERPOLATIONS[interpolation]

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
        self, image: Image.Image, parameters: ViewParameters
    ) -> Image.Image:
        """The view of an RGB image with given parameters."""
        left, top, w, h = parameters.box
        # not resize(box=...): its filter would look beyond the crop
        view = image.crop((left, top, left + w, top + h))
        view = view.resize(self.size[::-1], self.interpolation)
        if parameters.flip:
            view = view.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        for name, factor in parameters.jitter:
            view = ADJUSTMENTS[name](view, factor)
        if parameters.gray:
            view = to_gray(view)
        if parameters.blur is not None:
            view = view.filter(ImageFilter.GaussianBlur(parameters.blur))
        if parameters.solarize:
            view = ImageOps.solarize(view, self.threshold)
        return view

    def __call__(
        self, image: Image.Image | np.ndarray, rng: np.random.Generator
    ) -> tuple[torch.Tensor, np.ndarray]:
        """One view and where it comes from.

        Args:
            image: PIL image, or uint8 RGB array (H, W, 3).
            rng: where all random numbers come from.

        Returns:
            tuple: uint8 tensor (3, h, w) and float32 array (5,): left, top,
            width, height of the crop in source pixels, 1 if flipped.
        """
        if not isinstance(image, Image.Image):
            image = Image.fromarray(image)
        if image.mode != 'RGB':
            image = image.convert('RGB')
        parameters = self.draw(*image.size, rng)
        pixels = bytearray(self.apply(image, parameters).tobytes())
        tensor = torch.frombuffer(pixels, dtype=torch.uint8)
        tensor = tensor.view(*self.size, 3).permute(2, 0, 1).contiguous()
        box = np.array((*parameters.box, parameters.flip), dtype=np.float32)
        return tensor, box


def _within(pair: Sequence[float], u: float) -> float:
    return pair[0] + (pair[1] - pair[0]) * u


def _read_jitter(config: Mapping | None) -> tuple[float, dict]:
    """Probability, and the factor range of each adjustment in use."""
    if config is None:
        return 0.0, {}
    check_keys(config, [*ADJUSTMENTS, 'prob'], 'jitter')
    ranges = {}
    for name in ADJUSTMENTS:
        value = config.get(name)
        if value is None or value == 0:
            continue
        hue = name == 'hue'
        if not isinstance(value, Sequence):
            value = (-value, value) if hue else (max(0, 1 - value), 1 + value)
        low, high = (-0.5, 0.5) if hue else (0.0, math.inf)
        ranges[name] = as_range(value, f'jitter.{name}', low, high)
    return as_probability(config.get('prob', 1.0), 'jitter.prob'), ranges


def _read_blur(config: Mapping | None) -> tuple[float, tuple[float, float]]:
    if config is None:
        return 0.0, (0.0, 0.0)
    check_keys(config, ['prob', 'radius'], 'blur')
    radius = as_range(config.get('radius', (0.1, 2.0)), 'blur.radius')
    return as_probability(config.get('prob', 1.0), 'blur.prob'), radius


def _read_solarize(config: Mapping | None) -> tuple[float, int]:
    if config is None:
        return 0.0, 128
    check_keys(config, ['prob', 'threshold'], 'solarize')
    threshold = config.get('threshold', 128)
    if not 0 <= threshold <= 256:
        raise ValueError(
            f'solarize.threshold must be in [0, 256], got {threshold!r}.'
        )
    prob = as_probability(config.get('prob', 1.0), 'solarize.prob')
    return prob, threshold
