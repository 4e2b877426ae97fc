#include "io/metrics/report/tables.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <ctime>
#include <numeric>
#include <optional>

#include "io/metrics/report/chart.h"
#include "io/text/text.h"

namespace trainerd::io {
namespace {

constexpr std::size_t kTableRows = 12, kHistoryRows = 60;

std::string clock(double wall_time) {
  return wall_time > 0 ? fmt::format("{:%Y-%m-%d %H:%M:%S}", fmt::gmtime(static_cast<std::time_t>(wall_time)))
                       : "";
}

const char* class_of(NoticeKind kind) {
  switch (kind) {
    case NoticeKind::recovered:
    case NoticeKind::finish: return "good";
    case NoticeKind::corruption:
    case NoticeKind::withdrawn:
    case NoticeKind::failure: return "bad";
    case NoticeKind::stop:
    case NoticeKind::restart:
    case NoticeKind::node:
    case NoticeKind::hang:
    case NoticeKind::straggler:
    case NoticeKind::device:
    case NoticeKind::injected:
    case NoticeKind::spike:
    case NoticeKind::warning: return "warn";
    case NoticeKind::start:
    case NoticeKind::resume:
    case NoticeKind::durable:
    case NoticeKind::graphs:
    case NoticeKind::overflow:
    case NoticeKind::change: break;
  }
  return "run";
}

std::string memory_table(const Report& r) {
  std::int64_t all = 0;
  for (const auto& [use, bytes] : r.info.memory_uses) all += bytes;
  if (all == 0) return "";
  std::string bar, rows;
  std::size_t color = 0;
  for (const auto& [use, bytes] : r.info.memory_uses) {
    const std::size_t c = color++ % base::kLedgerParts.size();
    const double share = 100 * static_cast<double>(bytes) / static_cast<double>(all);
    bar += fmt::format("<div class=\"b{}\" style=\"width:{:.3f}%\" title=\"{}\"></div>", c, share,
                       escape_html(use));
    rows += fmt::format(
        "<tr><td><i class=\"b{}\"></i>{}</td><td class=\"n\">{}</td><td class=\"n\">{:.1f}%</td></tr>\n", c,
        escape_html(use), short_bytes(bytes), share);
  }
  return fmt::format(
      "<div class=\"box\"><div class=\"bar\">{}</div><table><tr><th>memory, all ranks</th><th "
      "class=\"n\">planned</th>"
      "<th class=\"n\">share</th></tr>\n{}</table></div>\n",
      bar, rows);
}

// Lists the latest records, newest first.
template <class Record, class Row>
std::string latest(const std::vector<Record>& records, const std::string& header, Row row) {
  if (records.empty()) return "";
  std::string out = "<div class=\"box\"><table>" + header + "\n";
  const std::size_t first = records.size() - std::min(records.size(), kTableRows);
  for (std::size_t i = records.size(); i-- > first;) out += "<tr>" + row(records[i]) + "</tr>\n";
  if (first > 0) out += fmt::format("<tr><td class=\"dim\" colspan=\"4\">and {} before</td></tr>\n", first);
  return out + "</table></div>\n";
}

std::string prediction_value(const PredictionTerm& term, double value) {
  return term.kind == PredictionTerm::Kind::memory_bytes ? short_bytes(static_cast<std::int64_t>(value))
                                                         : short_duration(value);
}

std::string with_blanks(std::string words) {
  std::replace(words.begin(), words.end(), '_', ' ');
  return words;
}

std::string term_words(const PredictionTerm& term) {
  if (term.kind == PredictionTerm::Kind::memory_bytes) return "memory";
  return term.kind == PredictionTerm::Kind::step_seconds ? "time of a step" : with_blanks(term.name);
}

std::string prediction_table(const PredictionRecord& p) {
  if (p.terms.empty()) return "";
  std::string rows;
  for (const PredictionTerm& term : p.terms)
    rows += fmt::format(
        "<tr><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{:+.1f}%</td></tr>\n",
        escape_html(term_words(term)), prediction_value(term, term.predicted),
        prediction_value(term, term.measured), 100 * term.error);
  return fmt::format(
      "<div class=\"box\"><table><tr><th>steps {} to {}</th><th class=\"n\">planned</th><th "
      "class=\"n\">measured</th>"
      "<th class=\"n\">off by</th></tr>\n{}</table></div>\n",
      p.first_step, p.last_step, rows);
}

// Shows the steps that this attempt made.
std::string row_of(const Attempt& a, std::size_t number, double now) {
  const double end = a.ended ? a.end : now;
  return fmt::format(
      "<tr><td>{}</td><td class=\"nowrap\">{}</td><td class=\"nowrap\">{}</td><td "
      "class=\"nowrap\">{}</td><td class=\"nowrap\">{}</td><td class=\"{}\">{}</td></tr>\n",
      number, clock(a.begin), a.begin > 0 && end > a.begin ? short_duration(end - a.begin) : "",
      a.last_step > a.start_step ? fmt::format("{} to {}", a.start_step + 1, a.last_step) : "none",
      a.lost_steps > 0 ? fmt::format("{} ({})", a.lost_steps, short_duration(a.lost_seconds)) : "",
      a.ended ? class_of(a.how) : "run", escape_html(a.outcome));
}

// Cells of an evaluation or of one of its sets.
template <class Record>
std::string loss_cells(const Record& r) {
  if (r.rewards)
    return fmt::format("<td class=\"n\">{:.4f}</td><td class=\"n\" colspan=\"2\">{:.1f}% preferred</td>",
                       r.loss, 100 * r.rewards->accuracy);
  return fmt::format("<td class=\"n\">{:.4f}</td><td class=\"n\">{:.4g}</td><td class=\"n\">{}</td>", r.loss,
                     perplexity(r.loss), r.bits_per_byte ? fmt::format("{:.4f}", *r.bits_per_byte) : "");
}

// Rows below the evaluation's own row: one per named set of losses or questions.
std::string set_rows(const EvaluationRecord& e) {
  std::string rows;
  for (const ValidationRecord& set : e.sets)
    rows +=
        fmt::format("</tr>\n<tr><td class=\"dim\">{}</td>{}<td></td>", escape_html(set.set), loss_cells(set));
  for (const ChoiceRecord& set : e.choices)
    rows += fmt::format(
        "</tr>\n<tr><td class=\"dim\">{}</td><td colspan=\"4\">accuracy {:.1f}%, per character {:.1f}%, {} "
        "questions</td>",
        escape_html(set.set), 100 * set.accuracy, 100 * set.accuracy_norm, set.questions);
  return rows;
}

}  // namespace

std::string short_outcome(const std::string& outcome) {
  for (const char* word : {"done", kRunning, "stopped", "lost"})
    if (outcome.starts_with(word)) return word;
  return "failed";
}

const char* class_of_outcome(const std::string& outcome) {
  const std::string word = short_outcome(outcome);
  if (word == "done") return "good";
  if (word == kRunning) return "run";
  return word == "stopped" ? "warn" : "bad";
}

std::string part_words(const base::LedgerPartInfo& part) { return with_blanks(part.name); }

std::string ledger_table(const Report& r) {
  std::array<double, base::kLedgerParts.size()> total{};
  for (const StepBucket& bucket : r.series.buckets())
    for (std::size_t i = 0; i < total.size(); ++i) total[i] += bucket.time[i];
  const double all = std::accumulate(total.begin(), total.end(), 0.0);
  if (all <= 0) return "";
  std::string bar, rows;
  for (std::size_t i = 0; i < total.size(); ++i) {
    if (total[i] <= 0) continue;
    bar += fmt::format("<div class=\"b{}\" style=\"width:{:.3f}%\" title=\"{}\"></div>", i,
                       100 * total[i] / all, part_words(base::kLedgerParts[i]));
    rows += fmt::format(
        "<tr><td><i class=\"b{}\"></i>{}</td><td class=\"n\">{}</td><td class=\"n\">{:.1f}%</td></tr>\n", i,
        part_words(base::kLedgerParts[i]), short_duration(total[i]), 100 * total[i] / all);
  }
  return fmt::format(
      "<div class=\"box\"><div class=\"bar\">{}</div><table><tr><th>time ledger, all steps</th><th "
      "class=\"n\">total</th><th class=\"n\">share</th></tr>\n{}</table></div>\n",
      bar, rows);
}

std::string facts_table(const Report& r) {
  std::string rows;
  const auto row = [&rows](const char* name, const std::string& html) {
    if (!html.empty()) rows += fmt::format("<tr><th>{}</th><td>{}</td></tr>\n", name, html);
  };
  const RunInfo& i = r.info;
  row("command", i.command.empty() ? "" : "<code>" + escape_html(i.command) + "</code>");
  row("program", escape_html("trainerd " + i.version + (i.commit.empty() ? "" : " (" + i.commit + ")")));
  row("host", escape_html(i.host));
  row("device", escape_html(fmt::format("{}, {} thread{}, {}", i.device, i.threads, i.threads == 1 ? "" : "s",
                                        i.precision)) +
                    (i.peak_flops ? ", peak " + with_unit(*i.peak_flops, "FLOP/s") : ""));
  row("layout", escape_html(i.layout));
  row("model", fmt::format("{} parameters, {} per token", short_number(static_cast<double>(i.parameters)),
                           with_unit(i.flops_per_token, "FLOP")));
  row("trained", escape_html(i.adapters));
  std::string data = escape_html(i.data);
  if (i.data_tokens > 0) {
    const double epochs = static_cast<double>(r.tokens) / static_cast<double>(i.data_tokens);
    data += fmt::format("{}{} tokens, {:.2f} epochs trained on", data.empty() ? "" : ": ",
                        with_commas(i.data_tokens), epochs);
  }
  row("data", data);
  row("tokens", fmt::format("{} of {}, {}{} per step", with_commas(r.tokens), with_commas(i.total_tokens()),
                            i.ramp.empty() ? "" : "up to ", with_commas(i.tokens_per_step)));
  row("output", i.output.empty() ? "" : "<code>" + escape_html(i.output) + "</code>");
  return "<h2>Run</h2>\n<div class=\"box wide facts\"><table>" + rows + "</table></div>\n";
}

std::string attempts_table(const Report& r) {
  if (r.attempts.size() < 2) return "";
  std::string rows;
  for (std::size_t n = 0; n < r.attempts.size(); ++n) rows += row_of(r.attempts[n], n + 1, r.now);
  return "<h2>Attempts</h2>\n<div class=\"box wide\"><table><tr><th>attempt</th><th>began "
         "(UTC)</th><th>took</th><th>steps</th>"
         "<th>done again</th><th>end</th></tr>\n" +
         rows + "</table></div>\n";
}

std::string wall_table(const Report& r) {
  // For a run without interruptions the attempts table says the same.
  if (r.attempts.size() < 2 || r.wall.total() <= 0) return "";
  std::string rows;
  for (std::size_t part = 0; part < kWallParts.size(); ++part)
    if (const double seconds = r.wall.seconds(static_cast<WallPart>(part)); seconds > 0)
      rows += fmt::format("<tr><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{:.1f}%</td></tr>\n",
                          kWallParts[part], short_duration(seconds), 100 * seconds / r.wall.total());
  return "<h2>Goodput</h2>\n<div class=\"box\"><table><tr><th>wall time since the first start</th><th "
         "class=\"n\">took</th><th class=\"n\">share</th></tr>\n" +
         rows + "</table></div>\n";
}

std::string history_table(const Report& r) {
  if (r.notices.empty()) return "";
  std::string rows;
  const std::size_t first = r.notices.size() - std::min(r.notices.size(), kHistoryRows);
  for (std::size_t n = r.notices.size(); n-- > first;) {
    const NoticeRecord& notice = r.notices[n];
    std::string details;
    for (const std::string& detail : notice.details)
      details += "<div class=\"dim\">" + escape_html(detail) + "</div>";
    rows +=
        fmt::format("<tr><td class=\"nowrap\">{}</td><td>{}</td><td class=\"{}\">{}</td><td>{}{}</td></tr>\n",
                    clock(notice.wall_time), notice.step, class_of(notice.kind), name_of(notice.kind),
                    escape_html(notice.message), details);
  }
  if (first > 0) rows += fmt::format("<tr><td class=\"dim\" colspan=\"4\">and {} before</td></tr>\n", first);
  return "<h2>History</h2>\n<div class=\"box wide history\"><table><tr><th>time "
         "(UTC)</th><th>step</th><th></th><th></th></tr>\n" +
         rows + "</table></div>\n";
}

std::string figures_tables(const Report& r) {
  std::string out = "<h2>Memory, evaluations, checkpoints</h2>\n<div class=\"tables\">\n";
  out += memory_table(r);
  out += prediction_table(r.prediction);
  out += latest(
      r.evaluations,
      "<tr><th>evaluation at step</th><th class=\"n\">validation loss</th><th class=\"n\">perplexity</th><th "
      "class=\"n\">bits per byte</th><th class=\"n\">took</th></tr>",
      [](const EvaluationRecord& e) {
        return fmt::format("<td>{}{}</td>{}<td class=\"n\">{}</td>{}", e.step,
                           e.averaged ? " (averages)" : "", loss_cells(e), short_duration(e.seconds),
                           set_rows(e));
      });
  out +=
      latest(r.checkpoints,
             "<tr><th>checkpoint at step</th><th class=\"n\">size</th><th class=\"n\">stall</th><th "
             "class=\"n\">write</th></tr>",
             [](const CheckpointRecord& c) {
               return fmt::format(
                   "<td>{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td>", c.step,
                   short_bytes(c.bytes), short_duration(c.snapshot_seconds), short_duration(c.write_seconds));
             });
  return out + "</div>\n";
}

}  // namespace trainerd::io
