"""<waystation-inbox> in a real Chromium, on a page of another site than the server's."""

from __future__ import annotations

import asyncio
import shutil
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import web
from playwright.async_api import async_playwright, expect

from tests.inbox.office import office_at
from tests.support.parts import missing

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from playwright.async_api import Browser, Page

    from tests.inbox.office import Office
    from waystation.clock import ManualClock

FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]


@asynccontextmanager
async def browsing() -> AsyncIterator[Browser]:
    chromium = shutil.which("chromium")
    if chromium is None:
        missing("Chromium", "there is no chromium on the PATH")
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        try:
            yield browser
        finally:
            await browser.close()


@asynccontextmanager
async def shop(content: str) -> AsyncIterator[str]:
    """Somebody else's site, with one page."""

    async def page(_: web.Request) -> web.Response:
        return web.Response(text=content, content_type="text/html")

    app = web.Application()
    app.router.add_get("/", page)
    app.router.add_get("/orders/1", page)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/"
    finally:
        await runner.cleanup()


class Visit:
    def __init__(self, office: Office, page: Page) -> None:
        self.office = office
        self.page = page
        self.bell = page.locator("waystation-inbox .bell")
        self.badge = page.locator("waystation-inbox .badge")
        self.panel = page.locator("waystation-inbox .panel")
        self.items = page.locator("waystation-inbox li")
        self.unread = page.locator("waystation-inbox li[data-unread]")


@asynccontextmanager
async def visiting(
    clock: ManualClock, direction: str = "ltr", margin: str = "80px 500px", **given: Any
) -> AsyncIterator[Visit]:
    async with office_at(clock) as office, browsing() as browser:
        token = given.pop("token", None) or await office.token("u")
        content = f"""<!doctype html><html lang="en" dir="{direction}">
            <body style="margin:{margin}">
            <script type="module" src="{office.server.url}/static/waystation-inbox.js"></script>
            <waystation-inbox server="{office.server.url}" tenant="acme" inbox="main" user="u"
                token="{token}"></waystation-inbox>
            <button id="elsewhere">Elsewhere</button></body></html>"""
        async with shop(content) as url:
            page = await browser.new_page(**given)
            problems: list[str] = []
            page.on("pageerror", lambda error: problems.append(str(error)))
            await page.goto(url)
            yield Visit(office, page)
            assert problems == []


async def test_the_bell_counts_live_and_the_panel_shows_messages(clock: ManualClock) -> None:
    async with visiting(clock) as visit:
        await expect(visit.badge).to_be_hidden()
        await visit.office.sent("u", title="First", message={"title": "First"})
        await expect(visit.badge).to_have_text("1")
        await visit.office.sent(message={"title": "For all"})
        await expect(visit.badge).to_have_text("2")
        await expect(visit.bell).to_have_attribute("aria-label", "Notifications, 2 unread")
        await visit.bell.click()
        await expect(visit.panel).to_be_visible()
        await expect(visit.bell).to_have_attribute("aria-expanded", "true")
        await expect(visit.items.locator("h3")).to_have_text(["Unread: For all", "Unread: First"])
        assert (await visit.office.counts())["unseen"] == 0
        await visit.items.nth(0).click()
        await expect(visit.badge).to_have_text("1")
        await visit.office.sent("u", message={"title": "Live"})
        await expect(visit.items).to_have_count(3)
        await visit.items.nth(0).locator(".archive").click()
        await expect(visit.items).to_have_count(2)
        await visit.page.get_by_role("button", name="Mark all as read").click()
        await expect(visit.badge).to_be_hidden()
        await expect(visit.unread).to_have_count(0)
        assert await visit.office.numbers() == (2, 0)


async def test_what_another_tab_does_is_seen_here(clock: ManualClock) -> None:
    async with visiting(clock) as visit:
        one = await visit.office.sent("u")
        two = await visit.office.sent()
        await visit.bell.click()
        await expect(visit.unread).to_have_count(2)
        await visit.office.mark(one, "read")
        await expect(visit.unread).to_have_count(1)
        await visit.office.withdraw(two)
        await expect(visit.items).to_have_count(1)
        await visit.office.sent("u")
        await expect(visit.unread).to_have_count(1)
        await visit.office.call("POST", visit.office.user("u", "read-all"))
        await expect(visit.unread).to_have_count(0)
        await expect(visit.badge).to_be_hidden()


