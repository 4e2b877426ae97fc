#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/backend/backend.h"
#include "kernels/cost/cost.h"
#include "kernels/ops/op_class.h"
#include "kernels/scratch/scratch.h"

namespace trainerd::kernels {

/// One operator call: its kind, its cost, and its seconds on the stream.
struct ObservedCall {
  Operator op = Operator::copy;
  Cost cost;
  double seconds = 0;
  OpClass what;
};

/// When the times of operators are read. `each`: after each operator, by waiting for it, so its time includes
/// the launch. `settled`: when `settle` is called, so that the device runs behind the host as usual and no
/// launch is timed.
enum class Observation : std::uint8_t { each, settled };

/// A backend that times each operator of another one and calls an observer. For traces and benchmarks, not
/// for training.
class ObservedBackend : public Backend {
 public:
  ObservedBackend(Backend& inner, std::function<void(const ObservedCall&)> observe,
                  Observation when = Observation::each)
      : inner_(inner), observe_(std::move(observe)), when_(when) {}

  /// Waits for the calls that were not observed yet, and observes them in order.
  void settle() {
    for (Timed& t : timed_) {
      inner_.wait_host(*t.to);
      t.call.seconds = inner_.elapsed_seconds(*t.from, *t.to);
      observe_(t.call);
      spare_.push_back(std::move(t.from));
      spare_.push_back(std::move(t.to));
    }
    timed_.clear();
  }

  const Target& target() const override { return inner_.target(); }
  BackendCounters counters() const override { return inner_.counters(); }
  void tune(const Tuning& tuning) override { inner_.tune(tuning); }
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
    Timed t{{op, cost, 0, what}, event(), event()};
    inner_.record(stream, *t.from);
    run();
    inner_.record(stream, *t.to);
    timed_.push_back(std::move(t));
    if (when_ == Observation::each) settle();
  }
  /// Reuses events, because making one may take a device longer than an operator.
  std::unique_ptr<Event> event() {
    if (spare_.empty()) return inner_.make_event();
    std::unique_ptr<Event> event = std::move(spare_.back());
    spare_.pop_back();
    return event;
  }

  struct Timed {
    ObservedCall call;
    std::unique_ptr<Event> from, to;
  };
  Backend& inner_;
  std::function<void(const ObservedCall&)> observe_;
  Observation when_;
  std::vector<Timed> timed_;  ///< not observed yet
  std::vector<std::unique_ptr<Event>> spare_;
};

}  // namespace trainerd::kernels
