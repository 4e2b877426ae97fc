#pragma once

#include <algorithm>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/backend/backend.h"
#include "kernels/base/clock.h"

namespace trainerd::test {

/// A device that runs behind the host, of a backend that runs calls immediately. Calls are queued by stream.
/// Some streams run as early as their waits allow, the others as late as the host and other streams allow. A
/// missing wait between two streams therefore changes results for one of the choices.
class LateBackend final : public kernels::Backend {
  using Stream = kernels::Stream;
  using Event = kernels::Event;
  using Tensor = kernels::Tensor;

 public:
  enum class Early { all, compute, others };
  LateBackend(kernels::Backend& inner, Early early) : inner_(inner), early_(early), target_(inner.target()) {
    target_.kind = kernels::DeviceKind::cuda;
  }
  ~LateBackend() override { run_all(); }

  /// Runs everything that was called.
  void run_all() {
    const std::lock_guard lock(mutex_);
    for (LateStream* stream : streams_)
      while (!stream->calls.empty()) advance(*stream);
  }

  const kernels::Target& target() const override { return target_; }
  kernels::BackendCounters counters() const override { return inner_.counters(); }
  kernels::Buffer allocate(kernels::MemoryKind kind, std::int64_t bytes) override {
    return inner_.allocate(kind, bytes);
  }
  void copy(Stream& s, const Tensor& from, const Tensor& to) override {
    call(s, [from, to](kernels::Backend& inner, Stream& on) { inner.copy(on, from, to); });
  }
  void fill_zero(Stream& s, const Tensor& x) override {
    call(s, [x](kernels::Backend& inner, Stream& on) { inner.fill_zero(on, x); });
  }
  void transfer(Stream& s, const Tensor& from, const Tensor& to) override {
    call(s, [from, to](kernels::Backend& inner, Stream& on) { inner.transfer(on, from, to); });
  }
  void write(Stream& s, std::span<const std::byte> from, const Tensor& to) override {
    call(s, [bytes = std::vector(from.begin(), from.end()), to](kernels::Backend& inner, Stream& on) {
      inner.write(on, bytes, to);
    });
  }
  void read_back(Stream& s, const Tensor& from, std::span<std::byte> to) override {
    const std::lock_guard lock(mutex_);
    auto& stream = static_cast<LateStream&>(s);
    while (!stream.calls.empty()) advance(stream);
    inner_.read_back(*stream.inner, from, to);
  }

  std::unique_ptr<Stream> make_stream(std::string name, kernels::Arena* scratch) override {
    const std::lock_guard lock(mutex_);
    auto stream = std::make_unique<LateStream>(*this, std::move(name), scratch);
    streams_.push_back(stream.get());
    return stream;
  }
  std::unique_ptr<Event> make_event() override { return std::make_unique<LateEvent>(); }
  void record(Stream& s, Event& event) override {
    const std::lock_guard lock(mutex_);
    auto& stream = static_cast<LateStream&>(s);
    const auto mark = std::make_shared<Mark>();
    mark->stream = &stream;
    static_cast<LateEvent&>(event).last = mark;
    enqueue(stream, {nullptr, [mark](kernels::Backend&, Stream&) {
                       mark->at = base::monotonic_seconds();
                       mark->reached = true;
                     }});
  }
  void wait(Stream& s, const Event& event) override {
    const std::lock_guard lock(mutex_);
    // As on a CUDA device, it waits for the latest record before this call.
    if (const auto& mark = static_cast<const LateEvent&>(event).last)
      enqueue(static_cast<LateStream&>(s), {mark, [](kernels::Backend&, Stream&) {}});
  }
  void wait_host(const Event& event) override {
    const std::lock_guard lock(mutex_);
    if (const auto& mark = static_cast<const LateEvent&>(event).last) reach(*mark);
  }
  double elapsed_seconds(const Event& from, const Event& to) override {
    const std::lock_guard lock(mutex_);
    const auto &first = static_cast<const LateEvent&>(from).last,
               &second = static_cast<const LateEvent&>(to).last;
    base::check(first && second && first->reached && second->reached, "both events are over");
    return second->at - first->at;
  }
  void enter_thread() override {}
  std::int64_t prepared_bytes(const kernels::PrepareWeight& a) const override {
    return inner_.prepared_bytes(a);
  }

#define TRAINERD_OPERATOR(name, Args, cuda) \
  void name(Stream& s, const kernels::Args& a) override { call_operator(s, a, &kernels::Backend::name); }
#include "kernels/ops/operators.def"