async def test_everything_can_be_done_with_the_keyboard(clock: ManualClock) -> None:
    async with visiting(clock) as visit:
        for title in ("one", "two", "three"):
            await visit.office.sent("u", message={"title": title})
        await expect(visit.badge).to_have_text("3")
        await visit.bell.focus()
        keyboard = visit.page.keyboard
        await keyboard.press("Enter")
        await expect(visit.items.nth(0)).to_be_focused()
        await keyboard.press("ArrowDown")
        await expect(visit.items.nth(1)).to_be_focused()
        await keyboard.press("Enter")
        await expect(visit.badge).to_have_text("2")
        await expect(visit.items.nth(1)).to_be_focused()
        await keyboard.press("ArrowUp")
        await keyboard.press("Delete")
        await expect(visit.items).to_have_count(2)
        await keyboard.press("Escape")
        await expect(visit.panel).to_be_hidden()
        await expect(visit.bell).to_be_focused()


async def test_a_screen_reader_finds_its_way(clock: ManualClock) -> None:
    async with visiting(clock) as visit:
        await visit.office.sent("u", message={"title": "Paid"})
        await expect(visit.badge).to_have_text("1")
        status = visit.page.locator("waystation-inbox [role=status]")
        await expect(status).to_have_text("Notifications, 1 unread")
        await visit.bell.click()
        dialog = visit.page.get_by_role("dialog", name="Notifications")
        await expect(dialog).to_be_visible()
        await expect(dialog.get_by_role("list")).to_be_visible()
        await expect(dialog.get_by_role("listitem")).to_have_count(1)
        await expect(dialog.get_by_role("heading", name="Unread: Paid")).to_be_visible()
        await expect(dialog.get_by_role("button", name="Archive")).to_be_visible()


async def test_nothing_in_a_message_is_taken_for_html(clock: ManualClock) -> None:
    attack = "<img src=x onerror=alert(1)> **bold** *it* `a<b` [site](https://x.example/a)"
    attack += " [bad](javascript:alert(1)) <script>alert(2)</script>"
    async with visiting(clock) as visit:
        dialogs: list[str] = []
        visit.page.on("dialog", lambda dialog: dialogs.append(dialog.message))
        await visit.office.sent("u", message={"title": "<b>Hi</b>", "body": attack})
        await visit.bell.click()
        body = visit.items.locator(".body")
        await expect(visit.items.locator("h3")).to_have_text("Unread: <b>Hi</b>")
        await expect(body.locator("strong")).to_have_text("bold")
        await expect(body.locator("em")).to_have_text("it")
        await expect(body.locator("code")).to_have_text("a<b")
        await expect(body.locator("a")).to_have_attribute("href", "https://x.example/a")
        assert "<img src=x onerror=alert(1)>" in await body.inner_text()
        assert "[bad](javascript:alert(1))" in await body.inner_text()
        assert await visit.items.locator("img, script").count() == 0
        assert dialogs == []


async def test_a_message_leads_where_it_says(clock: ManualClock) -> None:
    async with visiting(clock) as visit:
        await visit.office.sent("u", message={"title": "Order", "cta_uri": "/orders/1"})
        await visit.bell.click()
        async with visit.page.expect_navigation(url="**/orders/1"):
            await visit.items.locator("h3 a").click()


async def test_more_is_shown_on_request(clock: ManualClock) -> None:
    async with visiting(clock) as visit:
        for n in range(25):
            await visit.office.sent("u", message={"title": str(n)})
        await visit.bell.click()
        await expect(visit.items).to_have_count(20)
        await visit.page.get_by_role("button", name="Show more").click()
        await expect(visit.items).to_have_count(25)


async def test_a_click_elsewhere_closes_the_panel(clock: ManualClock) -> None:
    async with visiting(clock) as visit:
        await visit.bell.click()
        await expect(visit.panel.get_by_text("Nothing new")).to_be_visible()
        await visit.page.mouse.click(5, 5)
        await expect(visit.panel).to_be_hidden()


async def test_from_right_to_left_the_panel_opens_to_the_other_side(clock: ManualClock) -> None:
    edges = {}
    for direction in ("ltr", "rtl"):
        async with visiting(clock, direction) as visit:
            await visit.office.sent("u")
            await visit.bell.click()
            await expect(visit.items).to_have_count(1)
            bell, panel = await visit.bell.bounding_box(), await visit.panel.bounding_box()
            assert bell is not None
            assert panel is not None
            edges[direction] = round(panel["x"] - bell["x"])
            side = "borderRightWidth" if direction == "rtl" else "borderLeftWidth"
            width = await visit.items.first.evaluate(f"item => getComputedStyle(item).{side}")
            assert width == "3px"
    assert edges["ltr"] < 0 <= edges["rtl"] + 1


