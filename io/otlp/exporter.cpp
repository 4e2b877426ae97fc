#include "io/otlp/exporter.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

#include "io/otlp/encode.h"
#include "kernels/base/clock.h"

namespace trainerd::io {
namespace {

constexpr double kFirstRetrySeconds = 1, kLastRetrySeconds = 60;

/// Status codes to retry by the specification (OTLP/HTTP, "Failures"); no others are retried.
bool may_pass(int status) { return status == 429 || status == 502 || status == 503 || status == 504; }

}  // namespace

struct OtlpExporter::State {
  Options options;
  std::function<std::string()> make;
  mutable std::mutex mutex;
  std::condition_variable changed;
  bool stop = false, ended = false;
  int flushes_asked = 0, flushes_done = 0;
  std::deque<std::string> queue;
  OutletRecord outlet{.name = "otlp", .error = {}};
  double next_payload = 0, next_try = 0, retry_seconds = kFirstRetrySeconds;

  State(Options o, std::function<std::string()> m) : options(std::move(o)), make(std::move(m)) {
    next_payload = base::monotonic_seconds() + options.every_seconds;
  }

  void run() {
    std::unique_lock lock(mutex);
    while (!stop) {
      const double now = base::monotonic_seconds();
      const int asked = flushes_asked;
      const bool flush = asked > flushes_done;
      if (flush || now >= next_payload) {
        next_payload = now + options.every_seconds;
        add_payload(lock);
      }
      // At the end of a run one attempt is made at once, whatever the previous result.
      while (!stop && !queue.empty() && (flush || base::monotonic_seconds() >= next_try))
        if (!send_front(lock)) break;
      flushes_done = asked;
      changed.notify_all();
      const double until = queue.empty() ? next_payload : std::min(next_payload, next_try);
      changed.wait_for(lock, std::chrono::duration<double>(std::max(0.0, until - base::monotonic_seconds())),
                       [this] { return stop || flushes_asked > flushes_done; });
    }
    ended = true;
    changed.notify_all();
  }

  void add_payload(std::unique_lock<std::mutex>& lock) {
    lock.unlock();
    std::string payload = make();
    lock.lock();
    if (payload.empty()) return;
    queue.push_back(std::move(payload));
    if (queue.size() > options.most) {
      queue.pop_front();
      ++outlet.dropped;
    }
  }

  /// Returns true if the front payload was sent or dropped.
  bool send_front(std::unique_lock<std::mutex>& lock) {
    const std::string payload = queue.front();
    lock.unlock();
    std::string why;
    const auto reply =
        http_post(options.url, "application/x-protobuf", payload, options.timeout_seconds, why);
    lock.lock();
    std::string error;
    bool gone = true;
    if (!reply) {
      error = why;
      gone = false;
    } else if (reply->status >= 200 && reply->status < 300) {
      error = otlp_rejection(reply->body);
    } else {
      error = "HTTP status " + std::to_string(reply->status);
      gone = !may_pass(reply->status);
      if (gone) ++outlet.dropped;
    }
    if (!error.empty()) {
      ++outlet.failures;
      error = options.url.text() + ": " + error;
    }
    outlet.error = std::move(error);
    if (gone) {
      queue.pop_front();
      retry_seconds = kFirstRetrySeconds;
    } else {
      next_try = base::monotonic_seconds() + retry_seconds;
      retry_seconds = std::min(2 * retry_seconds, kLastRetrySeconds);
    }
    return gone;
  }
};

OtlpExporter::OtlpExporter(Options options, std::function<std::string()> make)
    : state_(std::make_shared<State>(std::move(options), std::move(make))) {
  std::thread([state = state_] { state->run(); }).detach();
}

OtlpExporter::~OtlpExporter() {
  constexpr auto kPatience = std::chrono::seconds(1);
  std::unique_lock lock(state_->mutex);
  state_->stop = true;
  state_->changed.notify_all();
  state_->changed.wait_for(lock, kPatience, [this] { return state_->ended; });
}

void OtlpExporter::flush(double seconds) {
  std::unique_lock lock(state_->mutex);
  const int asked = ++state_->flushes_asked;
  state_->changed.notify_all();
  state_->changed.wait_for(lock, std::chrono::duration<double>(seconds),
                           [&] { return state_->flushes_done >= asked; });
}

OutletRecord OtlpExporter::outlet() const {
  const std::scoped_lock lock(state_->mutex);
  OutletRecord outlet = state_->outlet;
  // Without an error, a queued payload was only just made and does not count as waiting.
  if (!outlet.error.empty()) outlet.waiting = static_cast<std::int64_t>(state_->queue.size());
  return outlet;
}

}  // namespace trainerd::io
