#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <deque>
#include <numeric>
#include <optional>

#include "io/metrics/sinks.h"
#include "io/text/text.h"
#include "kernels/base/clock.h"

namespace trainerd::io {
namespace {

constexpr double kRedrawSeconds = 0.1;  // for the bar: often enough to look smooth
constexpr double kLineSeconds = 5;      // for plain lines
constexpr double kLoggedSeconds = 60;   // for run.log
constexpr std::int64_t kFirstLines = 3;
constexpr int kMinBar = 6;               // cells
constexpr std::size_t kRateWindow = 64;  // steps that the ETA is based on

std::string percent(double ratio) { return fmt::format("{:.1f}%", 100 * ratio); }

}  // namespace

struct ConsoleSink::State {
  Screen& screen;
  RunLog& log;
  RunInfo info;
  double started = 0, last_shown = 0, last_logged = 0, evaluation_shown = 0;
  std::deque<double> arrivals;  // times of the latest steps, seconds
  std::int64_t shown = 0;
  std::optional<StepRecord> last;
  std::optional<double> validation_loss;
  std::vector<double> speeds, mfus;
  base::TimeLedger time;  // seconds, summed over the steps

  State(Screen& on, RunLog& kept) : screen(on), log(kept) {}
  bool has_bar() const { return screen.style() == Screen::Style::terminal; }
  void say(const std::string& line) {
    screen.line(line);
    log.add("info", line);
  }

  double eta() const {
    if (arrivals.size() < 2 || !last) return -1;
    const std::int64_t first = last->step - static_cast<std::int64_t>(arrivals.size() - 1);
    const double pace = (arrivals.back() - arrivals.front()) / info.work(first, last->step);
    return pace * info.work(last->step, std::max(info.steps, last->step));
  }

  std::string of_peak() const { return info.peak_measured ? " of measured GEMM peak" : ""; }

  std::string figures() const {
    const StepRecord& r = *last;
    std::string text = fmt::format("loss {:.4f}  {} tok/s", r.loss, short_number(r.tokens_per_second));
    if (r.mfu) text += fmt::format("  MFU {}", percent(*r.mfu));
    return text;
  }

  // Text like "compute 81.2%, exposed tp 9.3%, optimizer 2.1%", without parts that would show as 0.0%.
  std::string shares() const {
    const double all = time.sum();
    std::string text;
    for (const base::LedgerPartInfo& part : base::kLedgerParts) {
      if (all <= 0 || time[part.part] / all < 0.0005) continue;
      std::string name = part.name;
      std::replace(name.begin(), name.end(), '_', ' ');
      text += (text.empty() ? "" : ", ") + name + " " + percent(time[part.part] / all);
    }
    return text;
  }

