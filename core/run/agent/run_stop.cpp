#include <poll.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "core/run/agent/run.h"
#include "core/run/log/log.h"
#include "core/run/stop/early_stop.h"
#include "core/run/stop/limit_alarm.h"
#include "kernels/base/error.h"

// Part of the run (run.h): stops before the last step, by a signal to any of its agents, the time limit or
// --stop-after.

namespace trainerd::core::run {

namespace {

// Assumed write rate of a node's storage until a save is measured.
constexpr double kGuessedBytesPerSecond = 200e6;

}  // namespace

/// A scheduler may signal every node, and ranks can request stops: all count as one request.
void Run::request_stop(const StopRequest& request) {
  if (stop_ && std::exchange(grows_, false)) {
    log::info("{}: stopping, and not growing", request.reason);
    stop_ = request;
    return;
  }
  if (stop_) {
    log::info("{}: the run is stopping already, by {}", request.reason, stop_->reason);
    return;
  }
  stop_ = request;
  if (!membership_.leads()) membership_.send(StopAsked{request});
  // A rank that is not ready may be minutes away from its first vote.
  if (membership_.leads() && !attempt_->all_ready()) {
    if (!sinks_started_) return stop_at_once(request, request.reason + " before training began: stopping");
    log::info("{}: the workers have just started again: stopping after step {}", request.reason, step_);
    stop_between_ = true;
    return;
  }
  log::info("{}: finishing the step, saving, stopping", request.reason);
  attempt_->send_all(Stop{});
}

/// The run stops with its next checkpoint, because of a device.
void Run::drain() {
  if (job_.checkpoint.every.never()) return request_stop(*devices_.draining());
  attempt_->send_all(Drain{});
}

/// The ranks' state may be wrong: nothing is saved.
void Run::end_by_device(const std::string& why) { fail({base::ErrorKind::device, why, 3}); }

/// Waits for nothing: no step, no save, no other node.
void Run::stop_at_once(const StopRequest& request, const std::string& message) {
  killed_ = true;
  stop_ = request;
  log::warn("{}; the last checkpoint is {}", message, last_good_);
  attempt_->kill_workers();
  writer_.abandon();
  if (membership_.leads()) membership_.finish({.stop_signal = request.exit_signal});
  else membership_.finish({.failed = true, .message = "stopped at once by " + request.reason});
}

void Run::on_signal() {
  const int signal = read_signal(options_.signal_fd);
  if (signal == 0) return;
  switch (signals_.on_signal(signal, base::monotonic_seconds())) {
    case StopSignals::Meaning::stop: return request_stop(stop_request(signal));
    case StopSignals::Meaning::same_request:
      log::info(
          "{} again: the run is stopping already; SIGQUIT, or SIGINT twice with a second between, stops it "
          "at once",
          signal_name(signal));
      return;
    case StopSignals::Meaning::stop_at_once:
      return stop_at_once(stop_request(signal), signal_name(signal) + ": stopping at once");
  }
}

/// Handles a stop request that came while a checkpoint was verified or the run was planned, so that no step
/// is done after it.
bool Run::stopped_before_start() {
  std::vector<pollfd> fds{pollfd{options_.signal_fd, POLLIN, 0}};
  membership_.watch(fds);
  ::poll(fds.data(), fds.size(), 0);
  if (fds[0].revents != 0)
    if (const int signal = read_signal(options_.signal_fd); signal != 0) stop_ = stop_request(signal);
  for (const Membership::Event& event : membership_.take(std::span(fds).subspan(1)))
    if (const auto* asked = event.message ? std::get_if<StopAsked>(&*event.message) : nullptr)
      stop_ = asked->request;
    else on_node_event(event);
  if (!stop_) return false;
  log::info("{} before training began: stopping", stop_->reason);
  record_begin();
  record(io::NoticeKind::stop, "stopped by " + stop_->reason + " before training began");
  return true;
}

void Run::begin_time_limit() {
  if (!options_.deadline) return;
  disarm_time_limit();  // from here on the run itself stops early enough to save
  time_limit_.emplace(TimeLimit::Options{.deadline = *options_.deadline,
                                         .vote_steps = topology_.device.runs_behind_host() ? 3 : 2,
                                         .first_save_seconds = guessed_save_seconds()});
}

double Run::guessed_save_seconds() const {
  const std::vector<rank::DryRun>& plans = attempt_->plan().ranks.here;
  const std::int64_t bytes =
      std::accumulate(plans.begin(), plans.end(), std::int64_t{0},
                      [](std::int64_t sum, const rank::DryRun& plan) { return sum + plan.snapshot_bytes; });
  return static_cast<double>(bytes) / kGuessedBytesPerSecond;
}

/// Seconds until the time limit requests a stop; none if there is no limit or a stop is already requested.
std::optional<double> Run::time_left() const {
  if (!time_limit_ || stop_) return std::nullopt;
  return std::max(0.0, time_limit_->stop_at(!saving_.empty()) - base::monotonic_seconds());
}

/// Requests a stop with exit status 0 if --stop-after names this step or an earlier one.
void Run::stop_after(std::int64_t step) {
  if (stop_ || !options_.stop_after || step < *options_.stop_after || step >= job_.steps) return;
  request_stop({.reason = "--stop-after", .exit_signal = 0});
}

void Run::check_time_limit() {
  if (const auto left = time_left(); left && *left <= 0) request_stop({.reason = "the time limit"});
}

}  // namespace trainerd::core::run
