#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "kernels/tensor/tensor.h"

namespace trainerd::kernels {

/// Minimum alignment of all offsets: a cache line and a full vector register.
constexpr std::int64_t kAlignment = 64;
constexpr std::int64_t align_up(std::int64_t bytes, std::int64_t to = kAlignment) {
  return (bytes + to - 1) / to * to;
}

/// What memory is used for: the terms of a plan.
enum class MemoryTerm : std::uint8_t {
  parameters,
  prepared_weights,
  gradients,
  master_weights,
  moments,
  activations,
  logits,
  workspace,
  batch,
  control,
  count_
};
const char* to_string(MemoryTerm term);

/// Owns a block of memory and frees it with `release`. Move-only.
class Buffer {
 public:
  Buffer() = default;
  Buffer(std::byte* data, std::int64_t bytes, std::function<void()> release)
      : data_(data), bytes_(bytes), release_(std::move(release)) {}
  Buffer(Buffer&& other) noexcept { *this = std::move(other); }
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer();

  std::byte* data() const { return data_; }
  std::int64_t bytes() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  std::int64_t bytes_ = 0;
  std::function<void()> release_;
};

/// A LIFO stack over one span whose size the dry run determined. Allocations are aligned to `alignment`
/// bytes. A dry arena has addresses but no memory, and a capacity beyond any machine: it only measures.
class Arena {
 public:
  using Mark = std::int64_t;

  Arena() = default;
  /// An arena over [base, base + capacity).
  Arena(std::string name, std::byte* base, std::int64_t capacity, std::int64_t alignment = kAlignment);
  static Arena dry(std::string name, std::int64_t alignment = kAlignment);

  /// Throws CapacityError if the plan has no room for it (an error of the plan, not of the user), and in a
  /// dry arena if the job is larger than any machine.
  Tensor take(DType dtype, const Shape& shape, MemoryTerm term);
  std::byte* take_bytes(std::int64_t bytes, MemoryTerm term);
  Mark mark() const { return top_; }
  /// Releases everything taken after `mark`.
  void release(Mark mark);

  const std::string& name() const { return name_; }
  std::byte* base() const { return base_; }
  std::int64_t capacity() const { return capacity_; }
  std::int64_t top() const { return top_; }
  std::int64_t high_water() const { return high_water_; }
  /// Bytes of each term at the moment of the high-water mark.
  const std::array<std::int64_t, static_cast<std::size_t>(MemoryTerm::count_)>& terms_at_peak() const {
    return peak_terms_;
  }

 private:
  struct Taken {
    std::int64_t begin;
    std::int64_t bytes;
    MemoryTerm term;
  };
  std::string name_;
  std::byte* base_ = nullptr;
  std::int64_t capacity_ = 0;
  std::int64_t alignment_ = kAlignment;
  std::int64_t top_ = 0;
  std::int64_t high_water_ = 0;
  std::vector<Taken> taken_;
  std::array<std::int64_t, static_cast<std::size_t>(MemoryTerm::count_)> terms_{};
  std::array<std::int64_t, static_cast<std::size_t>(MemoryTerm::count_)> peak_terms_{};
};

/// On scope exit releases what was taken from an arena inside the scope.
class ArenaScope {
 public:
  explicit ArenaScope(Arena& arena) : arena_(arena), mark_(arena.mark()) {}
  ~ArenaScope() { arena_.release(mark_); }
  ArenaScope(const ArenaScope&) = delete;
  ArenaScope& operator=(const ArenaScope&) = delete;

 private:
  Arena& arena_;
  Arena::Mark mark_;
};

/// Sizes of all regions of one worker's memory for its steps, determined before step 0 by a dry run of the
/// same step.
struct MemoryBudget {
  enum class RegionKind : std::uint8_t {
    persistent,  ///< for the whole run
    scratch,     ///< within an operator or a segment
    kept,        ///< from a forward to its backward or its weight gradients
    passed,      ///< between ranks, or from a backward to its weight gradients
    host,        ///< for the whole run, in pinned memory of the host
  };
  struct Region {
    std::string name;
    RegionKind kind = RegionKind::persistent;
    std::int64_t bytes = 0;
    std::map<std::string, std::int64_t> terms;
  };
  std::vector<Region> regions;
  /// Of the device.
  std::int64_t total_bytes() const;
  std::int64_t host_bytes() const;
  bool has(const std::string& region) const;
  /// Bytes of a region. Throws std::logic_error for an unknown name.
  std::int64_t bytes_of(const std::string& name) const;
};

}  // namespace trainerd::kernels
