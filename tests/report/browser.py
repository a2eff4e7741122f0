"""Chromium, started once, and what its pages are given: a watch and the steps of a test."""

import atexit
import functools
import itertools
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time

NAMES_OF_BROWSERS = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = next(filter(None, map(shutil.which, NAMES_OF_BROWSERS)), None)

# Before the page's own scripts: what goes wrong, and what is downloaded or copied.
WATCH = """<script>
window.problems = [];
addEventListener("error", (event) => problems.push(String(event.message)));
addEventListener("securitypolicyviolation", (event) => problems.push(event.blockedURI));
console.error = (...words) => problems.push(words.join(" "));
addEventListener("unhandledrejection", (event) => problems.push(String(event.reason?.stack)));
window.downloads = [];
const createURL = URL.createObjectURL;
URL.createObjectURL = (blob) => {
  if (!/^text|json$/.test(blob.type)) return createURL.call(URL, blob);
  downloads.push(blob.text());
  return "#";
};
</script>"""
# After them: the steps of a test, whose result becomes the text of an element.
STEPS = """<script>
addEventListener("load", async () => {
  const $ = (id) => document.getElementById(id);
  const key = (key, target = document.body) =>
    target.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
  const found = {};
  const all = (selector, parent = document) => [...parent.querySelectorAll(selector)];
  const pause = () => new Promise((resolve) => setTimeout(resolve, 20));
  const until = async (condition) => { while (!condition()) await pause(); };
  const listed = (select) => {
    select.dispatchEvent(new Event("focusin", { bubbles: true }));
    return all("option", select);
  };
  const choose = (select, value) => {
    listed(select);
    select.value = value;
    select.dispatchEvent(new Event("change", { bubbles: true }));
  };
  const card = (id) => document.querySelector(`article[data-group="${id}"]`);
  const size = (id) => card(id)?.querySelector("[data-size]").textContent;
  const tile = (id, at) => all(".best .tile", card(id))[at];
  const select = (id, at) =>
    tile(id, at).dispatchEvent(new MouseEvent("click", { bubbles: true, ctrlKey: true }));
  const merge = (id, into) => choose(card(id).querySelector("[data-choice=merge]"), into);
  const texts = (list) => list.map((one) => one.textContent);
  const titles = () => texts(all("article:not([hidden]) [data-title]"));
  const button = (parent, text) => all("button", parent).find((one) => one.textContent === text);
  const type = (id, text) => {
    const field = card(id).querySelector("input");
    field.value = text;
    field.dispatchEvent(new Event("change", { bubbles: true }));
  };
  // A mouse at a place of the map, in pixels from its corner.
  const mouse = (kind, [x, y], more = {}) => {
    const box = $("plot-map").getBoundingClientRect();
    const at = { clientX: box.left + x, clientY: box.top + y, pointerId: 1, pointerType: "mouse" };
    $("plot-map").dispatchEvent(new PointerEvent(kind, { bubbles: true, ...at, ...more }));
  };
  const drag = (corners, more) => {
    mouse("pointerdown", corners[0], more);
    for (const corner of corners) mouse("pointermove", corner, more);
    mouse("pointerup", corners.at(-1), more);
  };
  // Where the card shows a text: tried place by place, closely only where points hide one another.
  const placeOf = (text) => {
    for (const step of [8, 2]) {
      for (let y = 0; y < $("plot-map").clientHeight; y += step) {
        for (let x = 0; x < $("plot-map").clientWidth; x += step) {
          mouse("pointermove", [x, y]);
          if (!$("card").hidden && $("card").textContent.includes(text)) return [x, y];
        }
      }
    }
    throw Error(`${text} is not on the map`);
  };
  await until(() => document.body.dataset.ready);
  try { %s } catch (error) { problems.push(String(error.stack)); }
  found.downloads = await Promise.all(downloads);
  found.problems = problems;
  found.requests = performance.getEntriesByType("resource").map((entry) => entry.name)
    .filter((name) => !/^(data|blob|file):/.test(name));
  const result = document.createElement("pre");
  result.id = "result";
  result.textContent = JSON.stringify(found);
  document.body.append(result);
});
</script></body>"""

PATIENCE = 120  # seconds

# 3 and 4 are the numbers of the files that Chromium reads and writes; no code of ours may run
# between fork and exec, because JAX has threads.
CONNECT = """import os, sys
ends = [os.dup(int(number)) for number in sys.argv[1:3]]
for end, number in zip(ends, (3, 4)):
    os.dup2(end, number)
    os.set_inheritable(number, True)  # also where they are the same
os.execvp(sys.argv[3], sys.argv[3:])"""


class Browser:
    """Chromium without a screen, which takes commands of the DevTools protocol from a pipe."""

    def __init__(self, folder):
        taken, self.commands = os.pipe()
        self.answers, given = os.pipe()
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe"]
        # Else a GPU in software, which takes as long as all else.
        flags += ["--disable-gpu-compositing", "--disable-gpu-rasterization"]
        command = [CHROMIUM, *flags, f"--user-data-dir={folder}"]
        null = subprocess.DEVNULL
        self.process = subprocess.Popen(
            [sys.executable, "-c", CONNECT, f"{taken}", f"{given}", *command],
            pass_fds=(taken, given), stdout=null, stderr=null,
        )  # fmt: skip
        os.close(taken)
        os.close(given)
        self.numbers, self.rest = itertools.count(1), b""
        # Of each folder what its pages store, such as decisions.
        self.profile = functools.cache(
            lambda folder: self.call("Target.createBrowserContext")["browserContextId"]
        )

    def call(self, method, session=None, **params):
        """The result of a command; what the browser tells in between is dropped."""
        command = {"id": next(self.numbers), "method": method, "params": params}
        command |= {} if session is None else {"sessionId": session}
        os.write(self.commands, json.dumps(command).encode() + b"\0")
        while True:
            while b"\0" not in self.rest:
                answers, _, _ = select.select([self.answers], [], [], PATIENCE)
                more = answers and os.read(self.answers, 2**20)
                assert more, "the browser has ended, or a script of the page does not"
                self.rest += more
            one, _, self.rest = self.rest.partition(b"\0")
            answer = json.loads(one)
            if answer.get("id") == command["id"]:
                return answer["result"]

    def result(self, profile, uri, size):
        """The text of a page's element `result`, as soon as it is there."""
        size = {} if size is None else {"width": size[0], "height": size[1]}
        target = self.call(
            "Target.createTarget", url=uri, browserContextId=self.profile(profile), **size
        )
        session = self.call("Target.attachToTarget", **target, flatten=True)["sessionId"]
        text, end = "document.getElementById('result')?.textContent", time.monotonic() + PATIENCE
        while True:
            found = self.call("Runtime.evaluate", session, expression=text)["result"].get("value")
            if found:
                break
            assert time.monotonic() < end, f"{uri} has no result"
            time.sleep(0.02)
        self.call("Target.closeTarget", **target)
        return found


@functools.cache
def start():
    """The browser of this process, which ends with it."""
    folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
    browser = Browser(folder.name)

    def end():
        browser.process.kill()
        browser.process.wait()
        folder.cleanup()

    atexit.register(end)
    return browser


def visit(tmp_path, file, size=None):
    """What the steps of a page in a file found; the browser keeps what an earlier visit stored."""
    try:
        result = json.loads(start().result(tmp_path, file.as_uri(), size))
    except BaseException:
        start.cache_clear()  # The next page gets another browser.
        raise
    problems = result.pop("problems")
    assert problems == [], problems
    assert result.pop("requests") == []
    return result
