// Line charts as SVG: a title, the newest values as legend, and under the pointer the values there.
import { el, svg, put } from "./dom.js";

const LEFT = 46, RIGHT = 6, TOP = 8, BOTTOM = 16; // pixels around the plot

// The next larger of 1, 2, 2.5, 5 times a power of ten.
function niceStep(v) {
  const power = 10 ** Math.floor(Math.log10(v));
  const lead = v / power;
  return power * (lead <= 1 ? 1 : lead <= 2 ? 2 : lead <= 2.5 ? 2.5 : lead <= 5 ? 5 : 10);
}

// Ticks that hold [low, high]: about `count` steps, the first and last beyond the values.
function ticksOf(low, high, count) {
  if (!(high > low)) high = low + (Math.abs(low) || 1);
  const step = niceStep((high - low) / count), ticks = [];
  for (let i = Math.floor(low / step + 1e-9); ; i++) {
    ticks.push(i * step);
    if (i * step >= high * (1 - 1e-9)) return ticks;
  }
}

export class Chart {
  // title; format(y); about(x): the words for a place; lines: [{name, kind}], kind a CSS class of the line, optional: in
  // the legend only when it has points, dots, area;
  // zero: y begins at 0; least: y reaches at least this far; place(x): the label of an end of the x axis
  constructor(options) {
    this.options = { zero: true, least: 0, ...options };
    this.lines = this.options.lines.map(line => ({ ...line, points: [] }));
    this.range = [0, 1];
    this.values = this.lines.map(() => el("b", {}, "–"));
    this.keys = this.lines.map((line, i) =>
      el("span", { class: `key ${line.kind}`, hidden: line.optional }, el("i", { "aria-hidden": "true" }), `${line.name} `, this.values[i]));
    this.plot = svg("svg", { role: "img", "aria-label": options.title });
    this.tip = el("div", { class: "tip", hidden: true });
    this.node = el("figure", { class: "chart" },
      el("figcaption", {}, el("span", { class: "name" }, options.title), el("span", { class: "legend" }, ...this.keys)),
      el("div", { class: "plot" }, this.plot, this.tip));
    this.plot.addEventListener("pointermove", e => this.point(e.offsetX));
    this.plot.addEventListener("pointerleave", () => this.point(null));
    this.at = null; // the pointer's x in pixels
    this.frame = 0;
    new ResizeObserver(() => this.draw()).observe(this.plot);
  }

  // series: for each line its points [x, y], x ascending, y null where nothing was measured; range: [first x, last x]
  set(series, range) {
    series.forEach((points, i) => (this.lines[i].points = points));
    this.range = range;
    this.lines.forEach((line, i) => {
      const last = this.options.now ? line.points.at(-1) : line.points.findLast(p => Number.isFinite(p[1]));
      put(this.values[i], this.options.format(last ? last[1] : null));
      this.keys[i].hidden = Boolean(line.optional && !last);
    });
    const text = this.keys.filter(key => !key.hidden).map(key => key.textContent).join(", ");
    this.plot.setAttribute("aria-label", `${this.options.title}: ${text}`);
    this.frame ||= requestAnimationFrame(() => this.draw());
  }

