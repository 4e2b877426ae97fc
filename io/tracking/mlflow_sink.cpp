#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>

#include "io/lines/step_log.h"
#include "io/metrics/event_log.h"
#include "io/tracking/mlflow_client.h"
#include "io/tracking/scalars.h"
#include "io/tracking/tracking.h"
#include "kernels/base/clock.h"

namespace trainerd::io {
namespace {

constexpr double kFirstPauseSeconds = 1, kLastPauseSeconds = 60;
constexpr double kKilledSeconds = 1;      ///< for the end of a killed run
constexpr double kAbortedSeconds = 1.5;   ///< until an aborted request has ended
constexpr std::size_t kMaxRecords = 500;  ///< most records taken from the queue at once
constexpr int kMaxRejections = 20;        ///< in a row, while searching for the rejected value

std::string status_of(NoticeKind end) {
  if (end == NoticeKind::finish) return "FINISHED";
  return end == NoticeKind::failure ? "FAILED" : "KILLED";
}

}  // namespace

struct MlflowSink::State {
  MlflowRun run;
  std::function<void(const std::string&)> warn;
  Limits limits;
  MlflowClient client;  // used only by the thread once it has started
  NoticeKind end_kind = NoticeKind::stop;
  bool begun = false;
  std::int64_t start_step = 0;

  mutable std::mutex mutex;
  std::condition_variable changed;
  std::deque<MlflowValues> queue;
  OutletRecord outlet{.name = "mlflow", .error = {}};
  std::optional<std::string> end_status;  ///< set: send the queue at once, then this status
  bool aborted = false, ended = false, reached_end = false;
  std::size_t most_records = kMaxRecords;  ///< limit for the next request
  int rejections = 0;                      ///< consecutive rejected requests
  std::string rejection;                   ///< the server's message for the last rejected value

  State(MlflowRun r, std::function<void(const std::string&)> w, Limits l)
      : run(std::move(r)), warn(std::move(w)), limits(l), client(run, l.timeout_seconds) {}

  void add(MlflowValues values) {
    const std::lock_guard lock(mutex);
    queue.push_back(std::move(values));
    limit_queue();
  }
  void limit_queue() {
    for (; queue.size() > limits.max_waiting; queue.pop_front()) ++outlet.dropped;
    outlet.waiting = static_cast<std::int64_t>(queue.size());
  }

  /// Runs one or a few requests without the lock, on the thread. Returns none on success.
  template <class Calls>
  std::optional<MlflowError> attempt(std::unique_lock<std::mutex>& lock, const Calls& calls) {
    lock.unlock();
    std::optional<MlflowError> error;
    try {
      calls();
    } catch (const MlflowError& e) {
      error = e;
    } catch (const std::exception& e) {  // whatever the server answers, training continues
      error = MlflowError{run.server.uri + ": " + e.what()};
    }
    lock.lock();
    outlet.error = error ? error->what : "";
    if (error) ++outlet.failures;
    return error;
  }

  /// Returns logged values of earlier attempts that the server does not have, up to the queue's limit.
  std::deque<MlflowValues> earlier_values() const {
    std::deque<MlflowValues> values;
    const auto keep = [&](const auto& record, const char* metric) {
      if (record.step <= client.last_step(metric)) return;
      values.push_back({record.step, record.wall_time, scalars_of(record)});
      if (values.size() > limits.max_waiting) values.pop_front();
    };
    if (start_step == 0) return values;
    read_step_log(run.steps_path, start_step, [&](const StepRecord& record) { keep(record, "loss"); });
    read_event_log(run.events_path, start_step, [&](const EventRecord& event) {
      if (const auto* record = std::get_if<EvaluationRecord>(&event)) keep(*record, "validation_loss");
    });
    return values;
  }

  std::optional<MlflowError> attach(std::unique_lock<std::mutex>& lock) {
    std::deque<MlflowValues> earlier;
    auto error = attempt(lock, [&] {
      client.attach(run);
      earlier = earlier_values();
    });
    // Inserted before this process's values, because values older than the server's last step are not sent.
    if (!error)
      queue.insert(queue.begin(), std::move_iterator(earlier.begin()), std::move_iterator(earlier.end()));
    limit_queue();
    return error;
  }

  std::optional<MlflowError> send_front(std::unique_lock<std::mutex>& lock) {
    std::vector<MlflowValues> values;
    for (; !queue.empty() && values.size() < most_records; queue.pop_front())
      values.push_back(std::move(queue.front()));
    auto error = attempt(lock, [&] { client.log(values); });
    // One value can make the server reject the whole request. Halving the request finds it, and only that
    // value is dropped.
    const bool rejected = error && !error->may_pass;
    rejections = rejected ? rejections + 1 : 0;
    // If the server rejects everything, searching is useless.
    const bool dropped = rejected && (values.size() == 1 || rejections > kMaxRejections);
    if (dropped) outlet.dropped += static_cast<std::int64_t>(values.size());
    if (dropped) rejection = error->what;
    const std::size_t next = rejected ? values.size() / 2 : 2 * most_records;
    most_records = rejections > kMaxRejections ? kMaxRecords : std::clamp<std::size_t>(next, 1, kMaxRecords);
    if (error && !dropped)
      queue.insert(queue.begin(), std::move_iterator(values.begin()), std::move_iterator(values.end()));
    limit_queue();
    return error;
  }

