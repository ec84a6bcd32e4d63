"""Checkpoints that survive a kill, a full disk and a damaged file."""

import os.path as osp
from pathlib import Path

from mmengine.dist import broadcast_object_list, is_main_process
from mmengine.hooks import CheckpointHook
from mmpretrain.registry import HOOKS

from ...checkpoints import CheckpointError
from ..checkpoint_files import (
    BACKEND,
    POINTER,
    check_whole,
    newest_whole,
    remove_leftovers,
    write_atomically,
)

INTERIM = 'iter_{}.pth'


@HOOKS.register_module()
class AtomicCheckpointHook(CheckpointHook):
    """mmengine's CheckpointHook, for runs that may be killed at any moment.

    A file has its name only when it is whole and on the disk; then the
    pointer ``last_checkpoint`` follows; then what is beyond
    ``max_keep_ckpts`` goes. The same holds for ``save_best``. Resuming
    without a named file (``--resume``, ``resume=True``) takes the whole
    checkpoint of the latest iteration, the same one in all processes.  With
    ``resume='auto'`` so it does whatever ``load_from`` says, which is where
    the run starts if there is no checkpoint yet.

    Args:
        **options: those of mmengine's CheckpointHook, for local folders:
            ``backend_args`` and ``file_client_args`` are refused.

    Raises:
        ValueError: another place than a local folder.
        CheckpointError: a checkpoint could not be written, or none of those
            that there are can be resumed from.
    """

    def __init__(self, **options):
        for name in ('backend_args', 'file_client_args'):
            if options.pop(name, None):
                raise ValueError(
                    f'AtomicCheckpointHook writes to local folders and takes '
                    f"no {name}; remove it, or use type='CheckpointHook'."
                )
        if '://' in str(options.get('out_dir') or ''):
            raise ValueError(
                f'AtomicCheckpointHook: out_dir={options["out_dir"]} is no '
                "local folder; name one, or use type='CheckpointHook'."
            )
        super().__init__(backend_args={'backend': BACKEND}, **options)
        self.saved_iter: int | None = None

    def before_run(self, runner) -> None:
        """Choose the checkpoint to resume from, before it is loaded."""
        if not runner._resume:
            return
        answer = [None, None]
        if is_main_process():
            try:
                answer[0] = self._to_resume(runner)
            except CheckpointError as error:
                answer[1] = str(error)
        broadcast_object_list(answer)
        path, problem = answer
        if problem:
            raise CheckpointError(problem)
        runner._resume = path is not None
        if path is not None:
            runner._load_from = path
            runner.logger.info(f'Resuming from {path}.')
            return
        start = runner._load_from or 'the beginning'
        runner.logger.info(
            f'Nothing to resume from in {self._folder(runner)}: the training '
            f'starts from {start}.'
        )

    def _to_resume(self, runner) -> str | None:
        path = runner._load_from
        if path is None or runner._resume == 'auto':
            path = newest_whole(
                self._folder(runner),
                osp.join(runner.work_dir, POINTER),
                (self.filename_tmpl, INTERIM),
                runner.logger.warning,
            )
            return path and str(path)
        if '://' not in path:
            check_whole(osp.expanduser(path))
        return path

    def _folder(self, runner) -> str:
        """Where the checkpoints are, before mmengine has worked it out."""
        work_dir = runner.work_dir
        if self.out_dir in (None, work_dir):
            return work_dir
        return osp.join(self.out_dir, osp.basename(work_dir.rstrip(osp.sep)))

    def before_train(self, runner) -> None:
        """Clear away what a killed run has left half done."""
        super().before_train(runner)
        # A list: mmengine's queue forgets the oldest before it is removed.
        self.keep_ckpt_ids = list(getattr(self, 'keep_ckpt_ids', ()))
        if is_main_process():
            self.file_backend.remove_outdated()
            for folder in {self.out_dir, runner.work_dir}:
                for name in remove_leftovers(folder):
                    runner.logger.info(f'Removed the unfinished file {name}.')

    def save_interim(self, runner) -> None:
        """Save between two iterations, to go on from exactly there.

        The file, ``iter_<n>.pth``, goes when the next checkpoint is whole.
        """
        done = runner.iter + 1
        if self.saved_iter == done and self.save_optimizer:
            return
        runner.logger.info(f'Saving checkpoint at {done} iterations')
        name = INTERIM.format(done)
        interim = self._list(runner, 'interim_ckpts')
        if name not in interim:
            self._keep(runner, 'interim_ckpts', [*interim, name])
        meta = {'epoch': runner.epoch, 'iter': done}
        self._write(runner, name, meta, complete=True)
        self._keep(runner, 'interim_ckpts', [name])
        self._remove(set(interim) - {name})

    def _save_checkpoint_with_step(self, runner, step, meta) -> None:
        if is_main_process():
            self.file_backend.remove_outdated()  # the best one before this
        name = self.filename_tmpl.format(step)
        if self.max_keep_ckpts > 0 and step not in self.keep_ckpt_ids:
            self.keep_ckpt_ids.append(step)
            self._keep(runner, 'keep_ckpt_ids', self.keep_ckpt_ids)
        # The file itself lists those that it makes outdated: if this run is
        # killed before they are removed, the next one removes them.
        self._write(runner, name, dict(meta))
        outdated = set(self._list(runner, 'interim_ckpts'))
        self._keep(runner, 'interim_ckpts', [])
        if self.max_keep_ckpts > 0:
            surplus = self.keep_ckpt_ids[: -self.max_keep_ckpts]
            del self.keep_ckpt_ids[: -self.max_keep_ckpts]
            outdated |= {self.filename_tmpl.format(i) for i in surplus}
            self._keep(runner, 'keep_ckpt_ids', self.keep_ckpt_ids)
        self._remove(outdated - {name})

    @staticmethod
    def _list(runner, key: str) -> list:
        return runner.message_hub.get_info(key) or []

    @staticmethod
    def _keep(runner, key: str, value: list) -> None:
        """Note a list that goes into the next checkpoint."""
        runner.message_hub.update_info(key, list(value))

    def _write(self, runner, name, meta, complete: bool = False) -> None:
        # in all processes: hooks that bring up to date what is saved, or
        # refuse to save it
        runner.call_hook('before_checkpoint')
        self.last_ckpt = osp.join(self.out_dir, name)
        runner.message_hub.update_info('last_ckpt', self.last_ckpt)
        self.saved_iter = meta['iter']
        runner.save_checkpoint(
            self.out_dir,
            name,
            save_optimizer=complete or self.save_optimizer,
            save_param_scheduler=complete or self.save_param_scheduler,
            meta=meta,
            by_epoch=self.by_epoch,
            backend_args=self.backend_args,
            **self.args,
        )
        if is_main_process():
            pointer = Path(runner.work_dir, POINTER)
            write_atomically(pointer, self.last_ckpt.encode())

    def _remove(self, names: set[str]) -> None:
        if is_main_process():
            for name in names:
                Path(self.out_dir, name).unlink(missing_ok=True)

    def after_val_epoch(self, runner, metrics) -> None:
        """Note that this iteration is validated, and save the best."""
        runner.message_hub.update_info('validated_iter', runner.iter)
        super().after_val_epoch(runner, metrics)
        if is_main_process():
            self.file_backend.remove_outdated()
