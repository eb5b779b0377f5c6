"""Packages that are wanted only where they are used."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_EXTRAS = {"pandas": "frames", "xarray": "arrays", "matplotlib.pyplot": "plots"}


def extra(module: str) -> Any:
    """Imports a package that an extra brings; says which where it is missing."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        name, package = _EXTRAS[module], module.split(".")[0]
        raise ImportError(f"{package} is not installed; run: pip install 'palimpsest[{name}]'") from error


@contextmanager
def progress(total: int | None, what: str, unit: str) -> Iterator[Callable[[int], object] | None]:
    """A bar by tqdm, drawn where the work takes more than a second; without tqdm nothing."""
    try:
        tqdm: Any = importlib.import_module("tqdm").tqdm
    except ImportError:
        yield None
        return
    with tqdm(total=total, desc=what, unit=f" {unit}", delay=1, mininterval=0.5, leave=False, dynamic_ncols=True) as bar:

        def told(done: int) -> None:
            # An update by nothing would draw the bar anew.
            if done > bar.n:
                bar.update(done - bar.n)

        yield told
