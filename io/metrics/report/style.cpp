#include "io/metrics/report/style.h"

#include <fmt/format.h>

#include "io/records/records.h"

namespace trainerd::io {
namespace {

constexpr const char* kStyle = R"(
:root { color-scheme: light dark; --bg: #f6f7f9; --card: #ffffff; --ink: #1c2330; --dim: #667085; --rule: #e3e7ee; --good: #067647; --bad: #b42318; --warn: #b54708; --run: #175cd3;
  --c0: #2563eb; --c1: #d97706; --c2: #7c2d12; --c3: #a16207; --c4: #9333ea; --c5: #0d9488;
  --c6: #db2777; --c7: #b45309; --c8: #65a30d; --c9: #0891b2; --c10: #e11d48; --c11: #78716c; --c12: #94a3b8; }
@media (prefers-color-scheme: dark) { :root { --bg: #0e131b; --card: #171e29; --ink: #e6eaf1; --dim: #97a3b6; --rule: #2a3442; --good: #4ade80; --bad: #f97066; --warn: #fdb022; --run: #84caff;
  --c0: #60a5fa; --c1: #fbbf24; --c2: #fdba74; --c3: #fde68a; --c4: #c084fc; --c5: #2dd4bf;
  --c6: #f472b6; --c7: #f59e0b; --c8: #a3e635; --c9: #22d3ee; --c10: #fb7185; --c11: #a8a29e; --c12: #64748b; } }
* { box-sizing: border-box; }
body { margin: 0; padding: 28px; background: var(--bg); color: var(--ink); font: 15px/1.45 system-ui, sans-serif; }
main { max-width: 1240px; margin: 0 auto; }
h1 { margin: 0; font-size: 26px; } h2 { margin: 32px 0 12px; font-size: 18px; }
.dim { color: var(--dim); } .good { color: var(--good); } .bad { color: var(--bad); } .warn { color: var(--warn); } .run { color: var(--run); }
.failed { border-left: 4px solid var(--bad); margin-top: 16px; } .failed pre { white-space: pre-wrap; }
.sub { margin: 4px 0 0; }
.cards { display: flex; flex-wrap: wrap; gap: 12px; margin: 20px 0; } .card { flex: 1 1 96px; }
.card, figure, .box { background: var(--card); border: 1px solid var(--rule); border-radius: 10px; padding: 14px 16px; margin: 0; }
.card b { display: block; font-size: 20px; white-space: nowrap; font-variant-numeric: tabular-nums; } .card span { color: var(--dim); font-size: 13px; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(460px, 100%), 1fr)); gap: 14px; }
figcaption { font-weight: 600; display: inline-block; margin-right: 16px; }
.legend { display: inline-block; color: var(--dim); font-size: 13px; } .legend span { margin-right: 12px; white-space: nowrap; }
i { display: inline-block; width: 10px; height: 10px; border-radius: 3px; margin-right: 5px; }
svg { display: block; width: 100%; height: auto; margin-top: 8px; } svg text { fill: var(--dim); font: 12px system-ui, sans-serif; }
text.y { text-anchor: end; } text.x { text-anchor: middle; } .grid { stroke: var(--rule); } .axis, .tick { stroke: var(--dim); }
.line { fill: none; stroke-width: 2; stroke-linejoin: round; } .band { opacity: .2; } .hover { fill: transparent; } rect.hover:hover { fill: var(--dim); opacity: .18; }
.bar { display: flex; height: 22px; border-radius: 6px; overflow: hidden; margin-bottom: 12px; }
.tables { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(460px, 100%), 1fr)); gap: 14px; align-items: start; }
.tables > * { overflow-x: auto; } .tables .n { padding-left: 10px; white-space: nowrap; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; } td, th { padding: 4px 10px 4px 0; text-align: left; border-bottom: 1px solid var(--rule); }
th { white-space: nowrap; color: var(--dim); font-weight: 500; font-size: 13px; } tr:last-child td { border-bottom: 0; } .n { text-align: right; padding-right: 0; } .n + :not(.n) { padding-left: 14px; }
.facts th { width: 1%; white-space: nowrap; padding-right: 24px; vertical-align: top; border-bottom: 1px solid var(--rule); } .facts td { overflow-wrap: anywhere; }
.facts tr:last-child th { border-bottom: 0; } td { vertical-align: top; } code { font: 13px/1.5 ui-monospace, monospace; } .wide { margin-top: 14px; overflow-x: auto; }
.nowrap { white-space: nowrap; } .mark { stroke: var(--dim); stroke-dasharray: 3 4; }
pre { margin: 0; overflow-x: auto; font: 13px/1.5 ui-monospace, monospace; }
.dashed { stroke-dasharray: 6 4; } .faint { opacity: .22; stroke-width: 1; } .zoom { fill: var(--run); opacity: .15; } .reading { display: inline-block; min-width: 58px; padding-left: 5px; } .legend b { color: var(--ink); font-variant-numeric: tabular-nums; }
figure { overflow: hidden; } figure svg { touch-action: pan-y; cursor: crosshair; user-select: none; }
.controls { position: sticky; top: 0; z-index: 1; display: flex; flex-wrap: wrap; gap: 8px 22px; align-items: center; background: var(--bg); padding: 10px 0; border-bottom: 1px solid var(--rule); }
.controls label { white-space: nowrap; } .controls output { display: inline-block; min-width: 34px; color: var(--dim); font-variant-numeric: tabular-nums; }
button, select { font: inherit; color: inherit; background: var(--card); border: 1px solid var(--rule); border-radius: 6px; padding: 3px 10px; }
.progress { height: 10px; border-radius: 5px; background: var(--rule); overflow: hidden; margin: 14px 0 0; } .progress div { height: 100%; background: var(--run); }
.ranks { display: flex; flex-wrap: wrap; gap: 3px; margin-top: 10px; } .ranks i { width: 14px; height: 14px; margin: 0; }
.r0 { background: var(--warn); opacity: .45; } .r1 { background: var(--run); } .r2 { background: var(--good); } .r3 { background: var(--dim); } .r4 { background: var(--bad); }
td.differs { font-weight: 600; } .lead { font-weight: 600; } .scroll { overflow-x: auto; } .scroll table { width: auto; min-width: 100%; } .scroll td, .scroll th { padding-right: 14px; } .scroll .n { padding-left: 8px; }
h2 + .box { margin-top: 0; } #events td:last-child { width: 100%; } .box.failed { margin-top: 14px; } #figures th { white-space: normal; vertical-align: bottom; } .ledgers .bar { margin: 4px 0 10px; } .stale { border-left: 4px solid var(--warn); } [hidden] { display: none !important; }
@media (max-width: 620px) { body { padding: 14px; } .card { flex-basis: 40%; } }
)";

std::string color_rules() {
  std::string out;
  for (std::size_t i = 0; i < base::kLedgerParts.size(); ++i)
    out += fmt::format(
        ".s{0} {{ stroke: var(--c{0}); }} .f{0} {{ fill: var(--c{0}); }} .b{0} {{ background: var(--c{0}); "
        "}}\n",
        i);
  return out;
}

}  // namespace

std::string page_style() { return kStyle + color_rules(); }

}  // namespace trainerd::io
