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
  Operator op = Operator::copy;
  Cost cost;
  double seconds = 0;
  OpClass what;
};

/// A backend that times each operator of another and calls an observer. Waits for every operator: for traces
/// and benchmarks, not for training.
class ObservedBackend : public Backend {
 public:
  ObservedBackend(Backend& inner, std::function<void(const ObservedCall&)> observe)
      : inner_(inner), observe_(std::move(observe)), from_(inner.make_event()), to_(inner.make_event()) {}

  const Target& target() const override { return inner_.target(); }
  BackendCounters counters() const override { return inner_.counters(); }
  Buffer allocate(MemoryKind kind, std::int64_t bytes) override { return inner_.allocate(kind, bytes); }
  void copy(Stream& s, const Tensor& from, const Tensor& to) override {
    timed(s, Operator::copy, {0, 2.0 * static_cast<double>(from.bytes())}, {},
          [&] { inner_.copy(s, from, to); });
  }
  void fill_zero(Stream& s, const Tensor& x) override {
    timed(s, Operator::fill_zero, {0, static_cast<double>(x.bytes())}, {}, [&] { inner_.fill_zero(s, x); });
  }
  void transfer(Stream& s, const Tensor& from, const Tensor& to) override { inner_.transfer(s, from, to); }
  void write(Stream& s, std::span<const std::byte> from, const Tensor& to) override {
    inner_.write(s, from, to);
  }
  void write_made(Stream& s, std::span<const Tensor> to, std::vector<std::byte>& staging,
                  const std::function<void(std::span<std::byte>)>& make) override {
    inner_.write_made(s, to, staging, make);
  }
  void read_back(Stream& s, const Tensor& from, std::span<std::byte> to) override {
    inner_.read_back(s, from, to);
  }
  std::unique_ptr<Stream> make_stream(std::string name, Arena* scratch) override {
    return inner_.make_stream(std::move(name), scratch);
  }
  std::unique_ptr<Event> make_event() override { return inner_.make_event(); }
  void record(Stream& s, Event& e) override { inner_.record(s, e); }
  void wait(Stream& s, const Event& e) override { inner_.wait(s, e); }
  void wait_host(const Event& e) override { inner_.wait_host(e); }
  double elapsed_seconds(const Event& from, const Event& to) override {
    return inner_.elapsed_seconds(from, to);
  }
  void enter_thread() override { inner_.enter_thread(); }
  std::int64_t prepared_bytes(const PrepareWeight& a) const override { return inner_.prepared_bytes(a); }

  void limit_attention(std::int64_t bytes) override { inner_.limit_attention(bytes); }
  std::string time_gemms(std::span<const OpClass> gemms) override { return inner_.time_gemms(gemms); }
  void use_gemms(const std::string& choices) override { inner_.use_gemms(choices); }

#define TRAINERD_OPERATOR(name, Args, cuda) \
  void name(Stream& s, const Args& a) override { call(s, Operator::name, a, &Backend::name); }
#include "kernels/ops/operators.def"

 private:
  template <class Args>
  void call(Stream& stream, Operator op, const Args& args, void (Backend::*run)(Stream&, const Args&)) {
    timed(stream, op, cost(args, inner_.target()), op_class_on(args, inner_.target()),
          [&] { (inner_.*run)(stream, args); });
  }
  template <class Run>
  void timed(Stream& stream, Operator op, const Cost& cost, const OpClass& what, const Run& run) {
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
