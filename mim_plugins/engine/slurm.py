"""What torch needs to know of a Slurm job to make a process group."""

import re
import shutil
import subprocess
from collections.abc import Mapping

from .errors import ConfigError


def slurm_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Variables of ``env://`` from those that srun gives each task.

    Args:
        variables: the environment. ``MASTER_ADDR`` and ``MASTER_PORT`` in it
            are kept; otherwise they are the first host of the job step and
            torch's 29500.

    Raises:
        ConfigError: these are not the variables of a task of srun.
    """
    names = {
        'RANK': 'SLURM_PROCID',
        'WORLD_SIZE': 'SLURM_NTASKS',
        'LOCAL_RANK': 'SLURM_LOCALID',
    }
    try:
        found = {name: variables[slurm] for name, slurm in names.items()}
        hosts = variables.get('SLURM_STEP_NODELIST')
        hosts = hosts or variables['SLURM_NODELIST']
    except KeyError as error:
        raise ConfigError(
            f"launcher='slurm': the variable {error.args[0]} is not set. "
            'Start the command with srun, as tools/slurm_train.sh does.'
        ) from None
    port = variables.get('MASTER_PORT', '29500')
    address = variables.get('MASTER_ADDR') or first_host(hosts)
    return {**found, 'MASTER_ADDR': address, 'MASTER_PORT': port}


def first_host(hosts: str) -> str:
    """The first of a list of hosts such as ``gpu[03-05,9],login``.

    ``scontrol`` is asked where it is installed.
    """
    if shutil.which('scontrol'):
        done = subprocess.run(
            ['scontrol', 'show', 'hostnames', hosts],
            capture_output=True,
            text=True,
        )
        if done.returncode == 0 and done.stdout.strip():
            return done.stdout.split()[0]
    first = re.match(r'(\[.*?\]|[^,[])*', hosts).group()
    return re.sub(r'\[(\w+).*?\]', r'\1', first)
