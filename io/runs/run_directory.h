#pragma once

#include <functional>
#include <memory>
#include <string>

#include "io/runs/history.h"
#include "io/runs/status.h"

namespace trainerd::io {

/// Read-only access to a run's output directory from another process, during or after the run.
class RunDirectory {
 public:
  /// Throws SpecError if `path` is not a run's output directory.
  explicit RunDirectory(const std::string& path);
  ~RunDirectory();
  RunDirectory(RunDirectory&&) noexcept;

  const std::string& path() const;
  /// Reads what was added since the last call. Calls `each`, if set, for every step read. Invalid lines are
  /// skipped and counted. Throws SpecError if a file cannot be read.
  void update(const std::function<void(const StepRecord&)>& each = nullptr);
  const RunHistory& history() const;
  std::int64_t garbled_lines() const;
  /// Status as of the last update. A run without a recorded end whose lock no process of this host holds is
  /// `RunState::lost`: after some minutes of silence, or at once if it ran on this host and nothing listens
  /// at its metrics address.
  RunStatus status(double now) const;
  /// Text of job.yaml; empty if there is none.
  std::string job_yaml() const;
  /// Address at which the run serves its metrics, as recorded ("127.0.0.1:9464"); empty if none.
  std::string metrics_address() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace trainerd::io
