#pragma once

#include <array>
#include <cstddef>
#include <memory>

#include "kernels/backend/backend.h"
#include "parallel/data/data_parallel.h"

namespace trainerd::core::model {

/// Keeps the inputs of layers that keep nothing else in host memory from forward to backward. A walk counts
/// these layers from 0; layer n uses buffer n % 2 of the device, two for forward walks and two for backward
/// walks. Copies run beside the compute stream, one layer behind it in forward, one ahead in backward.
class FlowOffload {
 public:
  using Buffers = std::array<kernels::Tensor, 2>;
  FlowOffload(const parallel::HostLink& link, const Buffers& forward, const Buffers& backward);

  /// Forward: the buffer for the input of layer `n`, free for work on `stream` from here on. It has room for
  /// one flow.
  kernels::Arena& arena(kernels::Stream& stream, std::size_t n);
  /// True if a flow is in a buffer of `arena`.
  bool holds(const kernels::Tensor& flow_TD) const;
  /// Starts the copy of the input of layer `n` to host memory.
  void keep(kernels::Stream& stream, std::size_t n, const kernels::Tensor& flow_TD,
            const kernels::Tensor& host_TD);
  /// Backward: starts the copy of the input of layer `n` from host memory, unless it is in progress. The
  /// input has fewer rows than the buffers in the canary step.
  void fetch(kernels::Stream& stream, std::size_t n, const kernels::Tensor& host_TD);
  /// The fetched input of layer `n`, for work on `stream` from here on, until `fetch` of layer `n - 2`.
  kernels::Tensor fetched(kernels::Stream& stream, std::size_t n);

 private:
  struct Kept {
    kernels::Tensor flow;
    kernels::Arena arena;
    const std::byte* host = nullptr;  ///< where the last copy goes
    std::unique_ptr<parallel::Work> copied;
  };
  struct Fetched {
    kernels::Tensor flow, rows;  ///< the buffer, and what is in use
    std::unique_ptr<parallel::Work> copied;
  };
  static void land(kernels::Stream& stream, std::unique_ptr<parallel::Work>& copied);

  parallel::HostLink link_;
  std::array<Kept, 2> kept_;
  std::array<Fetched, 2> fetched_;
};

}  // namespace trainerd::core::model
