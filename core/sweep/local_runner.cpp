#include "core/sweep/local_runner.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>

#include <algorithm>
#include <cerrno>
#include <csignal>

#include "core/run/stop/early_stop.h"
#include "core/sweep/table.h"
#include "kernels/base/clock.h"
#include "kernels/base/output_file.h"

namespace trainerd::core::sweep {
namespace {

constexpr int kLookAgainMilliseconds = 100;

/// True if a run holds the output directory.
bool is_held(const std::string& directory) {
  const base::UniqueFd lock = base::open_regular(directory + "/.lock");
  return lock && ::flock(lock.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
}

}  // namespace

LocalRunner::LocalRunner(const Sweep& sweep, Options options)
    : sweep_(sweep),
      options_(std::move(options)),
      slot_taken_(static_cast<std::size_t>(sweep.at_once), false) {}

void LocalRunner::await_earlier(const std::vector<std::size_t>& jobs) {
  for (const std::size_t job : jobs) {
    bool told = false;
    while (!stop_ && is_held(sweep_.jobs[job].spec.output)) {
      if (!std::exchange(told, true))
        options_.say(sweep_.jobs[job].name + " still runs, by an earlier sweep: waiting for it");
      wait_for_signal(kLookAgainMilliseconds);
    }
  }
}

void LocalRunner::run(const std::vector<std::size_t>& jobs, std::optional<std::int64_t> stop_after,
                      const OnEnd& on_end) {
  std::size_t next = 0;
  while (next < jobs.size() || !running_.empty()) {
    while (!stop_ && next < jobs.size() && running_.size() < slot_taken_.size())
      start(jobs[next++], stop_after);
    if (running_.empty()) return;  // stopped
    std::vector<pollfd> fds{pollfd{options_.signal_fd, POLLIN, 0}};
    for (const Running& running : running_) fds.push_back({running.process.pidfd(), POLLIN, 0});
    if (::poll(fds.data(), fds.size(), -1) < 0) continue;
    if (fds[0].revents != 0) on_signal();
    std::size_t fd = 1;
    for (auto running = running_.begin(); running != running_.end(); ++fd) {
      if (fds[fd].revents == 0) {
        ++running;
        continue;
      }
      const std::size_t job = running->job;
      const int status = running->process.wait();
      slot_taken_[running->slot] = false;
      running = running_.erase(running);
      on_end(job, status);
    }
  }
}

void LocalRunner::start(std::size_t job, std::optional<std::int64_t> stop_after) {
  const auto free = static_cast<std::size_t>(std::find(slot_taken_.begin(), slot_taken_.end(), false) -
                                             slot_taken_.begin());
  std::vector<std::string> words{"trainerd", "run", sweep_.job_file(sweep_.jobs[job])};
  if (stop_after) words.insert(words.end(), {"--stop-after", std::to_string(*stop_after)});
  running_.emplace_back(job, free,
                        JobProcess::Command{.executable = options_.executable,
                                            .words = std::move(words),
                                            .log = sweep_.job_log(sweep_.jobs[job]),
                                            .environment = environment_of(free)});
  slot_taken_[free] = true;
  options_.say(sweep_.jobs[job].name + " started" + set_text(sweep_.jobs[job]));
}

/// Selects a share of the CUDA devices if several jobs run at once.
std::vector<std::string> LocalRunner::environment_of(std::size_t slot) const {
  const std::size_t share = options_.cuda_devices.size() / slot_taken_.size();
  if (slot_taken_.size() == 1 || share == 0) return {};
  std::string devices;
  for (std::size_t i = slot * share; i < (slot + 1) * share; ++i)
    devices += (devices.empty() ? "" : ",") + options_.cuda_devices[i];
  return {"CUDA_VISIBLE_DEVICES=" + devices};
}

/// Passes the request on to the jobs, which save and stop.
void LocalRunner::on_signal() {
  const int signal = run::read_signal(options_.signal_fd);
  if (signal == 0) return;
  switch (signals_.on_signal(signal, base::monotonic_seconds())) {
    case run::StopSignals::Meaning::same_request: return;
    case run::StopSignals::Meaning::stop:
      stop_ = run::stop_request(signal);
      options_.say(run::signal_name(signal) + ": the jobs save and stop");
      for (const Running& running : running_) running.process.signal(SIGTERM);
      return;
    case run::StopSignals::Meaning::stop_at_once:
      stop_ = run::stop_request(signal);
      options_.say(run::signal_name(signal) + ": the jobs stop at once");
      for (const Running& running : running_) running.process.signal(SIGQUIT);
      return;
  }
}

bool LocalRunner::wait_for_signal(int milliseconds) {
  pollfd fd{options_.signal_fd, POLLIN, 0};
  if (::poll(&fd, 1, milliseconds) <= 0) return false;
  on_signal();
  return true;
}

}  // namespace trainerd::core::sweep
