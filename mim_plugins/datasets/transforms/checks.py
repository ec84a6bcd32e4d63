"""Checks of what a config gives to the transforms."""

import difflib
from collections.abc import Iterable, Sequence
from numbers import Integral, Real

Pair = tuple[float, float]


def check_keys(given: Iterable[str], known: Iterable[str], where: str) -> None:
    """Refuse unknown names and say which known one is closest.

    Raises:
        TypeError: names the unknown key, the place and the close match.
    """
    known = list(known)
    for key in given:
        if key in known:
            continue
        close = difflib.get_close_matches(str(key), known, n=1)
        hint = f'did you mean {close[0]!r}? ' if close else ''
        raise TypeError(
            f'unknown key {key!r} in {where}: {hint}Known keys: '
            f'{", ".join(known)}.'
        )


def as_size(value: int | Sequence[int], where: str) -> tuple[int, int]:
    """``32`` or ``(h, w)`` as ``(h, w)``, both at least 1."""
    pair = (value, value) if isinstance(value, Integral) else value
    ok = (
        isinstance(pair, Sequence)
        and len(pair) == 2
        and all(isinstance(v, Integral) and v > 0 for v in pair)
    )
    if not ok:
        raise ValueError(
            f'{where} must be a positive int or a pair (h, w) of them, '
            f'got {value!r}.'
        )
    return int(pair[0]), int(pair[1])


def as_range(
    value: Sequence[float],
    where: str,
    low: float = 0.0,
    high: float = float('inf'),
) -> Pair:
    """A pair ``low <= a <= b <= high`` as floats."""
    ok = (
        isinstance(value, Sequence)
        and len(value) == 2
        and all(isinstance(v, Real) for v in value)
        and low <= value[0] <= value[1] <= high
    )
    if not ok:
        raise ValueError(
            f'{where} must be a pair (lower, upper) within [{low}, {high}], '
            f'got {value!r}.'
        )
    return float(value[0]), float(value[1])


def as_probability(value: float, where: str) -> float:
    """A number in [0, 1]."""
    if not isinstance(value, Real) or not 0 <= value <= 1:
        raise ValueError(
            f'{where} is a probability and must be in [0, 1], got {value!r}.'
        )
    return float(value)
