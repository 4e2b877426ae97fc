#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/backend/backend.h"
#include "kernels/cost/cost.h"
#include "kernels/ops/op_class.h"
#include "kernels/scratch/scratch.h"

namespace trainerd::kernels {

/// One operator call as the meta world saw it.
struct MetaCall {
  const char* op = "";
  std::string stream;
  Cost cost;
  std::int64_t scratch_bytes = 0;
  OpClass what;
};

/// A world that computes nothing: each call is costed as the target would run it, takes and gives back the scratch
/// that the target would, and is passed to `observe`. Memory it allocates has addresses but nothing behind them.
class MetaBackend final : public Backend {
 public:
  explicit MetaBackend(const Target& target, std::function<void(const MetaCall&)> observe = {});

  const Target& target() const override { return target_; }

  Buffer allocate(MemoryKind kind, std::int64_t bytes) override;
  void copy(Stream&, const Tensor& from, const Tensor& to) override;
  void fill_zero(Stream&, const Tensor& x) override;
  void transfer(Stream& s, const Tensor& from, const Tensor& to) override { copy(s, from, to); }
  void write(Stream&, std::span<const std::byte> from, const Tensor& to) override;
  void write_made(Stream&, std::span<const Tensor> to, std::vector<std::byte>& staging,
                  const std::function<void(std::span<std::byte>)>& make) override;
  void read_back(Stream&, const Tensor& from, std::span<std::byte> to) override;
  std::unique_ptr<Stream> make_stream(std::string name, Arena* scratch) override;
  std::unique_ptr<Event> make_event() override;
  void record(Stream&, Event&) override {}
  void wait(Stream&, const Event&) override {}
  void wait_host(const Event&) override {}
  double elapsed_seconds(const Event&, const Event&) override { return 0; }
  void enter_thread() override {}

  std::int64_t prepared_bytes(const PrepareWeight& a) const override { return kernels::prepared_bytes(a, target_); }
  void prepare_weight(Stream& s, const PrepareWeight& a) override { call(s, "prepare_weight", a); }
  void linear_fprop(Stream& s, const LinearFprop& a) override { call(s, "linear_fprop", a); }
  void linear_dgrad(Stream& s, const LinearDgrad& a) override { call(s, "linear_dgrad", a); }
  void linear_wgrad(Stream& s, const LinearWgrad& a) override { call(s, "linear_wgrad", a); }
  void linear_swiglu(Stream& s, const LinearSwiglu& a) override { call(s, "linear_swiglu", a); }
  void linear_dgrad_swiglu(Stream& s, const LinearDgradSwiglu& a) override { call(s, "linear_dgrad_swiglu", a); }
  void glu_forward(Stream& s, const GluForward& a) override { call(s, "glu_forward", a); }
  void glu_backward(Stream& s, const GluBackward& a) override { call(s, "glu_backward", a); }
  void gelu_forward(Stream& s, const GeluForward& a) override { call(s, "gelu_forward", a); }
  void gelu_backward(Stream& s, const GeluBackward& a) override { call(s, "gelu_backward", a); }
  void embedding_forward(Stream& s, const EmbeddingForward& a) override { call(s, "embedding_forward", a); }
  void embedding_backward(Stream& s, const EmbeddingBackward& a) override { call(s, "embedding_backward", a); }
  void add_norm_forward(Stream& s, const AddNormForward& a) override { call(s, "add_norm_forward", a); }
  void add_norm_backward(Stream& s, const AddNormBackward& a) override { call(s, "add_norm_backward", a); }
  void rope_table(Stream& s, const RopeTable& a) override { call(s, "rope_table", a); }
  void qk_norm_rope_forward(Stream& s, const QkNormRopeForward& a) override { call(s, "qk_norm_rope_forward", a); }
  void qk_norm_rope_backward(Stream& s, const QkNormRopeBackward& a) override { call(s, "qk_norm_rope_backward", a); }
  void attention_forward(Stream& s, const AttentionForward& a) override { call(s, "attention_forward", a); }
  void attention_backward(Stream& s, const AttentionBackward& a) override { call(s, "attention_backward", a); }
  void ce_stats(Stream& s, const CeStats& a) override { call(s, "ce_stats", a); }
  void ce_rescale(Stream& s, const CeRescale& a) override { call(s, "ce_rescale", a); }
  void ce_finish(Stream& s, const CeFinish& a) override { call(s, "ce_finish", a); }
  void add(Stream& s, const Add& a) override { call(s, "add", a); }
  void scale(Stream& s, const Scale& a) override { call(s, "scale", a); }
  void cast(Stream& s, const Cast& a) override { call(s, "cast", a); }
  void block_square_sums(Stream& s, const BlockSquareSums& a) override { call(s, "block_square_sums", a); }
  void total_square_sum(Stream& s, const TotalSquareSum& a) override { call(s, "total_square_sum", a); }
  void ordered_sum(Stream& s, const OrderedSum& a) override { call(s, "ordered_sum", a); }
  void tensor_hash(Stream& s, const TensorHash& a) override { call(s, "tensor_hash", a); }
  void step_control(Stream& s, const StepControl& a) override { call(s, "step_control", a); }
  void adamw_update(Stream& s, const AdamwUpdate& a) override { call(s, "adamw_update", a); }
  void init_normal(Stream& s, const InitNormal& a) override { call(s, "init_normal", a); }

 private:
  template <class Args>
  void call(Stream& stream, const char* op, const Args& args) {
    const std::int64_t scratch = scratch_bytes(args, target_);
    const ArenaScope scope(stream.scratch());
    if (scratch > 0) stream.scratch().take_bytes(scratch, MemoryTerm::workspace);
    note(stream, op, cost(args, target_), scratch, op_class(args));
  }
  void note(const Stream& stream, const char* op, const Cost& cost, std::int64_t scratch, const OpClass& what = {});

  Target target_;
  std::function<void(const MetaCall&)> observe_;
};

}  // namespace trainerd::kernels
