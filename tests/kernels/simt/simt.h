#pragma once

// CUDA kernels on the host: the part of the runtime's interface that kernels/cuda uses. A launch runs its
// blocks one after another; the threads of a block are fibers that switch at barriers and shuffles.
// `set_order` chooses the order of blocks and threads: a kernel whose result depends on it lacks a barrier. A
// barrier or shuffle that not all threads reach ends the process with a message.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "tests/kernels/simt/device_memory.h"

#define __global__
#define __device__
#define __host__
#define __grid_constant__
#define __launch_bounds__(...)
// One block runs at a time, so shared memory can be static.
#define __shared__ static

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

namespace trainerd::test::simt {

/// forward and backward are by number; shuffled draws a new order in each round.
enum class Order { forward, backward, shuffled };
void set_order(Order order);

void run(dim3 grid, dim3 block, const std::function<void()>& thread, std::size_t shared_bytes = 0);

void block_barrier();
void warp_barrier();
/// Exchanges one word per lane of a warp. The result, indexed by lane, is valid until the next exchange.
const std::uint64_t* exchange(std::uint64_t word);
int lane();
/// An instruction of a whole warp: each lane gives its operands, and `whole` runs once with those of all 32
/// lanes when the last one has arrived. If lanes are at different instructions, the process ends.
void together(const void* instruction, void* operands, void (*whole)(void* const* lanes));

/// Where a kernel's dynamic shared memory begins, as on a device.
constexpr std::uint32_t kSharedBegin = 1024;
/// The block's shared memory, initially NaNs. Addresses are offsets; one that is outside or not
/// aligned ends the process.
std::byte* shared_at(std::uint32_t address, std::size_t bytes);
[[noreturn]] void fail(const char* what);

/// Counts of the matrix instructions (mma.cpp) since the start of the process. Conflicts: ldmatrix reads of 8
/// rows, two of which are in the same banks.
struct MatrixCounts {
  std::int64_t products = 0, loads = 0, conflicts = 0, copies = 0;
};
MatrixCounts matrix_counts();
/// Ends the process if the block's threads have not waited for their copies and products.
void check_asynchronous();

}  // namespace trainerd::test::simt

// Values of the running fiber.
inline dim3 gridDim, blockDim, blockIdx, threadIdx;

inline void __syncthreads() { ::trainerd::test::simt::block_barrier(); }
inline void __syncwarp() { ::trainerd::test::simt::warp_barrier(); }

template <class T>
T simt_shuffle(T value, int source) {
  static_assert(sizeof(T) <= 8);
  std::uint64_t word = 0;
  std::memcpy(&word, &value, sizeof(T));
  const std::uint64_t* words = ::trainerd::test::simt::exchange(word);
  T other;
  std::memcpy(&other, &words[source], sizeof(T));
  ::trainerd::test::simt::warp_barrier();
  return other;
}
template <class T>
T __shfl_xor_sync(unsigned, T value, int offset) {
  return simt_shuffle(value, ::trainerd::test::simt::lane() ^ offset);
}
template <class T>
T __shfl_up_sync(unsigned, T value, int offset) {
  const int lane = ::trainerd::test::simt::lane();
  return simt_shuffle(value, lane >= offset ? lane - offset : lane);
}
inline unsigned __match_any_sync(unsigned, int value) {
  const std::uint64_t* words = ::trainerd::test::simt::exchange(static_cast<std::uint32_t>(value));
  unsigned same = 0;
  for (unsigned lane = 0; lane < 32; ++lane)
    if (words[lane] == static_cast<std::uint32_t>(value)) same |= 1u << lane;
  ::trainerd::test::simt::warp_barrier();
  return same;
}
inline int __any_sync(unsigned, int value) {
  const std::uint64_t* words = ::trainerd::test::simt::exchange(value != 0 ? 1 : 0);
  const int any = std::any_of(words, words + 32, [](std::uint64_t word) { return word != 0; });
  ::trainerd::test::simt::warp_barrier();
  return any;
}
using std::max;
using std::min;
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline float rsqrtf(float x) { return 1.0f / ::sqrtf(x); }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fmul_rn(float a, float b) { return a * b; }

