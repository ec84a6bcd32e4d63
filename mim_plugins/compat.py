"""Versions of the libraries underneath, and every patch applied to them.

Only the standard library is imported at the top, so that the set-up scripts
can read ``LIBRARIES`` before anything is installed.
"""

from __future__ import annotations

import importlib.util
import os
import re
import warnings
from importlib.metadata import PackageNotFoundError, version
from typing import NamedTuple


class Library(NamedTuple):
    """A library that this package needs, and the releases it was run with.

    Attributes:
        module: The name that is imported.
        distributions: Names under which pip may know it; the first one is
            the one to install, the others are upstream's or variants.
        oldest: Oldest release tested, of any of these distributions.
        newest: Newest release tested. Later fixes of the same minor release
            are taken to be alike.
        required: Whether the package can be imported without it.
    """

    module: str
    distributions: tuple[str, ...]
    oldest: str
    newest: str
    required: bool = True

    @property
    def requirement(self) -> str:
        """What to ask pip for, e.g. ``torch>=2.4.1,<2.15``."""
        major, minor = release(self.newest)[:2]
        return (
            f'{self.distributions[0]}>={self.oldest_to_install}'
            f',<{major}.{minor + 1}'
        )

    @property
    def oldest_to_install(self) -> str:
        """Oldest release of ``distributions[0]`` (the forks begin later)."""
        return FIRST_FORK_RELEASES.get(self.distributions[0], self.oldest)


LIBRARIES = (
    Library('torch', ('torch',), '2.4.1', '2.14.1'),
    Library('torchvision', ('torchvision',), '0.19.1', '0.29.1'),
    Library(
        'mmengine',
        ('onedl-mmengine', 'mmengine', 'mmengine-lite'),
        '0.10.7',
        '0.10.12',
    ),
    Library('mmcv', ('onedl-mmcv', 'mmcv', 'mmcv-lite'), '2.1.0', '2.3.6'),
    Library(
        'mmpretrain', ('onedl-mmpretrain', 'mmpretrain'), '1.2.0', '1.3.6'
    ),
    Library(
        'mmseg',
        ('onedl-mmsegmentation', 'mmsegmentation'),
        '1.2.2',
        '1.4.2',
        required=False,
    ),
    Library(
        'mmdet',
        ('onedl-mmdetection', 'mmdet'),
        '3.3.0',
        '3.5.1',
        required=False,
    ),
)

# The maintained forks keep upstream's import names; these are the releases
# of theirs that were run.
FIRST_FORK_RELEASES = {
    'onedl-mmengine': '0.10.12',
    'onedl-mmcv': '2.3.6',
    'onedl-mmpretrain': '1.3.6',
    'onedl-mmsegmentation': '1.4.2',
    'onedl-mmdetection': '3.5.1',
}


class UntestedVersion(UserWarning):
    """A library is newer than the newest release tested."""


def release(text: str) -> tuple[int, ...]:
    """The numbers of a version: ``'2.14.1+cpu'`` gives ``(2, 14, 1)``."""
    match = re.match(r'\d+(\.\d+)*', text)
    if match is None:
        raise ValueError(f'{text!r} is not a version number')
    return tuple(int(part) for part in match.group().split('.'))


def installed(library: Library) -> dict[str, str]:
    """Version of each distribution of ``library`` that pip knows here."""
    found = {}
    for name in library.distributions:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    if not found and importlib.util.find_spec(library.module) is not None:
        # Imported from a checkout or a vendor's build without metadata.
        module = importlib.import_module(library.module)
        found[library.module] = str(getattr(module, '__version__', '0'))
    return found


