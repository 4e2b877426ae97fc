#pragma once

#include <atomic>
#include <memory>

#include "kernels/backend/backend.h"
#include "kernels/base/thread_pool.h"

namespace trainerd::kernels {

class GemmCache;          // oneDNN primitives by problem (gemm.h)
struct VectorKernels;     // row kernels of one instruction set (simd/vector_kernels.h)
struct AttentionKernels;  // attention tiles of one instruction set (simd/attention_kernels.h)

/// The CPU backend. GEMMs use oneDNN, or our own kernels where oneDNN is slower. Everything else uses our own
/// vector kernels on our own thread pool. Calls run immediately, in the calling thread's order. Results
/// depend on the target (instruction set, thread count), never on timing.
class CpuBackend final : public Backend {
 public:
  /// `pool` must outlive the backend and have `target.threads` threads.
  CpuBackend(const Target& target, base::ThreadPool& pool);
  ~CpuBackend() override;

  const Target& target() const override { return target_; }
  BackendCounters counters() const override;

  Buffer allocate(MemoryKind kind, std::int64_t bytes) override;
  void copy(Stream&, const Tensor& from, const Tensor& to) override;
  void fill_zero(Stream&, const Tensor& x) override;
  void transfer(Stream&, const Tensor& from, const Tensor& to) override;
  void write(Stream&, std::span<const std::byte> from, const Tensor& to) override;
  void read_back(Stream&, const Tensor& from, std::span<std::byte> to) override;
  std::unique_ptr<Stream> make_stream(std::string name, Arena* scratch) override;
  std::unique_ptr<Event> make_event() override;
  void record(Stream&, Event&) override;
  void wait(Stream&, const Event&) override;
  void wait_host(const Event&) override;
  double elapsed_seconds(const Event& from, const Event& to) override;
  void enter_thread() override {}

  std::int64_t prepared_bytes(const PrepareWeight&) const override;

  // Each is defined in the source of its subject: gemm.cpp, norm.cpp, ...
#define TRAINERD_OPERATOR(name, Args, cuda) void name(Stream&, const Args&) override;
#include "kernels/ops/operators.def"

 private:
  Target target_;
  base::ThreadPool& pool_;
  const VectorKernels& vector_;
  const AttentionKernels& attention_;
  std::unique_ptr<GemmCache> gemms_;
  std::int64_t widened_gemms_ = 0, reference_gemms_ = 0;
};

}  // namespace trainerd::kernels
