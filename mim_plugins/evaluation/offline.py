"""What ``tools/test.py`` does, for use from Python."""

from collections.abc import Mapping

from mmengine.config import Config
from mmengine.dist import broadcast
from mmengine.model import is_model_wrapper
from mmengine.runner import Runner
from torch import nn

from mim_plugins.checkpoints import load_file
from mim_plugins.checkpoints.fit import check_weights
from mim_plugins.engine.launch import ConfigError

from .loops import KNNLoop

Results = dict[str, dict[str, float]]


def prepare_test(cfg: Config, network: str | None = None) -> Config:
    """Complete a config for testing, in place.

    Where the config has no test of its own, its validation is used.

    Args:
        cfg (Config): of a pre-training run.
        network (str, optional): ``'teacher'`` or ``'student'``.

    Raises:
        ConfigError: The config holds no evaluation, or not by features.
    """
    for part in ('dataloader', 'cfg', 'evaluator'):
        if cfg.get(f'test_{part}') is None:
            value = cfg.get(f'val_{part}')
            if value is None:
                raise ConfigError(
                    f'The config has neither test_{part} nor val_{part}: '
                    'there is nothing to evaluate.'
                )
            cfg[f'test_{part}'] = value
    if network is not None:
        if cfg.test_cfg.get('type') != 'KNNLoop':
            raise ConfigError(
                f"network='{network}' chooses the network of a KNNLoop, but "
                f'test_cfg is {dict(cfg.test_cfg)}.'
            )
        cfg.test_cfg.network = network
    cfg.load_from, cfg.resume = None, False
    return cfg


def run_test(
    runner: Runner,
    checkpoint: str | None = None,
    untrained: bool = False,
    pixels: bool = False,
    pixel_size: int | None = 32,
) -> Results:
    """Evaluate a network and what it should be compared with.

    Args:
        runner (Runner): built from a config with a test.
        checkpoint (str, optional): of the trained network.
        untrained (bool): also the network as initialised, with the seed of
            the config.
        pixels (bool): also the raw pictures.
        pixel_size (int, optional): see :func:`.features.pixel_encoder`.

    Returns:
        dict: metrics of ``'pixels'``, ``'untrained'`` and ``'trained'``, as
        far as they were asked for.

    Raises:
        CheckpointError: The file is missing, damaged, unsafe, or does not
            fit the model.
        ConfigError: Nothing was asked for, or the test is no KNNLoop where
            pixels or an untrained network are to be compared.
    """
    if not (checkpoint or untrained or pixels):
        raise ConfigError(
            'Nothing to evaluate: name a checkpoint, or ask for the '
            'untrained network or for raw pixels.'
        )
    # First, so that a bad file is found before minutes of work.
    weights = load_file(checkpoint) if checkpoint else None
    if weights is not None:
        check_weights(unwrapped(runner.model), weights, checkpoint)
    results: Results = {}
    if pixels or untrained:
        loop = runner.test_loop
        if not isinstance(loop, KNNLoop):
            raise ConfigError(
                'Raw pixels and the untrained network are compared by '
                f'k-NN, but test_cfg builds a {type(loop).__name__}.'
            )
        if pixels:
            results['pixels'] = loop.evaluate_pixels(pixel_size)
        if untrained:
            init_weights(runner.model)
            results['untrained'] = loop.evaluate_network()
    if weights is not None:
        runner.call_hook('after_load_checkpoint', checkpoint=weights)
        load_weights(runner.model, weights, checkpoint)
        runner.logger.info(f'Loaded {checkpoint}')
        results['trained'] = runner.test()
    return results


def init_weights(model: nn.Module) -> None:
    """Initialise as the Runner does before training, alike on all ranks."""
    model = unwrapped(model)
    if hasattr(model, 'init_weights'):
        model.init_weights()
    for value in model.state_dict().values():
        broadcast(value)


def load_weights(model: nn.Module, checkpoint: Mapping, name: str) -> None:
    """Load all weights of a checkpoint, or none.

    Args:
        model (nn.Module): may be wrapped for data parallelism.
        checkpoint (Mapping): from :func:`.load_file`.
        name (str): of the file, for messages.

    Raises:
        CheckpointMismatch: Keys or shapes differ; nothing was loaded.
    """
    model = unwrapped(model)
    model.load_state_dict(check_weights(model, checkpoint, name))


def format_table(results: Results) -> str:
    """A text table: a line for each metric, a column for each network.

    Metrics in percent have two decimals.
    """
    columns = list(results)
    names = list(dict.fromkeys(m for part in results.values() for m in part))
    if not names:
        return 'No metric was computed (see the log for the reason).'
    width = max(map(len, names))
    lines = [' ' * width + ''.join(f'{c:>12}' for c in columns)]
    for name in names:
        cells = [results[c].get(name) for c in columns]
        shown = ['' if v is None else f'{v:.2f}' for v in cells]
        lines.append(f'{name:<{width}}' + ''.join(f'{s:>12}' for s in shown))
    return '\n'.join(lines)


def unwrapped(model: nn.Module) -> nn.Module:
    """The model without its data-parallel wrapper."""
    return model.module if is_model_wrapper(model) else model
