#pragma once

#include <atomic>
#include <memory>

#include "kernels/backend/backend.h"
#include "kernels/base/thread_pool.h"

namespace trainerd::kernels {

class GemmCache;         // oneDNN primitives by problem (gemm.h)
struct VectorKernels;    // row kernels of one instruction set (simd/vector_kernels.h)
struct AttentionKernels; // attention tiles of one instruction set (simd/attention_kernels.h)

/// The CPU world: GEMMs by oneDNN, and where it is slower by our own kernels; everything else by our own vector kernels on our own pool. Work is done in the
/// calling thread's order, at once. Results depend on the target (instruction set, thread count), never on timing.
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

  // gemm.cpp
  std::int64_t prepared_bytes(const PrepareWeight&) const override;
  void prepare_weight(Stream&, const PrepareWeight&) override;
  void linear_fprop(Stream&, const LinearFprop&) override;
  void linear_dgrad(Stream&, const LinearDgrad&) override;
  void linear_wgrad(Stream&, const LinearWgrad&) override;
  void linear_swiglu(Stream&, const LinearSwiglu&) override;
  void linear_dgrad_swiglu(Stream&, const LinearDgradSwiglu&) override;

  // mlp.cpp
  void glu_forward(Stream&, const GluForward&) override;
  void glu_backward(Stream&, const GluBackward&) override;
  void gelu_forward(Stream&, const GeluForward&) override;
  void gelu_backward(Stream&, const GeluBackward&) override;

  // embedding.cpp
  void embedding_forward(Stream&, const EmbeddingForward&) override;
  void embedding_backward(Stream&, const EmbeddingBackward&) override;

  // norm.cpp
  void add_norm_forward(Stream&, const AddNormForward&) override;
  void add_norm_backward(Stream&, const AddNormBackward&) override;

  // rope.cpp
  void rope_table(Stream&, const RopeTable&) override;
  void qk_norm_rope_forward(Stream&, const QkNormRopeForward&) override;
  void qk_norm_rope_backward(Stream&, const QkNormRopeBackward&) override;

  // attention.cpp
  void attention_forward(Stream&, const AttentionForward&) override;
  void attention_backward(Stream&, const AttentionBackward&) override;

  // loss.cpp
  void ce_stats(Stream&, const CeStats&) override;
  void ce_rescale(Stream&, const CeRescale&) override;
  void ce_finish(Stream&, const CeFinish&) override;

  // elementwise.cpp
  void add(Stream&, const Add&) override;
  void scale(Stream&, const Scale&) override;
  void cast(Stream&, const Cast&) override;
  void init_normal(Stream&, const InitNormal&) override;

  // reduce.cpp
  void block_square_sums(Stream&, const BlockSquareSums&) override;
  void total_square_sum(Stream&, const TotalSquareSum&) override;
  void ordered_sum(Stream&, const OrderedSum&) override;
  void tensor_hash(Stream&, const TensorHash&) override;

  // update.cpp
  void step_control(Stream&, const StepControl&) override;
  void adamw_update(Stream&, const AdamwUpdate&) override;

 private:
  Target target_;
  base::ThreadPool& pool_;
  const VectorKernels& vector_;
  const AttentionKernels& attention_;
  std::unique_ptr<GemmCache> gemms_;
  std::int64_t widened_gemms_ = 0, reference_gemms_ = 0;
};

}  // namespace trainerd::kernels
