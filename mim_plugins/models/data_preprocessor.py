"""Normalisation of views and of evaluation images on the device."""

from collections.abc import Mapping, Sequence

import torch
from mmengine.model import BaseDataPreprocessor
from mmpretrain.registry import MODELS


@MODELS.register_module()
class ViewDataPreprocessor(BaseDataPreprocessor):
    """Move a batch to the device and normalise its images there.

    Training batches are those of ``collate_views``: the images of
    ``inputs['views']`` are normalised, everything else passes through.
    Evaluation batches have a tensor (B, C, H, W) or a list of equal-sized
    (C, H, W) as ``inputs`` and leave as one tensor.

    Args:
        mean, std (Sequence[float]): one number for each channel (or one for
            all), in units of grey levels 0 to 255. The default is
            ImageNet's, in RGB order.
        non_blocking (bool): asynchronous copies from pinned memory.

    Raises:
        ValueError: lengths of mean and std differ or a std is not positive;
            images with another number of channels, or of unequal sizes.
    """

    def __init__(
        self,
        mean: Sequence[float] = (123.675, 116.28, 103.53),
        std: Sequence[float] = (58.395, 57.12, 57.375),
        non_blocking: bool = True,
    ):
        super().__init__(non_blocking=non_blocking)
        if len(mean) != len(std) or min(std) <= 0:
            raise ValueError(
                'mean and std need one number for each channel, std above 0; '
                f'got mean={tuple(mean)}, std={tuple(std)}.'
            )
        for name, values in (('mean', mean), ('std', std)):
            tensor = torch.tensor(values, dtype=torch.float32)
            self.register_buffer(name, tensor.view(-1, 1, 1), False)

    def forward(self, data: dict, training: bool = False) -> dict:
        """Normalise a batch.

        Args:
            data (dict): ``inputs`` as above, and ``data_samples``, which stay
                where they are.
            training (bool): not used; the batch says what it is.

        Returns:
            dict: the same entries, images as float32.
        """
        inputs = data['inputs']
        if isinstance(inputs, Mapping):
            inputs = dict(self.cast_data(inputs))
            inputs['views'] = {
                group: self.normalise(images)
                for group, images in inputs['views'].items()
            }
        else:
            if not isinstance(inputs, torch.Tensor):
                inputs = _stack(inputs)
            inputs = self.normalise(self.cast_data(inputs))
        return {**data, 'inputs': inputs}

    def normalise(self, images: torch.Tensor) -> torch.Tensor:
        """(images - mean) / std of (B, C, H, W), in float32."""
        channels = self.mean.shape[0]
        if images.dim() != 4 or channels not in (1, images.shape[1]):
            raise ValueError(
                f'images of shape {tuple(images.shape)} do not fit {channels} '
                'means: expected (B, C, H, W) with one mean and std for each '
                'channel (data_preprocessor.mean, .std).'
            )
        images = images.to(torch.float32, copy=True)
        return images.sub_(self.mean).div_(self.std)


def _stack(images: Sequence[torch.Tensor]) -> torch.Tensor:
    sizes = sorted({tuple(image.shape) for image in images})
    if len(sizes) != 1:
        raise ValueError(
            f'the images of a batch have different shapes {sizes}; let the '
            'pipeline end with a crop of one size, such as CenterCrop.'
        )
    return torch.stack(list(images))
