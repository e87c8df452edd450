// Translates what is in the text field as soon as nobody types, and shows which words belong together.
"use strict";
(() => {
  const NUM_ALTERNATIVES = 3;
  const KEY_PLACE = "dragoman-api-key";
  const place = (id) => document.getElementById(id);
  const source = place("source");
  const target = place("target");
  const mirror = place("mirror");
  const pairs = place("pair");
  const key = place("key");
  const copy = place("copy");
  let pause = 400;
  let limit = Infinity;
  let timer = 0;
  let asking = null;
  let alignment = [];
  let models = [];

  const headers = () => (key && key.value ? { Authorization: `Bearer ${key.value}` } : {});

  async function ask(address, options = {}) {
    const answer = await fetch(address, { ...options, headers: { ...headers(), ...options.headers } });
    const body = await answer.json();
    if (!answer.ok) {
      const error = new Error(body.error || `The server answers with status ${answer.status}.`);
      error.retrySeconds = Number(answer.headers.get("Retry-After")) || 0;
      throw error;
    }
    return body;
  }

  const tell = (text) => { place("message").textContent = text; };

  function chosen() {
    const [from, to] = pairs.value.split(" ");
    return { source: from, target: to };
  }

  // Words are parts between blanks, as the server counts them.
  function showWords(element, text) {
    const lines = text.split(/(\r\n|[\n\r\v\f\x1c-\x1e\x85\u2028\u2029])/);
    const nodes = [];
    lines.forEach((part, index) => {
      if (index % 2) {
        nodes.push(document.createTextNode(part));
        return;
      }
      let word = 0;
      for (const piece of part.split(/(\s+)/)) {
        if (!piece || /^\s/.test(piece)) {
          nodes.push(document.createTextNode(piece));
          continue;
        }
        const span = document.createElement("span");
        span.textContent = piece;
        span.dataset.line = index / 2;
        span.dataset.word = word++;
        nodes.push(span);
      }
    });
    // A last line break needs something after it to have a height.
    element.replaceChildren(...nodes, document.createTextNode("\u200b"));
  }

  function show(answer, text) {
    showWords(mirror, text);
    showWords(target, answer.translatedText);
    mirror.scrollTop = source.scrollTop;
    alignment = answer.alignment || [];
    target.classList.remove("old");
    copy.disabled = !answer.translatedText.trim();
    const others = answer.alternatives || [];
    place("others").hidden = !others.length;
    place("alternatives").replaceChildren(...others.map((other) => {
      const item = document.createElement("li");
      item.textContent = other;
      item.lang = chosen().target;
      item.dir = "auto";
      return item;
    }));
  }

  async function translate() {
    if (asking) asking.abort();
    const text = source.value;
    if (!text.trim()) {
      tell("");
      show({ translatedText: "" }, text);
      return;
    }
    if (key && !key.value) {
      tell("Enter the API key of this server.");
      return;
    }
    const own = asking = new AbortController();
    try {
      const wanted = { q: text, ...chosen(), alternatives: NUM_ALTERNATIVES, alignment: true };
      const answer = await ask("translate", {
        method: "POST",
        headers: { "Content-Type": "application/json" },
        body: JSON.stringify(wanted),
        signal: own.signal,
      });
      if (own !== asking || text !== source.value) return;
      tell("");
      show(answer, text);
    } catch (error) {
      if (error.name === "AbortError" || own !== asking) return;
      tell(error instanceof TypeError ? "The server does not answer." : error.message);
      if (error.retrySeconds) later(error.retrySeconds * 1000);
    }
  }

  function later(milliseconds = pause) {
    clearTimeout(timer);
    timer = setTimeout(translate, milliseconds);
  }

  function unmark() {
    for (const span of document.querySelectorAll(".marked")) span.classList.remove("marked");
  }

  // Marks a word and the words that belong to it on the other side.
  function mark(span, side) {
    unmark();
    const isTranslated = source.value === mirror.textContent.slice(0, -1);
    if (!span || !isTranslated) return;
    const other = side === 0 ? target : mirror;
    span.classList.add("marked");
    for (const pair of alignment[span.dataset.line] || []) {
      if (pair[side] !== Number(span.dataset.word)) continue;
      const found = other.querySelector(`[data-line="${span.dataset.line}"][data-word="${pair[1 - side]}"]`);
      if (found) found.classList.add("marked");
    }
  }

  const holds = (box, event) =>
    box.left <= event.clientX && event.clientX <= box.right && box.top <= event.clientY && event.clientY <= box.bottom;
  const spanAt = (event) =>
    [...mirror.querySelectorAll("span")].find((span) => [...span.getClientRects()].some((box) => holds(box, event)));

  function spanAtCaret() {
    let end = 0;
    for (const node of mirror.childNodes) {
      end += node.textContent.length;
      if (source.selectionStart <= end && node.nodeType === Node.ELEMENT_NODE) return node;
    }
    return null;
  }

  function moveWord(step) {
    const spans = [...target.querySelectorAll("span")];
    const current = spans.findIndex((span) => span.classList.contains("current"));
    const next = current < 0 ? (step > 0 ? 0 : spans.length - 1) : Math.min(Math.max(current + step, 0), spans.length - 1);
    if (current >= 0) spans[current].classList.remove("current");
    if (spans[next]) spans[next].classList.add("current");
    mark(spans[next], 1);
  }

  async function copyTranslation() {
    const text = target.textContent.slice(0, -1);
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      // Without https, browsers allow only what is selected to be copied.
      const range = document.createRange();
      range.selectNodeContents(target);
      getSelection().removeAllRanges();
      getSelection().addRange(range);
      document.execCommand("copy");
    }
    copy.textContent = "Copied";
    setTimeout(() => { copy.textContent = "Copy"; }, 1500);
  }

  function showPair() {
    const { source: from, target: to } = chosen();
    source.lang = from;
    target.lang = to;
    const model = models.find((each) => each.source === from && each.target === to);
    const rows = model ? model.shown : [];
    place("facts").hidden = !rows.length;
    place("fact-list").replaceChildren(...rows.flatMap(([name, value]) => {
      const term = document.createElement("dt");
      const detail = document.createElement("dd");
      term.textContent = name;
      detail.textContent = value;
      return [term, detail];
    }));
  }

  async function loadFacts() {
    if (key && !key.value) return;
    try {
      models = await ask("models");
    } catch {
      models = [];
    }
    showPair();
  }

  function count() {
    const length = [...source.value].length;
    place("count").textContent = `${length.toLocaleString("en")} of ${limit.toLocaleString("en")} characters`;
    target.classList.toggle("old", Boolean(source.value));
    unmark();
    later();
  }

  async function begin() {
    if (key) key.value = sessionStorage.getItem(KEY_PLACE) || "";
    try {
      const [languages, settings] = await Promise.all([ask("languages"), ask("frontend/settings")]);
      pause = settings.frontendTimeout;
      limit = settings.charLimit;
      const names = new Map(languages.map((each) => [each.code, each.name]));
      for (const language of languages) {
        for (const to of language.targets) {
          pairs.add(new Option(`${language.name} → ${names.get(to)}`, `${language.code} ${to}`));
        }
      }
    } catch {
      tell("The server does not answer.");
      return;
    }
    showPair();
    await loadFacts();
    if (source.value) count();
  }

  source.addEventListener("input", count);
  source.addEventListener("scroll", () => { mirror.scrollTop = source.scrollTop; });
  source.addEventListener("mousemove", (event) => mark(spanAt(event), 0));
  source.addEventListener("mouseleave", unmark);
  document.addEventListener("selectionchange", () => {
    if (document.activeElement === source) mark(spanAtCaret(), 0);
  });
  target.addEventListener("mouseover", (event) => mark(event.target.closest("span"), 1));
  target.addEventListener("mouseleave", unmark);
  target.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    moveWord(step);
  });
  pairs.addEventListener("change", () => { showPair(); later(0); });
  copy.addEventListener("click", copyTranslation);
  if (key) {
    key.addEventListener("change", () => {
      sessionStorage.setItem(KEY_PLACE, key.value);
      loadFacts();
      later(0);
    });
  }
  begin();
})();
