#include "io/metrics/report/live_page.h"

#include "io/metrics/report/script.h"

namespace trainerd::io {
namespace {

constexpr const char* kPage = R"HTML(<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>trainerd</title><link rel="icon" href="data:,"><link rel="stylesheet" href="live.css"></head>
<body><main>
<noscript><p>This page shows a run by a script. Figures are at <a href="status.json">status.json</a> and <a href="metrics">metrics</a>.</p></noscript>
<h1 id="name">trainerd</h1>
<p class="dim sub"><b id="state" class="run"></b> <span id="asof">reads the run&rsquo;s status</span></p>
<div id="problem" class="box stale wide" hidden></div>
<div class="progress" role="progressbar" aria-label="steps done" aria-valuemin="0" aria-valuemax="100" id="progress"><div id="done"></div></div>
<div class="cards" id="cards"></div>
<h2>Training</h2><div class="charts" id="charts"></div>
<h2>Time and memory</h2><div class="tables">
<div class="box"><div class="bar" id="ledgerbar"></div><div class="scroll"><table id="ledger"></table></div></div>
<div class="box"><div class="bar" id="memorybar"></div><div id="memory"></div><div class="scroll"><table id="uses"></table></div>
<div class="ranks" id="ranks"></div><div class="legend" id="ranklegend"></div><table id="doing"></table></div></div>
<h2>Events</h2><div class="box wide scroll"><table id="events"></table></div>
<h2>Run</h2><div class="box wide facts"><table id="facts"></table></div>
</main><script src="live.js"></script></body></html>
)HTML";

constexpr const char* kLiveScript = R"JS(
const EVERY = 2000, by = id => document.getElementById(id);
const charts = {};
let answered = 0;

const two = n => String(n).padStart(2, "0");
let today = "";
function clock(seconds, date) {
  if (!seconds) return "";
  const d = new Date(1000 * seconds), time = [d.getUTCHours(), d.getUTCMinutes(), d.getUTCSeconds()].map(two).join(":");
  const day = [d.getUTCFullYear(), two(d.getUTCMonth() + 1), two(d.getUTCDate())].join("-");
  if (date) today = day;
  return date || day !== today ? day + " " + time : time;
}
const words = name => name.replaceAll("_", " ");
const color = state => ({done: "good", stopped: "warn", failed: "bad", lost: "bad"})[state] || "run";
const eventColor = kind => ({finish: "good", failure: "bad", stop: "warn", restart: "warn", warning: "warn", start: "run", resume: "run"})[kind] || "dim";
function row(table, cells, header) {
  const tr = T.el("tr", {}, table);
  for (const [text, style] of cells) T.el(header ? "th" : "td", style ? {class: style} : {}, tr, text);
  return tr;
}

function head(s) {
  by("name").textContent = s.info.name;
  document.title = s.info.name + " · " + s.state + (s.info.steps ? " " + Math.floor(100 * s.step / s.info.steps) + "%" : "");
  const progress = s.evaluation_progress;
  by("state").textContent = s.state + (progress ? ` ${progress.done}/${progress.batches}` : "");
  by("state").className = color(s.state);
  by("asof").textContent = (s.outcome ? "· " + s.outcome + " " : "") + "· as of " + clock(s.now, true) + " UTC";
  const share = s.info.steps ? Math.min(1, s.step / s.info.steps) : 0;
  by("done").style.width = 100 * share + "%";
  by("progress").setAttribute("aria-valuenow", Math.floor(100 * share));
  const cards = [[T.format("integer", s.step) + (s.info.steps ? " / " + T.format("integer", s.info.steps) : ""), "steps"]];
  const number = (v, digits) => v === null || v === undefined ? "–" : v.toFixed(digits);
  if (s.last) cards.push([number(s.last.loss, 4), "loss"]);
  if (s.evaluations.length) cards.push([number(s.evaluations[s.evaluations.length - 1].loss, 4), "validation loss"]);
  if (s.last) cards.push([T.format("number", s.last.tokens_per_second), "tokens/s"]);
  if (s.last && s.last.mfu !== undefined) cards.push([number(100 * s.last.mfu, 1) + "%", "MFU"]);
  if (s.step_seconds) cards.push([T.format("seconds", s.step_seconds), "per step"]);
  if (s.eta_seconds !== undefined) cards.push([T.format("seconds", s.eta_seconds), "left"]);
  cards.push([T.format("seconds", s.seconds), s.attempts > 1 ? `so far, ${s.attempts} attempts` : "so far"]);
  if (s.memory_used_bytes !== undefined) cards.push([T.format("bytes", s.memory_used_bytes), "memory in use"]);
  const box = by("cards");
  box.replaceChildren();
  for (const [value, name] of cards) {
    const card = T.el("div", {class: "card"}, box);
    T.el("b", {}, card, value);
    T.el("span", {}, card, name);
  }
}

function drawCharts(s) {
  const steps = s.series.steps.map(([first, last]) => Math.floor((first + last) / 2));
  const line = (label, c, column) => ({label, color: c, points: steps.flatMap((x, i) => column[i] ? [[x, ...column[i]]] : [])});
  const marks = s.resumed_after.map((x, i) => ({x: x + 0.5, name: "attempt " + (i + 2)}));
  const validation = {label: "validation", color: 1, dots: true, points: s.evaluations.filter(e => e.loss !== null).map(e => [e.step, e.loss, e.loss, e.loss])};
  const specs = {
    loss: {title: "Loss", kind: "real", scale: "fitted", lines: [line("training", 0, s.series.loss), validation]},
    speed: {title: "Tokens per second", kind: "number", scale: "zero", lines: [line("tokens/s", 0, s.series.tokens_per_second)]},
    norm: {title: "Gradient norm, before clipping", kind: "real", scale: "log", lines: [line("gradient norm", 2, s.series.grad_norm)]},
    mfu: {title: "Model FLOPs utilisation", kind: "percent", scale: "zero", lines: [line("MFU", 3, s.series.mfu)]},
    step: {title: "Time of a step", kind: "seconds", scale: "zero", lines: [{label: "step", color: 0, points: steps.map((x, i) => {
      const all = Object.values(s.series.time).reduce((sum, column) => sum + column[i], 0);
      return [x, all, all, all];
    })}]},
    rate: {title: "Learning rate", kind: "real", scale: "zero", lines: [line("learning rate", 3, s.series.learning_rate)]},
  };
  for (const [key, spec] of Object.entries(specs)) {
    spec.marks = marks;
    if (charts[key]) charts[key].update(spec);
    else if (spec.lines.some(l => l.points.length)) charts[key] = T.chart(T.el("figure", {}, by("charts")), spec);
  }
}

function ledger(s) {
  const parts = Object.keys(s.recent_time), all = parts.reduce((sum, p) => sum + s.recent_time[p], 0);
  const total = parts.reduce((sum, p) => sum + s.total_time[p], 0);
  const bar = by("ledgerbar"), table = by("ledger");
  bar.replaceChildren();
  table.replaceChildren();
  row(table, [[`last ${s.recent_steps} steps`], ["per step", "n"], ["share", "n"], ["share of all", "n"]], true);
  parts.forEach((part, i) => {
    if (!s.recent_time[part] && !s.total_time[part]) return;
    T.el("div", {class: "b" + i, title: words(part)}, bar).style.width = 100 * s.recent_time[part] / (all || 1) + "%";
    const share = of => (100 * of).toFixed(1) + "%";
    const tr = row(table, [["", "nowrap"], [T.format("seconds", s.recent_time[part]), "n"], [share(s.recent_time[part] / (all || 1)), "n"], [share(s.total_time[part] / (total || 1)), "n"]]);
    T.el("i", {class: "b" + i}, tr.firstChild);
    tr.firstChild.append(words(part));
  });
}

function ranks(s) {
  const used = s.memory_used_bytes, planned = s.memory_planned_bytes;
  by("memory").textContent = !planned ? "" : used === undefined ? "memory: " + T.format("bytes", planned) + " planned"
    : `${T.format("bytes", used)} in use of ${T.format("bytes", planned)} planned (${(100 * used / planned).toFixed(1)}%)`;
  const uses = s.info.memory_uses, all = uses.reduce((sum, [, bytes]) => sum + bytes, 0), bar = by("memorybar"), table = by("uses");
  bar.hidden = all === 0;
  bar.replaceChildren();
  table.replaceChildren();
  if (all) row(table, [["memory, all ranks"], ["planned", "n"], ["share", "n"]], true);
  uses.forEach(([name, bytes], i) => {
    T.el("div", {class: "b" + i % 10, title: name}, bar).style.width = 100 * bytes / all + "%";
    const tr = row(table, [["", "nowrap"], [T.format("bytes", bytes), "n nowrap"], [(100 * bytes / all).toFixed(1) + "%", "n"]]);
    T.el("i", {class: "b" + i % 10}, tr.firstChild);
    tr.firstChild.append(name);
  });
  const grid = by("ranks"), state = s.ranks.state, limit = 4096;
  while (grid.childElementCount > Math.min(limit, state.length)) grid.lastChild.remove();
  while (grid.childElementCount < Math.min(limit, state.length)) T.el("i", {}, grid);
  const counts = {};
  state.forEach((value, rank) => {
    counts[value] = (counts[value] || 0) + 1;
    if (rank >= limit) return;
    const cell = grid.children[rank], memory = s.ranks.planned_bytes[rank];
    cell.className = "r" + value;
    cell.title = `rank ${rank}, node ${s.ranks.node[rank]}: ${s.ranks.names[value]}` +
      (memory ? `, ${s.ranks.used_bytes[rank] === null ? "" : T.format("bytes", s.ranks.used_bytes[rank]) + " of "}${T.format("bytes", memory)}` : "") + (s.ranks.doing[rank] ? `: ${s.ranks.doing[rank]}` : "");
  });
  // Those that have made no progress for longest, in the order of their numbers.
  const doing = by("doing"), quiet = rank => Math.max(0, s.now - s.ranks.doing_at[rank]), shown = state.map((_, rank) => rank)
    .filter(rank => s.ranks.doing[rank]).sort((a, b) => Math.round((quiet(b) - quiet(a)) / 3) || a - b).slice(0, 16).sort((a, b) => a - b);
  doing.replaceChildren();
  if (shown.length) row(doing, [["rank", "n"], ["does"], ["for", "n"], ["latest collective"]], true);
  for (const rank of shown)
    row(doing, [[T.format("integer", rank), "n"], [s.ranks.doing[rank]], [T.format("seconds", quiet(rank)), "n nowrap"], [s.ranks.last[rank]]]);
  const legend = by("ranklegend");
  legend.replaceChildren();
  for (const [value, count] of Object.entries(counts)) {
    const entry = T.el("span", {}, legend);
    T.el("i", {class: "r" + value}, entry);
    entry.append(`${T.format("integer", count)} ${s.ranks.names[value]}`);
  }
}

function tables(s) {
  const events = by("events");
  events.replaceChildren();
  row(events, [["time (UTC)"], ["step", "n"], [""], [""]], true);
  for (const e of [...s.events].reverse())
    row(events, [[clock(e.wall_time), "nowrap"], [T.format("integer", e.step), "n"], [e.event, eventColor(e.event)], [e.message]]);
  const facts = by("facts"), i = s.info;
  facts.replaceChildren();
  const fact = (name, text) => { if (text) { const tr = T.el("tr", {}, facts); T.el("th", {}, tr, name); T.el("td", {}, tr, text); } };
  fact("program", "trainerd " + i.version + (i.commit ? ` (${i.commit})` : ""));
  fact("host", i.host);
  fact("layout", i.layout);
  fact("device", i.device && `${i.device}, ${i.threads} thread${i.threads === 1 ? "" : "s"}, ${i.precision}`);
  fact("model", i.parameters && T.format("number", i.parameters) + " parameters");
  fact("data", i.data);
  fact("tokens", T.format("integer", s.tokens) + (i.steps ? " of " + T.format("integer", i.tokens) : ""));
  fact("output", i.output);
  fact("command", i.command);
}

async function poll() {
  try {
    const reply = await fetch("status.json", {cache: "no-store"});
    if (!reply.ok) throw new Error("status " + reply.status);
    const s = await reply.json();
    answered = Date.now();
    by("problem").hidden = true;
    head(s); drawCharts(s); ledger(s); ranks(s); tables(s);
  } catch (error) {
    by("problem").hidden = false;
    by("problem").textContent = answered
      ? `No answer for ${T.format("seconds", (Date.now() - answered) / 1000)}: the run has ended, or its host is out of reach. The figures are the last ones.`
      : "The run's status cannot be read: " + error.message;
  }
  setTimeout(poll, document.hidden ? 5 * EVERY : EVERY);
}
poll();
)JS";

}  // namespace

std::string live_page() { return kPage; }
std::string live_script() { return page_script() + kLiveScript; }

}  // namespace trainerd::io
