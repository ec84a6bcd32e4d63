"""Build of mim_plugins: the package, with configs and tools inside it.

torch and the mm libraries are not installed by a plain ``pip install .``:
whoever has them, fork or upstream, keeps what they have. The extras name
them: ``pip install '.[torch,mm]'``.
"""

import os
import re
import shutil
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
RESOURCES = ('configs', 'tools', 'model-index.yml')


def read_version() -> str:
    text = (ROOT / 'mim_plugins' / 'version.py').read_text()
    return re.search(r"__version__ = '([^']+)'", text).group(1)


def requirements(name: str) -> list[str]:
    """Lines of ``requirements/<name>.txt`` without comments."""
    lines = (ROOT / 'requirements' / f'{name}.txt').read_text().splitlines()
    lines = [line.split('#')[0].strip() for line in lines]
    return [line for line in lines if line]


class BuildWithResources(build_py):
    """Put configs, tools and the model index into ``mim_plugins/.mim``.

    That is where mmengine, mmpretrain and mim look for a plug-in's own. A
    wheel gets copies, an editable install links to the checkout.
    """

    def run(self):
        super().run()
        if getattr(self, 'editable_mode', False):
            self.link_resources(ROOT / 'mim_plugins' / '.mim')
        else:
            self.copy_resources(Path(self.build_lib) / 'mim_plugins' / '.mim')

    def copy_resources(self, target: Path) -> None:
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        for name in RESOURCES:
            source = ROOT / name
            if source.is_dir():
                ignored = shutil.ignore_patterns('__pycache__', '*.py[cod]')
                shutil.copytree(source, target / name, ignore=ignored)
            else:
                shutil.copy2(source, target / name)

    def link_resources(self, target: Path) -> None:
        target.mkdir(exist_ok=True)
        for name in RESOURCES:
            link = target / name
            if link.is_symlink() or link.is_file():
                link.unlink()
            elif link.is_dir():
                shutil.rmtree(link)
            os.symlink(os.path.relpath(ROOT / name, target), link)


setup(
    name='mim_plugins',
    version=read_version(),
    description='Masked image modelling (iBOT) for the OpenMMLab ecosystem',
    long_description=(ROOT / 'README.md').read_text(encoding='utf-8'),
    long_description_content_type='text/markdown',
    license='Apache-2.0',
    packages=find_packages(include=['mim_plugins', 'mim_plugins.*']),
    python_requires='>=3.10,<3.13',
    install_requires=requirements('runtime'),
    extras_require={
        'torch': requirements('torch'),
        'mm': requirements('mm'),
        'downstream': requirements('downstream'),
        'huggingface': requirements('huggingface'),
        'test': requirements('test') + requirements('huggingface'),
    },
    cmdclass={'build_py': BuildWithResources},
    zip_safe=False,
    classifiers=[
        'Programming Language :: Python :: 3.10',
        'Programming Language :: Python :: 3.11',
        'Programming Language :: Python :: 3.12',
        'Topic :: Scientific/Engineering :: Artificial Intelligence',
    ],
)
