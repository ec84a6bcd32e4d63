"""Pictures of the loss and of k-NN over a run, from mmengine's log files."""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Curve:
    """Values over iterations (counted from one), in rising order."""

    iterations: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)


def find_logs(work_dir: str | Path) -> list[Path]:
    """The ``scalars.json`` files of a run, oldest first.

    A run that was resumed has one for each start.

    Args:
        work_dir (str or Path): work folder, or a ``scalars.json`` itself.

    Raises:
        FileNotFoundError: There is none.
    """
    work_dir = Path(work_dir)
    if work_dir.is_file():
        return [work_dir]
    # mmengine names the folder of each start by its date and time.
    logs = sorted(work_dir.glob('*/vis_data/scalars.json'))
    logs = logs or sorted(work_dir.glob('vis_data/scalars.json'))
    logs = [path for path in logs if path.stat().st_size]
    if not logs:
        raise FileNotFoundError(
            f'{work_dir} holds no log: */vis_data/scalars.json is missing or '
            'empty. Is it the work folder of a training run?'
        )
    return logs


def read_curves(logs: Iterable[str | Path]) -> dict[str, Curve]:
    """All scalars of a run over the training iteration.

    Where a later file repeats iterations (a run resumed from an earlier
    checkpoint), the later file counts. A validation belongs to the last
    training line before it, which mmengine's file does not name otherwise
    where it counts by epochs.

    Args:
        logs (iterable of paths): ``scalars.json`` files, oldest first.

    Returns:
        dict[str, Curve]: by the name in the log, NaN included.

    Raises:
        ValueError: A line is not JSON.
    """
    points: dict[str, dict[int, float]] = {}
    for path in logs:
        first = True
        iteration = 0
        for row in _rows(path):
            iteration = int(row.get('iter', iteration)) or 1
            if first:
                _forget_from(points, iteration)
                first = False
            for name, value in row.items():
                if name in ('iter', 'step', 'epoch'):
                    continue
                if isinstance(value, (int, float)):
                    points.setdefault(name, {})[iteration] = float(value)
    return {
        name: Curve(*map(list, zip(*sorted(values.items()))))
        for name, values in points.items()
        if values
    }


def draw_curves(
    curves: Mapping[str, Curve],
    out: str | Path,
    knn: str = 'knn/k20_top1',
    references: Mapping[str, float] | None = None,
    losses: Iterable[str] | None = None,
) -> Path:
    """One PNG: the losses on the left, k-NN accuracy on the right.

    Args:
        curves (Mapping[str, Curve]): from :func:`read_curves`.
        out (str or Path): PNG file to write.
        knn (str): name of the k-NN metric; without it in the log, as where
            data have no labels, only the losses are drawn.
        references (Mapping[str, float], optional): horizontal lines in the
            k-NN picture, e.g. ``{'raw pixels': 66.1, 'untrained': 39.0}``.
        losses (iterable of str, optional): names; by default all that start
            with ``loss``.

    Returns:
        Path: the file.

    Raises:
        ValueError: The log holds none of the losses.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    if losses is None:
        losses = [name for name in curves if name.startswith('loss')]
    losses = [name for name in losses if name in curves]
    if not losses:
        raise ValueError(
            f'The log holds no loss (it holds {", ".join(curves) or "no"} '
            'values): nothing to draw.'
        )
    with_knn = knn in curves
    columns = 2 if with_knn else 1
    figure = Figure(figsize=(5.5 * columns, 4), dpi=120)
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, columns, squeeze=False)[0]
    for name in losses:
        axes[0].plot(curves[name].iterations, curves[name].values, label=name)
    _finish(axes[0], 'loss')
    if with_knn:
        curve = curves[knn]
        axes[1].plot(curve.iterations, curve.values, marker='o', label=knn)
        for number, (name, value) in enumerate((references or {}).items(), 1):
            if not math.isnan(value):
                axes[1].axhline(
                    value, linestyle='--', color=f'C{number}', label=name
                )
        _finish(axes[1], 'accuracy, %')
    figure.tight_layout()
    out = Path(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, format='png')
    return out


def _finish(axis, label: str) -> None:
    axis.set_xlabel('iteration')
    axis.set_ylabel(label)
    axis.grid(alpha=0.3)
    axis.legend()


def _rows(path: str | Path):
    with open(path, encoding='utf-8') as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                yield json.loads(line)
            except json.JSONDecodeError as error:
                raise ValueError(
                    f'{path}, line {number} is not JSON ({error}); the file '
                    'may have been cut off. Remove that line.'
                ) from error


def _forget_from(points: dict, iteration: int) -> None:
    for values in points.values():
        for known in [i for i in values if i >= iteration]:
            del values[known]
