#include "io/metrics/report/comparison_script.h"

namespace trainerd::io {

const char* const kComparisonScript = R"JS(
const runs = JSON.parse(document.getElementById("data").textContent);
const hidden = new Set();
let xaxis = "step";

// The place of a step on the axis: between two buckets of the run in proportion.
function place(run, step) {
  if (xaxis === "step") return step;
  if (xaxis === "tokens") {
    let sum = 0;
    for (const [count, tokens] of run.ramp) { const taken = Math.min(count, step); sum += taken * tokens; step -= taken; }
    return sum + step * run.tokens_per_step;
  }
  const s = run.step, i = s.findIndex(v => v >= step);
  if (i < 0) return run.seconds[s.length - 1];
  if (i === 0 || s[i] === s[i - 1]) return run.seconds[i];
  return run.seconds[i - 1] + (run.seconds[i] - run.seconds[i - 1]) * (step - s[i - 1]) / (s[i] - s[i - 1]);
}
function curve(run, index, name) {
  const points = [];
  run.step.forEach((step, i) => { if (run[name][i]) points.push([place(run, step), ...run[name][i]]); });
  return {label: run.label, color: index % 10, dashed: index >= 10, hidden: hidden.has(index), points};
}
function spec(title, kind, scale, name) {
  const xkind = {step: "integer", tokens: "number", time: "seconds"}[xaxis];
  const lines = runs.map((run, index) => name !== "validation" ? curve(run, index, name) : {
    label: run.label, color: index % 10, hidden: hidden.has(index), dots: true,
    points: run.evaluations.map(([step, loss]) => [place(run, step), loss, loss, loss])});
  return {title, kind, scale, xkind, lines, legend: true};
}
const kinds = [["Training loss", "real", "fitted", "loss"], ["Validation loss", "real", "fitted", "validation"],
  ["Gradient norm, before clipping", "real", "log", "grad_norm"], ["Learning rate", "real", "zero", "learning_rate"],
  ["Tokens per second", "number", "zero", "tokens_per_second"], ["Model FLOPs utilisation", "percent", "zero", "mfu"],
  ["Time of a step", "seconds", "zero", "step_seconds"]];
const box = document.getElementById("charts");
box.replaceChildren();
const charts = [];
for (const kind of kinds) {
  if (!runs.some(run => kind[3] === "validation" ? run.evaluations.length : run[kind[3]].some(v => v))) continue;
  charts.push([T.chart(T.el("figure", {}, box), spec(...kind)), kind]);
}
const refresh = () => { for (const [chart, kind] of charts) chart.update(spec(...kind)); };

const controls = document.getElementById("controls");
controls.hidden = false;
runs.forEach((run, index) => {
  const label = T.el("label", {}, controls);
  const check = T.el("input", {type: "checkbox", checked: ""}, label);
  T.el("i", {class: "b" + index % 10}, label);
  T.el("span", {}, label, run.label);
  check.addEventListener("change", () => { check.checked ? hidden.delete(index) : hidden.add(index); refresh(); });
});
const smooth = T.el("label", {}, controls, "smoothing ");
const slider = T.el("input", {type: "range", id: "smoothing", min: 0, max: 0.99, step: 0.01, value: 0}, smooth);
const shown = T.el("output", {}, smooth, "off");
slider.addEventListener("input", () => {
  T.charts.smoothing = Number(slider.value);
  shown.textContent = T.charts.smoothing ? T.charts.smoothing.toFixed(2) : "off";
  T.charts.redraw();
});
const axis = T.el("label", {}, controls, "over ");
const select = T.el("select", {id: "axis"}, axis);
for (const name of ["step", "tokens", "time"])
  if (name !== "tokens" || runs.every(run => run.tokens_per_step > 0)) T.el("option", {value: name}, select, {step: "steps", tokens: "tokens", time: "time in steps"}[name]);
select.addEventListener("change", () => { xaxis = select.value; T.charts.zoom = null; refresh(); });
const reset = T.el("button", {type: "button"}, controls, "whole range");
reset.addEventListener("click", () => { T.charts.zoom = null; T.charts.redraw(); });
T.el("span", {class: "dim"}, controls, "drag over a chart to zoom");
)JS";

}  // namespace trainerd::io
