#pragma once

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cuda/kernels/kernels.h"
#include "kernels/scratch/scratch.h"

namespace trainerd::test {

/// The CUDA world's own kernels run on the host (simt.h), with the scratch that the CUDA target plans; memory, streams and
/// GEMMs are the CPU's.
class SimtBackend final : public kernels::Backend {
 public:
  SimtBackend(const kernels::Target& cpu, base::ThreadPool& pool) : cpu_(cpu, pool) {
    target_.kind = kernels::DeviceKind::cuda;
    target_.name = "kernels on the host";
    target_.sm_version = 90;
    target_.sm_count = 132;
  }

  const kernels::Target& target() const override { return target_; }
  kernels::Buffer allocate(kernels::MemoryKind kind, std::int64_t bytes) override { return cpu_.allocate(kind, bytes); }
  void copy(kernels::Stream& s, const kernels::Tensor& from, const kernels::Tensor& to) override { cpu_.copy(s, from, to); }
  void fill_zero(kernels::Stream& s, const kernels::Tensor& x) override { cpu_.fill_zero(s, x); }
  void transfer(kernels::Stream& s, const kernels::Tensor& from, const kernels::Tensor& to) override {
    cpu_.transfer(s, from, to);
  }
  void write(kernels::Stream& s, std::span<const std::byte> from, const kernels::Tensor& to) override {
    cpu_.write(s, from, to);
  }
  void read_back(kernels::Stream& s, const kernels::Tensor& from, std::span<std::byte> to) override {
    cpu_.read_back(s, from, to);
  }
  std::unique_ptr<kernels::Stream> make_stream(std::string name, kernels::Arena* scratch) override {
    return cpu_.make_stream(std::move(name), scratch);
  }
  std::unique_ptr<kernels::Event> make_event() override { return cpu_.make_event(); }
  void record(kernels::Stream& s, kernels::Event& e) override { cpu_.record(s, e); }
  void wait(kernels::Stream& s, const kernels::Event& e) override { cpu_.wait(s, e); }
  void wait_host(const kernels::Event& e) override { cpu_.wait_host(e); }
  double elapsed_seconds(const kernels::Event& a, const kernels::Event& b) override { return cpu_.elapsed_seconds(a, b); }
  void enter_thread() override { cpu_.enter_thread(); }
  std::int64_t prepared_bytes(const kernels::PrepareWeight& a) const override { return cpu_.prepared_bytes(a); }
  void prepare_weight(kernels::Stream& s, const kernels::PrepareWeight& a) override { cpu_.prepare_weight(s, a); }
  void linear_fprop(kernels::Stream& s, const kernels::LinearFprop& a) override { cpu_.linear_fprop(s, a); }
  void linear_dgrad(kernels::Stream& s, const kernels::LinearDgrad& a) override { cpu_.linear_dgrad(s, a); }
  void linear_wgrad(kernels::Stream& s, const kernels::LinearWgrad& a) override { cpu_.linear_wgrad(s, a); }
  void linear_swiglu(kernels::Stream& s, const kernels::LinearSwiglu& a) override { cpu_.linear_swiglu(s, a); }
  void linear_dgrad_swiglu(kernels::Stream& s, const kernels::LinearDgradSwiglu& a) override {
    cpu_.linear_dgrad_swiglu(s, a);
  }

#define TRAINERD_SIMT_OPERATOR(name, Args) \
  void name(kernels::Stream& s, const kernels::Args& a) override { run(s, a, kernels::cuda::name); }
  TRAINERD_SIMT_OPERATOR(glu_forward, GluForward)
  TRAINERD_SIMT_OPERATOR(glu_backward, GluBackward)
  TRAINERD_SIMT_OPERATOR(gelu_forward, GeluForward)
  TRAINERD_SIMT_OPERATOR(gelu_backward, GeluBackward)
  TRAINERD_SIMT_OPERATOR(embedding_forward, EmbeddingForward)
  TRAINERD_SIMT_OPERATOR(embedding_backward, EmbeddingBackward)
  TRAINERD_SIMT_OPERATOR(add_norm_forward, AddNormForward)
  TRAINERD_SIMT_OPERATOR(add_norm_backward, AddNormBackward)
  TRAINERD_SIMT_OPERATOR(rope_table, RopeTable)
  TRAINERD_SIMT_OPERATOR(qk_norm_rope_forward, QkNormRopeForward)
  TRAINERD_SIMT_OPERATOR(qk_norm_rope_backward, QkNormRopeBackward)
  TRAINERD_SIMT_OPERATOR(attention_forward, AttentionForward)
  TRAINERD_SIMT_OPERATOR(attention_backward, AttentionBackward)
  TRAINERD_SIMT_OPERATOR(ce_stats, CeStats)
  TRAINERD_SIMT_OPERATOR(ce_rescale, CeRescale)
  TRAINERD_SIMT_OPERATOR(ce_finish, CeFinish)
  TRAINERD_SIMT_OPERATOR(add, Add)
  TRAINERD_SIMT_OPERATOR(scale, Scale)
  TRAINERD_SIMT_OPERATOR(cast, Cast)
  TRAINERD_SIMT_OPERATOR(block_square_sums, BlockSquareSums)
  TRAINERD_SIMT_OPERATOR(total_square_sum, TotalSquareSum)
  TRAINERD_SIMT_OPERATOR(ordered_sum, OrderedSum)
  TRAINERD_SIMT_OPERATOR(tensor_hash, TensorHash)
  TRAINERD_SIMT_OPERATOR(step_control, StepControl)
  TRAINERD_SIMT_OPERATOR(adamw_update, AdamwUpdate)
  TRAINERD_SIMT_OPERATOR(init_normal, InitNormal)
#undef TRAINERD_SIMT_OPERATOR

 private:
  template <class Args>
  void run(kernels::Stream& stream, const Args& args, void (*launch)(const kernels::cuda::Launch&, const Args&)) {
    const kernels::ArenaScope scope(stream.scratch());
    const std::int64_t bytes = scratch_bytes(args, target_);
    if (bytes > 0) stream.scratch().take_bytes(bytes, kernels::MemoryTerm::workspace);
    // Memory of its own, which ends at a guard page and holds NaNs: what is read before it is written shows.
    const kernels::Buffer scratch = cpu_.allocate(kernels::MemoryKind::device, bytes);
    if (bytes > 0) std::memset(scratch.data(), 0xff, static_cast<std::size_t>(bytes));
    launch({.stream = nullptr, .target = target_, .scratch = bytes > 0 ? scratch.data() : nullptr}, args);
  }

  kernels::CpuBackend cpu_;
  kernels::Target target_;
};

}  // namespace trainerd::test
