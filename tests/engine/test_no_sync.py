"""A training step asks nothing of the device: no copy to the host in it."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from toy_runs import METHODS, in_processes, make_images, toy_runner

from mim_plugins.engine.hooks.moments import logs_after
from mim_plugins.engine.optimizers.precision import autocast_works

ASKS = {
    '_local_scalar_dense', 'allclose', 'bincount', 'equal', 'is_nonzero',
    'item', 'masked_select', 'nonzero', 'nonzero_numpy', '_unique2',
    'unique_consecutive', 'unique_dim',
}  # fmt: skip
# With a bool index these look for what is set, below what a mode can see.
INDEXING = {'index', 'index_put', 'index_put_', '_index_put_impl_'}


class NoSynchronisation(TorchDispatchMode):
    """Fails on operators whose result's value or shape the host needs.

    Args:
        on_host: tensors that are on the host whatever the device.
    """

    def __init__(self, on_host=()):
        super().__init__()
        self.seen = set()
        self.on_host = {tensor.data_ptr() for tensor in on_host}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        self.seen.add(name)
        asks = name in ASKS and args[0].data_ptr() not in self.on_host
        if name in INDEXING:
            asks = torch.bool in {i.dtype for i in args[1] if i is not None}
        if name == 'repeat_interleave':
            asks = (kwargs or {}).get('output_size') is None
        assert not asks, f'{func.name()} waits for the device'
        return func(*args, **(kwargs or {}))


def train(runner):
    """Train under the mode, from a loaded batch to the end of all hooks.

    Returns the number of iterations that were watched, and all operators.
    """
    loop = runner.build_train_loop(runner._train_loop)
    runner._train_loop = loop
    run_iter, watched, seen = loop.run_iter, [], set()

    def watch(idx, data_batch):
        if logs_after(runner, idx):
            return run_iter(idx, data_batch)
        # the data preprocessor leaves them where they are
        labels = [sample.gt_label for sample in data_batch['data_samples']]
        with NoSynchronisation(labels) as mode:
            run_iter(idx, data_batch)
        seen.update(mode.seen)
        watched.append(idx)

    loop.run_iter = watch
    runner.train()
    return watched, seen


@pytest.fixture(scope='module')
def images(tmp_path_factory):
    return make_images(tmp_path_factory.mktemp('data') / 'images')


PLAIN = {'optim_wrapper.clip': {'max_norm': 3.0, 'mode': 'tensor'}}
GLOBAL_CLIP = {'optim_wrapper.clip': {'max_norm': 0.1, 'mode': 'global'}}
HARD = {
    'optim_wrapper.accumulative_counts': 2,
    'model.head.norm': 'bn',
    'model.student.drop_path_rate': 0.3,
    **GLOBAL_CLIP,
}
SETTINGS = {
    'fp32': PLAIN,
    'fp32-accumulation-norm-droppath': HARD,
    'bf16': {'optim_wrapper.precision': 'bf16', **HARD},
    'fp16': {'optim_wrapper.precision': 'fp16', **PLAIN},
    'sgd-with-release': {
        'train_cfg.max_epochs': 2,  # the last layer is frozen in the first
        'optim_wrapper.optimizer': {
            '_delete_': True,
            'type': 'SGD',
            'lr': 0.1,
            'momentum': 0.9,
        },
    },
}


@pytest.mark.parametrize('method', METHODS)
@pytest.mark.parametrize('setting', SETTINGS)
def test_a_step_does_not_wait(method, setting, images, tmp_path):
    """Masks, frozen last layer and all default hooks included."""
    options = SETTINGS[setting]
    precision = options.get('optim_wrapper.precision')
    if precision == 'fp16' and not autocast_works('cpu', torch.float16):
        pytest.skip('no autocast to float16 on this device')
    runner = toy_runner(tmp_path, images, method, **options)
    watched, seen = train(runner)
    assert watched == [0, 1, 3, 4] * runner.max_epochs
    # the forward pass, the backward pass and the update were all looked at
    assert {'native_layer_norm', 'native_layer_norm_backward'} <= seen
    assert '_foreach_lerp_' in seen
    assert {'_fused_adamw_', '_fused_sgd_'} & seen


def train_in_process(rank, folder, images):
    runner = toy_runner(folder / 'run', images, processes=2, **HARD)
    return train(runner)


def test_data_parallel_steps_do_not_wait(images, tmp_path):
    results = in_processes(train_in_process, tmp_path, tmp_path, images)
    for watched, seen in results:
        assert watched == [0, 1, 3, 4]
        assert any('allreduce' in name for name in seen)


@pytest.mark.parametrize(
    'function',
    [
        torch.Tensor.item,
        bool,
        torch.nonzero,
        lambda x: x[x > 0],
        lambda x: torch.masked_select(x, x > 0),
        lambda x: torch.equal(x, x),
        lambda x: x.masked_fill(x > 0, x.item()),
        lambda x: torch.where(x > 0),
        torch.unique,
    ],
)
def test_what_waits_is_seen(function):
    with (
        pytest.raises(AssertionError, match='waits for the device'),
        NoSynchronisation(),
    ):
        function(torch.ones(1))
