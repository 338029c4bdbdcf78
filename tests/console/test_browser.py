"""A console in a real browser, briefly; its ten tasks are played by compat_tests/test_console.py."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kbroker.testing import Broker
from tests.console.browser import MISSING, Browser, is_there
from tests.console.pages import Running

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not is_there(), reason=MISSING)]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as made:
        yield made


def test_a_record_is_sent_found_and_runs_nothing(shop: Broker, pages: Running, browser: Browser) -> None:
    browser.open(f"http://127.0.0.1:{pages.port}/")
    browser.click("=Topics")
    browser.click("a[aria-label='Produce to empty']")
    browser.find("#produce textarea[name=value]").type("<img src=x onerror=alert(1)>")
    browser.find("#produce textarea[name=headers]").type("source: browser")
    browser.click("#produce form button")
    browser.see("Produce: done.", "#produced")
    browser.find("input[name=header]").type("source=browser")
    browser.click("=Search")
    browser.see("<img src=x onerror=alert(1)>")
    assert browser.errors() == []
    assert [each.value for each in shop.records("empty")] == [b"<img src=x onerror=alert(1)>"]


def test_a_topic_is_made_and_its_page_says_so(pages: Running, browser: Browser) -> None:
    browser.open(f"http://127.0.0.1:{pages.port}/topics")
    browser.click("=Create a topic")
    browser.find("#create input[name=name]").type("made-by-hand")
    browser.click("=Create")
    browser.see("Create a topic: done.", "#said")
    browser.see("made-by-hand")
    assert browser.errors() == []
