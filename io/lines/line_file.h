#pragma once

#include <cstddef>
#include <cstdint>
#include <source_location>
#include <string>

#include "io/records/records.h"
#include "kernels/base/error.h"
#include "kernels/base/fd.h"

namespace trainerd::io {

/// Appends lines to a file, one write per line if all goes well. A failed write does not throw: its lines are
/// kept in order and retried after a pause that doubles. Lines beyond the limit of kept bytes are dropped and
/// counted. If the file is removed while it is written, all its lines count as dropped. For one thread.
class LineFile {
 public:
  struct Patience {
    std::size_t waiting_bytes = std::size_t{16} << 20;
    double first_pause = 0.05, longest_pause = 5;  ///< seconds
  };
  /// Lines are kept until a file is attached. `name` names the record.
  explicit LineFile(std::string name, Patience patience);
  explicit LineFile(std::string name) : LineFile(std::move(name), Patience{}) {}
  /// `fd` must be open for appending.
  void attach(base::UniqueFd fd);

  /// Returns false if the line was dropped.
  bool append(const std::string& line);
  /// Removes the last `bytes` that were appended, including line ends. If the file cannot be truncated, this
  /// is retried before the next write.
  void take_back(std::int64_t bytes);
  /// Retries for up to `seconds` until all lines are written, then drops the rest. Returns false if any line
  /// was ever dropped.
  bool finish(double seconds);
  const OutletRecord& record() const { return record_; }

 private:
  bool write_waiting();
  int cut();
  bool is_removed() const;

  Patience patience_;
  base::UniqueFd fd_;
  std::string waiting_;       ///< its first line may be partly written
  std::int64_t to_cut_ = 0;   ///< bytes to remove at the end of the file
  std::int64_t written_ = 0;  ///< lines that are not counted as dropped
  double pause_ = 0, next_try_ = 0;
  OutletRecord record_;
};

/// Error for a log that lost lines.
base::SpecError lost_lines(const std::string& path, const OutletRecord& record,
                           std::source_location where = std::source_location::current());

}  // namespace trainerd::io
