// Values under the pointer, the choice of light or dark, and open folds on paper. The page is complete without it.
"use strict";
(() => {
  const NUM_COLOURS = 8;
  const REACH = 6;
  const root = document.documentElement;

  function setUpTheme() {
    const button = document.getElementById("theme");
    const prefersDark = matchMedia("(prefers-color-scheme: dark)");
    const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : prefersDark.matches);
    const show = () => { button.textContent = isDark() ? "Light" : "Dark"; };
    button.addEventListener("click", () => { root.dataset.theme = isDark() ? "light" : "dark"; show(); });
    prefersDark.addEventListener("change", show);
    button.hidden = false;
    show();
  }

  function setUpPrinting() {
    let opened = [];
    addEventListener("beforeprint", () => {
      opened = [...document.querySelectorAll("details:not([open])")];
      opened.forEach((fold) => { fold.open = true; });
    });
    addEventListener("afterprint", () => opened.forEach((fold) => { fold.open = false; }));
  }

  function format(value) {
    if (value === 0 || (Math.abs(value) >= 0.001 && Math.abs(value) < 1e9)) {
      return value.toLocaleString("en", { maximumSignificantDigits: 7 });
    }
    return value.toPrecision(4);
  }

  // From a value to its place in the drawing and back; the drawing says where its axes are.
  function readAxis(range, start, end, isLog) {
    const warp = isLog ? Math.log : (value) => value;
    const unwarp = isLog ? Math.exp : (value) => value;
    const [low, high] = range.split(" ").map(Number).map(warp);
    return {
      place: (value) => start + ((warp(value) - low) / (high - low)) * (end - start),
      value: (place) => unwarp(low + ((place - start) / (end - start)) * (high - low)),
    };
  }

  function nearest(places, place) {
    let best = -1;
    places.forEach((other, index) => {
      if (other !== null && (best < 0 || Math.abs(other - place) < Math.abs(places[best] - place))) best = index;
    });
    return best;
  }

  // A band shares the colour of the series before it, as in the drawing.
  function colours(series) {
    let count = 0;
    return series.map((one) => {
      const number = one.look === "band" ? Math.max(0, count - 1) : count++;
      return `var(--series-${(number % NUM_COLOURS) + 1})`;
    });
  }

  function add(parent, name, attributes) {
    const element = document.createElementNS(parent.namespaceURI, name);
    Object.entries(attributes).forEach(([key, value]) => element.setAttribute(key, value));
    parent.append(element);
    return element;
  }

  function addText(parent, name, text) {
    const element = document.createElement(name);
    element.textContent = text;
    parent.append(element);
    return element;
  }

  function setUpHover(figure, chart) {
    const svg = figure.querySelector("svg");
    const [left, top, right, bottom] = svg.dataset.frame.split(" ").map(Number);
    const [xScale, yScale] = svg.dataset.scales.split(" ");
    const xAxis = readAxis(svg.dataset.x, left, right, xScale === "log");
    const yAxis = readAxis(svg.dataset.y, bottom, top, yScale === "log");
    const tones = colours(chart.series);
    const places = chart.series.map((one) => one.x.map((x, index) => (one.y[index] === null ? null : xAxis.place(x))));
    const stops = [...new Set(places.flat().filter((place) => place !== null))].sort((a, b) => a - b);
    let drawn = [];
    let box = null;
    let stop = 0;

    function clear() {
      drawn.forEach((element) => element.remove());
      drawn = [];
      if (box) box.remove();
      box = null;
    }

    function listValues(place) {
      chart.series.forEach((one, number) => {
        const index = nearest(places[number], place);
        // A series that has nothing near the pointer has nothing to say there.
        if (index < 0 || Math.abs(places[number][index] - place) > REACH) return;
        const line = addText(box, "div", "");
        const low = one.low ? `${format(one.low[index])} – ` : "";
        addText(line, "i", one.name).style.setProperty("--series", tones[number]);
        addText(line, "b", low + format(one.y[index]));
        if (one.look === "stack" || one.look === "band") return;
        const dot = { class: "dot", r: 3.5, cx: places[number][index], cy: yAxis.place(one.y[index]) };
        drawn.push(add(svg, "circle", { ...dot, style: `stroke: ${tones[number]}` }));
      });
      chart.marks.filter((mark) => Math.abs(xAxis.place(mark.x) - place) < REACH).forEach((mark) => addText(box, "div", mark.label));
    }

    function show(place) {
      clear();
      stop = nearest(stops, place);
      const snapped = stops[stop];
      drawn.push(add(svg, "line", { class: "crosshair", x1: snapped, x2: snapped, y1: top, y2: bottom }));
      box = addText(figure, "div", "");
      box.className = "hover";
      box.setAttribute("role", "status");
      addText(box, "b", `${chart.x_label}: ${format(Number(xAxis.value(snapped).toPrecision(7)))}`);
      listValues(snapped);
      const size = svg.getBoundingClientRect();
      const unit = size.width / svg.viewBox.baseVal.width;
      const offset = snapped * unit;
      const isRight = offset > size.width / 2;
      box.style.left = `${Math.max(0, isRight ? offset - box.offsetWidth - 12 : offset + 12)}px`;
      box.style.top = `${size.top - figure.getBoundingClientRect().top + top * unit}px`;
    }

    function follow(event) {
      const size = svg.getBoundingClientRect();
      const place = ((event.clientX - size.left) / size.width) * svg.viewBox.baseVal.width;
      if (place < left - 8 || place > right + 8) clear();
      else show(place);
    }

    function step(event) {
      const moves = { ArrowLeft: -1, ArrowRight: 1, PageUp: -20, PageDown: 20, Home: -Infinity, End: Infinity };
      if (event.key === "Escape") clear();
      if (!(event.key in moves)) return;
      event.preventDefault();
      const next = box ? stop + moves[event.key] : stop;
      show(stops[Math.min(stops.length - 1, Math.max(0, next))]);
    }

    svg.tabIndex = 0;
    svg.addEventListener("pointermove", follow);
    svg.addEventListener("pointerdown", follow);
    svg.addEventListener("pointerleave", clear);
    svg.addEventListener("blur", clear);
    svg.addEventListener("keydown", step);
  }

  // A live page replaces charts; those that stayed are set up already.
  function setUpCharts() {
    const charts = JSON.parse(document.getElementById("values").textContent);
    document.querySelectorAll("figure[data-chart]:not([data-ready])").forEach((figure) => {
      figure.dataset.ready = "";
      setUpHover(figure, charts[figure.dataset.chart]);
    });
  }

  setUpTheme();
  setUpPrinting();
  setUpCharts();
  document.addEventListener("pagechange", setUpCharts);
})();