 private:
  struct LateStream;
  struct Mark {
    LateStream* stream = nullptr;
    bool reached = false;
    double at = 0;
  };
  struct LateEvent final : Event {
    std::shared_ptr<Mark> last;
  };
  struct Call {
    std::shared_ptr<Mark> after;  ///< null: nothing
    std::function<void(kernels::Backend&, Stream&)> run;
  };
  struct LateStream final : Stream {
    static constexpr std::int64_t kScratch = std::int64_t{16} << 20;
    LateStream(LateBackend& owner, std::string name, kernels::Arena* scratch)
        : Stream(name, scratch),
          backend(owner),
          memory(owner.inner_.allocate(kernels::MemoryKind::device, kScratch)),
          own_scratch("late", memory.data(), kScratch),
          inner(owner.inner_.make_stream(std::move(name), &own_scratch)) {}
    ~LateStream() override {
      const std::lock_guard lock(backend.mutex_);
      while (!calls.empty()) backend.advance(*this);
      std::erase(backend.streams_, this);
    }
    LateBackend& backend;
    kernels::Buffer memory;
    kernels::Arena own_scratch;
    std::unique_ptr<Stream> inner;
    std::deque<Call> calls;
  };

  /// Arguments in host memory are read when the call is made, as by the launch of a kernel.
  template <class T>
  static void keep(std::span<const T>& values, std::vector<std::shared_ptr<const void>>& kept) {
    const auto copy = std::make_shared<const std::vector<T>>(values.begin(), values.end());
    values = *copy;
    kept.push_back(copy);
  }
  template <class Args>
  void call_operator(Stream& s, Args args, void (kernels::Backend::*run)(Stream&, const Args&)) {
    std::vector<std::shared_ptr<const void>> kept;
    if constexpr (requires { args.ranges; }) keep(args.ranges, kept);
    if constexpr (requires { args.boxes; }) keep(args.boxes, kept);
    if constexpr (requires { args.first_block; }) keep(args.first_block, kept);
    if constexpr (requires { args.group_of_run; }) keep(args.group_of_run, kept);
    if constexpr (requires { args.frequencies; }) keep(args.frequencies, kept);
    call(s, [args, kept = std::move(kept), run](kernels::Backend& inner, Stream& on) {
      (inner.*run)(on, args);
    });
  }
  template <class Run>
  void call(Stream& s, const Run& run) {
    const std::lock_guard lock(mutex_);
    enqueue(static_cast<LateStream&>(s), {nullptr, run});
  }
  void enqueue(LateStream& stream, Call next) {
    stream.calls.push_back(std::move(next));
    run_early();
  }
  bool early(const LateStream& stream) const {
    return early_ == Early::all || (early_ == Early::compute) == (stream.name() == "compute");
  }
  void run_front(LateStream& stream) {
    const Call front = std::move(stream.calls.front());
    stream.calls.pop_front();
    front.run(inner_, *stream.inner);
  }
  void run_early() {
    for (bool progress = true; progress;) {
      progress = false;
      for (LateStream* stream : streams_)
        while (early(*stream) && !stream->calls.empty() &&
               (stream->calls.front().after == nullptr || stream->calls.front().after->reached)) {
          run_front(*stream);
          progress = true;
        }
    }
  }
  /// Runs the stream's next call, or what it waits for, which may make the stream run further by itself.
  void advance(LateStream& stream) {
    const std::shared_ptr<Mark> after = stream.calls.front().after;
    if (after && !after->reached) return reach(*after);
    run_front(stream);
    run_early();
  }
  void reach(const Mark& mark) {
    while (!mark.reached) advance(*mark.stream);
  }

  kernels::Backend& inner_;
  Early early_;
  kernels::Target target_;
  std::recursive_mutex mutex_;
  std::vector<LateStream*> streams_;
};

}  // namespace trainerd::test
