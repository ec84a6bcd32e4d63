"""Reader of the golden numbers (see ``tests/data/golden/README.md``).

The folder is named by ``MIM_GOLDEN_DIR``; its default is the copy beside this
file.  Another folder with the same layout and other values works as well.
"""

import functools
import json
import os
from pathlib import Path

import numpy as np
import torch

FOLDER = Path(
    os.environ.get('MIM_GOLDEN_DIR', Path(__file__).parent / 'data' / 'golden')
)


class GoldenFile:
    """One ``.npz`` file: arrays by name, cases, hyper-parameters."""

    def __init__(self, name: str):
        path = FOLDER / f'{name}.npz'
        with np.load(path, allow_pickle=False) as archive:
            self.arrays = {key: archive[key] for key in archive.files}

    def __getitem__(self, key: str) -> np.ndarray:
        return self.arrays[key]

    def __contains__(self, key: str) -> bool:
        return key in self.arrays

    def keys(self):
        return self.arrays.keys()

    def hp(self, case: str = '') -> dict:
        """Hyper-parameters of a case (or of the file)."""
        key = f'{case}/hp' if case else 'hp'
        return json.loads(str(self.arrays[key]))

    def cases(self, leaf: str = 'hp') -> list[str]:
        """Every prefix ``p`` for which the array ``p/leaf`` exists."""
        ending = f'/{leaf}'
        return [k[: -len(ending)] for k in self.arrays if k.endswith(ending)]

    def sub(self, prefix: str) -> dict[str, np.ndarray]:
        """Arrays below a prefix, by the rest of their names."""
        start = f'{prefix}/'
        return {
            k[len(start) :]: v
            for k, v in self.arrays.items()
            if k.startswith(start)
        }

    def tensor(self, key: str, dtype: torch.dtype | None = None):
        """An array as a tensor, converted when ``dtype`` is given."""
        value = torch.from_numpy(np.array(self.arrays[key]))
        return value if dtype is None else value.to(dtype)


@functools.cache
def golden(name: str) -> GoldenFile:
    """Open ``<name>.npz`` once."""
    return GoldenFile(name)
