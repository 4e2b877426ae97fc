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
constexpr double kKilledSeconds = 1;      ///< for the end of a run that was killed
constexpr double kAbortedSeconds = 1.5;   ///< until a request that is aborted has ended
constexpr std::size_t kMaxRecords = 500;  ///< taken from the queue at once
constexpr int kMaxRejections = 20;        ///< one after the other, in search of the value that is refused

std::string status_of(NoticeKind end) {
  if (end == NoticeKind::finish) return "FINISHED";
  return end == NoticeKind::failure ? "FAILED" : "KILLED";
}

}  // namespace

struct MlflowSink::State {
  MlflowRun run;
  std::function<void(const std::string&)> warn;
  Limits limits;
  MlflowClient client;  // the thread's alone, once it has begun
  NoticeKind end_kind = NoticeKind::stop;
  bool begun = false;
  std::int64_t start_step = 0;

  mutable std::mutex mutex;
  std::condition_variable changed;
  std::deque<MlflowValues> queue;
  OutletRecord outlet{.name = "mlflow", .error = {}};
  std::optional<std::string> end_status;  ///< what waits is to be sent at once, and then this
  bool aborted = false, ended = false, reached_end = false;
  std::size_t most_records = kMaxRecords;  ///< in the next request
  int rejections = 0;                      ///< since a request was taken
  std::string rejection;                   ///< the last value's that the server does not take

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

  /// On the thread. One request or a few, without the lock; none: it succeeded.
  template <class Calls>
  std::optional<MlflowError> attempt(std::unique_lock<std::mutex>& lock, const Calls& calls) {
    lock.unlock();
    std::optional<MlflowError> error;
    try {
      calls();
    } catch (const MlflowError& e) {
      error = e;
    } catch (const std::exception& e) {  // whatever a server answers, training goes on
      error = MlflowError{run.server.uri + ": " + e.what()};
    }
    lock.lock();
    outlet.error = error ? error->what : "";
    if (error) ++outlet.failures;
    return error;
  }

  /// What earlier attempts logged and the server does not have, as much of it as may wait.
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
    // Before those of this process: what is older than the last that the server has is not sent.
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
    // One value can make the server refuse all that came with it: by halves it is found, and is left out
    // alone.
    const bool rejected = error && !error->may_pass;
    rejections = rejected ? rejections + 1 : 0;
    // Where it takes none at all, a search is of no use.
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
        // Without anything to send, until there is.
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
      // The end of a run waits for no server that does not answer; but one may just have closed a connection.
      failures = failed ? failures + 1 : 0;
      if (failures > 1 && end_status) break;
      const bool halves = error && !failed && !queue.empty() && rejections <= kMaxRejections;
      next = base::monotonic_seconds() + (failed ? pause : halves ? 0 : limits.every_seconds);
      pause = failed ? std::min(2 * pause, kLastPauseSeconds) : kFirstPauseSeconds;
    }
    ended = true;
    changed.notify_all();
  }

  /// Sends what waits and the status, for as long as `seconds`.
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
  // It outlives this where a request does not end in time.
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
