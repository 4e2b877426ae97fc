#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <utility>

#include "io/lines/line_file.h"
#include "io/lines/step_log.h"

namespace trainerd::io {

/// A log with one line per step that a run appends to: steps.jsonl, samples.jsonl. When a run resumes,
/// opening it first drops the lines after `start_step` and a torn last line. Invalid lines are moved to
/// another file. A file that cannot be read is left unchanged and gives a SpecError.
class StepLines {
 public:
  /// `name`: of its outlet.
  StepLines(std::string path, const std::string& name, std::int64_t start_step, const StepOfLine& step_of);
  /// What was wrong with the existing file; empty if nothing was.
  const std::string& warning() const { return warning_; }
  /// Appends with a single write, so that neither a concurrent reader nor a kill leaves half a line.
  void append(std::int64_t step, const std::string& line);
  /// Removes the lines of this process after `step`. `step` may be older than a complete checkpoint, because
  /// a snapshot in another node's memory may be.
  void take_back_after(std::int64_t step);
  /// Retries for `seconds` to write the remaining lines. Throws SpecError if lines were lost.
  void finish(double seconds);
  const OutletRecord& record() const { return file_.record(); }

 private:
  std::string path_, warning_;
  LineFile file_;
  std::deque<std::pair<std::int64_t, std::int64_t>> lines_;  ///< step and bytes of each line of this process
};

}  // namespace trainerd::io
