#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "kernels/backend/backend.h"

namespace trainerd::parallel {

/// The two host buffers of a staged communicator and the stream of its copies. The next piece is copied from
/// the device while the host works on one. For one thread.
class Slots {
 public:
  Slots(kernels::Backend& backend, std::int64_t bytes)
      : backend_(backend), bytes_(bytes), copies_(backend.make_stream("staging", nullptr)) {
    for (Slot& slot : slots_)
      slot = {backend.allocate(kernels::MemoryKind::host, bytes), backend.make_event()};
  }

  std::int64_t bytes() const { return bytes_; }
  kernels::Stream& copies() { return *copies_; }
  void copy(const kernels::Tensor& from, const kernels::Tensor& to) {
    if (from.bytes() > 0) backend_.transfer(*copies_, from, to);
  }

  /// For each of `pieces`: `load(i, data)` enqueues copies into the slot at `data`, `work(i, data)` runs on
  /// the host, and `store(i, data)` enqueues copies out of it. Copies of `store` may still be in progress
  /// when this returns.
  template <class Load, class Work, class Store>
  void pass(std::int64_t pieces, const Load& load, const Work& work, const Store& store) {
    const auto begin = [&](std::int64_t i) {
      Slot& s = slot(i);
      load(i, s.memory.data());
      backend_.record(*copies_, *s.loaded);
    };
    begin(0);
    for (std::int64_t i = 0; i < pieces; ++i) {
      Slot& s = slot(i);
      if (i + 1 < pieces) begin(i + 1);
      // Copies are in order, so the slot's previous contents have been copied out too.
      backend_.wait_host(*s.loaded);
      work(i, s.memory.data());
      store(i, s.memory.data());
    }
  }

 private:
  struct Slot {
    kernels::Buffer memory;
    std::unique_ptr<kernels::Event> loaded;
  };
  Slot& slot(std::int64_t i) { return slots_[static_cast<std::size_t>(i & 1)]; }

  kernels::Backend& backend_;
  std::int64_t bytes_;
  std::array<Slot, 2> slots_;
  std::unique_ptr<kernels::Stream> copies_;
};

}  // namespace trainerd::parallel
