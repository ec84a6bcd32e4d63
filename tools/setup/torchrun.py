"""torchrun for runs that a scheduler stops and starts again.

    python tools/setup/torchrun.py [arguments of torchrun]

It differs in two things.  SIGTERM and SIGUSR1 go to the training processes,
which save and leave; torchrun would allow them 30 seconds after the first and
die of the second.  And where they leave with code 75 (EX_TEMPFAIL: try again
later), so does it; torchrun would leave with 1.
"""

import contextlib
import os
import signal
import sys
from pathlib import Path

EX_TEMPFAIL = 75


def main() -> None:
    """Start torchrun's agent in a session of its own, and stand before it."""
    agent = os.fork()
    if not agent:
        os.setsid()  # signals for the whole group reach the parent alone
        sys.exit(run_agent(sys.argv[1:]))

    def to_workers(number, frame):
        for process in children_of(agent) or [agent]:
            send(process, number)

    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, to_workers)
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, lambda number, frame: send(agent, number))
    _, status = os.waitpid(agent, 0)
    code = os.waitstatus_to_exitcode(status)
    sys.exit(code if code >= 0 else 128 - code)  # as shells count signals


def run_agent(arguments: list[str]) -> int:
    """Run torchrun; its workers' code 75 becomes this one's."""
    from torch.distributed.elastic.multiprocessing.errors import (
        ChildFailedError,
    )
    from torch.distributed.run import parse_args, run

    try:
        run(parse_args(arguments))
    except ChildFailedError as error:
        codes = [failure.exitcode for failure in error.failures.values()]
        if EX_TEMPFAIL not in codes:
            raise
        return EX_TEMPFAIL
    return 0


def children_of(parent: int) -> list[int]:
    """Processes that a process has started (Linux)."""
    found = []
    for path in Path('/proc').glob('[0-9]*/stat'):
        try:
            # "pid (name) state parent ...", and a name may hold anything
            fields = path.read_text().rpartition(')')[2].split()
        except OSError:
            continue  # it has ended meanwhile
        if int(fields[1]) == parent:
            found.append(int(path.parent.name))
    return found


def send(process: int, number: int) -> None:
    """Send a signal, unless the process is gone."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, number)


if __name__ == '__main__':
    main()
