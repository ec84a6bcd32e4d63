import json

import pytest
from PIL import Image

from mim_plugins.analysis import draw_curves, find_logs, read_curves

FIRST = [
    {'loss': 5.0, 'loss_cls': 3.0, 'epoch': 1, 'iter': 50, 'step': 50},
    {'loss': 4.0, 'loss_cls': 2.5, 'epoch': 1, 'iter': 100, 'step': 100},
    {'knn/k20_top1': 30.0, 'step': 1},
    {'loss': 3.0, 'loss_cls': 2.0, 'epoch': 2, 'iter': 150, 'step': 150},
]
RESUMED = [
    {'loss': 3.5, 'loss_cls': 2.2, 'epoch': 2, 'iter': 150, 'step': 150},
    {'loss': 2.0, 'loss_cls': 1.5, 'epoch': 2, 'iter': 200, 'step': 200},
    {'knn/k20_top1': 50.0, 'step': 2},
]


def write(work_dir, start, rows):
    folder = work_dir / start / 'vis_data'
    folder.mkdir(parents=True)
    lines = [json.dumps(row) for row in rows]
    (folder / 'scalars.json').write_text('\n'.join(lines) + '\n')


def test_curves_of_a_resumed_run(tmp_path):
    write(tmp_path, '20260101_100000', FIRST)
    write(tmp_path, '20260101_110000', RESUMED)
    curves = read_curves(find_logs(tmp_path))
    assert set(curves) == {'loss', 'loss_cls', 'knn/k20_top1'}
    assert curves['loss'].iterations == [50, 100, 150, 200]
    assert curves['loss'].values == [5.0, 4.0, 3.5, 2.0]
    assert curves['knn/k20_top1'].iterations == [100, 200]
    assert curves['knn/k20_top1'].values == [30.0, 50.0]


def test_iterations_lost_by_a_resume_are_forgotten(tmp_path):
    """Resumed from iteration 100, and stopped before 150 came again."""
    write(tmp_path, '1', FIRST)
    write(tmp_path, '2', [{'loss': 1.0, 'iter': 120, 'step': 120}])
    curves = read_curves(find_logs(tmp_path))
    assert curves['loss'].iterations == [50, 100, 120]


def test_picture_with_and_without_labels(tmp_path):
    write(tmp_path, '1', FIRST)
    curves = read_curves(find_logs(tmp_path))
    both = draw_curves(
        curves,
        tmp_path / 'out' / 'both.png',
        references={'pixels': 66.0, 'untrained': 39.0},
    )
    del curves['knn/k20_top1']
    one = draw_curves(curves, tmp_path / 'one.png')
    sizes = [Image.open(path).size for path in (both, one)]
    assert sizes[0][0] == 2 * sizes[1][0]
    assert sizes[0][1] == sizes[1][1]


def test_curves_and_references_are_drawn(tmp_path, monkeypatch):
    from matplotlib.axes import Axes

    drawn = {}
    plot, axhline = Axes.plot, Axes.axhline
    monkeypatch.setattr(
        Axes,
        'plot',
        lambda self, x, y, **options: (
            drawn.update({options['label']: list(y)})
            or plot(self, x, y, **options)
        ),
    )
    monkeypatch.setattr(
        Axes,
        'axhline',
        lambda self, y, **options: (
            drawn.update({options['label']: y}) or axhline(self, y, **options)
        ),
    )
    write(tmp_path, '1', FIRST)
    curves = read_curves(find_logs(tmp_path))
    references = {'pixels': 66.0, 'untrained': float('nan')}
    draw_curves(curves, tmp_path / 'a.png', references=references)
    assert drawn == {
        'loss': [5.0, 4.0, 3.0],
        'loss_cls': [3.0, 2.5, 2.0],
        'knn/k20_top1': [30.0],
        'pixels': 66.0,
    }


def test_missing_or_broken_logs_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match='holds no log'):
        find_logs(tmp_path)
    write(tmp_path, '1', FIRST)
    (path,) = find_logs(tmp_path)
    path.write_text('{"loss": 1.0, "iter": 1}\n{"loss": 2')
    assert find_logs(path) == [path]
    with pytest.raises(ValueError, match='line 2 is not JSON'):
        read_curves([path])
    with pytest.raises(ValueError, match='holds no loss'):
        draw_curves({}, tmp_path / 'a.png')
