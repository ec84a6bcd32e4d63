"""Reading of the nested settings of a view."""

import math
from collections.abc import Mapping, Sequence

from .checks import Pair, as_probability, as_range, check_keys
from .colour import ADJUSTMENTS


def read_jitter(config: Mapping | None) -> tuple[float, dict[str, Pair]]:
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


def read_blur(config: Mapping | None) -> tuple[float, Pair]:
    """Probability, and the range of the radius."""
    if config is None:
        return 0.0, (0.0, 0.0)
    check_keys(config, ['prob', 'radius'], 'blur')
    radius = as_range(config.get('radius', (0.1, 2.0)), 'blur.radius')
    return as_probability(config.get('prob', 1.0), 'blur.prob'), radius


def read_solarize(config: Mapping | None) -> tuple[float, int]:
    """Probability and threshold."""
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
