#pragma once

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cuda/kernels/kernels.h"
#include "kernels/scratch/scratch.h"
#include "tests/kernels/simt/device_memory.h"

namespace trainerd::test {

/// The CUDA world's own kernels run on the host (simt.h), with the scratch planned for the CUDA target.
/// Streams and GEMMs are the CPU's; memory is simulated device memory, which the host accesses by copies
/// only.
class SimtBackend final : public kernels::Backend {
 public:
  SimtBackend(const kernels::Target& cpu, base::ThreadPool& pool, int sm_version) : cpu_(cpu, pool) {
    target_.kind = kernels::DeviceKind::cuda;
    target_.name = "kernels on the host";
    target_.sm_version = sm_version;
    target_.sm_count = 132;
  }

  const kernels::Target& target() const override { return target_; }
  kernels::Buffer allocate(kernels::MemoryKind kind, std::int64_t bytes) override {
    return simt::device_buffer(cpu_.allocate(kind, bytes));
  }
  void copy(kernels::Stream& s, const kernels::Tensor& from, const kernels::Tensor& to) override {
    const simt::DeviceAccess access;
    cpu_.copy(s, from, to);
  }
  void fill_zero(kernels::Stream& s, const kernels::Tensor& x) override {
    const simt::DeviceAccess access;
    cpu_.fill_zero(s, x);
  }
  void transfer(kernels::Stream& s, const kernels::Tensor& from, const kernels::Tensor& to) override {
    const simt::DeviceAccess access;
    cpu_.transfer(s, from, to);
  }
  void write(kernels::Stream& s, std::span<const std::byte> from, const kernels::Tensor& to) override {
    const simt::DeviceAccess access;
    cpu_.write(s, from, to);
  }
  void read_back(kernels::Stream& s, const kernels::Tensor& from, std::span<std::byte> to) override {
    const simt::DeviceAccess access;
    cpu_.read_back(s, from, to);
  }
  std::unique_ptr<kernels::Stream> make_stream(std::string name, kernels::Arena* scratch) override {
    return cpu_.make_stream(std::move(name), scratch);
  }
  std::unique_ptr<kernels::Event> make_event() override { return cpu_.make_event(); }
  void record(kernels::Stream& s, kernels::Event& e) override { cpu_.record(s, e); }
  void wait(kernels::Stream& s, const kernels::Event& e) override { cpu_.wait(s, e); }
  void wait_host(const kernels::Event& e) override { cpu_.wait_host(e); }
  double elapsed_seconds(const kernels::Event& a, const kernels::Event& b) override {
    return cpu_.elapsed_seconds(a, b);
  }
  void enter_thread() override { cpu_.enter_thread(); }
  std::int64_t prepared_bytes(const kernels::PrepareWeight& a) const override {
    return cpu_.prepared_bytes(a);
  }

#define TRAINERD_CUDA_library(name, Args)                          \
  void name(kernels::Stream& s, const kernels::Args& a) override { \
    const simt::DeviceAccess access;                               \
    cpu_.name(s, a);                                               \
  }
#define TRAINERD_CUDA_own(name, Args) \
  void name(kernels::Stream& s, const kernels::Args& a) override { run(s, a, kernels::cuda::name); }
#define TRAINERD_CUDA_either(name, Args) TRAINERD_CUDA_own(name, Args)
#define TRAINERD_OPERATOR(name, Args, cuda) TRAINERD_CUDA_##cuda(name, Args)
#include "kernels/ops/operators.def"
#undef TRAINERD_CUDA_library
#undef TRAINERD_CUDA_own
#undef TRAINERD_CUDA_either

 private:
  template <class Args>
  void run(kernels::Stream& stream, const Args& args,
           void (*launch)(const kernels::cuda::Launch&, const Args&)) {
    const kernels::ArenaScope scope(stream.scratch());
    const std::int64_t bytes = scratch_bytes(args, target_);
    if (bytes > 0) stream.scratch().take_bytes(bytes, kernels::MemoryTerm::workspace);
    // Separate scratch that ends at a guard page and holds NaNs, so that reads of unwritten scratch become
    // visible.
    const kernels::Buffer scratch = cpu_.allocate(kernels::MemoryKind::device, bytes);
    if (bytes > 0) std::memset(scratch.data(), 0xff, static_cast<std::size_t>(bytes));
    launch({.stream = nullptr, .target = target_, .scratch = bytes > 0 ? scratch.data() : nullptr}, args);
  }

  kernels::CpuBackend cpu_;
  kernels::Target target_;
};

}  // namespace trainerd::test
