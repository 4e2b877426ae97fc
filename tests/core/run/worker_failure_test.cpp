#include "core/run/worker/worker_failure.h"

#include <catch2/catch.hpp>
#include <new>
#include <stdexcept>

#include "kernels/base/error.h"

using namespace trainerd;
using core::run::Failed;
using core::run::failure_of;

TEST_CASE("machine failures in the step loop may be gone after a restart of the workers",
          "[worker_failure]") {
  const Failed reset = failure_of(base::comm_error("reset"), true);
  CHECK((reset.retry && reset.kind == base::ErrorKind::comm && reset.message == "reset"));
  CHECK(failure_of(base::device_error("lost"), true).retry);
  // The canary's verdict, a missing library, ranks that do not join.
  CHECK_FALSE(failure_of(base::device_error("computes wrongly"), false).retry);
  CHECK_FALSE(failure_of(base::comm_error("does not come"), false).retry);
  CHECK_FALSE(failure_of(base::data_error("short file"), true).retry);
  CHECK_FALSE(failure_of(base::spec_error("wrong key"), true).retry);
  CHECK_FALSE(failure_of(base::diverged_error("not finite"), true).retry);
  const Failed bug = failure_of(std::logic_error("an invariant"), true);
  CHECK((!bug.retry && bug.message == "the worker failed: an invariant"));
  CHECK(failure_of(std::bad_alloc(), true).kind == base::ErrorKind::capacity);
}

TEST_CASE("a failure crosses the channel with its retry flag", "[worker_failure]") {
  for (const bool retry : {false, true}) {
    const Failed sent{base::ErrorKind::comm, "x", retry};
    const auto got =
        std::get<Failed>(core::run::decode_worker_message(core::run::encode(core::run::WorkerMessage{sent})));
    CHECK((got.kind == sent.kind && got.message == "x" && got.retry == retry));
  }
}
