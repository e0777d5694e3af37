"""How a command of the harness fails.

A wrong argument or an unusable input is a ``ValueError`` or an ``OSError`` with a message of one line: exit status 2.
A run that was possible as asked and then failed is a :class:`RunError`: exit status 1.
"""

from __future__ import annotations


class RunError(RuntimeError):
    """A run failed: a server died, a request was refused, nothing was measured. The message says which and why."""
