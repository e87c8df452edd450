// Keeps a live page up to date: asks for the strip, and for the page when its version has changed. What is open, focused
// or scrolled stays so.
"use strict";
(() => {
  const SECONDS_AFTER_FAILURE = 5;
  const MOST_DELAYS = 15;
  const BLOCKS = "header, main > section, #values";
  const FOCUSABLE = "a, summary, svg, [tabindex]";
  const page = document.getElementById("page");
  const parser = new DOMParser();
  let version = document.getElementById("live").dataset.version;
  let tag = "";
  let numDelays = 0;
  let timer = 0;
  let isAsking = false;

  const sources = (root) => new Map([...root.querySelectorAll(BLOCKS)].map((block) => [block.id, block.outerHTML]));
  let shown = sources(page);

  function tell(text) {
    const strip = document.getElementById("live");
    let place = strip.querySelector(".told");
    if (!place) {
      place = document.createElement("span");
      place.className = "told";
      strip.querySelector("p").append(place);
    }
    place.textContent = text;
  }

  // Without its numbers: "2 more" may have become "3 more".
  const nameOf = (fold) => fold.querySelector("summary").textContent.replace(/[\d.,]+/g, "");

  // What a person changed in an element, to do the same to the one that replaces it.
  function stateOf(element) {
    const focusable = [...element.querySelectorAll(FOCUSABLE)];
    return {
      open: new Set([...element.querySelectorAll("details[open]")].map(nameOf)),
      scrolled: [...element.querySelectorAll(".scroll, pre")].map((box) => [box.scrollLeft, box.scrollTop]),
      focused: focusable.indexOf(document.activeElement),
    };
  }

  function restore(element, state) {
    element.querySelectorAll("details").forEach((fold) => { fold.open = state.open.has(nameOf(fold)); });
    element.querySelectorAll(".scroll, pre").forEach((box, index) => {
      [box.scrollLeft, box.scrollTop] = state.scrolled[index] || [0, 0];
    });
    if (state.focused >= 0) element.querySelectorAll(FOCUSABLE)[state.focused]?.focus({ preventScroll: true });
  }

  // Returns what is left to do once the new element is set up.
  function replace(element, fresh) {
    const state = stateOf(element);
    element.replaceWith(fresh);
    return () => restore(fresh, state);
  }

  // The first block on the screen and its place, so that the reader's line stays where it is.
  function anchor() {
    const block = [...page.querySelectorAll(BLOCKS)].find((one) => one.getBoundingClientRect().bottom > 0);
    return block && block.id ? { id: block.id, top: block.getBoundingClientRect().top } : null;
  }

  function keepPlace(before) {
    const block = before && document.getElementById(before.id);
    if (block && scrollY > 0) scrollBy({ top: block.getBoundingClientRect().top - before.top, behavior: "instant" });
  }

  function swap(text) {
    const next = parser.parseFromString(text, "text/html");
    const fresh = next.getElementById("page");
    const sourcesNow = sources(fresh);
    const place = anchor();
    const leftToDo = [];
    if ([...sourcesNow.keys()].join() === [...shown.keys()].join()) {
      [...fresh.querySelectorAll(BLOCKS)].forEach((block) => {
        if (sourcesNow.get(block.id) === shown.get(block.id)) return;
        leftToDo.push(replace(document.getElementById(block.id), block));
      });
    } else {
      const state = stateOf(page);
      page.replaceChildren(...fresh.childNodes);
      leftToDo.push(() => restore(page, state));
    }
    shown = sourcesNow;
    version = next.getElementById("live").dataset.version;
    document.title = next.title;
    document.dispatchEvent(new Event("pagechange"));
    leftToDo.forEach((finish) => finish());
    keepPlace(place);
  }

  // While somebody reads a value or selects text, the page waits, but not for ever.
  function isInUse() {
    const isReading = document.querySelector(".hover") !== null || !getSelection().isCollapsed;
    numDelays = isReading ? numDelays + 1 : 0;
    return isReading && numDelays <= MOST_DELAYS;
  }

  async function ask(address, headers) {
    const answer = await fetch(address, { cache: "no-store", headers, signal: AbortSignal.timeout(20000) });
    if (!answer.ok && answer.status !== 304) throw new Error(String(answer.status));
    return answer;
  }

  async function renew() {
    const answer = await ask("live", tag ? { "If-None-Match": tag } : {});
    if (answer.status === 200) {
      const fresh = parser.parseFromString(await answer.text(), "text/html").getElementById("live");
      replace(document.getElementById("live"), fresh)();
      tag = answer.headers.get("ETag") || "";
    }
    const newest = document.getElementById("live").dataset.version;
    if (newest && newest !== version && !isInUse()) swap(await (await ask(".", {})).text());
    const { ended, seconds } = document.getElementById("live").dataset;
    tell(ended === undefined ? `updated ${new Date().toLocaleTimeString("en-GB")}` : "no longer changing");
    return Number(seconds);
  }

  async function poll() {
    if (isAsking) return;
    isAsking = true;
    clearTimeout(timer);
    let seconds = SECONDS_AFTER_FAILURE;
    try {
      if (!document.hidden) seconds = await renew();
    } catch {
      tell("the server does not answer: `dragoman watch` may have ended");
    }
    isAsking = false;
    timer = setTimeout(poll, 1000 * seconds);
  }

  document.addEventListener("visibilitychange", () => { if (!document.hidden) poll(); });
  poll();
})();
