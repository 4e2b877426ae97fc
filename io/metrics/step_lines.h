#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <utility>

#include "io/lines/line_file.h"
#include "io/lines/step_log.h"

namespace trainerd::io {

/// A log of one line per step that a run appends to: steps.jsonl, samples.jsonl. Opening it for a resumed run
/// first drops the lines after `start_step`, and a torn last line; lines that are no records are moved to
/// another file. A file that cannot be read is a SpecError, and is not touched.
class StepLines {
 public:
  /// `name`: of its outlet.
  StepLines(std::string path, const std::string& name, std::int64_t start_step, const StepOfLine& step_of);
  /// What was wrong with the file that it was opened on; empty: nothing.
  const std::string& warning() const { return warning_; }
  /// By one write: another process reading along, or a kill, never sees half of a line.
  void append(std::int64_t step, const std::string& line);
  /// Takes back the lines of this process after `step`, also those before a checkpoint that is complete: what
  /// other nodes' memory holds may be older.
  void take_back_after(std::int64_t step);
  /// Tries for `seconds` to write what waits. Throws SpecError when lines were lost.
  void finish(double seconds);
  const OutletRecord& record() const { return file_.record(); }

 private:
  std::string path_, warning_;
  LineFile file_;
  std::deque<std::pair<std::int64_t, std::int64_t>> lines_;  ///< step and bytes of each of this process
};

}  // namespace trainerd::io
