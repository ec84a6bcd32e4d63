"""The random generators that are shared by a whole process."""

import contextlib
import random
from collections.abc import Iterator

import numpy as np
import torch


@contextlib.contextmanager
def seeded_global_rng(sequence: np.random.SeedSequence) -> Iterator[None]:
    """Seed ``random``, NumPy's and torch's CPU generator, then restore them.

    For transforms from elsewhere that draw from the global generators.
    """
    python, numpy = random.getstate(), np.random.get_state()
    generator = torch.default_generator
    state = generator.get_state()
    words = [int(word) for word in sequence.generate_state(3)]
    random.seed(words[0])
    np.random.seed(words[1])
    # not torch.manual_seed: it would queue a seed for CUDA with every sample
    generator.manual_seed(words[2])
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        generator.set_state(state)
