"""The page in a real browser: type, generate, watch, cancel, reload in mid-run; no request may leave this computer."""

import json
import os
import re
import shutil
import time
import urllib.error
import urllib.request
from urllib.parse import urlsplit

import pytest

from tests.golden_files import TINY
from tests.test_cli import ROOT, h3

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
FLAGS += ["--disable-component-update", "--disable-sync"]
PATIENCE_MS = 60_000  # milliseconds that anything may take on a busy machine

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def browser():
    if not CHROMIUM:
        (pytest.fail if os.environ.get("CI") else pytest.skip)("no chromium; on Debian: apt install chromium")
    playwright = (
        pytest.importorskip("playwright.sync_api")
        if not os.environ.get("CI")
        else __import__("playwright.sync_api").sync_api
    )
    with playwright.sync_playwright() as p:
        browser = p.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        context = browser.new_context(
            viewport={"width": 1280, "height": 900}
        )  # one for all: pages share the cache of scripts
        context.set_default_timeout(PATIENCE_MS)
        yield context
        browser.close()


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    """Address of `h3 studio` with the stand-in for the engine."""
    home = tmp_path_factory.mktemp("home")
    process = h3(
        "studio", "--no-browser", "--language", "en", "--model", str(TINY), env={"H3_HOME": str(home)}, cwd=ROOT
    )
    found = re.search(rb"http://[\d.]+:\d+", process.stdout.readline())
    assert found, process.stderr.read()
    yield found[0].decode()
    process.terminate()
    assert process.wait(20) == 0


@pytest.fixture(scope="module")
def opened(browser, url):
    """One page for all tests, since loading it is what takes time; in the end every request it made is looked at."""
    asked, errors = [], []
    page = browser.new_page()
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: errors.append(str(error)))
    yield page
    page.close()
    own = urlsplit(url).netloc
    elsewhere = [
        each for each in asked if urlsplit(each).scheme not in ("data", "blob") and urlsplit(each).netloc != own
    ]
    assert elsewhere == [] and errors == []


@pytest.fixture
def page(opened, url):
    """The page with nothing running, at its first tab."""
    if not opened.url.startswith(url):
        opened.goto(url)
    opened.wait_for_selector("#h3-plan p", state="attached")
    tab(opened, "Create")
    opened.fill("#h3-seed input, #h3-seed textarea", "")
    yield opened
    stop_all(opened)


def tab(page, name):
    page.click(f"#h3-tabs button[role=tab]:has-text('{name}')")


def ask(page, prompt, steps=3):
    tab(page, "Create")
    page.fill("#h3-prompt textarea", prompt)
    page.fill("#h3-size input", "64x64")
    page.press("#h3-size input", "Enter")
    page.fill("#h3-frames input[type=number]", "22")
    page.press("#h3-frames input[type=number]", "Enter")
    page.fill("#h3-steps input, #h3-steps textarea", str(steps))
    page.click("#h3-generate")


def stage(page, state):
    return page.wait_for_selector(f".h3-stage[data-state={state}]")


def stop_all(page):
    while button := page.query_selector("#h3-results button[data-act=cancel]"):
        button.click()
        page.wait_for_timeout(300)
    page.wait_for_selector(".h3-stage[data-state=running]", state="detached")


def test_type_generate_watch(page):
    ask(page, "a red ball <b>bounces</b> & more")
    stage(page, "done")
    assert "a red ball <b>bounces</b> & more" in page.inner_text(".h3-prompt")
    assert page.wait_for_function("document.querySelector('video').readyState >= 1")
    page.evaluate("document.querySelector('video').play()")
    page.wait_for_function("document.querySelector('video').currentTime > 0.2")
    assert page.evaluate("document.querySelector('video').duration") == pytest.approx(22 / 24, abs=0.15)
    # the redraws that follow leave the playing film alone
    page.evaluate("document.querySelector('video').mine = true")
    page.wait_for_timeout(2500)
    assert page.evaluate("document.querySelector('video').mine")
    film = page.get_attribute("video", "src")
    request = urllib.request.Request(page.url.rstrip("/") + film, headers={"Range": "bytes=0-99"})
    with urllib.request.urlopen(request) as answer:
        assert answer.status == 206 and len(answer.read()) == 100


def test_live_step_preview_queue_and_cancel(page):
    ask(page, "slow film", steps=100)
    stage(page, "running")
    page.wait_for_selector(".h3-screen img")
    page.wait_for_function("/step \\d+ of 100/.test(document.querySelector('.h3-progress').innerText)")
    page.wait_for_function("/left/.test(document.querySelector('.h3-left').innerText)")
    ask(page, "a film that waits")
    waiting = page.wait_for_selector(".h3-queue li")
    assert "a film that waits" in waiting.inner_text() and "Waiting" in waiting.inner_text()
    page.click(".h3-queue button[data-act=cancel]")
    page.wait_for_selector(".h3-queue li", state="detached")
    page.click(".h3-stage button[data-act=cancel]")
    page.wait_for_selector(".h3-stage[data-state=running]", state="detached")


