// Sorts, filters and shows sentences; the words of each are compared only when it is shown, so any number is quick.
"use strict";
(() => {
  const NUM_AT_ONCE = 50;
  const MOST_CELLS = 1e6;
  const TER = 2;
  const NAMES = ["BLEU", "chrF2++", "TER"];
  // A word, a number or a single sign; scripts without spaces are compared by character.
  const UNITS = /[\p{sc=Han}\p{sc=Hiragana}\p{sc=Katakana}\p{sc=Thai}\p{sc=Lao}\p{sc=Khmer}\p{sc=Myanmar}]|[\p{L}\p{M}\p{N}]+|\s+|./gsu;

  const find = (id) => document.getElementById(id);
  const { systems, sentences } = JSON.parse(find("sentences").textContent);
  let shown = [];
  let numShown = 0;

  let [other, metric] = [1, 1];  // as chosen on the page

  const value = (id) => find(id).value;
  // Positive where the other system is better than the baseline.
  function gain(sentence) {
    const difference = sentence.scores[other][metric] - sentence.scores[0][metric];
    return metric === TER ? -difference : difference;
  }

  const KINDS = {
    all: () => true,
    different: (sentence) => sentence.texts[0] !== sentence.texts[other],
    better: (sentence) => gain(sentence) > 0,
    worse: (sentence) => gain(sentence) < 0,
  };
  const ORDERS = {
    size: (one, next) => Math.abs(gain(next)) - Math.abs(gain(one)),
    better: (one, next) => gain(next) - gain(one),
    worse: (one, next) => gain(one) - gain(next),
    line: () => 0,
  };

  function hasText(sentence, wanted) {
    const texts = [sentence.source ?? "", ...sentence.references, sentence.texts[0], sentence.texts[other]];
    return texts.some((text) => text.toLowerCase().includes(wanted));
  }

  function choose() {
    [other, metric] = [Number(value("other")), Number(value("metric"))];
    const wanted = value("search").toLowerCase();
    shown = sentences.filter(KINDS[value("kind")]);
    if (wanted) shown = shown.filter((sentence) => hasText(sentence, wanted));
    const compare = ORDERS[value("order")];
    shown.sort((one, next) => compare(one, next) || one.line - next.line);
    const count = (kind) => sentences.filter(KINDS[kind]).length.toLocaleString("en");
    find("count").textContent =
      `${shown.length.toLocaleString("en")} of ${sentences.length.toLocaleString("en")} sentences. ` +
      `${systems[other]} is better in ${count("better")} and worse in ${count("worse")}, by ${NAMES[metric]}.`;
    find("rows").replaceChildren();
    numShown = 0;
    showMore();
  }

  function showMore() {
    const next = shown.slice(numShown, numShown + NUM_AT_ONCE);
    find("rows").append(...next.map(buildRow));
    numShown += next.length;
    find("more").hidden = numShown >= shown.length;
  }

  function element(name, text, className) {
    const made = document.createElement(name);
    if (text !== undefined) made.textContent = text;
    if (className) made.className = className;
    return made;
  }

  function buildRow(sentence) {
    const row = element("li");
    const scores = element("p", `Line ${sentence.line.toLocaleString("en")}: `, "scores");
    NAMES.forEach((name, index) => {
      const [before, after] = [sentence.scores[0][index], sentence.scores[other][index]];
      const difference = after - before;
      const sign = difference > 0 ? "+" : difference < 0 ? "−" : "±";
      scores.append(`${index ? ", " : ""}${name} ${before.toFixed(1)} → ${after.toFixed(1)} (`);
      scores.append(element("b", `${sign}${Math.abs(difference).toFixed(1)}`), ")");
    });
    const list = element("dl");
    const add = (term, definition) => { definition.dir = "auto"; list.append(element("dt", term), definition); };
    if (sentence.source !== null) add("source", element("dd", sentence.source));
    sentence.references.forEach((reference) => add("reference", element("dd", reference)));
    const [before, after] = markDifferences(sentence.texts[0], sentence.texts[other], sentence.references);
    add(systems[0], before);
    add(systems[other], after);
    row.append(scores, list);
    return row;
  }

  const split = (text) => text.match(UNITS) ?? [];

  function markDifferences(before, after, references) {
    const known = new Set(references.flatMap(split));
    const [oldUnits, newUnits] = [split(before), split(after)];
    const [oldShared, newShared] = findShared(oldUnits, newUnits);
    return [mark(oldUnits, oldShared, known), mark(newUnits, newShared, known)];
  }

  function mark(units, isShared, known) {
    const text = element("dd");
    units.forEach((unit, index) => {
      const isPlain = isShared[index] || !unit.trim();
      text.append(isPlain ? unit : element("mark", unit, known.has(unit) ? "right" : "wrong"));
    });
    text.normalize();
    return text;
  }

  // Which units belong to a longest common subsequence; for very long lines, which occur on the other side at all.
  function findShared(first, second) {
    if ((first.length + 1) * (second.length + 1) > MOST_CELLS) {
      const [firstUnits, secondUnits] = [new Set(first), new Set(second)];
      return [first.map((unit) => secondUnits.has(unit)), second.map((unit) => firstUnits.has(unit))];
    }
    const width = second.length + 1;
    const lengths = new Uint32Array((first.length + 1) * width);
    for (let i = first.length - 1; i >= 0; i--) {
      for (let j = second.length - 1; j >= 0; j--) {
        const place = i * width + j;
        lengths[place] = first[i] === second[j] ? lengths[place + width + 1] + 1 : Math.max(lengths[place + width], lengths[place + 1]);
      }
    }
    const [firstShared, secondShared] = [first.map(() => false), second.map(() => false)];
    for (let i = 0, j = 0; i < first.length && j < second.length;) {
      const place = i * width + j;
      if (first[i] === second[j]) { firstShared[i++] = true; secondShared[j++] = true; }
      else if (lengths[place + width] >= lengths[place + 1]) i++;
      else j++;
    }
    return [firstShared, secondShared];
  }

  let waiting = 0;
  find("controls").hidden = false;
  find("controls").addEventListener("submit", (event) => event.preventDefault());
  find("controls").addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(choose, 150); });
  find("more").addEventListener("click", showMore);
  choose();
})();
