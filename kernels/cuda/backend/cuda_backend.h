#pragma once

#include <memory>

#include "kernels/backend/backend.h"
#include "kernels/cuda/kernels/kernels.h"
#include "kernels/cuda/runtime/cuda_stream.h"
#include "kernels/cuda/runtime/staging.h"
#include "kernels/scratch/scratch.h"

namespace trainerd::kernels::cuda {

class GemmLibrary;       // cuBLASLt, plans by problem (gemm_library.h)
class AttentionLibrary;  // cuDNN, plans by problem (attention_library.h)

/// The CUDA device `device` of this process as a Target. Throws DeviceError.
Target describe_device(int device);

/// The CUDA world: GEMMs by cuBLASLt, attention by cuDNN, everything else by our own kernels (kernels.h). Calls enqueue and
/// return; `read_back` and `wait_host` alone wait.
class CudaBackend final : public Backend {
 public:
  explicit CudaBackend(int device);
  ~CudaBackend() override;

  const Target& target() const override { return target_; }
  BackendCounters counters() const override { return counters_; }

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

  // gemm.cpp
  std::int64_t prepared_bytes(const PrepareWeight&) const override;
  void prepare_weight(Stream&, const PrepareWeight&) override;
  void linear_fprop(Stream&, const LinearFprop&) override;
  void linear_dgrad(Stream&, const LinearDgrad&) override;
  void linear_wgrad(Stream&, const LinearWgrad&) override;
  void linear_swiglu(Stream&, const LinearSwiglu&) override;
  void linear_dgrad_swiglu(Stream&, const LinearDgradSwiglu&) override;

  // gemm_timing.cpp
  std::string time_gemms(std::span<const OpClass> gemms) override;
  void use_gemms(const std::string& choices) override;

  // attention.cpp
  void attention_forward(Stream&, const AttentionForward&) override;
  void attention_backward(Stream&, const AttentionBackward&) override;

  // Our own kernels, each by the launcher of its name (kernels.h).
  void glu_forward(Stream& s, const GluForward& a) override { run(s, a, cuda::glu_forward); }
  void glu_backward(Stream& s, const GluBackward& a) override { run(s, a, cuda::glu_backward); }
  void gelu_forward(Stream& s, const GeluForward& a) override { run(s, a, cuda::gelu_forward); }
  void gelu_backward(Stream& s, const GeluBackward& a) override { run(s, a, cuda::gelu_backward); }
  void embedding_forward(Stream& s, const EmbeddingForward& a) override { run(s, a, cuda::embedding_forward); }
  void embedding_backward(Stream& s, const EmbeddingBackward& a) override { run(s, a, cuda::embedding_backward); }
  void add_norm_forward(Stream& s, const AddNormForward& a) override { run(s, a, cuda::add_norm_forward); }
  void add_norm_backward(Stream& s, const AddNormBackward& a) override { run(s, a, cuda::add_norm_backward); }
  void rope_table(Stream& s, const RopeTable& a) override { run(s, a, cuda::rope_table); }
  void qk_norm_rope_forward(Stream& s, const QkNormRopeForward& a) override { run(s, a, cuda::qk_norm_rope_forward); }
  void qk_norm_rope_backward(Stream& s, const QkNormRopeBackward& a) override { run(s, a, cuda::qk_norm_rope_backward); }
  void ce_stats(Stream& s, const CeStats& a) override { run(s, a, cuda::ce_stats); }
  void ce_rescale(Stream& s, const CeRescale& a) override { run(s, a, cuda::ce_rescale); }
  void ce_finish(Stream& s, const CeFinish& a) override { run(s, a, cuda::ce_finish); }
  void add(Stream& s, const Add& a) override { run(s, a, cuda::add); }
  void scale(Stream& s, const Scale& a) override { run(s, a, cuda::scale); }
  void cast(Stream& s, const Cast& a) override { run(s, a, cuda::cast); }
  void block_square_sums(Stream& s, const BlockSquareSums& a) override { run(s, a, cuda::block_square_sums); }
  void total_square_sum(Stream& s, const TotalSquareSum& a) override { run(s, a, cuda::total_square_sum); }
  void ordered_sum(Stream& s, const OrderedSum& a) override { run(s, a, cuda::ordered_sum); }
  void tensor_hash(Stream& s, const TensorHash& a) override { run(s, a, cuda::tensor_hash); }
  void step_control(Stream& s, const StepControl& a) override { run(s, a, cuda::step_control); }
  void adamw_update(Stream& s, const AdamwUpdate& a) override { run(s, a, cuda::adamw_update); }
  void init_normal(Stream& s, const InitNormal& a) override { run(s, a, cuda::init_normal); }

 private:
  /// False when cuDNN has no plan for a piece.
  bool run_library_backward(const Launch&, const AttentionBackward&);

  template <class Args>
  void run(Stream& stream, const Args& args, void (*launch)(const Launch&, const Args&)) {
    const ArenaScope scope(stream.scratch());
    launch({.stream = stream_of(stream), .target = target_, .scratch = take_scratch(stream, args)}, args);
  }
  /// The scratch of one call, as planned; null when it needs none.
  template <class Args>
  std::byte* take_scratch(Stream& stream, const Args& args) const {
    const std::int64_t bytes = scratch_bytes(args, target_);
    return bytes > 0 ? stream.scratch().take_bytes(bytes, MemoryTerm::workspace) : nullptr;
  }

  int device_;
  Target target_;
  BackendCounters counters_;
  Staging staging_;
  std::unique_ptr<GemmLibrary> gemms_;
  std::unique_ptr<AttentionLibrary> attention_;  // null: our own kernels alone
};

}  // namespace trainerd::kernels::cuda