  std::string left() const { return eta() < 0 ? "ETA --" : "ETA " + short_duration(eta()); }
  void draw_bar();
  std::string progress() const {
    const double done =
        info.steps > 0 ? static_cast<double>(last->step) / static_cast<double>(info.steps) : 0;
    return fmt::format("step {}/{} ({:.0f}%)  {}{}  {}", last->step, info.steps, 100 * done, figures(),
                       last->mfu ? of_peak() : "", left());
  }
};

void ConsoleSink::State::draw_bar() {
  const double done =
      info.steps > 0 ? std::clamp(static_cast<double>(last->step) / static_cast<double>(info.steps), 0.0, 1.0)
                     : 0;
  const std::string head = fmt::format("{:3.0f}% ", 100 * done);
  const auto tail_with = [this](const std::string& peak) {
    return fmt::format(" {}/{}  {}{}  {}", last->step, info.steps, figures(), peak, left());
  };
  const auto room_beside = [&](const std::string& tail) {
    return std::clamp(screen.width() - 1 - static_cast<int>(head.size() + tail.size()), 0, 40);
  };
  std::string tail = tail_with(last->mfu ? of_peak() : "");
  if (room_beside(tail) < kMinBar) tail = tail_with("");
  const int room = room_beside(tail);
  std::string line = head;
  if (room >= kMinBar) {
    // In eighths of a cell, so that the bar moves smoothly.
    static constexpr std::array<const char*, 8> kEighths{"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
    const int eighths = static_cast<int>(done * 8 * room);
    for (int i = 0; i < eighths / 8; ++i) line += "█";
    line += kEighths[static_cast<std::size_t>(eighths % 8)];
    for (int i = (eighths + 7) / 8; i < room; ++i) line += "·";
    line += tail;
  } else {
    line = (head + tail).substr(0, static_cast<std::size_t>(std::max(1, screen.width() - 1)));  // ASCII only
  }
  screen.status(line);
}

ConsoleSink::ConsoleSink(Screen& screen, RunLog& log) : state_(std::make_unique<State>(screen, log)) {}

// After an error the message must start on a new line.
ConsoleSink::~ConsoleSink() { state_->screen.settle_status(); }

void ConsoleSink::on_start(const RunInfo& info) {
  State& s = *state_;
  s.info = info;
  s.started = base::monotonic_seconds();
  const auto line = [&s](const char* name, const std::string& value) {
    s.say(fmt::format("  {:<10}{}", name, value));
  };
  line("model", fmt::format("{} parameters, {} per token", short_number(static_cast<double>(info.parameters)),
                            with_unit(info.flops_per_token, "FLOP")));
  if (!info.adapters.empty()) line("trained", info.adapters);
  std::string device = fmt::format("{}, {} thread{}, {}", info.device, info.threads,
                                   info.threads == 1 ? "" : "s", info.precision);
  if (info.peak_flops)
    device +=
        (info.peak_measured ? ", measured GEMM peak " : ", peak ") + with_unit(*info.peak_flops, "FLOP/s");
  line("device", device);
  line("memory", short_bytes(info.memory_planned_bytes) + " planned");
  line("steps", fmt::format("{} of {}{} tokens", info.steps, info.ramp.empty() ? "" : "up to ",
                            with_commas(info.tokens_per_step)));
  if (info.data_tokens > 0)
    line("data",
         fmt::format("{} tokens; the run takes {:.3g} epochs",
                     short_number(static_cast<double>(info.data_tokens)),
                     static_cast<double>(info.total_tokens()) / static_cast<double>(info.data_tokens)));
  if (info.start_step > 0) line("resumed", fmt::format("after step {}", info.start_step));
  line("output", info.output);
}

void ConsoleSink::on_step(const StepRecord& record) {
  State& s = *state_;
  const double now = base::monotonic_seconds();
  s.last = record;
  s.speeds.push_back(record.tokens_per_second);
  if (record.mfu) s.mfus.push_back(*record.mfu);
  for (const base::LedgerPartInfo& part : base::kLedgerParts)
    s.time[part.part] += std::max(0.0, record.time[part.part]);
  s.arrivals.push_back(now);
  if (s.arrivals.size() > kRateWindow) s.arrivals.pop_front();
  const bool is_last = record.step >= s.info.steps;
  if (is_last || s.last_logged == 0 || now - s.last_logged >= kLoggedSeconds) {
    s.last_logged = now;
    s.log.add("info", s.progress());
  }
  const double pause = s.has_bar() ? kRedrawSeconds : kLineSeconds;
  if (!is_last && s.shown >= kFirstLines && now - s.last_shown < pause) return;
  s.last_shown = now;
  ++s.shown;
  if (s.has_bar()) s.draw_bar();
  else s.screen.line(s.progress());
}

void ConsoleSink::on_evaluation_progress(const EvaluationProgress& progress) {
  State& s = *state_;
  const double now = base::monotonic_seconds();
  const std::string text =
      fmt::format("evaluation at step {}: {} of {} batches", progress.step, progress.done, progress.batches);
  if (s.has_bar()) {
    s.screen.status(text);
  } else if (now - s.evaluation_shown >= kLineSeconds) {
    s.evaluation_shown = now;
    s.say(text);
  }
}

void ConsoleSink::on_evaluation(const EvaluationRecord& record) {
  State& s = *state_;
  s.validation_loss = record.loss;
  const auto loss_text = [](const auto& of) {
    if (of.rewards)
      return fmt::format("{:.4f}, {:.1f} % of the chosen answers preferred, reward margin {:.4g}", of.loss,
                         100 * of.rewards->accuracy, of.rewards->margin);
    return fmt::format("{:.4f}, perplexity {:.4g}{}", of.loss, perplexity(of.loss),
                       of.bits_per_byte ? fmt::format(", {:.4f} bits per byte", *of.bits_per_byte) : "");
  };
  const std::string which =
      fmt::format("evaluation{} at step {}", record.averaged ? " of the averaged weights" : "", record.step);
  if (record.sets.empty())
    s.say(fmt::format("{}: validation loss {} ({} tokens, {})", which, loss_text(record),
                      with_commas(record.tokens), short_duration(record.seconds)));
  else s.say(fmt::format("{} took {}", which, short_duration(record.seconds)));
  for (const ValidationRecord& set : record.sets)
    s.say(fmt::format("  {}: validation loss {} ({} tokens)", set.set, loss_text(set),
                      with_commas(set.tokens)));
  for (const ChoiceRecord& set : record.choices)
    s.say(fmt::format("  {}: accuracy {:.1f} %, by likelihood per character {:.1f} % ({} questions)", set.set,
                      100 * set.accuracy, 100 * set.accuracy_norm, with_commas(set.questions)));
}

void ConsoleSink::on_checkpoint(const CheckpointRecord& record) {
  state_->say(fmt::format("checkpoint at step {}: {} in {}; checkpoint stall {}", record.step,
                          short_bytes(record.bytes), short_duration(record.write_seconds),
                          short_duration(record.snapshot_seconds)));
}

// The pace before a restart does not predict later steps.
void ConsoleSink::on_restart(const RestartRecord&) { state_->arrivals.clear(); }

std::vector<OutletRecord> ConsoleSink::outlets() const {
  const Screen::Lost lost = state_->screen.lost();
  return {{.name = "console", .dropped = lost.lines, .error = lost.reason}, state_->log.record()};
}

void ConsoleSink::on_finish(const RunSummary& summary) {
  State& s = *state_;
  s.screen.settle_status();
  const auto line = [&s](const char* name, const std::string& value) {
    s.say(fmt::format("  {:<17}{}", name, value));
  };
  s.say(fmt::format("{}: {}", s.info.name, summary.outcome));
  line("steps", fmt::format("{}/{}", summary.step, s.info.steps));
  if (s.last) line("final loss", fmt::format("{:.4f}", s.last->loss));
  if (s.validation_loss) line("validation loss", fmt::format("{:.4f}", *s.validation_loss));
  if (!s.speeds.empty()) line("median speed", short_number(median(s.speeds)) + " tokens/s");
  if (!s.mfus.empty()) line("median MFU", percent(median(s.mfus)) + s.of_peak());
  if (const std::string shares = s.shares(); !shares.empty()) line("step time", shares);
  line("wall time", short_duration(summary.wall_seconds));
  line("report", s.info.output + (s.info.output.ends_with('/') ? "report.html" : "/report.html"));
  s.log.finish();
}

}  // namespace trainerd::io
