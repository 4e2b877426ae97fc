#include <mutex>
#include <utility>

#include "io/metrics/report/live_page.h"
#include "io/metrics/report/style.h"
#include "io/metrics/sinks.h"
#include "io/runs/history.h"
#include "kernels/base/clock.h"

namespace trainerd::io {
namespace {

// The status is rendered at most once in this time, however many clients ask.
constexpr double kStatusSeconds = 0.5;

}  // namespace

// Shared with the server's threads, which may outlive the sink.
struct LiveSink::State {
  mutable std::mutex mutex;
  RunHistory history;
  std::string text;    // JSON of the status
  double made_at = 0;  // monotonic time; 0: never

  template <class Change>
  void apply(const Change& change) {
    const std::lock_guard lock(mutex);
    change(history);
  }
  std::string status() {
    const std::lock_guard lock(mutex);
    const double now = base::monotonic_seconds();
    if (made_at == 0 || now - made_at >= kStatusSeconds) {
      made_at = now;
      text = to_json(history.status(base::wall_seconds()));
    }
    return text;
  }
};

LiveSink::LiveSink(HttpServer& server) : state_(std::make_shared<State>()) {
  server.serve("/", [] { return HttpReply{.type = "text/html; charset=utf-8", .body = live_page()}; });
  server.serve("/live.css",
               [] { return HttpReply{.type = "text/css; charset=utf-8", .body = page_style()}; });
  server.serve("/live.js",
               [] { return HttpReply{.type = "text/javascript; charset=utf-8", .body = live_script()}; });
  server.serve("/status.json",
               [state = state_] { return HttpReply{.type = "application/json", .body = state->status()}; });
}

void LiveSink::before_start(const RunInfo& info) {
  state_->apply([&](RunHistory& h) { h.set_info(info); });
}
void LiveSink::on_start(const RunInfo& info) { before_start(info); }
void LiveSink::on_step(const StepRecord& record) {
  state_->apply([&](RunHistory& h) { h.add(record); });
}
void LiveSink::on_evaluation(const EvaluationRecord& record) {
  state_->apply([&](RunHistory& h) { h.add(record); });
}
void LiveSink::on_evaluation_progress(const EvaluationProgress& record) {
  state_->apply([&](RunHistory& h) { h.add(record); });
}
void LiveSink::on_checkpoint(const CheckpointRecord& record) {
  state_->apply([&](RunHistory& h) { h.add(record); });
}
void LiveSink::on_notice(const NoticeRecord& record) {
  state_->apply([&](RunHistory& h) { h.add(record); });
}
void LiveSink::on_prediction(const PredictionRecord& record) {
  state_->apply([&](RunHistory& h) { h.set_prediction(record); });
}
void LiveSink::on_rank_state(const RankStateRecord& record) {
  state_->apply([&](RunHistory& h) { h.add(record); });
}
void LiveSink::on_rank_memory(const RankMemoryRecord& record) {
  state_->apply([&](RunHistory& h) { h.add(record); });
}
void LiveSink::on_rank_doing(const RankDoingRecord& record) {
  const double now = base::wall_seconds();
  state_->apply([&](RunHistory& h) { h.add(record, now); });
}
void LiveSink::on_restart(const RestartRecord& record) {
  state_->apply([&](RunHistory& h) { h.restart(record); });
}
void LiveSink::on_finish(const RunSummary& summary) {
  state_->apply([&](RunHistory& h) { h.finish(summary); });
}

}  // namespace trainerd::io
