"""Which nodes an answer used, measured by `palimpsest serve`."""

from .used_nodes import KEY, PalimpsestError, UsedNodes

__all__ = ["KEY", "PalimpsestError", "UsedNodes"]
