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
/// Returns a record: length, its checksum, the bytes, their checksum.
std::string tf_record(std::string_view bytes);

// Events; `wall_time` is Unix seconds.

/// First event of a file.
std::string version_event(double wall_time);
/// The writer (re)starts before `step`: readers discard their data of that step and later ones.
std::string start_event(double wall_time, std::int64_t step);
/// Values are stored as fp32.
std::string scalars_event(double wall_time, std::int64_t step,
                          const std::vector<std::pair<std::string, double>>& scalars);

/// A new event file, to which records are appended. A failed write does not throw: its bytes are kept in
/// order and retried after at least a second. Beyond 16 MiB of kept bytes, events are dropped and counted.
/// For one thread.
class EventFile {
 public:
  /// Makes `folder` and a file in it whose name sorts after those of earlier starts, as readers require.
  /// Throws SpecError.
  EventFile(const std::string& folder, double wall_time);

  void append(const std::string& event);
  /// Retries for up to `seconds` until all is written. Returns false if events were lost.
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
