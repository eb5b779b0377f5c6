"""The pictures of docs/view.md, of a run that is at hand; the overview's can be of another one.

    python tests/browser/screens.py RUN CASE PROBE [--model MODEL] [--token TEXT] [--overview RUN] [--out docs/view]
"""

from __future__ import annotations

import argparse
import base64
import time
from pathlib import Path

import folders
import pages


def shoot(page: pages.Page, path: Path, selector: str | None = None, most: int = 1000) -> None:
    """What is seen, or one part of the page, as WebP."""
    time.sleep(0.4)
    given: dict = {"format": "webp", "quality": 72}
    if selector:
        page.js("document.querySelector('.bar')?.style.setProperty('position', 'static')")
        x, y, width, height = page.js("const box = document.querySelector(arguments[0]).getBoundingClientRect(); return [box.x + scrollX, box.y + scrollY, box.width, box.height]", selector)
        given |= {"clip": {"x": max(0, x - 8), "y": max(0, y - 8), "width": width + 16, "height": min(height, most) + 16, "scale": 1}, "captureBeyondViewport": True}
    path.write_bytes(base64.b64decode(page.command("Page.captureScreenshot", **given)["data"]))
    print(path, path.stat().st_size)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ["run", "case", "probe"]:
        parser.add_argument(name)
    parser.add_argument("--overview", help="the run of the overview's pictures; by default RUN")
    parser.add_argument("--condition", default="full")
    parser.add_argument("--other", default="evidence")
    parser.add_argument("--hide", help="the session that Ask again hides; by default that of the certificate")
    parser.add_argument("--token", default="", help="the part of the answer whose reading shades the texts")
    parser.add_argument("--model")
    parser.add_argument("--out", type=Path, default=folders.ROOT / "docs" / "view")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    overview = pages.Server(given.overview or given.run)
    server = pages.Server(given.run, *(["--model", given.model] if given.model else []))
    names = {"case": given.case, "probe": given.probe, "condition": given.condition}
    opened = {"view": "case", **names}
    page = pages.Page((1280, 800))
    page.command("Emulation.setScrollbarsHidden", hidden=True)

    for size, dark, name in [((1280, 900), False, "overview"), ((1280, 900), True, "overview-dark"), (pages.PHONE, False, "overview-phone"), (pages.PHONE, True, "overview-phone-dark")]:
        scheme = pages.Page(size, dark)
        scheme.command("Emulation.setScrollbarsHidden", hidden=True)
        scheme.open(overview.address, view="overview")
        scheme.wait("return document.querySelectorAll('#overview-view svg').length > 1", seconds=60)
        shoot(scheme, given.out / f"{name}.webp")
        scheme.close()
    overview.stop()
    page.open(server.address)
    page.wait("return document.querySelector('.row') !== null && (!store.ranked || store.ranked.done >= store.ranked.of)", seconds=60)
    shoot(page, given.out / "table.webp")
    page.open(server.address, **opened)
    page.wait("return document.getElementById('map') !== null")
    page.js("const sessions = current.held.why?.certificate?.sessions; if (sessions) go({ session: sessions })")
    page.resize((1280, 1240))
    shoot(page, given.out / "answer.webp")
    layer = page.js("const { rows, head } = current.pictures.find((one) => one.spec.id === 'map').spec.table(); const old = head.indexOf(current.held.sessions.find((one) => one.role === 'old')?.label ?? head[1]); return rows.toSorted((a, b) => b[old] - a[old])[0][0]")
    page.open(server.address, **opened, layer=layer)
    page.wait("return document.getElementById('heads') !== null")
    shoot(page, given.out / "layers.webp", "#part-layers", 1500)
    if given.model:
        if given.token:
            page.wait("const token = [...document.querySelectorAll('#part-answer .tokens [role=button]')].find((one) => one.textContent.includes(arguments[0])); token?.click(); return token", given.token, seconds=120)
            page.wait("return document.querySelector('#part-texts .two .shaded[title]')", seconds=120)
            shoot(page, given.out / "texts.webp", "#part-texts", 570)
        page.wait("return document.getElementById('ask')?.disabled === false", seconds=120)
        hide = given.hide or page.js("return current.held.why?.certificate?.sessions?.[0] ?? current.held.sessions.find((one) => one.role === 'old').label")
        page.js("for (const input of document.querySelectorAll('#part-again .pickers input')) input.checked = input.value === arguments[0]", hide)
        page.click("#ask")
        page.wait("return document.querySelector('#part-again tbody tr') !== null", seconds=300)
        shoot(page, given.out / "again.webp", "#part-again", 900)
    page.open(server.address, **{**opened, "view": "compare"}, **{f"with.{key}": value for key, value in {**names, "condition": given.other}.items()})
    page.wait("return document.querySelectorAll('#compare-view .versus .card').length === 2 && document.querySelector('#sides')")
    shoot(page, given.out / "compare.webp", "#compare-view", 1300)
    page.close()

    phone = pages.Page(pages.PHONE, dark=True)
    phone.command("Emulation.setScrollbarsHidden", hidden=True)
    phone.open(server.address, **opened)
    phone.wait("return document.getElementById('map') !== null")
    phone.js("document.querySelector('#part-history').scrollIntoView({ block: 'start', behavior: 'instant' })")
    shoot(phone, given.out / "phone.webp")
    phone.close()
    server.stop()


if __name__ == "__main__":
    main()
