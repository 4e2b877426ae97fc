#pragma once

#include <memory>

#include "kernels/backend/backend.h"
#include "kernels/cuda/kernels/kernels.h"
#include "kernels/cuda/runtime/cuda_stream.h"
#include "kernels/cuda/runtime/staging.h"
#include "kernels/scratch/scratch.h"

namespace trainerd::kernels::cuda {

struct AttentionScratch;
class GemmLibrary;       // cuBLASLt, plans by problem (gemm_library.h)
class AttentionLibrary;  // cuDNN, plans by problem (attention_library.h)

/// Describes CUDA device `device` of this process. Throws DeviceError.
Target describe_device(int device);

/// The CUDA backend. GEMMs use cuBLASLt, attention uses cuDNN, everything else our own kernels (kernels.h).
/// Calls enqueue work and return; only `read_back` and `wait_host` wait.
class CudaBackend final : public Backend {
 public:
  explicit CudaBackend(int device);
  ~CudaBackend() override;

  const Target& target() const override { return target_; }
  BackendCounters counters() const override;
  void tune(const Tuning& tuning) override;

  Buffer allocate(MemoryKind kind, std::int64_t bytes) override;
  void copy(Stream&, const Tensor& from, const Tensor& to) override;
  void fill_zero(Stream&, const Tensor& x) override;
  void transfer(Stream& s, const Tensor& from, const Tensor& to) override { copy(s, from, to); }
  void write(Stream&, std::span<const std::byte> from, const Tensor& to) override;
  void read_back(Stream&, const Tensor& from, std::span<std::byte> to) override;
  std::unique_ptr<Stream> make_stream(std::string name, Arena* scratch) override;
  std::unique_ptr<Event> make_event() override;
  void record(Stream&, Event&) override;
  void wait(Stream&, const Event&) override;
  void wait_host(const Event&) override;
  double elapsed_seconds(const Event& from, const Event& to) override;
  void enter_thread() override;

  std::int64_t prepared_bytes(const PrepareWeight&) const override;

  // Operators with a library implementation are defined in gemm.cpp and attention.cpp. The others call the
  // launcher of the same name (kernels.h).
#define TRAINERD_CUDA_library(name, Args) void name(Stream&, const Args&) override;
#define TRAINERD_CUDA_either(name, Args) void name(Stream&, const Args&) override;
#define TRAINERD_CUDA_own(name, Args) \
  void name(Stream& s, const Args& a) override { run(s, a, cuda::name); }
#define TRAINERD_OPERATOR(name, Args, cuda) TRAINERD_CUDA_##cuda(name, Args)
#include "kernels/ops/operators.def"
#undef TRAINERD_CUDA_library
#undef TRAINERD_CUDA_either
#undef TRAINERD_CUDA_own

  std::unique_ptr<DeviceGraph> capture(const std::function<void(Stream&)>& issue) override;
  void replay(Stream&, const DeviceGraph&) override;

  void limit_attention(std::int64_t bytes) override { target_.attention_limit_bytes = bytes; }

  // Defined in gemm_timing.cpp:
  std::string time_gemms(std::span<const OpClass> gemms) override;
  void use_gemms(const std::string& choices) override;

 private:
  /// False if cuDNN has no plan for one of the pieces.
  bool run_library_backward(const Launch&, const AttentionBackward&, const AttentionScratch&);
  void count_own_attention(bool planned_for_library);

  template <class Args>
  void run(Stream& stream, const Args& args, void (*launch)(const Launch&, const Args&)) {
    const ArenaScope scope(stream.scratch());
    launch({.stream = stream_of(stream), .target = target_, .scratch = take_scratch(stream, args)}, args);
  }
  /// The planned scratch of one call; null if it needs none.
  template <class Args>
  std::byte* take_scratch(Stream& stream, const Args& args) const {
    const std::int64_t bytes = scratch_bytes(args, target_);
    return bytes > 0 ? stream.scratch().take_bytes(bytes, MemoryTerm::workspace) : nullptr;
  }

  int device_;
  Target target_;
  BackendCounters counters_;
  Staging staging_;
  std::unique_ptr<CudaStream> captures_;  ///< stream that calls are captured on; made by the first capture
  std::unique_ptr<GemmLibrary> gemms_;
  std::unique_ptr<AttentionLibrary> attention_;  // null: only our own kernels
};

}  // namespace trainerd::kernels::cuda