def test_reload_in_mid_run_shows_the_true_state(page, browser, url):
    ask(page, "slow and reloaded", steps=100)
    stage(page, "running")
    page.reload()
    assert "slow and reloaded" in stage(page, "running").inner_text()
    other = browser.new_page()
    other.goto(url)
    other.wait_for_selector(".h3-stage[data-state=running]")
    stop_all(page)
    other.wait_for_selector(".h3-stage[data-state=running]", state="detached")
    other.close()


def test_progress_never_touches_what_is_typed(page):
    ask(page, "slow while typing", steps=100)
    stage(page, "running")
    page.fill("#h3-prompt textarea", "half a sentence")
    page.focus("#h3-prompt textarea")
    page.evaluate("document.querySelector('#h3-prompt textarea').setSelectionRange(2, 6)")
    first = page.inner_text(".h3-progress")
    page.wait_for_function(f"document.querySelector('.h3-progress').innerText !== {first!r}")
    page.wait_for_timeout(2500)
    area = "document.querySelector('#h3-prompt textarea')"
    assert page.evaluate(f"document.activeElement === {area}")
    assert page.evaluate(f"[{area}.selectionStart, {area}.selectionEnd, {area}.value]") == [2, 6, "half a sentence"]
    # focus on a button inside what is redrawn stays as well
    page.focus(".h3-stage button[data-act=cancel]")
    page.wait_for_timeout(2500)
    assert page.evaluate("document.activeElement.dataset.act") == "cancel"
    stop_all(page)


def test_bad_input_is_said_under_the_button_and_adds_nothing(page):
    page.fill("#h3-prompt textarea", "   ")
    page.fill("#h3-steps input, #h3-steps textarea", "0")
    page.wait_for_timeout(1500)  # the plan of the last keystroke comes before the click's answer
    page.click("#h3-generate")
    page.wait_for_timeout(1500)
    if "prompt: is empty" not in page.inner_text("#h3-plan"):
        page.click("#h3-generate")  # a plan that was late has replaced the answer
    page.wait_for_function("document.querySelector('#h3-plan').innerText.includes('prompt: is empty')")
    assert "steps: 0 is too few" in page.inner_text("#h3-plan")
    page.fill("#h3-size input", "500x500")
    page.press("#h3-size input", "Enter")
    page.wait_for_function("document.querySelector('#h3-plan').innerText.includes('480x480 and 512x512')")
    page.fill("#h3-size input", "64x64")
    page.press("#h3-size input", "Enter")
    assert page.query_selector(".h3-stage[data-state=running]") is None


def test_a_big_seed_keeps_its_digits(page):
    page.fill("#h3-seed input, #h3-seed textarea", "1798406481619217041")
    ask(page, "seeded")
    page.wait_for_function("document.querySelector('.h3-facts')?.innerText.includes('1798406481619217041')")
    stage(page, "done")


def test_failure_is_shown_and_films_can_be_chosen(page):
    ask(page, "fail please")
    assert "The stand-in failed as asked." in stage(page, "failed").inner_text()
    ask(page, "and one that works")
    stage(page, "done")
    page.click(".h3-tile:has-text('fail please')")
    stage(page, "failed")


def test_example_fills_the_prompt(page):
    text = page.inner_text(".h3-chip")
    page.click(".h3-chip")
    page.wait_for_function(f"document.querySelector('#h3-prompt textarea').value === {text!r}")


@pytest.mark.parametrize("width", [390, 820, 1440])
def test_no_width_scrolls_sideways(page, width):
    page.set_viewport_size({"width": width, "height": 800})
    for name in ("Create", "Gallery", "Presets", "Models"):
        tab(page, name)
        page.wait_for_timeout(300)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.set_viewport_size({"width": 1280, "height": 900})


@pytest.mark.parametrize(
    "path",
    [
        "/media/999/film",
        "/media/1/lock",
        "/media/99999999999999999999/film",
        "/media/1/..%2f..%2flock",
        "/gradio_api/file=/etc/passwd",
    ],
)
def test_only_what_jobs_made_is_served(url, path):
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(url + path)
    assert caught.value.code in (403, 404, 422)


def test_the_queue_outlives_its_page(browser, url, page):
    ask(page, "slow to outlive", steps=4)
    stage(page, "running")
    other = browser.new_page()
    page.goto("about:blank")
    time.sleep(2)
    other.goto(url)
    other.wait_for_selector(".h3-tile:has-text('slow to outlive')")
    other.close()


