"""What can go wrong with a checkpoint file, one class a kind."""


class CheckpointError(RuntimeError):
    """A checkpoint file is missing, damaged, or not what was asked for."""


class UnsafeCheckpoint(CheckpointError):
    """A file could run code on loading and was therefore not loaded."""


class CheckpointMismatch(CheckpointError):
    """A file holds weights of another shape than the model's."""
