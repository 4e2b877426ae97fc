#include "io/metrics/report/script.h"

namespace trainerd::io {
namespace {

constexpr const char* kScript = R"JS("use strict";
const T = (() => {
  const SVG = "http://www.w3.org/2000/svg";
  const TOP = 10, BOTTOM = 30, LEFT = 62, RIGHT = 22;
  const shared = {smoothing: 0, zoom: null, all: new Set(), redraw() { for (const c of shared.all) c.draw(); }};

  function el(tag, attributes, parent, text) {
    const svg = ["svg", "g", "path", "line", "text", "rect", "circle", "clipPath"].includes(tag);
    const e = svg ? document.createElementNS(SVG, tag) : document.createElement(tag);
    for (const [k, v] of Object.entries(attributes || {})) e.setAttribute(k, v);
    if (text !== undefined) e.textContent = text;
    if (parent) parent.append(e);
    return e;
  }

  const short = (v, units, base) => {
    let i = 0;
    while (Math.abs(v) >= 999.5 && i + 1 < units.length) { v /= base; ++i; }
    const digits = i === 0 && Number.isInteger(v) ? 0 : Math.abs(v) < 9.995 ? 2 : Math.abs(v) < 99.95 ? 1 : 0;
    return v.toFixed(digits) + units[i];
  };
  function seconds(s) {
    if (s === 0) return "0";
    if (s < 0.0995) return Number((1e3 * s).toPrecision(3)) + " ms";
    if (s < 0.9995) return Math.round(1e3 * s) + " ms";
    if (s < 59.95) return s.toFixed(1) + " s";
    const two = n => String(Math.floor(n)).padStart(2, "0");
    if (s < 3600) return Math.floor(s / 60) + "m" + two(s % 60) + "s";
    if (s < 86400) return Math.floor(s / 3600) + "h" + two(s % 3600 / 60) + "m";
    return Math.floor(s / 86400) + "d" + two(s % 86400 / 3600) + "h";
  }
  function format(kind, v) {
    if (v === null || v === undefined || !Number.isFinite(v)) return "–";
    switch (kind) {
      case "integer": return Math.round(v).toLocaleString("en-US");
      case "number": return short(v, ["", "k", "M", "G", "T", "P"], 1000);
      case "bytes": return short(v, [" B", " KiB", " MiB", " GiB", " TiB"], 1024);
      case "percent": return Number((100 * v).toPrecision(3)) + "%";
      case "seconds": return seconds(v);
      default: return String(Number(v.toPrecision(4)));
    }
  }

  // "8.00k" is "8k" on an axis.
  const rounded = text => text.replace(/(\.\d*?)0+(\D*)$/, "$1$2").replace(/\.(\D*)$/, "$1");
  function ticks(low, high, count) {
    const rough = (high - low) / count, power = 10 ** Math.floor(Math.log10(rough)), lead = rough / power;
    const step = power * (lead <= 1.5 ? 1 : lead <= 3.5 ? 2 : lead <= 7.5 ? 5 : 10), out = [];
    for (let n = Math.ceil(low / step - 1e-9); n * step <= high + step * 1e-9 && out.length < 50; ++n) out.push(n * step);
    return out;
  }
  function logTicks(low, high) {
    const out = [], powers = [];
    for (let e = Math.floor(low); e <= Math.ceil(high); ++e)
      for (const m of [1, 2, 5]) {
        const at = Math.log10(m) + e;
        if (at < low - 1e-9 || at > high + 1e-9) continue;
        out.push(m * 10 ** e);
        if (m === 1) powers.push(10 ** e);
      }
    if (out.length < 3) return ticks(10 ** low, 10 ** high, 5);
    return out.length > 7 && powers.length > 1 ? powers : out;
  }

  // An exponential moving average without a bias towards its start; of a weight of 0 the points themselves.
  function smoothed(points, weight) {
    let sum = 0, norm = 0;
    return points.map(p => {
      sum = weight * sum + (1 - weight) * p[2];
      norm = weight * norm + (1 - weight);
      return [p[0], sum / norm];
    });
  }

  class Chart {
    constructor(figure, spec) {
      this.figure = figure;
      this.spec = spec;
      this.clip = "plot" + shared.all.size;
      figure.replaceChildren();
      el("figcaption", {}, figure, spec.title);
      this.legend = el("div", {class: "legend"}, figure);
      this.svg = el("svg", {role: "img", "aria-label": spec.title}, figure);
      this.svg.addEventListener("pointerdown", e => this.press(e));
      this.svg.addEventListener("pointermove", e => this.point(e));
      this.svg.addEventListener("pointerleave", () => this.leave());
      this.svg.addEventListener("pointerup", e => this.release(e));
      this.svg.addEventListener("dblclick", () => { shared.zoom = null; shared.redraw(); });
      new ResizeObserver(() => { if (this.width !== this.columns()) this.draw(); }).observe(figure);
      shared.all.add(this);
      this.draw();
    }
    update(spec) { this.spec = spec; if (this.from === undefined) this.draw(); }
    columns() {
      const style = getComputedStyle(this.figure);
      return Math.max(240, this.figure.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight));
    }

    isSmoothed(line) { return shared.smoothing > 0 && !line.dots; }
    ranges() {
      let x0 = Infinity, x1 = -Infinity, y0 = Infinity, y1 = -Infinity;
      for (const line of this.lines) for (const p of line.points) { x0 = Math.min(x0, p[0]); x1 = Math.max(x1, p[0]); }
      if (shared.zoom) [x0, x1] = shared.zoom;
      // Where curves are smoothed they are what is to be seen, not what they were made of.
      for (const line of this.lines)
        for (const p of this.isSmoothed(line) ? smoothed(line.points, shared.smoothing).map(([x, y]) => [x, y, y, y]) : line.points)
          if (p[0] >= x0 && p[0] <= x1) { y0 = Math.min(y0, p[1]); y1 = Math.max(y1, p[3]); }
      if (!(x0 <= x1)) return false;
      if (!(y0 <= y1)) { y0 = 0; y1 = 1; }
      this.log = this.spec.scale === "log" && y0 > 0;
      if (this.log) { y0 = Math.log10(y0); y1 = Math.log10(y1); }
      if (this.spec.scale === "zero") y0 = Math.min(y0, 0);
      const widen = (a, b) => a < b ? [a, b] : [a - (a === 0 ? 1 : Math.abs(a) * 0.1), b + (b === 0 ? 1 : Math.abs(b) * 0.1)];
      [x0, x1] = widen(x0, x1);
      [y0, y1] = widen(y0, y1);
      const room = (y1 - y0) * 0.05;
      y1 += room;
      if (this.spec.scale !== "zero") y0 -= room;
      Object.assign(this, {x0, x1, y0, y1});
      return true;
    }

    x(v) { return LEFT + (v - this.x0) / (this.x1 - this.x0) * (this.width - LEFT - RIGHT); }
    y(v) {
      const at = this.log ? Math.log10(v) : v;
      return this.height - BOTTOM - (at - this.y0) / (this.y1 - this.y0) * (this.height - BOTTOM - TOP);
    }
    value(pixel) { return this.x0 + (pixel - LEFT) / (this.width - LEFT - RIGHT) * (this.x1 - this.x0); }

    path(points, of) {
      let d = "";
      for (const p of points) {
        const y = of(p);
        if (Number.isFinite(y)) d += (d ? "L" : "M") + this.x(p[0]).toFixed(1) + " " + this.y(y).toFixed(1);
      }
      return d;
    }

    draw() {
      this.lines = this.spec.lines.filter(l => !l.hidden && l.points.length > 0);
      this.width = this.columns();
      this.height = Math.min(260, Math.max(200, this.width * 0.5));
      this.svg.setAttribute("viewBox", `0 0 ${this.width} ${this.height}`);
      this.svg.replaceChildren();
      this.readings = [];
      this.legend.replaceChildren();
      if (!this.ranges()) {
        el("text", {x: this.width / 2, y: this.height / 2, class: "x"}, this.svg, "no values yet");
        return;
      }
      const kind = this.spec.kind;
      for (const tick of this.log ? logTicks(this.y0, this.y1) : ticks(this.y0, this.y1, 5)) {
        el("line", {class: "grid", x1: LEFT, x2: this.width - RIGHT, y1: this.y(tick), y2: this.y(tick)}, this.svg);
        el("text", {class: "y", x: LEFT - 8, y: this.y(tick) + 4}, this.svg, rounded(format(kind, tick)));
      }
      const xkind = this.spec.xkind || "integer", base = this.height - BOTTOM;
      for (const tick of ticks(this.x0, this.x1, Math.max(2, Math.min(7, (this.width - LEFT) / 80)))) {
        if (xkind === "integer" && !Number.isInteger(tick)) continue;
        el("line", {class: "tick", x1: this.x(tick), x2: this.x(tick), y1: base, y2: base + 5}, this.svg);
        el("text", {class: "x", x: this.x(tick), y: base + 19}, this.svg, rounded(format(xkind, tick)));
      }
      el("line", {class: "axis", x1: LEFT, x2: this.width - RIGHT, y1: base, y2: base}, this.svg);
      for (const mark of this.spec.marks || []) {
        if (mark.x <= this.x0 || mark.x >= this.x1) continue;
        const line = el("line", {class: "mark", x1: this.x(mark.x), x2: this.x(mark.x), y1: TOP, y2: base}, this.svg);
        el("title", {}, line, mark.name);
      }
      const clip = el("clipPath", {id: this.clip}, this.svg);
      el("rect", {x: LEFT - 4, y: TOP - 4, width: this.width - LEFT - RIGHT + 8, height: base - TOP + 4}, clip);
      for (const line of this.lines) this.drawLine(line);
      this.at = el("text", {class: "x", y: TOP + 2}, this.svg, "");
      this.cross = el("line", {class: "mark", y1: TOP, y2: base, visibility: "hidden"}, this.svg);
      this.box = el("rect", {class: "zoom", y: TOP, height: base - TOP, visibility: "hidden"}, this.svg);
    }

    drawLine(line) {
      const c = line.color, shown = [];
      // What is seen, and one point beyond on each side, so that curves reach the edges.
      line.points.forEach((p, i) => {
        const next = line.points[i + 1], before = line.points[i - 1];
        if ((next ? next[0] : p[0]) >= this.x0 && (before ? before[0] : p[0]) <= this.x1) shown.push(p);
      });
      const group = el("g", {"clip-path": `url(#${this.clip})`}, this.svg);
      const plain = this.isSmoothed(line);
      if (!plain && shown.some(p => p[3] > p[1])) {
        const up = this.path(shown, p => p[3]), down = this.path([...shown].reverse(), p => p[1]);
        el("path", {class: "band f" + c, d: up + down.replace("M", "L") + "Z"}, group);
      }
      let reading = shown.map(p => [p[0], p[2]]);
      if (plain) {
        el("path", {class: "line faint s" + c, d: this.path(shown, p => p[2])}, group);
        const all = smoothed(line.points, shared.smoothing);
        reading = all.slice(line.points.indexOf(shown[0]), line.points.indexOf(shown[0]) + shown.length);
      }
      const inside = reading.filter(p => p[0] >= this.x0 && p[0] <= this.x1);
      el("path", {class: "line s" + c + (line.dashed ? " dashed" : ""), d: this.path(line.dots ? inside : reading, p => p[1])}, group);
      if (line.dots || inside.length === 1)
        for (const p of inside) el("circle", {class: "f" + c, cx: this.x(p[0]), cy: this.y(p[1]), r: 3.5}, group);
      const entry = el("span", {}, this.legend);
      if (this.spec.lines.length > 1) {
        el("i", {class: "b" + c}, entry);
        el("span", {}, entry, line.label);
      }
      this.readings.push({points: inside, value: el("b", {class: this.spec.lines.length > 1 ? "reading" : ""}, entry)});
    }

    pixel(e) {
      const box = this.svg.getBoundingClientRect();
      return Math.min(this.width - RIGHT, Math.max(LEFT, (e.clientX - box.left) * this.width / box.width));
    }
    press(e) {
      if (!this.cross) return;
      this.from = this.pixel(e);
      this.svg.setPointerCapture(e.pointerId);
      e.preventDefault();
    }
    point(e) {
      if (!this.cross) return;
      const at = this.pixel(e), x = this.value(at);
      this.cross.setAttribute("x1", at);
      this.cross.setAttribute("x2", at);
      this.cross.setAttribute("visibility", "visible");
      for (const r of this.readings) {
        let best = null;
        for (const p of r.points) if (!best || Math.abs(p[0] - x) < Math.abs(best[0] - x)) best = p;
        r.value.textContent = best ? format(this.spec.kind, best[1]) : "";
      }
      this.at.textContent = format(this.spec.xkind || "integer", x);
      this.at.setAttribute("x", at);
      if (this.from === undefined) return;
      this.box.setAttribute("x", Math.min(this.from, at));
      this.box.setAttribute("width", Math.abs(at - this.from));
      this.box.setAttribute("visibility", "visible");
    }
    release(e) {
      if (this.from === undefined) return;
      const to = this.pixel(e), from = this.from;
      this.from = undefined;
      if (Math.abs(to - from) < 6) return this.box.setAttribute("visibility", "hidden");
      shared.zoom = [this.value(Math.min(from, to)), this.value(Math.max(from, to))];
      shared.redraw();
    }
    leave() {
      if (!this.cross || this.from !== undefined) return;
      this.cross.setAttribute("visibility", "hidden");
      this.at.textContent = "";
      for (const r of this.readings) r.value.textContent = "";
    }
  }

  return {el, format, charts: shared, chart: (figure, spec) => new Chart(figure, spec)};
})();
)JS";

}  // namespace

std::string page_script() { return kScript; }

}  // namespace trainerd::io
