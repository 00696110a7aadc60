// What the page does beyond showing: sorting and searching tables, copying names, drawing bars and the strip of a step,
// moving through heat maps, and jumping to a step or a layer. Texts are set as text, never as HTML.
"use strict";

(() => {
  const SVG = "http://www.w3.org/2000/svg";
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];
  const one = (selector, within = document) => within.querySelector(selector);
  const make = (name, attributes = {}, ...children) => fill(document.createElement(name), attributes, children);
  const draw = (name, attributes = {}, ...children) => fill(document.createElementNS(SVG, name), attributes, children);
  const clamp = (value, least, most) => Math.min(Math.max(value, least), most);
  const dataOf = (figure) => JSON.parse(one('script[type="application/json"]', figure).textContent);
  const cssColor = (name) => {
    const probe = make("span", { style: `color:var(${name})` });
    document.body.append(probe);
    const color = getComputedStyle(probe).color;
    probe.remove();
    return color;
  };

  function fill(element, attributes, children) {
    for (const [name, value] of Object.entries(attributes)) {
      element.setAttribute(name, value);
    }
    element.append(...children);
    return element;
  }

  function swatch(color) {
    return make("i", color ? { class: "swatch", style: `background:${color}` } : { class: "swatch idle" });
  }

  const ms = (value) => value.toLocaleString("en-US", { minimumFractionDigits: 3, maximumFractionDigits: 3 });
  const percent = (share) => (share > 0 && share < 0.0005 ? "<0.1 %" : `${(share * 100).toFixed(1)} %`);

  function duration(ns) {
    const size = Math.abs(ns);
    if (size >= 999950) {
      return `${ms(ns / 1e6)} ms`;
    }
    return size >= 1000 ? `${(ns / 1e3).toFixed(1)} µs` : `${ns} ns`;
  }

  // --- tables

  const UNITS = {
    ns: 1, "µs": 1e3, ms: 1e6, s: 1e9, B: 1, kB: 1e3, MB: 1e6, GB: 1e9, TB: 1e12, PB: 1e15,
    "B/s": 1, "kB/s": 1e3, "MB/s": 1e6, "GB/s": 1e9, "TB/s": 1e12, M: 1e6,
  };

  /** The number that a cell begins with, in the smallest unit; null for none (unknown, or a text). */
  function numberIn(text) {
    const found = /^[<~≥]?\s*([-−+]?[\d,]*\.?\d+)\s*([^\s\d–-]*)/u.exec(text.trim());
    if (!found) {
      return null;
    }
    const value = Number(found[1].replaceAll(",", "").replace("−", "-"));
    return value * (UNITS[found[2]] ?? 1) - (text.trim().startsWith("<") ? 1e-9 : 0);
  }

  function sortRows(table, index, descending) {
    const body = table.tBodies[0];
    const rows = [...body.rows].map((row, place) => {
      const text = row.cells[index].textContent.trim();
      return { row, place, text, number: numberIn(text) };
    });
    const missing = (each) => !each.text || each.text.startsWith("—");
    const known = rows.filter((each) => !missing(each));
    const isNumeric = known.length > 0 && known.every((each) => each.number !== null);
    const order = (a, b) => (isNumeric ? a.number - b.number : a.text.localeCompare(b.text, "en", { numeric: true }));
    rows.sort((a, b) => missing(a) - missing(b) || (missing(a) ? 0 : order(a, b) * (descending ? -1 : 1)) || a.place - b.place);
    body.append(...rows.map((each) => each.row));
  }

  function makeSortable(table) {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, index) => {
      if (!head.textContent.trim()) {
        return;
      }
      const button = make("button", { type: "button" }, head.textContent);
      head.replaceChildren(button);
      button.addEventListener("click", () => {
        const before = head.getAttribute("aria-sort");
        const startsDown = head.classList.contains("right");
        const descending = before ? before === "ascending" : startsDown;
        heads.forEach((each) => each.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", descending ? "descending" : "ascending");
        sortRows(table, index, descending);
      });
    });
  }

  function makeSearchable(block) {
    const tools = one(".tools", block);
    if (!tools) {
      return;
    }
    tools.hidden = false;
    const rows = [...one("table", block).tBodies[0].rows];
    const texts = rows.map((row) => `${row.textContent} ${one("[data-full]", row)?.dataset.full ?? ""}`.toLowerCase());
    const said = one("output", tools);
    one("input[type=search]", tools).addEventListener("input", (event) => {
      const words = event.target.value.toLowerCase().split(/\s+/).filter(Boolean);
      rows.forEach((row, place) => { row.hidden = !words.every((word) => texts[place].includes(word)); });
      said.textContent = words.length ? `${rows.filter((row) => !row.hidden).length} of ${rows.length}` : "";
    });
    one(".whole", tools)?.addEventListener("change", (event) => {
      for (const name of all("code.name", block)) {
        name.dataset.short ??= name.textContent;
        name.textContent = event.target.checked ? name.dataset.full : name.dataset.short;
      }
    });
  }

  async function copyName(button) {
    const text = one("[data-full]", button.parentElement).dataset.full;
    const isCopied = await navigator.clipboard?.writeText(text).then(() => true, () => false) || copyByHand(text);
    button.textContent = isCopied ? "copied" : "not copied";
    setTimeout(() => { button.textContent = "copy"; }, 1200);
  }

  function copyByHand(text) {
    const area = make("textarea", { style: "position:fixed;opacity:0" });
    area.value = text;
    document.body.append(area);
    area.select();
    const isCopied = document.execCommand("copy");
    area.remove();
    return isCopied;
  }

  // --- bars: a step each

  class Bars {
    constructor(figure) {
      this.figure = figure;
      ({ places: this.places, categories: this.categories } = dataOf(figure));
      this.colors = new Map(this.categories);
      this.place = 0;
      this.plot = one(".plot", figure);
      this.steps = one("select.step", figure);
      this.hidden = new Set();
      one("select.place", figure)?.addEventListener("change", (event) => this.show(Number(event.target.value), 0));
      this.steps.addEventListener("change", () => this.choose(Number(this.steps.value)));
      one(".previous", figure).addEventListener("click", () => this.choose(this.bar - 1));
      one(".next", figure).addEventListener("click", () => this.choose(this.bar + 1));
      for (const key of all(".keys button", figure)) {
        key.addEventListener("click", () => this.toggle(key));
      }
      const longest = (bars) => bars.reduce((best, bar, place) => (bar.wall > bars[best].wall ? place : best), 0);
      this.show(0, longest(this.places[0].bars));
    }

    show(place, bar) {
      this.place = place;
      this.steps.replaceChildren(...this.places[place].bars.map((each, number) => make("option", { value: number }, each.title)));
      this.bar = bar;
      this.redraw();
      this.choose(bar);
    }

    toggle(key) {
      const isOn = key.getAttribute("aria-pressed") !== "true";
      key.setAttribute("aria-pressed", String(isOn));
      this.hidden[isOn ? "delete" : "add"](key.dataset.name);
      this.redraw();
    }

    /** Draws the device chosen, in the colours of the page as it is now. */
    redraw() {
      if (!window.Plotly) {
        this.plot.replaceChildren(make("p", { class: "note" }, "The plotting library could not be loaded; steps can be chosen below."));
        return;
      }
      const { data, layout } = this.places[this.place];
      const [text, line, quiet] = ["--text", "--line", "--quiet"].map(cssColor);
      const traces = data.filter((trace) => !this.hidden.has(trace.meta)).map((trace) => {
        const marker = trace.marker.color
          ? { ...trace.marker, line: { width: 0.5, color: cssColor("--page") } }
          : { color: "rgba(0,0,0,0)", line: { width: 1, color: quiet }, pattern: { shape: "/", size: 5, solidity: 0.25, fgcolor: quiet, bgcolor: "rgba(0,0,0,0)" } };
        return { ...trace, marker };
      });
      const axis = (of) => ({ ...of, gridcolor: line, zerolinecolor: line, linecolor: line });
      const look = {
        ...structuredClone(layout), font: { color: text, size: 12 }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
        xaxis: axis(layout.xaxis), yaxis: axis(layout.yaxis), shapes: this.marks(),
      };
      window.Plotly.react(this.plot, traces, look, { displayModeBar: false, responsive: true });
      if (!this.isListening) {
        this.isListening = true;
        this.plot.on("plotly_click", (event) => this.choose(event.points[0].pointNumber));
      }
    }

    /** A frame around the bar chosen. */
    marks() {
      const { data, bars } = this.places[this.place];
      const { x } = data[0];
      const half = (x.length > 1 ? Math.min(...x.slice(1).map((each, place) => each - x[place])) : 1) / 2;
      const [x0, x1] = [x[this.bar] - half, x[this.bar] + half];
      return [{ type: "rect", x0, x1, y0: 0, y1: bars[this.bar].wall, line: { color: cssColor("--text"), width: 2 } }];
    }

    /** What the step chosen consists of, most first. */
    choose(bar) {
      const { data, bars } = this.places[this.place];
      this.bar = clamp(bar, 0, bars.length - 1);
      this.steps.value = String(this.bar);
      if (this.isListening) {
        window.Plotly.relayout(this.plot, { shapes: this.marks() });
      }
      const { title, about, wall } = bars[this.bar];
      const parts = data.map((trace) => [trace.meta, trace.y[this.bar]]).filter(([, value]) => value > 0);
      parts.sort((a, b) => b[1] - a[1]);
      const rows = parts.map(([name, value]) => make("tr", {},
        make("td", {}, swatch(this.colors.get(name)), name),
        make("td", { class: "right" }, `${ms(value)} ms`),
        make("td", { class: "right" }, percent(value / wall)),
        make("td", { class: "wide" }, make("i", { class: "share", style: `width:${(120 * value / wall).toFixed(1)}px;background:${this.colors.get(name) ?? "transparent"}` }))));
      const head = make("p", {}, make("b", {}, title), `: ${ms(wall)} ms${about ? ` (${about})` : ""}`);
      one(".step-detail", this.figure).replaceChildren(head, make("table", {}, make("tbody", {}, ...rows)));
    }

    /** Goes to the step of that number; false where no bar has it. */
    goTo(step) {
      const bar = this.places[this.place].bars.findIndex((each) => each.first <= step && step <= each.last);
      if (bar < 0) {
        return false;
      }
      this.choose(bar);
      this.figure.scrollIntoView({ block: "start" });
      return true;
    }
  }

  // --- heat maps

  class Heat {
    constructor(figure, goTo) {
      this.figure = figure;
      this.goTo = goTo;
      this.columns = dataOf(figure).columns;
      this.rows = all("tbody tr", figure).map((row) => {
        const svg = one("svg", row);
        return { label: one("th", row).textContent, svg, values: svg.dataset.values.split(" ") };
      });
      this.at = [0, 0];
      const map = one(".map", figure);
      map.addEventListener("mousemove", (event) => this.point(event));
      map.addEventListener("click", (event) => { if (this.point(event)) { this.follow(); } });
      map.addEventListener("keydown", (event) => this.press(event));
    }

    point(event) {
      const row = this.rows.findIndex((each) => each.svg.contains(event.target));
      if (row < 0) {
        return false;
      }
      const box = this.rows[row].svg.getBoundingClientRect();
      this.show(row, Math.floor((event.clientX - box.left) / box.width * this.columns.length));
      return true;
    }

    press(event) {
      const move = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
      if (move) {
        event.preventDefault();
        this.show(this.at[0] + move[0], this.at[1] + move[1]);
      } else if (event.key === "Enter") {
        this.follow();
      }
    }

    show(row, column) {
      this.at = [clamp(row, 0, this.rows.length - 1), clamp(column, 0, this.columns.length - 1)];
      const { label, svg, values } = this.rows[this.at[0]];
      one(".cursor", this.figure)?.remove();
      svg.append(draw("rect", { class: "cursor", x: this.at[1], y: 0, width: 1, height: 1 }));
      one(".said", this.figure).textContent = `${this.figure.dataset.column} ${this.columns[this.at[1]]}, ${label}: ${values[this.at[1]]} ms`;
    }

    follow() {
      if (this.figure.dataset.links) {
        this.goTo(`${this.figure.dataset.links}${parseInt(this.columns[this.at[1]], 10)}`);
      }
    }
  }

  // --- steps as dots

  class Dots {
    constructor(figure) {
      this.figure = figure;
      this.data = dataOf(figure);
      this.lanes = all("tbody tr", figure).map((row) => ({ label: one("th", row).textContent, svg: one("svg", row) }));
      this.at = [0, -1];
      const map = one(".map", figure);
      map.addEventListener("mousemove", (event) => this.point(event));
      map.addEventListener("keydown", (event) => this.press(event));
    }

    /** Shows the step nearest to the pointer. */
    point(event) {
      const lane = this.lanes.findIndex((each) => each.svg.contains(event.target));
      if (lane < 0) {
        return;
      }
      const box = this.lanes[lane].svg.getBoundingClientRect();
      const distance = ([, x, y]) => Math.hypot(box.left + x / 1000 * box.width - event.clientX, box.top + y / 100 * box.height - event.clientY);
      const nearest = this.data[lane].reduce((best, dot, place, dots) => (distance(dot) < distance(dots[best]) ? place : best), 0);
      this.show(lane, nearest);
    }

    press(event) {
      const move = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
      if (move) {
        event.preventDefault();
        this.show(this.at[0] + move[0], this.at[1] + move[1]);
      }
    }

    show(lane, place) {
      const row = clamp(lane, 0, this.lanes.length - 1);
      this.at = [row, clamp(place, 0, this.data[row].length - 1)];
      const [step, x, y, said] = this.data[row][this.at[1]];
      one(".on", this.figure)?.remove();
      this.lanes[row].svg.append(draw("path", { class: "on", d: `M${x} ${y}h0` }));
      one(".said", this.figure).textContent = `${this.lanes[row].label}, step ${step}: ${said}`;
    }
  }

  // --- the strip of one step

  const LANE = 26;
  const LABELS = 84;

  class Strip {
    constructor(figure) {
      this.figure = figure;
      this.data = dataOf(figure);
      this.choice = one(".part-choice", figure);
      this.choice.append(...this.data.parts.map((part, number) => make("option", { value: number }, part.title)));
      this.choice.addEventListener("change", () => this.choose(Number(this.choice.value)));
      one(".previous", figure).addEventListener("click", () => this.choose(this.part - 1));
      one(".next", figure).addEventListener("click", () => this.choose(this.part + 1));
      const lanes = one(".lanes", figure);
      lanes.addEventListener("mousemove", (event) => this.say(event.target.dataset?.mark));
      lanes.addEventListener("keydown", (event) => this.press(event));
      one(".fold", figure).addEventListener("toggle", () => this.list());
      const typical = this.data.parts.findIndex((part) => part.id.startsWith("layer-"));
      const middle = Math.floor((typical + this.data.parts.length) / 2);
      this.part = typical < 0 ? 0 : this.data.parts[middle].id.startsWith("layer-") ? middle : typical;
      new ResizeObserver(() => this.redraw()).observe(figure);
      this.choose(this.part);
    }

    colorOf(mark) {
      return this.data.colors[this.data.names[mark[2]][1]] ?? "#888888";
    }

    choose(part) {
      this.part = clamp(part, 0, this.data.parts.length - 1);
      this.choice.value = String(this.part);
      const { about, hidden } = this.data.parts[this.part];
      one(".about", this.figure).textContent = about + (hidden ? `; the ${hidden} shortest are not drawn` : "");
      this.mark = null;
      this.redraw();
      this.list();
    }

    goTo(id) {
      const part = this.data.parts.findIndex((each) => each.id === id);
      if (part < 0) {
        return false;
      }
      this.choose(part);
      this.figure.scrollIntoView({ block: "start" });
      return true;
    }

    redraw() {
      const width = Math.max(this.figure.clientWidth, 200);
      one(".whole-step", this.figure).replaceChildren(this.wholeStep(width));
      one(".lanes", this.figure).replaceChildren(this.lanes(width));
      const categories = new Set(this.data.parts[this.part].kernels.map((mark) => this.data.names[mark[2]][1]));
      one(".keys-static", this.figure).replaceChildren(...[...categories].map((name) => make("span", {}, swatch(this.data.colors[name]), name)));
    }

    /** A column a part, as wide as it is long, filled by category; what is left empty is idle. */
    wholeStep(width) {
      const height = 44;
      const svg = draw("svg", { height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "The whole step, a column for each part" });
      const scale = width / Math.max(this.data.wall, 1);
      this.data.parts.forEach((part, number) => {
        const x = clamp(part.at * scale, 0, width - 1);
        const size = { x: x.toFixed(2), width: clamp(part.wall * scale, 1, width - x).toFixed(2) };
        const column = draw("g", { class: number === this.part ? "on" : "" }, draw("title", {}, part.about));
        let top = height - 2;
        for (const [name, share] of part.mix) {
          top -= share * (height - 4);
          column.append(draw("rect", { ...size, y: top.toFixed(2), height: (share * (height - 4)).toFixed(2), fill: this.data.colors[name] ?? "#888888" }));
        }
        column.append(draw("rect", { ...size, y: 2, height: height - 4, class: "edge" }));
        column.addEventListener("click", () => this.choose(number));
        svg.append(column);
      });
      svg.append(...all("g.on", svg)); // its edge above those of its neighbours
      return svg;
    }

    lanes(width) {
      const part = this.data.parts[this.part];
      const streams = [...new Set(part.kernels.map((mark) => mark[3]))].sort((a, b) => a - b);
      const first = Math.min(0, ...part.kernels.map((mark) => mark[0]));
      const last = Math.max(part.wall, ...part.kernels.map((mark) => mark[0] + mark[1]));
      const scale = (width - LABELS - 4) / Math.max(last - first, 1);
      const x = (ns) => LABELS + (ns - first) * scale;
      const height = streams.length * LANE + 22;
      const svg = draw("svg", { height, viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" });
      for (const ns of this.ticks(first, last, width)) {
        svg.append(draw("line", { class: "tick", x1: x(ns), x2: x(ns), y1: 0, y2: height - 18 }), draw("text", { x: x(ns) + 2, y: height - 5 }, duration(ns)));
      }
      streams.forEach((stream, lane) => svg.append(draw("text", { x: 2, y: lane * LANE + 17 }, `stream ${this.data.streams[stream]}`.slice(0, 13))));
      part.kernels.forEach((mark, number) => svg.append(draw("rect", {
        "data-mark": number, x: x(mark[0]).toFixed(2), y: streams.indexOf(mark[3]) * LANE + 3,
        width: Math.max(mark[1] * scale, 1).toFixed(2), height: LANE - 6, fill: this.colorOf(mark), class: number === this.mark ? "on" : "",
      })));
      return svg;
    }

    ticks(first, last, width) {
      const rough = (last - first) / Math.max(Math.floor(width / 150), 2);
      const power = 10 ** Math.floor(Math.log10(Math.max(rough, 1)));
      const step = [1, 2, 5, 10].map((factor) => factor * power).find((each) => each >= rough);
      const ticks = [];
      for (let ns = Math.ceil(first / step) * step; ns <= last; ns += step) {
        ticks.push(ns);
      }
      return ticks.slice(0, 20);
    }

    press(event) {
      const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (move) {
        event.preventDefault();
        this.say(clamp((this.mark ?? -move) + move, 0, this.data.parts[this.part].kernels.length - 1));
      }
    }

    say(number) {
      if (number === undefined || this.data.parts[this.part].kernels.length === 0) {
        return;
      }
      this.mark = Number(number);
      const [at, dur, name, stream] = this.data.parts[this.part].kernels[this.mark];
      const [short, category] = this.data.names[name];
      one(".said", this.figure).textContent = `${category}: ${short}, ${duration(dur)} at ${duration(at)}, stream ${this.data.streams[stream]}`;
      all(".lanes rect.on", this.figure).forEach((rect) => rect.classList.remove("on"));
      one(`.lanes rect[data-mark="${this.mark}"]`, this.figure)?.classList.add("on");
    }

    /** The kernels of the part as rows, once somebody asks for them. */
    list() {
      if (!one(".fold", this.figure).open) {
        return;
      }
      const heads = ["at", "length", "stream", "category", "kernel"].map((title, place) => make("th", { scope: "col", class: place < 3 ? "right" : "left" }, title));
      const rows = this.data.parts[this.part].kernels.map((mark) => {
        const [short, category] = this.data.names[mark[2]];
        return make("tr", {},
          ...[duration(mark[0]), duration(mark[1]), this.data.streams[mark[3]]].map((text) => make("td", { class: "right" }, text)),
          make("td", {}, swatch(this.data.colors[category]), category), make("td", {}, make("code", {}, short)));
      });
      const table = make("table", { class: "sortable" }, make("thead", {}, make("tr", {}, ...heads)), make("tbody", {}, ...rows));
      makeSortable(table);
      one(".list", this.figure).replaceChildren(make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "kernels" }, table));
    }
  }

  // --- all together

  function start() {
    all("table.sortable").forEach(makeSortable);
    all(".table").forEach(makeSearchable);
    const bars = all("figure.bars").map((figure) => new Bars(figure));
    const strips = all("figure.strip").map((figure) => new Strip(figure));
    const goTo = (id) => {
      const step = /^step-(\d+)$/.exec(id);
      return step ? bars.some((each) => each.goTo(Number(step[1]))) : strips.some((each) => each.goTo(id));
    };
    all("figure.heat").forEach((figure) => new Heat(figure, goTo));
    all("figure.dots").forEach((figure) => new Dots(figure));
    document.addEventListener("click", (event) => {
      const button = event.target.closest?.("button.copy");
      const link = event.target.closest?.('a[href^="#"]');
      if (button) {
        copyName(button);
      } else if (link && goTo(link.hash.slice(1))) {
        event.preventDefault();
      } else if (link) {
        unfold(link.hash.slice(1));
      }
    });
    const redraw = () => bars.forEach((each) => each.redraw());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
    matchMedia("print").addEventListener("change", redraw);
    if (location.hash) {
      goTo(location.hash.slice(1));
    }
  }

  /** Opens what is folded around the place that a link leads to. */
  function unfold(id) {
    let around = document.getElementById(id)?.closest("details");
    while (around) {
      around.open = true;
      around = around.parentElement.closest("details");
    }
  }

  start();
})();
