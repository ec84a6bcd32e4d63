"""What can go wrong before a run has begun."""


class ConfigError(ValueError):
    """A config that cannot be run; the message says what to change."""