def examine(library: Library) -> tuple[str, str]:
    """Compare what is installed with what was tested.

    Returns:
        tuple[str, str]: An error and a warning, each one sentence or two and
        empty where there is nothing to say.
    """
    found = installed(library)
    command = f"pip install '{library.requirement}'"
    if not found:
        if not library.required:
            return '', ''
        return f'{library.module} is not installed. Run: {command}', ''
    if len(found) > 1:
        names = ' and '.join(found)
        return (
            f'{names} are both installed and overwrite each other, since '
            f'both own the folder {library.module}. Run: pip uninstall -y '
            f'{" ".join(found)} && {command}',
            '',
        )
    name, text = next(iter(found.items()))
    tested = f'{library.oldest} to {library.newest} are tested'
    if release(text) < release(library.oldest):
        return f'{name} {text} is too old: {tested}. Run: {command}', ''
    if release(text)[:2] > release(library.newest)[:2]:
        return '', (
            f'{name} {text} is newer than any release tested: {tested}. '
            f'If something breaks, run: {command}'
        )
    return '', ''


def check_versions(libraries: tuple[Library, ...] = LIBRARIES) -> None:
    """Check torch and the mm libraries, fork or upstream.

    Raises:
        ImportError: One line for each library that is missing, too old, or
            installed twice, with the command that mends it.

    Warns:
        UntestedVersion: For each library newer than those tested.
    """
    errors = []
    for library in libraries:
        error, warning = examine(library)
        if error:
            errors.append(error)
        if warning:
            warnings.warn(warning, UntestedVersion, stacklevel=3)
    if errors:
        lines = '\n  '.join(errors)
        raise ImportError(f'mim_plugins cannot be imported:\n  {lines}')


def apply_patches() -> None:
    """Apply the patches that suit every process; safe to repeat."""
    name_config_packages()
    find_config_packages()


def name_config_packages() -> None:
    """Let ``_base_ = ['mmseg::...']`` and ``'mim_plugins::...'`` be found.

    mmengine looks configs up in the distribution that its table names for a
    module, and the table names upstream's. A name is replaced only where the
    fork is installed and upstream's is not.

    Can go: the part for the forks, when onedl-mmengine's table knows
    'onedl-mmsegmentation'; the entry of this package stays, since a plug-in
    has no other way to be known.
    """
    from mmengine.config.utils import MODULE2PACKAGE

    MODULE2PACKAGE.setdefault('mim_plugins', 'mim_plugins')
    for library in LIBRARIES:
        known = MODULE2PACKAGE.get(library.module, library.module)
        if known == library.module:
            continue  # found as a module
        found = installed(library)
        if found and known not in found:
            MODULE2PACKAGE[library.module] = next(iter(found))


def find_config_packages() -> None:
    """Let ``_base_ = ['mmpretrain::...']`` work beside any setuptools.

    Upstream's mmengine asks pkg_resources where a package is, which
    setuptools has no longer from release 82 on.

    Can go: when upstream's mmengine asks importlib, as the fork does.
    """
    from mmengine.config import config
    from mmengine.config.utils import MODULE2PACKAGE

    def find(package):
        modules = {name: module for module, name in MODULE2PACKAGE.items()}
        return importlib.util.find_spec(modules.get(package, package))

    try:
        config.is_installed('mmengine')
    except ModuleNotFoundError:
        config.is_installed = lambda package: find(package) is not None
        config.get_installed_path = lambda package: os.path.dirname(
            find(package).origin
        )


def read_checkpoints_safely() -> None:
    """Let mmengine read local files (resume, ``load_from``) with our loader.

    Its own loader runs what a malicious file asks for once a safe reading
    has failed; told not to (``TORCH_FORCE_WEIGHTS_ONLY_LOAD``), it cannot
    read the log history in its own checkpoints with torch before 2.6, nor
    with upstream's mmengine. It changes mmengine for the whole process, so
    the tools call it and ``import mim_plugins`` does not.

    Can go: when both mmengines read with ``weights_only=True``, allow their
    own log history, and have no second way.
    """
    from mmengine.runner import CheckpointLoader

    from .checkpoints import load_file

    def load_from_local(filename, map_location=None):
        return load_file(os.path.expanduser(filename), map_location or 'cpu')

    CheckpointLoader.register_scheme(
        prefixes='', loader=load_from_local, force=True
    )
