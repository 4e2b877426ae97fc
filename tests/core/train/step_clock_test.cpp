// Events of the step clock: which are recorded, and the ledger that follows from them.

#include "core/train/step_clock.h"

#include <catch2/catch.hpp>

#include "kernels/backend/observed_backend.h"
#include "kernels/cpu/cpu_backend.h"
#include "tests/core/train_support.h"

using namespace trainerd;
using core::train::StepClock;

namespace {

/// Counts recorded events.
class CountedEvents final : public kernels::ObservedBackend {
 public:
  explicit CountedEvents(kernels::Backend& inner)
      : ObservedBackend(inner, [](const kernels::ObservedCall&) {}) {}
  void record(kernels::Stream& stream, kernels::Event& event) override {
    ++recorded;
    ObservedBackend::record(stream, event);
  }
  int recorded = 0;
};

struct ClockedStep {
  int events = 0;
  base::TimeLedger ledger;
  std::size_t traced = 0;
};

/// A step of one collective, issued and awaited.
ClockedStep clocked_step(StepClock::IssueMarks marks, bool traced) {
  base::ThreadPool pool(1);
  kernels::CpuBackend cpu(test::cpu_topology(1).device, pool);
  CountedEvents backend(cpu);
  kernels::Arena scratch;
  const auto stream = backend.make_stream("compute", &scratch);
  StepClock clock(backend, marks);
  clock.keep_trace(traced);
  clock.start(*stream);
  clock.enter(*stream, base::LedgerPart::compute);
  clock.issue(*stream, base::LedgerPart::exposed_dp, {parallel::OpKind::all_reduce, "grads", 4});
  clock.resume(*stream);
  clock.stall(*stream, base::LedgerPart::exposed_dp, {parallel::OpKind::all_reduce, "grads", 4});
  clock.resume(*stream);
  clock.end(*stream);
  ClockedStep step;
  step.events = backend.recorded;
  step.ledger = clock.read();
  step.traced = clock.trace().size();
  return step;
}

}  // namespace

TEST_CASE("the issue of an operation that does not stall the stream is marked only in traced steps",
          "[step_clock]") {
  // start, compute, two around the wait, end
  constexpr int kWithoutIssue = 5;
  CHECK(clocked_step(StepClock::IssueMarks::traced, false).events == kWithoutIssue);
  CHECK(clocked_step(StepClock::IssueMarks::traced, true).events == kWithoutIssue + 2);
  CHECK(clocked_step(StepClock::IssueMarks::always, false).events == kWithoutIssue + 2);
  // Waits are charged in every step.
  CHECK(clocked_step(StepClock::IssueMarks::traced, false).ledger[base::LedgerPart::exposed_dp] > 0);
}
