// A backend that times the operators of another backend.

#include "kernels/backend/observed_backend.h"

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "kernels/base/thread_pool.h"
#include "kernels/cpu/cpu_backend.h"

using namespace trainerd;
using namespace trainerd::kernels;

namespace {

/// Counts waits of the host for the device.
class WaitCounter final : public ObservedBackend {
 public:
  explicit WaitCounter(Backend& inner)
      : ObservedBackend(
            inner, [](const ObservedCall&) {}, Observation::settled) {}
  void wait_host(const Event& e) override { ++waits, ObservedBackend::wait_host(e); }
  int waits = 0;
};

}  // namespace

TEST_CASE("operators are observed after each call, or all in order when they are settled", "[observed]") {
  base::ThreadPool pool(1);
  CpuBackend cpu(detect_cpu(1), pool);
  for (const Observation when : {Observation::each, Observation::settled}) {
    WaitCounter device(cpu);
    std::vector<ObservedCall> calls;
    ObservedBackend observed(
        device, [&](const ObservedCall& call) { calls.push_back(call); }, when);
    const Buffer memory = observed.allocate(MemoryKind::device, 4096);
    const Tensor x{memory.data(), DType::f32, {1000}};
    const auto stream = observed.make_stream("observed", nullptr);
    for (int turn = 0; turn < 2; ++turn) {
      calls.clear();
      device.waits = 0;
      observed.scale(*stream, {.x = x, .factor = 2, .out = x});
      observed.add(*stream, {.a = x, .b = x, .out = x});
      observed.fill_zero(*stream, x);
      CHECK(calls.size() == (when == Observation::each ? 3 : 0));
      CHECK(device.waits == (when == Observation::each ? 3 : 0));
      observed.settle();
      REQUIRE(calls.size() == 3);
      CHECK(calls[0].op == Operator::scale);
      CHECK(calls[1].op == Operator::add);
      CHECK(calls[2].op == Operator::fill_zero);
      CHECK(calls[0].cost.bytes == 8000);
      CHECK(calls[1].cost.bytes == 12000);
      for (const ObservedCall& call : calls) CHECK(call.seconds >= 0);
      observed.settle();
      CHECK(calls.size() == 3);
    }
  }
}
