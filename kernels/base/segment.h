#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "kernels/base/fd.h"

namespace trainerd::base {

/// Memory shared between agent and worker: a memfd, fully allocated when created, mapped read-write. It has
/// no name in the file system and is freed with its last holder.
class Segment {
 public:
  /// Creates a segment of `bytes`. Throws CapacityError if the memory is not available.
  static Segment create(const std::string& name, std::int64_t bytes);
  /// When the page table of a segment is filled: page by page, or at once. `at_once` is for a segment that is
  /// written as a whole while something waits.
  enum class Pages { at_first_touch, at_once };
  /// Maps a whole segment whose descriptor was inherited. Throws DeviceError.
  static Segment attach(UniqueFd fd, Pages pages = Pages::at_first_touch);

  Segment(Segment&& other) noexcept;
  Segment& operator=(Segment&& other) noexcept;
  ~Segment();

  std::span<std::byte> bytes() const { return {data_, size_}; }
  int fd() const { return fd_.get(); }

 private:
  Segment(UniqueFd fd, std::byte* data, std::size_t size) : fd_(std::move(fd)), data_(data), size_(size) {}
  UniqueFd fd_;
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace trainerd::base
