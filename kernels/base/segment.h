#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "kernels/base/fd.h"

namespace trainerd::base {

/// Memory shared between agent and worker: a memfd, allocated in full when made, mapped read-write.
/// It has no name in the file system and goes with its last holder.
class Segment {
 public:
  /// Makes a segment of `bytes`. Throws CapacityError when the memory is not there.
  static Segment create(const std::string& name, std::int64_t bytes);
  /// When a process gets the page table of a segment: page by page, or at once, for one that is written whole
  /// while something waits.
  enum class Pages { at_first_touch, at_once };
  /// Maps the whole of a segment whose descriptor was inherited. Throws DeviceError.
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