  void work() {
    std::unique_lock lock(mutex);
    bool attached = false;
    int failures = 0;  // since the last success
    double pause = kFirstPauseSeconds, next = 0;
    const auto due = [&] {
      return aborted || end_status || (base::monotonic_seconds() >= next && (!attached || !queue.empty()));
    };
    while (!aborted) {
      if (!due()) {
        const double left = next - base::monotonic_seconds();
        // Waits until there is something to send.
        if (left <= 0) changed.wait_for(lock, std::chrono::duration<double>(limits.every_seconds), due);
        else changed.wait_for(lock, std::chrono::duration<double>(left), due);
        continue;
      }
      if (!run.allowed()) break;
      std::optional<MlflowError> error;
      if (!attached) {
        error = attach(lock);
        attached = !error;
      } else if (!queue.empty()) {
        error = send_front(lock);
      } else {
        error = attempt(lock, [&] { client.end(*end_status); });
        reached_end = !error;
        if (reached_end || !error->may_pass) break;
      }
      const bool failed = error && (error->may_pass || !attached);
      // The end of a run does not wait for a server that does not answer. One failure is allowed, since the
      // server may just have closed an idle connection.
      failures = failed ? failures + 1 : 0;
      if (failures > 1 && end_status) break;
      const bool halves = error && !failed && !queue.empty() && rejections <= kMaxRejections;
      next = base::monotonic_seconds() + (failed ? pause : halves ? 0 : limits.every_seconds);
      pause = failed ? std::min(2 * pause, kLastPauseSeconds) : kFirstPauseSeconds;
    }
    ended = true;
    changed.notify_all();
  }

  /// Sends the queue and the status within `seconds`.
  void end(const std::string& status, double seconds) {
    std::unique_lock lock(mutex);
    end_status = status;
    changed.notify_all();
    if (changed.wait_for(lock, std::chrono::duration<double>(seconds), [this] { return ended; })) return;
    aborted = true;
    client.abort();
    changed.wait_for(lock, std::chrono::duration<double>(kAbortedSeconds), [this] { return ended; });
  }
};

MlflowSink::MlflowSink(MlflowRun run, std::function<void(const std::string&)> warn, Limits limits)
    : state_(std::make_shared<State>(std::move(run), std::move(warn), limits)) {}

MlflowSink::~MlflowSink() {
  State& s = *state_;
  if (s.begun && !s.end_status) s.end(status_of(s.end_kind), kKilledSeconds);
}

void MlflowSink::on_start(const RunInfo& info) {
  State& s = *state_;
  const auto add = [&](const char* key, const std::string& value) {
    if (!value.empty()) s.run.tags.emplace_back(key, value);
  };
  add("mlflow.source.name", info.command);
  add("trainerd.version", info.version);
  add("trainerd.commit", info.commit);
  add("trainerd.output", info.output);
  add("trainerd.host", info.host);
  add("trainerd.device", info.device);
  add("trainerd.layout", info.layout);
  add("trainerd.data", info.data);
  add("trainerd.parameters", std::to_string(info.parameters));
  s.start_step = info.start_step;
  s.begun = true;
  // The thread outlives this if a request does not end in time.
  std::thread([state = state_] { state->work(); }).detach();
}

void MlflowSink::on_step(const StepRecord& record) {
  state_->add({record.step, record.wall_time, scalars_of(record)});
  state_->changed.notify_all();
}

void MlflowSink::on_evaluation(const EvaluationRecord& record) {
  state_->add({record.step, record.wall_time, scalars_of(record)});
}

void MlflowSink::on_notice(const NoticeRecord& record) {
  if (record.kind == NoticeKind::finish || record.kind == NoticeKind::failure ||
      record.kind == NoticeKind::stop)
    state_->end_kind = record.kind;
}

void MlflowSink::on_finish(const RunSummary&) {
  State& s = *state_;
  if (!s.begun) return;
  s.end(status_of(s.end_kind), s.limits.end_seconds);
  const std::unique_lock lock(s.mutex);
  if (s.reached_end && s.outlet.dropped == 0) return;
  const std::size_t missing = static_cast<std::size_t>(s.outlet.dropped) + s.queue.size();
  std::string text = "the MLflow server " + s.run.server.uri;
  if (!s.reached_end) text += " does not have the end of the run";
  if (missing > 0)
    text += std::string(s.reached_end ? " does not have" : ":") + " values of " + std::to_string(missing) +
            " steps or evaluations" + (s.reached_end ? "" : " are missing");
  if (!s.reached_end && !s.outlet.error.empty()) text += "; " + s.outlet.error;
  if (!s.rejection.empty()) text += "; it refused some: " + s.rejection;
  s.warn(text);
}

std::vector<OutletRecord> MlflowSink::outlets() const {
  const std::unique_lock lock(state_->mutex);
  return {state_->outlet};
}

}  // namespace trainerd::io
