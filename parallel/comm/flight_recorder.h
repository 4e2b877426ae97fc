#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <mutex>
#include <span>
#include <string_view>
#include <type_traits>

#include "kernels/base/clock.h"
#include "kernels/tensor/dtype.h"

namespace trainerd::parallel {

enum class FlightState : std::uint8_t { enqueued, started, done };

/// One operation of a communicator. Plain bytes, so that it can be in a segment that the agent reads after a
/// rank's death. Times are base::monotonic_seconds(); 0 means not yet.
struct FlightRecord {
  std::uint64_t order = 0;     ///< number of the operation on this rank, from 1; 0: unused record
  std::uint64_t sequence = 0;  ///< number of the collective in its group, or of the exchange
  std::int64_t bytes = 0;
  double enqueued_seconds = 0;
  double started_seconds = 0;
  double done_seconds = 0;
  std::int32_t group_size = 0;
  kernels::DType dtype = kernels::DType::f32;
  FlightState state = FlightState::enqueued;
  std::array<char, 16> op{};  ///< this and the next two are truncated to fit and end with a zero
  std::array<char, 24> group{};
  std::array<char, 40> label{};
};
static_assert(std::is_trivially_copyable_v<FlightRecord>);

/// Copies as much of `text` as fits, and a terminating zero.
template <std::size_t N>
void put_text(std::array<char, N>& to, std::string_view text) {
  to.fill('\0');
  std::copy_n(text.data(), std::min(text.size(), N - 1), to.data());
}

/// The latest operations of one rank, in a ring that the caller provides and that outlives the recorder. Any
/// thread. Allocates nothing. A reader in another process may see a partly written newest record.
class FlightRecorder {
 public:
  explicit FlightRecorder(std::span<FlightRecord> ring) : ring_(ring) {}

  /// `record` has no order, state and times yet. Returns the order assigned to it.
  std::uint64_t enqueued(FlightRecord record) {
    const std::lock_guard lock(mutex_);
    record.order = ++last_;
    record.state = FlightState::enqueued;
    record.enqueued_seconds = base::monotonic_seconds();
    if (!ring_.empty()) ring_[(last_ - 1) % ring_.size()] = record;
    return last_;
  }
  void started(std::uint64_t order) {
    const std::lock_guard lock(mutex_);
    if (FlightRecord* record = find(order)) {
      record->state = FlightState::started;
      record->started_seconds = base::monotonic_seconds();
    }
  }
  void done(std::uint64_t order) {
    const std::lock_guard lock(mutex_);
    if (FlightRecord* record = find(order)) {
      record->state = FlightState::done;
      record->done_seconds = base::monotonic_seconds();
    }
  }

 private:
  /// Null if the ring has overwritten it since.
  FlightRecord* find(std::uint64_t order) {
    if (ring_.empty()) return nullptr;
    FlightRecord& record = ring_[(order - 1) % ring_.size()];
    return record.order == order ? &record : nullptr;
  }

  std::span<FlightRecord> ring_;
  std::mutex mutex_;
  std::uint64_t last_ = 0;
};

}  // namespace trainerd::parallel
