#pragma once

#include "kernels/backend/observed_backend.h"
#include "kernels/base/error.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cuda/runtime/cuda_stream.h"

namespace trainerd::test {

/// Memory and streams of the stand-in runtime: an asynchronous device with host-accessible memory. It has
/// only the operators that reductions need.
class StandInBackend final : public kernels::ObservedBackend {
 public:
  explicit StandInBackend(base::ThreadPool& pool)
      : StandInBackend(std::make_unique<kernels::CpuBackend>(kernels::detect_cpu(1), pool)) {}

  const kernels::Target& target() const override { return target_; }
  void copy(kernels::Stream& s, const kernels::Tensor& from, const kernels::Tensor& to) override {
    base::check(from.bytes() == to.bytes(), "copy: both of one size");
    kernels::cuda::check(cudaMemcpyAsync(to.data, from.data, static_cast<std::size_t>(to.bytes()),
                                         cudaMemcpyDefault, kernels::cuda::stream_of(s)),
                         "copy");
  }
  void transfer(kernels::Stream& s, const kernels::Tensor& from, const kernels::Tensor& to) override {
    copy(s, from, to);
  }
  std::unique_ptr<kernels::Stream> make_stream(std::string name, kernels::Arena* scratch) override {
    return std::make_unique<kernels::cuda::CudaStream>(std::move(name), scratch);
  }
  std::unique_ptr<kernels::Event> make_event() override { return std::make_unique<StandInMark>(); }
  void record(kernels::Stream& s, kernels::Event& e) override {
    kernels::cuda::check(cudaEventRecord(event_of(e), kernels::cuda::stream_of(s)), "record");
  }
  void wait(kernels::Stream& s, const kernels::Event& e) override {
    kernels::cuda::check(cudaStreamWaitEvent(kernels::cuda::stream_of(s), event_of(e), 0), "wait");
  }
  void add(kernels::Stream& s, const kernels::Add& a) override {
    on_stream(s, [this, a] { cpu_->add(*host_, a); });
  }
  void cast(kernels::Stream& s, const kernels::Cast& a) override {
    on_stream(s, [this, a] { cpu_->cast(*host_, a); });
  }
  void sum_parts(kernels::Stream& s, const kernels::SumParts& a) override {
    on_stream(s, [this, a] { cpu_->sum_parts(*host_, a); });
  }
  void wait_host(const kernels::Event& e) override {
    kernels::cuda::check(cudaEventSynchronize(event_of(e)), "wait");
  }

 private:
  static void on_stream(const kernels::Stream& s, std::function<void()> work) {
    enqueue(kernels::cuda::stream_of(s), std::move(work));
  }
  struct StandInMark final : kernels::Event {
    StandInMark() { kernels::cuda::check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "event"); }
    ~StandInMark() override { cudaEventDestroy(event); }
    cudaEvent_t event = nullptr;
  };
  static cudaEvent_t event_of(const kernels::Event& e) { return static_cast<const StandInMark&>(e).event; }

  explicit StandInBackend(std::unique_ptr<kernels::Backend> cpu)
      : ObservedBackend(*cpu, [](const kernels::ObservedCall&) {}),
        cpu_(std::move(cpu)),
        host_(cpu_->make_stream("host", nullptr)) {
    target_.kind = kernels::DeviceKind::cuda;
    target_.name = "a stand-in";
  }
  std::unique_ptr<kernels::Backend> cpu_;
  std::unique_ptr<kernels::Stream> host_;
  kernels::Target target_;
};

/// Adds work to the stream that takes `seconds`.
inline void delay(const kernels::Stream& stream, double seconds) {
  enqueue(kernels::cuda::stream_of(stream),
          [=] { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); });
}

}  // namespace trainerd::test