  draw() {
    cancelAnimationFrame(this.frame);
    this.frame = 0;
    const width = this.plot.clientWidth, height = this.plot.clientHeight;
    if (!width || !height) return;
    const ys = this.lines.flatMap(line => line.points.map(p => p[1])).filter(Number.isFinite);
    const low = this.options.zero ? 0 : Math.min(...ys, Infinity), high = Math.max(...ys, this.options.zero ? this.options.least : -Infinity);
    const ticks = Number.isFinite(low) && Number.isFinite(high) ? ticksOf(low, high, height > 120 ? 4 : 2) : [0, 1];
    const y0 = ticks[0], y1 = ticks.at(-1), [x0, x1] = this.range;
    this.x = x => LEFT + ((x - x0) / (x1 - x0 || 1)) * (width - LEFT - RIGHT);
    this.y = y => TOP + (1 - (y - y0) / (y1 - y0)) * (height - TOP - BOTTOM);
    const parts = [];
    for (const tick of ticks) {
      const y = Math.round(this.y(tick)) + 0.5;
      parts.push(svg("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: y, y2: y }),
        svg("text", { class: "tick", x: LEFT - 6, y: y + 3.5, "text-anchor": "end" }, this.options.format(tick)));
    }
    if (this.options.place) {
      parts.push(svg("text", { class: "tick", x: LEFT, y: height - 2 }, this.options.place(x0)),
        svg("text", { class: "tick", x: width - RIGHT, y: height - 2, "text-anchor": "end" }, this.options.place(x1)));
    }
    for (const line of this.lines) parts.push(...this.paths(line));
    this.cursor = svg("g");
    parts.push(this.cursor);
    this.plot.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.plot.replaceChildren(...parts);
    this.point(this.at);
  }

  // A line breaks where nothing was measured; what stands alone is a dot.
  paths(line) {
    const shapes = [];
    let run = [];
    const end = () => {
      const at = run.map(p => `${this.x(p[0]).toFixed(1)} ${this.y(p[1]).toFixed(1)}`);
      if (run.length === 1 || (line.dots && run.length)) {
        for (const p of run) shapes.push(svg("circle", { class: `dot ${line.kind}`, cx: this.x(p[0]), cy: this.y(p[1]), r: line.dots ? 3.5 : 2.5 }));
      }
      if (run.length > 1) shapes.push(svg("path", { class: `line ${line.kind}`, d: `M${at.join("L")}` }));
      if (run.length > 1 && line.area) {
        const floor = this.y(Math.max(0, this.options.zero ? 0 : -Infinity));
        shapes.unshift(svg("path", { class: `area ${line.kind}`,
          d: `M${this.x(run[0][0]).toFixed(1)} ${floor}L${at.join("L")}L${this.x(run.at(-1)[0]).toFixed(1)} ${floor}Z` }));
      }
      run = [];
    };
    for (const p of line.points) {
      if (!Number.isFinite(p[1]) || p[0] < this.range[0]) end();
      else run.push(p);
    }
    end();
    return shapes;
  }

  // Shows the values nearest to a place.
  point(at) {
    this.at = at;
    if (!this.cursor) return;
    this.cursor.replaceChildren();
    this.tip.hidden = true;
    if (at === null) return;
    const near = this.lines.map(line => nearest(line.points, p => Math.abs(this.x(p[0]) - at)));
    const best = nearest(near.filter(Boolean), p => Math.abs(this.x(p[0]) - at));
    if (!best) return;
    const x = this.x(best[0]), height = this.plot.clientHeight;
    this.cursor.append(svg("line", { class: "cursor", x1: x, x2: x, y1: TOP, y2: height - BOTTOM }));
    const rows = [el("span", { class: "where" }, this.options.about(best[0]))];
    this.lines.forEach((line, i) => {
      if (!near[i] || near[i][0] !== best[0]) return;
      this.cursor.append(svg("circle", { class: `dot ${line.kind}`, cx: x, cy: this.y(near[i][1]), r: 3 }));
      rows.push(el("span", { class: `key ${line.kind}` }, el("i"), `${line.name} `, el("b", {}, this.options.format(near[i][1]))));
    });
    this.tip.replaceChildren(...rows);
    this.tip.hidden = false;
    const width = this.plot.clientWidth, own = this.tip.offsetWidth;
    this.tip.style.left = `${Math.min(Math.max(x + (x > width / 2 ? -own - 10 : 10), 0), width - own)}px`;
  }
}

function nearest(points, distance) {
  let best = null, least = Infinity;
  for (const p of points) {
    const d = Number.isFinite(p[1]) ? distance(p) : Infinity;
    if (d < least) [best, least] = [p, d];
  }
  return best;
}
