"""Version of the package (read by setup.py without importing anything)."""

__version__ = '0.1.0'
