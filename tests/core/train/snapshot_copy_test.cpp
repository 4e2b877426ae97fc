// Snapshots are copied during the next step.

#include "core/train/snapshot_copy.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <thread>
#include <vector>

#include "kernels/backend/observed_backend.h"
#include "tests/core/train_support.h"

using namespace trainerd;

namespace {

/// A device whose link to the host is slow, so that a copy takes longer than a step.
class SlowLink final : public kernels::ObservedBackend {
 public:
  explicit SlowLink(kernels::Backend& inner) : ObservedBackend(inner, [](const kernels::ObservedCall&) {}) {}
  void transfer(kernels::Stream& stream, const kernels::Tensor& from, const kernels::Tensor& to) override {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    ObservedBackend::transfer(stream, from, to);
    ++transfers;
  }
  std::atomic<int> transfers = 0;
};

}  // namespace

TEST_CASE("a snapshot copied during a step holds the state from before the step", "[snapshot_copy]") {
  for (const char* precision : {"fp32", "bf16"}) {
    const core::job::JobSpec job = test::small_job(precision);
    core::rank::DeviceRank rank(job, test::cpu_topology(1));
    core::train::Trainer& trainer = rank.trainer();
    trainer.initialise();
    test::losses(trainer, job, 1, 2);
    const core::train::Snapshot snapshot(trainer.params());
    const auto size = static_cast<std::size_t>(snapshot.bytes());
    std::vector<std::byte> before(size), copied(size), after(size);
    snapshot.fill(rank.backend(), trainer.stream(), before);

    SlowLink link(rank.backend());
    core::train::SnapshotCopy copy(link, snapshot, rank.memory().scratch());
    copy.begin(trainer.stream(), copied);
    const std::vector<std::int32_t> samples = test::skewed_samples(job, 3);
    bool beside = false;
    // At the point of the update the copy is still in progress: the step's other work did not wait for it.
    trainer.launch(3, *test::batches(trainer, samples), {}, [&] {
      const int so_far = link.transfers;
      copy.finish();
      beside = so_far < link.transfers;
    });
    trainer.report();
    CHECK(beside);
    CHECK(copied == before);
    snapshot.fill(rank.backend(), trainer.stream(), after);
    CHECK(after != before);
  }
}