// The runtime is synchronous: each call on a stream is complete when it returns.
using cudaStream_t = void*;
enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidConfiguration = 9,
  cudaErrorStreamCaptureUnsupported = 900,
  cudaErrorStreamCaptureInvalidated = 901
};
enum cudaMemcpyKind { cudaMemcpyDefault = 3 };
inline const char* cudaGetErrorName(cudaError_t e) {
  switch (e) {
    case cudaSuccess: return "cudaSuccess";
    case cudaErrorInvalidConfiguration: return "cudaErrorInvalidConfiguration";
    case cudaErrorStreamCaptureUnsupported: return "cudaErrorStreamCaptureUnsupported";
    case cudaErrorStreamCaptureInvalidated: return "cudaErrorStreamCaptureInvalidated";
  }
  return "?";
}
inline const char* cudaGetErrorString(cudaError_t) { return "on the host"; }
inline cudaError_t cudaGetLastError() { return cudaSuccess; }

// Graphs: work on a capturing stream is stored, and runs at each launch of its graph.
struct SimtGraph {
  std::vector<std::function<void()>> work;
  bool broken = false;
};
using cudaGraph_t = SimtGraph*;
using cudaGraphExec_t = SimtGraph*;
enum cudaStreamCaptureMode { cudaStreamCaptureModeThreadLocal = 1 };
inline cudaStream_t simt_captured_stream = nullptr;
inline SimtGraph* simt_capture = nullptr;  // null: no capture
inline cudaError_t simt_put(cudaStream_t stream, std::function<void()> work) {
  if (simt_capture != nullptr && stream == simt_captured_stream)
    simt_capture->work.push_back(std::move(work));
  else work();
  return cudaSuccess;
}
inline cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  if (simt_capture != nullptr) return cudaErrorStreamCaptureUnsupported;
  simt_captured_stream = stream;
  simt_capture = new SimtGraph;
  return cudaSuccess;
}
inline cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t* graph) {
  *graph = std::exchange(simt_capture, nullptr);
  if (!(*graph)->broken) return cudaSuccess;
  delete std::exchange(*graph, nullptr);
  return cudaErrorStreamCaptureInvalidated;
}
inline cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long) {
  *executable = new SimtGraph(*graph);
  return cudaSuccess;
}
inline cudaError_t cudaGraphDestroy(cudaGraph_t graph) { return delete graph, cudaSuccess; }
inline cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) { return delete executable, cudaSuccess; }
inline cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t) {
  for (const std::function<void()>& work : executable->work) work();
  return cudaSuccess;
}
// A wait of the host breaks a capture.
inline cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (simt_capture == nullptr || stream != simt_captured_stream) return cudaSuccess;
  simt_capture->broken = true;
  return cudaErrorStreamCaptureUnsupported;
}

inline cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t stream) {
  return simt_put(stream, [=] {
    const ::trainerd::test::simt::DeviceAccess access;
    std::memset(to, value, bytes);
  });
}
inline cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind,
                                   cudaStream_t stream) {
  return simt_put(stream, [=] {
    const ::trainerd::test::simt::DeviceAccess access;
    std::memcpy(to, from, bytes);
  });
}
struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  std::size_t dynamicSmemBytes;
  cudaStream_t stream;
};
// As on Hopper: 48 KB of shared memory per kernel, up to 227 KB after cudaFuncSetAttribute.
inline const void* simt_allowed_kernel = nullptr;
inline int simt_allowed_bytes = 0;
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };
template <class T>
cudaError_t cudaFuncSetAttribute(T* kernel, cudaFuncAttribute, int value) {
  if (value > 227 << 10) return cudaErrorInvalidConfiguration;
  simt_allowed_kernel = reinterpret_cast<const void*>(kernel);
  simt_allowed_bytes = value;
  return cudaSuccess;
}
template <class... Params, class... Args>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Params...), Args&&... args) {
  const std::tuple<std::decay_t<Params>...> params(std::forward<Args>(args)...);
  if (config->blockDim.x == 0 || config->blockDim.x > 1024 || config->gridDim.x == 0 ||
      config->gridDim.y == 0)
    return cudaErrorInvalidConfiguration;
  const bool allowed = reinterpret_cast<const void*>(kernel) == simt_allowed_kernel;
  if (config->dynamicSmemBytes > static_cast<std::size_t>(allowed ? simt_allowed_bytes : 48 << 10))
    return cudaErrorInvalidConfiguration;
  return simt_put(config->stream, [kernel, params, config = *config] {
    const ::trainerd::test::simt::DeviceAccess access;
    ::trainerd::test::simt::run(
        config.gridDim, config.blockDim, [&] { std::apply(kernel, params); }, config.dynamicSmemBytes);
  });
}
