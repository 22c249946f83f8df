"""The errors that Scope raises on purpose.

```
ScopeError                 anything below; carries an exit code
├── UsageError             the user asked for something that makes no sense (exit 2)
├── InputError             a file, folder, address or name that the user gave is missing or unreadable (exit 3)
│   ├── TraceError         a profiler trace that cannot be read, or not at all
│   ├── RunError           a run directory, or a file in one, that is torn, foreign or incomplete
│   └── ConfigError        a configuration file with mistakes
├── LimitError             a cap that protects this machine was reached; the message says how to raise it (exit 4)
└── MissingExtraError      an optional part is not installed; the message says which extra brings it (exit 5)
```

Every message says what is wrong, where (file, rank, byte or metric), and what to do.
"""

from __future__ import annotations


class ScopeError(Exception):
    """Base of every error that Scope raises on purpose.

    Attributes:
        exit_code: What the command line exits with when this error reaches it.
    """

    exit_code = 1


class UsageError(ScopeError):
    """The user asked for something that makes no sense, such as a window that ends before it begins."""

    exit_code = 2


class InputError(ScopeError):
    """A file, folder, address or name that the user gave is missing or unreadable."""

    exit_code = 3


class TraceError(InputError):
    """A profiler trace that cannot be read."""


class RunError(InputError):
    """A run directory, or a file in one, that is torn, foreign or incomplete.

    Attributes:
        is_passing: It mends itself: a rank that began a moment ago has not written the file yet.
    """

    is_passing = False


class ConfigError(InputError):
    """A configuration file with mistakes; the message lists all of them."""


class LimitError(ScopeError):
    """A cap that protects this machine was reached; the message says how to raise it."""

    exit_code = 4


class MissingExtraError(ScopeError):
    """An optional part of Scope is not installed; the message names the extra that brings it."""

    exit_code = 5
