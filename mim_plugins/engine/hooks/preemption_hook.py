"""Save and leave when a scheduler asks for the machine."""

import os
import signal
import threading
from collections.abc import Callable

import numpy as np
import torch
from mmengine.dist import get_world_size
from mmengine.hooks import Hook
from mmpretrain.registry import HOOKS
from torch import distributed

from .checkpoint_hook import AtomicCheckpointHook
from .optimizer_step_hook import made_step

EXIT_CODE = 75  # EX_TEMPFAIL of sysexits.h: try again later
SIGNALS = (signal.SIGTERM, signal.SIGUSR1)


@HOOKS.register_module()
class PreemptionHook(Hook):
    """On SIGTERM or SIGUSR1 saves a checkpoint and exits with code 75.

    The signal is only noted; after the next iteration that ended with an
    optimizer step all processes agree whether one of them got it, rank 0
    saves, and all leave.  The agreement is an all-reduce of one number
    between CPUs, started after one iteration and read after the next: nothing
    waits for it, and the device is not asked.  Workers of data loaders ignore
    both signals, which launchers send to whole groups of processes.

    Args:
        interval (int): iterations between two agreements.  A signal takes
            effect after one or two of them.

    Raises:
        SystemExit: with code 75, out of the train loop.
    """

    # After everything else of an iteration.
    priority = 'LOWEST'

    def __init__(self, interval: int = 1):
        if interval < 1:
            raise ValueError(
                'PreemptionHook: interval must be at least 1 iteration, got '
                f'{interval}.'
            )
        self.interval = interval
        self.asked = np.zeros(1, dtype=np.int32)
        self.group = None
        self.agreement = None
        self.former: dict[int, object] = {}
        self.saver: AtomicCheckpointHook | None = None

    def before_train(self, runner) -> None:
        """Catch the signals from here on."""
        savers = [
            hook
            for hook in runner.hooks
            if isinstance(hook, AtomicCheckpointHook)
        ]
        reason = None
        if not savers:
            reason = "there is no checkpoint=dict(type='AtomicCheckpointHook')"
        elif threading.current_thread() is not threading.main_thread():
            reason = 'this is not the main thread'
        if reason:
            runner.logger.warning(
                f'PreemptionHook leaves the signals alone: {reason}.'
            )
            return
        self.saver = savers[0]
        self.asked[:] = 0
        if get_world_size() > 1:
            # of its own: NCCL, the usual backend, exchanges on the device
            self.group = distributed.new_group(backend='gloo')
        shield_workers(runner)
        for number in SIGNALS:
            self.former[number] = signal.signal(number, self._note)

    def _note(self, number, frame) -> None:
        self.asked[0] = number

    def after_train_iter(
        self, runner, batch_idx, data_batch=None, outputs=None
    ) -> None:
        """Leave if a process was asked to, and the model is between steps."""
        if self.saver is None or not made_step(runner.optim_wrapper):
            return
        if not self.every_n_train_iters(runner, self.interval):
            return
        number = self._agreed()
        if number:
            self._leave(runner, signal.Signals(number).name)

    def _agreed(self) -> int:
        """The signal that a process got, the same in all; 0 for none."""
        if self.group is None:
            return int(self.asked[0])
        number = self._read_agreement()
        if not number:
            exchanged = self.asked.copy()
            work = distributed.all_reduce(
                torch.from_numpy(exchanged),
                distributed.ReduceOp.MAX,
                group=self.group,
                async_op=True,
            )
            self.agreement = (work, exchanged)
        return number

    def _read_agreement(self) -> int:
        if self.agreement is None:
            return 0
        (work, exchanged), self.agreement = self.agreement, None
        work.wait()
        return int(exchanged[0])

    def _leave(self, runner, name: str) -> None:
        runner.logger.info(f'Got {name}: saving and leaving.')
        self.saver.save_interim(runner)
        runner.logger.info(
            f'Stopped after iteration {runner.iter + 1} with exit code '
            f'{EXIT_CODE}; --resume goes on from here.'
        )
        runner.visualizer.close()
        if self.group is not None:
            # A launcher kills the others as soon as one process has left.
            distributed.barrier(group=self.group)
        self.leave_train(runner)
        raise SystemExit(EXIT_CODE)

    def after_train(self, runner) -> None:
        """Give the signals back."""
        self._read_agreement()
        self.leave_train(runner)

    def leave_train(self, runner) -> None:
        """The same after an error, called by our train loops."""
        while self.former:
            number, handler = self.former.popitem()
            signal.signal(number, handler)


def shield_workers(runner) -> None:
    """Let the workers of all loaders of a training ignore the signals.

    They work on until their own process, which got the signal too, has saved
    and ends them.
    """
    for loop in (runner.train_loop, runner.val_loop):
        for name in ('dataloader', 'bank_dataloader'):
            loader = getattr(loop, name, None)
            if loader is None or isinstance(loader.worker_init_fn, _Shield):
                continue
            loader.worker_init_fn = _Shield(loader.worker_init_fn)


class _Shield:
    """A ``worker_init_fn`` before another one."""

    def __init__(self, then: Callable[[int], None] | None):
        self.then = then

    def __call__(self, worker_id: int) -> None:
        if hasattr(signal, 'sigwaitinfo'):  # not on macOS
            signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
            obey = threading.Thread(target=_obey, args=[os.getppid()])
            obey.daemon = True
            obey.start()
        if self.then is not None:
            self.then(worker_id)


def _obey(parent: int) -> None:
    """Leave on a SIGTERM of the parent's, which ends its workers so."""
    while True:
        info = signal.sigwaitinfo(SIGNALS)
        if info.si_signo == signal.SIGTERM and info.si_pid == parent:
            os._exit(0)
