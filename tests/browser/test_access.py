"""The token of the printed address: without it nothing is shown, and the address bar does not keep it."""

import pytest

import pages

REFUSED = "Open the address that palimpsest view printed"
GONE = ["ERR_CONNECTION_REFUSED", "ERR_CONNECTION_RESET", "ERR_EMPTY_RESPONSE"]


@pytest.fixture
def start(page, runs):
    """Starts servers of a test's own: the browser has no cookie for a new port."""
    servers = []

    def one(port=0, **variables):
        servers.append(pages.Server(runs("stale"), port=port, **variables))
        return servers[-1]

    yield one
    # Left first: a page asks on when its server has gone, which the console reports.
    page.driver.get("about:blank")
    for server in servers:
        server.stop()


@pytest.fixture
def server(start):
    return start()


def only(page, *causes):
    """The console's complaints since the last look are all of these causes."""
    for trouble in page.troubles():
        assert any(cause in trouble for cause in causes), trouble


def test_the_token_leaves_the_address_bar_and_the_cookie_stays(page, server):
    assert "?token=" in server.address
    page.open(server.address, **{"f.verdict": "wrong"})
    assert page.rows() > 0
    assert page.js("return [location.pathname, location.search, location.hash.includes('f.verdict=wrong'), document.cookie]") == ["/", "", True, ""]
    cookie = page.driver.get_cookie(f"palimpsest-view-{server.port}")
    assert (cookie["httpOnly"], cookie["sameSite"], cookie["path"]) == (True, "Strict", "/")
    assert cookie["value"] not in server.address
    page.open(server.address.split("?")[0])
    assert page.rows() == 12


@pytest.mark.parametrize("query", ["", "?token=", "?token=not-the-token-of-it"])
def test_without_the_right_token_the_page_says_which_address_to_open(page, server, query):
    page.visit(server.address.split("?")[0] + query)
    assert REFUSED in page.text("body") and page.js("return document.scripts.length") == 0
    assert page.driver.get_cookie(f"palimpsest-view-{server.port}") is None
    only(page, "401")
    # The right address helps, in the same browser.
    page.open(server.address)
    assert page.rows() == 12


def test_a_file_leads_to_the_page_as_with_open(page, server, tmp_path):
    file = tmp_path / "open.html"
    file.write_text(f'<!doctype html><meta http-equiv="refresh" content="0; url={server.address}">')
    page.opened.add(server.address.split("?")[0])
    page.visit(file.as_uri())
    page.wait("return location.protocol === 'http:' && location.search === '' && typeof store !== 'undefined' && store.count === 12")


def test_a_page_of_a_server_that_starts_anew_with_another_token_says_what_to_open(page, start):
    server = start()
    page.open(server.address)
    server.stop()
    other = start(server.port)
    assert other.port == server.port and other.address != server.address
    page.wait("return document.getElementById('error-text').textContent.includes('open the address that `palimpsest view` printed')", seconds=30)
    assert page.rows() == 12
    only(page, "401", *GONE)
    page.open(other.address)
    assert page.rows() == 12 and page.js("return document.getElementById('error').hidden")


def test_a_token_from_the_environment_stays_valid_after_a_restart(page, start):
    token = {"PALIMPSEST_VIEW_TOKEN": "chosen-by-the-tests"}
    first = start(**token)
    assert first.address.endswith("/?token=chosen-by-the-tests")
    page.open(first.address)
    first.stop()
    second = start(first.port, **token)
    page.open(second.address.split("?")[0])
    assert second.port == first.port and page.rows() == 12
    only(page, *GONE)
