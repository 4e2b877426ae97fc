#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "kernels/backend/backend.h"
#include "kernels/cost/cost.h"
#include "kernels/ops/op_class.h"
#include "kernels/scratch/scratch.h"

namespace trainerd::kernels {

/// One operator as it ran: what it was, what it cost, and its seconds on the stream.
struct ObservedCall {
  const char* op = "";
  Cost cost;
  double seconds = 0;
  OpClass what;
};

/// A backend that times each operator of another and tells an observer. Waits for every operator: for traces and
/// benchmarks, not for training.
class ObservedBackend : public Backend {
 public:
  ObservedBackend(Backend& inner, std::function<void(const ObservedCall&)> observe)
      : inner_(inner), observe_(std::move(observe)), from_(inner.make_event()), to_(inner.make_event()) {}

  const Target& target() const override { return inner_.target(); }
  BackendCounters counters() const override { return inner_.counters(); }
  Buffer allocate(MemoryKind kind, std::int64_t bytes) override { return inner_.allocate(kind, bytes); }
  void copy(Stream& s, const Tensor& from, const Tensor& to) override {
    timed(s, "copy", {0, 2.0 * static_cast<double>(from.bytes())}, {}, [&] { inner_.copy(s, from, to); });
  }
  void fill_zero(Stream& s, const Tensor& x) override {
    timed(s, "fill_zero", {0, static_cast<double>(x.bytes())}, {}, [&] { inner_.fill_zero(s, x); });
  }
  void transfer(Stream& s, const Tensor& from, const Tensor& to) override { inner_.transfer(s, from, to); }
  void write(Stream& s, std::span<const std::byte> from, const Tensor& to) override { inner_.write(s, from, to); }
  void write_made(Stream& s, std::span<const Tensor> to, std::vector<std::byte>& staging,
                  const std::function<void(std::span<std::byte>)>& make) override {
    inner_.write_made(s, to, staging, make);
  }
  void read_back(Stream& s, const Tensor& from, std::span<std::byte> to) override { inner_.read_back(s, from, to); }
  std::unique_ptr<Stream> make_stream(std::string name, Arena* scratch) override {
    return inner_.make_stream(std::move(name), scratch);
  }
  std::unique_ptr<Event> make_event() override { return inner_.make_event(); }
  void record(Stream& s, Event& e) override { inner_.record(s, e); }
  void wait(Stream& s, const Event& e) override { inner_.wait(s, e); }
  void wait_host(const Event& e) override { inner_.wait_host(e); }
  double elapsed_seconds(const Event& from, const Event& to) override { return inner_.elapsed_seconds(from, to); }
  void enter_thread() override { inner_.enter_thread(); }
  std::int64_t prepared_bytes(const PrepareWeight& a) const override { return inner_.prepared_bytes(a); }

  std::string time_gemms(std::span<const OpClass> gemms) override { return inner_.time_gemms(gemms); }
  void use_gemms(const std::string& choices) override { inner_.use_gemms(choices); }

