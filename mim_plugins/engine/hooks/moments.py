"""When an iteration ends in something that reads the device."""

from mmengine.hooks import CheckpointHook, LoggerHook


def logs_after(runner, batch_idx: int) -> bool:
    """Whether a LoggerHook writes a line after this iteration."""
    loader = runner.train_dataloader
    for hook in runner.hooks:
        if not isinstance(hook, LoggerHook):
            continue
        if hook.every_n_inner_iters(batch_idx, hook.interval):
            return True
        rest = not hook.ignore_last or len(loader) <= hook.interval
        if rest and hook.end_of_epoch(loader, batch_idx):
            return True
    return False


def saves_after(runner) -> bool:
    """Whether a CheckpointHook that counts iterations saves after this one."""
    return any(
        hook.every_n_train_iters(runner, hook.interval, hook.save_begin)
        or (hook.save_last and hook.is_last_train_iter(runner))
        for hook in runner.hooks
        if isinstance(hook, CheckpointHook) and not hook.by_epoch
    )
