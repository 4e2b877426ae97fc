#pragma once

#include <string>

#include "core/spec/spec.h"
#include "kernels/base/fd.h"

namespace trainerd::core {

/// A run's directory, held by one agent at a time: job.yaml, steps.jsonl, report.html, checkpoints/.
class OutputDirectory {
 public:
  /// Makes it, locks it, writes job.yaml. Throws SpecError: it cannot be made or written, or another run holds it.
  explicit OutputDirectory(const JobSpec& job);

  const std::string& path() const { return path_; }
  std::string steps() const { return path_ + "/steps.jsonl"; }
  std::string report() const { return path_ + "/report.html"; }
  std::string checkpoints() const { return path_ + "/checkpoints"; }

 private:
  std::string path_;
  base::UniqueFd lock_;
};

}  // namespace trainerd::core