  void prepare_weight(Stream& s, const PrepareWeight& x) override { call(s, "prepare_weight", x, &Backend::prepare_weight); }
  void linear_fprop(Stream& s, const LinearFprop& x) override { call(s, "linear_fprop", x, &Backend::linear_fprop); }
  void linear_dgrad(Stream& s, const LinearDgrad& x) override { call(s, "linear_dgrad", x, &Backend::linear_dgrad); }
  void linear_wgrad(Stream& s, const LinearWgrad& x) override { call(s, "linear_wgrad", x, &Backend::linear_wgrad); }
  void linear_swiglu(Stream& s, const LinearSwiglu& x) override { call(s, "linear_swiglu", x, &Backend::linear_swiglu); }
  void linear_dgrad_swiglu(Stream& s, const LinearDgradSwiglu& x) override { call(s, "linear_dgrad_swiglu", x, &Backend::linear_dgrad_swiglu); }
  void glu_forward(Stream& s, const GluForward& x) override { call(s, "glu_forward", x, &Backend::glu_forward); }
  void glu_backward(Stream& s, const GluBackward& x) override { call(s, "glu_backward", x, &Backend::glu_backward); }
  void gelu_forward(Stream& s, const GeluForward& x) override { call(s, "gelu_forward", x, &Backend::gelu_forward); }
  void gelu_backward(Stream& s, const GeluBackward& x) override { call(s, "gelu_backward", x, &Backend::gelu_backward); }
  void embedding_forward(Stream& s, const EmbeddingForward& x) override { call(s, "embedding_forward", x, &Backend::embedding_forward); }
  void embedding_backward(Stream& s, const EmbeddingBackward& x) override { call(s, "embedding_backward", x, &Backend::embedding_backward); }
  void add_norm_forward(Stream& s, const AddNormForward& x) override { call(s, "add_norm_forward", x, &Backend::add_norm_forward); }
  void add_norm_backward(Stream& s, const AddNormBackward& x) override { call(s, "add_norm_backward", x, &Backend::add_norm_backward); }
  void rope_table(Stream& s, const RopeTable& x) override { call(s, "rope_table", x, &Backend::rope_table); }
  void qk_norm_rope_forward(Stream& s, const QkNormRopeForward& x) override { call(s, "qk_norm_rope_forward", x, &Backend::qk_norm_rope_forward); }
  void qk_norm_rope_backward(Stream& s, const QkNormRopeBackward& x) override { call(s, "qk_norm_rope_backward", x, &Backend::qk_norm_rope_backward); }
  void attention_forward(Stream& s, const AttentionForward& x) override { call(s, "attention_forward", x, &Backend::attention_forward); }
  void attention_backward(Stream& s, const AttentionBackward& x) override { call(s, "attention_backward", x, &Backend::attention_backward); }
  void ce_stats(Stream& s, const CeStats& x) override { call(s, "ce_stats", x, &Backend::ce_stats); }
  void ce_rescale(Stream& s, const CeRescale& x) override { call(s, "ce_rescale", x, &Backend::ce_rescale); }
  void ce_finish(Stream& s, const CeFinish& x) override { call(s, "ce_finish", x, &Backend::ce_finish); }
  void add(Stream& s, const Add& x) override { call(s, "add", x, &Backend::add); }
  void scale(Stream& s, const Scale& x) override { call(s, "scale", x, &Backend::scale); }
  void cast(Stream& s, const Cast& x) override { call(s, "cast", x, &Backend::cast); }
  void block_square_sums(Stream& s, const BlockSquareSums& x) override { call(s, "block_square_sums", x, &Backend::block_square_sums); }
  void total_square_sum(Stream& s, const TotalSquareSum& x) override { call(s, "total_square_sum", x, &Backend::total_square_sum); }
  void ordered_sum(Stream& s, const OrderedSum& x) override { call(s, "ordered_sum", x, &Backend::ordered_sum); }
  void tensor_hash(Stream& s, const TensorHash& x) override { call(s, "tensor_hash", x, &Backend::tensor_hash); }
  void step_control(Stream& s, const StepControl& x) override { call(s, "step_control", x, &Backend::step_control); }
  void adamw_update(Stream& s, const AdamwUpdate& x) override { call(s, "adamw_update", x, &Backend::adamw_update); }
  void init_normal(Stream& s, const InitNormal& x) override { call(s, "init_normal", x, &Backend::init_normal); }

 private:
  template <class Args>
  void call(Stream& stream, const char* op, const Args& args, void (Backend::*run)(Stream&, const Args&)) {
    timed(stream, op, cost(args, inner_.target()), op_class(args), [&] { (inner_.*run)(stream, args); });
  }
  template <class Run>
  void timed(Stream& stream, const char* op, const Cost& cost, const OpClass& what, const Run& run) {
    inner_.record(stream, *from_);
    run();
    inner_.record(stream, *to_);
    inner_.wait_host(*to_);
    observe_({op, cost, inner_.elapsed_seconds(*from_, *to_), what});
  }
  Backend& inner_;
  std::function<void(const ObservedCall&)> observe_;
  std::unique_ptr<Event> from_, to_;
};

}  // namespace trainerd::kernels
