#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "io/records/records.h"
#include "kernels/base/fd.h"

// TensorBoard's event files: tensorflow/core/util/event.proto and framework/summary.proto in TFRecord's
// framing (tensorflow/core/lib/io/record_writer.h).

namespace trainerd::io {

/// CRC-32C (RFC 3720, appendix B.4).
std::uint32_t crc32c(std::string_view bytes);
/// Length, its checksum, the bytes, their checksum.
std::string tf_record(std::string_view bytes);

// Events; `wall_time` is Unix seconds.

/// The first event of a file.
std::string version_event(double wall_time);
/// The writer starts (again) before `step`: readers drop what they have of that step and later ones.
std::string start_event(double wall_time, std::int64_t step);
/// Values are kept as fp32.
std::string scalars_event(double wall_time, std::int64_t step,
                          const std::vector<std::pair<std::string, double>>& scalars);

/// A new event file, to which records are appended. A write that fails does not throw: its bytes wait, in
/// order, and are tried again a second later at the earliest; events beyond 16 MiB of them are dropped and
/// counted. Used by one thread.
class EventFile {
 public:
  /// Makes `folder`, and in it a file whose name sorts after those of earlier starts, as readers need it.
  /// Throws SpecError.
  EventFile(const std::string& folder, double wall_time);

  void append(const std::string& event);
  /// Tries for as long as `seconds` until nothing waits. False when events were lost.
  bool finish(double seconds);
  const OutletRecord& record() const { return record_; }
  const std::string& path() const { return path_; }

 private:
  void write_waiting();

  std::string path_, waiting_;
  base::UniqueFd fd_;
  double next_try_ = 0;  ///< monotonic seconds
  OutletRecord record_{.name = "tensorboard", .error = {}};
};

}  // namespace trainerd::io
