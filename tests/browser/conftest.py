"""Folders once a session, a browser a module, and after each test a look at the console and the requests."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import folders
import pages


def pytest_configure(config: pytest.Config) -> None:
    missing = [name for name, found in [("chromium", pages.CHROMIUM), ("chromedriver (Debian: chromium-driver)", pages.CHROMEDRIVER)] if not found]
    missing += [] if folders.BINARY.exists() else [f"{folders.BINARY} (cargo build --release, or PALIMPSEST=PATH)"]
    config.palimpsest_missing = ", ".join(missing)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Without a browser the tests are left out by name; where PALIMPSEST_TESTS=all asks for them, that is an error."""
    missing = config.palimpsest_missing
    if not missing:
        return
    if os.environ.get("PALIMPSEST_TESTS") == "all":
        raise pytest.UsageError(f"tests of the page need {missing}")
    for item in items:
        item.add_marker(pytest.mark.skip(reason=f"needs {missing}"))


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A folder by its name, made when it is first asked for."""
    base = tmp_path_factory.mktemp("runs")
    made: dict[str, Path] = {}

    def get(name: str) -> Path:
        if name not in made:
            out = base / name
            if name == "stale":
                made[name] = folders.stale(out)
            elif name == "windowed":
                made[name] = folders.windowed(out)
            elif name == "old":
                made[name] = folders.old(out)
            elif name == "memory":
                made[name] = folders.memory(out)
            elif name == "hostile":
                made[name] = folders.hostile(get("stale"), out)
            elif name == "unable":
                made[name] = folders.unable(get("stale"), out)
            elif name == "large":
                made[name] = folders.large(get("stale"), out)
            else:
                made[name] = folders.benchmark(name, out)
        return made[name]

    return get


@pytest.fixture(scope="module")
def serve() -> Iterator[Callable[..., str]]:
    """The printed address of a server over such folders; one server each for the tests of a module."""
    servers: dict[tuple[str, ...], pages.Server] = {}

    def start(*words: object) -> str:
        key = tuple(map(str, words))
        if key not in servers:
            servers[key] = pages.Server(*words)
        return servers[key].address

    yield start
    for server in servers.values():
        server.stop()


@pytest.fixture(scope="module")
def browser() -> Iterator[pages.Page]:
    page = pages.Page()
    yield page
    page.close()


@pytest.fixture
def page(browser: pages.Page) -> Iterator[pages.Page]:
    browser.resize(pages.DESKTOP)
    browser.troubles()
    yield browser
    assert browser.troubles() == []


CASE = {"view": "case", "case": "sample-t1-01-suitcase", "probe": "SR", "condition": "full"}


@pytest.fixture
def case() -> dict[str, str]:
    """The address of an answer of the folder `stale`."""
    return dict(CASE)
