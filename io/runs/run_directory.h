#pragma once

#include <functional>
#include <memory>
#include <string>

#include "io/runs/history.h"
#include "io/runs/status.h"

namespace trainerd::io {

/// A run's output directory as another process sees it: read only, while the run goes on or after it.
class RunDirectory {
 public:
  /// Throws SpecError when `path` is no directory, or not one that a run writes to.
  explicit RunDirectory(const std::string& path);
  ~RunDirectory();
  RunDirectory(RunDirectory&&) noexcept;

  const std::string& path() const;
  /// Reads what has come since the last time; `each`, where there is one, gets every step that is read. Lines
  /// that are no records are passed over and counted. Throws SpecError when a file cannot be read.
  void update(const std::function<void(const StepRecord&)>& each = nullptr);
  const RunHistory& history() const;
  std::int64_t garbled_lines() const;
  /// As of the last update. A run without an end that no process of this host holds is `RunState::lost` when
  /// it has been silent for a while, and at once when it was on this host and nothing listens at its address.
  RunStatus status(double now) const;
  /// job.yaml; empty: there is none.
  std::string job_yaml() const;
  /// Where the run says that it serves its metrics ("127.0.0.1:9464"); empty: nowhere.
  std::string metrics_address() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace trainerd::io