@pytest.mark.parametrize("direction", ["ltr", "rtl"])
async def test_at_the_edge_of_a_page_the_panel_stays_in_view(
    clock: ManualClock, direction: str
) -> None:
    size: Any = {"width": 400, "height": 600}
    async with visiting(clock, direction, "0", viewport=size) as visit:
        await visit.office.sent("u")
        await visit.bell.click()
        await expect(visit.items).to_have_count(1)
        panel = await visit.panel.bounding_box()
        assert panel is not None
        assert panel["x"] >= 0
        assert panel["x"] + panel["width"] <= 400


async def test_light_dark_and_the_pages_own_colours(clock: ManualClock) -> None:
    async with visiting(clock, color_scheme="dark") as visit:
        await visit.bell.click()
        colour = "panel => getComputedStyle(panel).backgroundColor"
        assert await visit.panel.evaluate(colour) == "rgb(22, 25, 29)"
        inbox = visit.page.locator("waystation-inbox")
        await inbox.evaluate("inbox => inbox.setAttribute('theme', 'light')")
        assert await visit.panel.evaluate(colour) == "rgb(255, 255, 255)"
        own = "document.body.style.setProperty('--waystation-background', 'rgb(1, 2, 3)')"
        await visit.page.evaluate(own)
        assert await visit.panel.evaluate(colour) == "rgb(1, 2, 3)"


async def test_what_was_removed_during_a_break_is_gone_after_it(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("waystation.inbox.streams._LIFE_SECONDS", 0.1)
    async with visiting(clock) as visit:
        old = await visit.office.sent("u", message={"title": "Old"})
        await visit.bell.click()
        await expect(visit.items).to_have_count(1)
        await visit.page.route("**/stream", lambda route: route.abort())
        async with asyncio.timeout(20):
            while visit.office.inboxes.streams._open:
                await asyncio.sleep(0.01)
        await expect(visit.panel.get_by_role("alert")).to_have_text("Not connected. Trying again.")
        await visit.office.withdraw(old)
        await visit.office.sent("u", message={"title": "New"})
        await visit.page.unroute("**/stream")
        await expect(visit.items.locator("h3")).to_have_text(["Unread: New"])
        await expect(visit.panel.get_by_role("alert")).to_be_hidden()


async def test_the_focus_is_never_lost(clock: ManualClock) -> None:
    async with visiting(clock) as visit:
        for title in ("one", "two"):
            await visit.office.sent("u", message={"title": title})
        await visit.bell.click()
        await expect(visit.items).to_have_count(2)
        archive = visit.items.nth(0).locator(".archive")
        await archive.focus()
        await visit.office.sent("u", message={"title": "three"})
        await expect(visit.items).to_have_count(3)
        await expect(visit.items.nth(1).locator(".archive")).to_be_focused()
        for left in (2, 1, 0):
            await visit.items.nth(0).focus()
            await visit.page.keyboard.press("Delete")
            await expect(visit.items).to_have_count(left)
        await visit.page.keyboard.press("Escape")
        await expect(visit.panel).to_be_hidden()


async def test_who_signs_out_leaves_nothing_on_the_screen(clock: ManualClock) -> None:
    async with visiting(clock) as visit:
        await visit.office.sent("u")
        await visit.bell.click()
        await expect(visit.items).to_have_count(1)
        inbox = visit.page.locator("waystation-inbox")
        await inbox.evaluate("inbox => inbox.removeAttribute('token')")
        await expect(visit.items).to_have_count(0)
        await expect(visit.badge).to_be_hidden()


async def test_a_token_that_has_expired_is_said_and_replaced(clock: ManualClock) -> None:
    async with visiting(clock, token="wsu_expired.x") as visit:
        page = visit.page
        renewed = """async (token) => {
            const inbox = document.querySelector('waystation-inbox');
            inbox.setAttribute('token', token);
        }"""
        await visit.office.sent("u")
        await expect(visit.badge).to_be_hidden()
        await page.evaluate(renewed, await visit.office.token("u"))
        await expect(visit.badge).to_have_text("1")


async def test_the_script_is_cached_and_may_be_loaded_by_any_site(clock: ManualClock) -> None:
    async with office_at(clock) as office:
        path = "/static/waystation-inbox.js"
        answer = await office.server.get(path)
        assert answer.status == 200
        assert answer.headers["content-type"] == "text/javascript; charset=utf-8"
        assert answer.headers["cross-origin-resource-policy"] == "cross-origin"
        tag = {"If-None-Match": answer.headers["etag"]}
        assert (await office.server.get(path, headers=tag)).status == 304
        assert (await office.server.call("POST", path)).status == 405
        assert (await office.server.get("/static/other.js")).status == 404


@pytest.fixture(autouse=True)
def _patience() -> None:
    expect.set_options(timeout=15_000)
