"""Pictures of what [CLS] attends to in the last layer."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from mmengine.config import Config
from PIL import Image, ImageOps
from torch import Tensor, nn

from mim_plugins.evaluation.features import evaluation_mode


@torch.no_grad()
def cls_attention(backbone: nn.Module, inputs: Tensor) -> Tensor:
    """Attention of [CLS] to the patches in the last layer.

    Args:
        backbone (nn.Module): with ``last_attention(x)`` -> (B, heads, 1 + N,
            1 + N) and ``grid(x)`` -> (h, w).
        inputs (Tensor): (B, C, H, W), normalised; of any size that the patch
            size divides, also larger than in training.

    Returns:
        Tensor: (B, heads, h, w), float32; what is missing to a sum of one
        over the patches is the attention of [CLS] to itself.

    Source: iBOT, figure 5 and appendix (as in DINO).
    """
    attention = backbone.last_attention(inputs).float()
    return attention[:, :, 0, 1:].unflatten(-1, tuple(backbone.grid(inputs)))


def load_square(path: str | Path, size: int | tuple[int, int]) -> Image.Image:
    """An RGB picture, cut to a shape at its centre and resized (bicubic).

    Args:
        path (str or Path): of an image file.
        size (int or (int, int)): of the result; (height, width).
    """
    height, width = (size, size) if isinstance(size, int) else size
    with Image.open(path) as image:
        image = ImageOps.exif_transpose(image).convert('RGB')
    return ImageOps.fit(image, (width, height), Image.Resampling.BICUBIC)


def model_backbone(model: nn.Module, network: str | None = None) -> nn.Module:
    """The backbone of a pre-training model, or a backbone itself.

    Args:
        model (nn.Module): with ``evaluation_backbone(network)``, or with
            ``last_attention``.
        network (str, optional): ``'teacher'`` or ``'student'``.

    Raises:
        TypeError: It has neither.
    """
    if hasattr(model, 'evaluation_backbone'):
        return model.evaluation_backbone(network)
    if hasattr(model, 'last_attention'):
        return model
    raise TypeError(
        f'{type(model).__name__} has neither evaluation_backbone(network) '
        'nor last_attention(x): its attention cannot be drawn.'
    )


def attention_maps(
    model: nn.Module,
    images: Sequence[Image.Image],
    network: str | None = None,
) -> np.ndarray:
    """Maps for RGB pictures of one size, one picture at a time.

    Args:
        model (nn.Module): its ``data_preprocessor`` normalises the pictures;
            left in the mode (train, eval) that it was in.
        images (sequence of PIL.Image): of one size.
        network (str, optional): see :func:`model_backbone`.

    Returns:
        np.ndarray: (images, heads, h, w), float32.
    """
    backbone = model_backbone(model, network)
    device = next(backbone.parameters()).device
    maps = []
    with evaluation_mode(model):
        for image in images:
            pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1)
            batch = model.data_preprocessor({'inputs': [pixels]}, False)
            inputs = batch['inputs']
            if isinstance(inputs, (list, tuple)):
                inputs = torch.stack(list(inputs))
            maps.append(cls_attention(backbone, inputs.to(device))[0].cpu())
    return torch.stack(maps).numpy()


def draw_attention(
    images: Sequence[Image.Image], maps: np.ndarray, out: str | Path
) -> Path:
    """A row for each picture: the picture, the mean over heads, each head.

    Each map has its own range of colours, from its smallest value (dark) to
    its largest.

    Args:
        images (sequence of PIL.Image): the pictures.
        maps (np.ndarray): (images, heads, h, w).
        out (str or Path): PNG file to write.

    Returns:
        Path: the file.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows, heads = maps.shape[:2]
    figure = Figure(figsize=(1.6 * (2 + heads), 1.6 * rows + 0.3), dpi=120)
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, 2 + heads, squeeze=False)
    titles = ['image', 'mean', *(f'head {i + 1}' for i in range(heads))]
    for row, image in enumerate(images):
        tiles = [maps[row].mean(0), *maps[row]]
        axes[row, 0].imshow(image)
        for column, tile in enumerate(tiles, start=1):
            axes[row, column].imshow(tile, cmap='viridis')
        for column, title in enumerate(titles):
            axes[row, column].set_axis_off()
            if row == 0:
                axes[row, column].set_title(title, fontsize=9)
    figure.tight_layout(pad=0.3)
    out = Path(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, format='png')
    return out


def visualize_attention(
    model: nn.Module,
    paths: Sequence[str | Path],
    out: str | Path,
    size: int | tuple[int, int],
    network: str | None = None,
) -> Path:
    """Load pictures, compute their maps, write one PNG.

    Args:
        model (nn.Module): trained; see :func:`attention_maps`.
        paths (sequence): image files, at least one.
        out (str or Path): PNG file to write.
        size (int or (int, int)): of the pictures for the network; must be
            divisible by the patch size. Twice the size of training gives
            maps with four times as many points.
        network (str, optional): ``'teacher'`` or ``'student'``.

    Raises:
        ValueError: There is no picture.
    """
    if not paths:
        raise ValueError('No picture was given: name at least one image.')
    images = [load_square(path, size) for path in paths]
    return draw_attention(images, attention_maps(model, images, network), out)


def visualize_checkpoint(
    cfg: Config,
    checkpoint: str,
    out: str | Path,
    paths: Sequence[str | Path] | None = None,
    num: int = 6,
    size: int | tuple[int, int] | None = None,
    network: str | None = None,
    device: str = 'cpu',
) -> Path:
    """:func:`visualize_attention` from a config and a checkpoint.

    Args:
        cfg (Config): of the run.
        checkpoint (str): of the run.
        out (str or Path): PNG file to write.
        paths (sequence, optional): image files; by default ``num`` of the
            validation images, evenly spread.
        num (int): see ``paths``.
        size (int or (int, int), optional): twice that of validation by
            default.
        network (str, optional): ``'teacher'`` or ``'student'``.
        device (str): where to compute.

    Raises:
        CheckpointError: The checkpoint is missing or does not fit.
        ValueError: The config has no validation images to take the pictures
            or their size from.
    """
    from mmengine.registry import init_default_scope
    from mmpretrain.registry import DATASETS, MODELS

    from mim_plugins.checkpoints import load_file
    from mim_plugins.evaluation.offline import load_weights

    init_default_scope(cfg.get('default_scope', 'mmpretrain'))
    model = MODELS.build(cfg.model)
    load_weights(model, load_file(checkpoint), checkpoint)
    model.to(device)
    if paths is None or size is None:
        if cfg.get('val_dataloader') is None:
            raise ValueError(
                'The config has no val_dataloader to take pictures and their '
                'size from: name the images and a size.'
            )
        dataset = DATASETS.build(cfg.val_dataloader.dataset)
        if size is None:
            height, width = dataset[0]['inputs'].shape[-2:]
            size = (2 * height, 2 * width)
        if paths is None:
            places = np.linspace(0, len(dataset) - 1, num).round().astype(int)
            paths = [
                dataset.get_data_info(int(i))['img_path']
                for i in dict.fromkeys(places.tolist())
            ]
    return visualize_attention(model, paths, out, size, network)