RECIPE = {
    "recipe": 1,
    "settings": {
        "prompt": 'dropped\n"twice" 🐱',
        "width": 96,
        "height": 64,
        "frames": 56,
        "steps": 9,
        "seed": "18446744073709551615",
        "precision": "int8",
        "output": "/etc/film.mp4",
    },
}
DROP = """
text => {
    const files = new DataTransfer();
    files.items.add(new File([text], "a film.json"));
    for (const type of ["dragenter", "dragover", "drop"])
        document.body.dispatchEvent(new DragEvent(type, { dataTransfer: files, bubbles: true, cancelable: true }));
}
"""


def test_a_recipe_dropped_on_the_page_fills_the_form(page):
    page.evaluate(DROP, json.dumps(RECIPE))
    page.wait_for_function("document.querySelector('#h3-told').innerText.includes('paths in files are not followed')")
    value = "names => names.map(name => document.querySelector(`#h3-${name} :is(textarea, input)`).value)"
    assert page.evaluate(value, ["prompt", "size", "frames", "steps", "seed"]) == [
        *('dropped\n"twice" 🐱', "96x64", "56", "9", "18446744073709551615"),
    ]
    page.evaluate(DROP, "no recipe")
    page.wait_for_function("document.querySelector('#h3-told').innerText.includes('There is no recipe in this file')")


def test_gallery_compare_again_delete(page):
    for prompt in ("first of two", "second of two"):
        ask(page, prompt)
        page.wait_for_selector(f"#h3-films .h3-tile:has-text('{prompt}')")
    tab(page, "Gallery")
    count = "document.querySelectorAll('#h3-grid .h3-tile').length"
    films = page.evaluate(count)
    page.click("#h3-grid .h3-tile:has-text('first of two')")
    about = page.wait_for_selector(".h3-about").inner_text()
    assert "64 × 64" in about and "22 (0.9 s)" in about and "Made in" in about
    assert page.query_selector(".h3-timeline .h3-denoise")

    page.click("[data-act=compare]")
    page.wait_for_selector("#h3-grid .h3-note")  # it asks for the second film
    page.click("#h3-grid .h3-tile:has-text('second of two')")
    page.wait_for_selector(".h3-pair")
    pair = "[...document.querySelectorAll('video[data-sync]')]"
    page.wait_for_function(f"{pair}.every(film => film.readyState >= 2)")
    page.evaluate(f"{pair}[0].currentTime = 0.5")
    page.wait_for_function(f"Math.abs({pair}[1].currentTime - 0.5) < 0.1")
    page.evaluate(f"{pair}[1].play()")
    page.wait_for_function(f"{pair}[0].currentTime > 0.5")  # a film of a second may have ended by now
    page.evaluate(f"{pair}[0].pause()")
    page.wait_for_function(f"{pair}[1].paused")

    page.click("[data-act=alone]")
    page.click("[data-act=again]")
    page.wait_for_function(f"{count} === {films + 1}")
    page.click("[data-act=use]")
    page.wait_for_function("document.querySelector('#h3-prompt textarea').value === 'first of two'")
    tab(page, "Gallery")
    page.click("[data-act=delete]")
    page.click(".h3-danger")
    page.wait_for_function(f"{count} === {films}")
    assert page.query_selector("#h3-open .h3-stage") is None


def test_preset_edited_saved_used_deleted(page):
    tab(page, "Presets")
    page.click(".h3-card:has-text('Draft') >> nth=0")
    page.wait_for_function("document.querySelector('#h3-preset-name :is(textarea, input)').value === 'Draft'")
    before = page.wait_for_selector("#h3-preset-plan p").inner_text()
    page.fill("#h3-preset-frames :is(textarea, input)", "90")
    page.wait_for_function(f"document.querySelector('#h3-preset-plan').innerText !== {before!r}")
    page.fill("#h3-preset-size :is(textarea, input)", "500x500")
    page.wait_for_function("document.querySelector('#h3-preset-plan').innerText.includes('480x480 and 512x512')")
    page.fill("#h3-preset-size :is(textarea, input)", "96x64")
    page.fill("#h3-preset-name :is(textarea, input)", "Long <b>one</b>")
    page.click("#h3-preset-new")
    own = ".h3-card:has-text('Long <b>one</b>')"
    assert "96x64 · 90 frames" in page.wait_for_selector(own).inner_text()
    page.click("#h3-preset-use")
    page.wait_for_function("document.querySelector('#h3-size input').value === '96x64'")
    assert page.input_value("#h3-frames input[type=number]") == "90"
    tab(page, "Presets")
    page.click(own)
    page.click("#h3-preset-remove")
    page.wait_for_selector(own, state="detached")


def test_models_are_listed_and_checked(page):
    tab(page, "Models")
    page.click(f".h3-model:has-text({TINY.name!r}) button")
    assert "tensors" in page.wait_for_selector(".h3-report").inner_text()
