#pragma once

#include <cstddef>
#include <cstdint>
#include <source_location>
#include <string>

#include "io/records/records.h"
#include "kernels/base/error.h"
#include "kernels/base/fd.h"

namespace trainerd::io {

/// Appends lines to a file, each by one write. A write that fails does not throw: its lines wait, in order,
/// and are tried again after a pause that doubles; lines beyond what may wait are dropped and counted. Used
/// by one thread.
class LineFile {
 public:
  struct Patience {
    std::size_t waiting_bytes = std::size_t{16} << 20;
    double first_pause = 0.05, longest_pause = 5;  ///< seconds
  };
  /// Lines wait until there is a file to write to. `name` is that of its record.
  explicit LineFile(std::string name, Patience patience);
  explicit LineFile(std::string name) : LineFile(std::move(name), Patience{}) {}
  /// `fd` appends.
  void attach(base::UniqueFd fd);

  /// False when the line was dropped.
  bool append(const std::string& line);
  /// Takes back the last `bytes` of what was appended, line ends included. Where the file cannot be cut, it
  /// is tried again before the next line is written.
  void take_back(std::int64_t bytes);
  /// Tries for as long as `seconds` until nothing waits; then what still does is dropped. False when lines
  /// were.
  bool finish(double seconds);
  const OutletRecord& record() const { return record_; }

 private:
  bool write_waiting();
  int cut();

  Patience patience_;
  base::UniqueFd fd_;
  std::string waiting_;      ///< the first line may have been written in part
  std::int64_t to_cut_ = 0;  ///< bytes at the file's end that were taken back
  double pause_ = 0, next_try_ = 0;
  OutletRecord record_;
};

/// What its end says of a log that lost lines.
base::SpecError lost_lines(const std::string& path, const OutletRecord& record,
                           std::source_location where = std::source_location::current());

}  // namespace trainerd::io
