// Microbatches are prepared ahead of time: same values, bounded read-ahead, slow and broken disks.

#include "core/train/batch_loader.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <future>
#include <stdexcept>
#include <thread>

#include "kernels/base/clock.h"
#include "tests/core/train_support.h"

using namespace trainerd;
using core::train::BatchLoader;
using core::train::BatchRequest;
using core::train::HostBatch;
using core::train::HostSample;

namespace {

constexpr core::train::BatchShape kShape{.seq_len = 3, .micro = 2, .dp = 2, .dp_rank = 1, .global = 12};
constexpr std::int64_t kGlobal = kShape.global;
const std::vector<core::train::BatchRequest> kRequests{{0, true}, {1, true}, {2, false}, {2, true}};

// Tokens that encode their sample and position.
void read_place(std::int64_t sample, HostSample& to) {
  for (std::size_t i = 0; i < to.tokens_S1.size(); ++i)
    to.tokens_S1[i] = static_cast<std::int32_t>(100 * sample + static_cast<std::int64_t>(i));
}

core::train::BatchLoader::Options options(std::int64_t passes, std::int64_t ahead) {
  return {.shape = kShape, .passes = {{kRequests, passes, kGlobal}}, .ahead = ahead};
}

void wait_until(const std::function<bool()>& ready) {
  const double end = base::monotonic_seconds() + 60;
  while (!ready()) {
    REQUIRE(base::monotonic_seconds() < end);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace

TEST_CASE("a loader gives the microbatches of every pass, however far it reads ahead", "[batch]") {
  for (const std::int64_t ahead : {0, 1, 3, 64}) {
    core::train::BatchLoader loader(options(3, ahead), read_place);
    for (std::int64_t pass = 0; pass < 3; ++pass)
      for (const core::train::BatchRequest& request : kRequests) {
        CAPTURE(ahead, pass, request.microbatch);
        const core::train::HostBatch& batch = loader.next(request);
        CHECK(batch.positions_T == std::vector<std::int32_t>{0, 1, 2, 0, 1, 2});
        CHECK(batch.cu_seqlens == std::vector<std::int32_t>{0, 3, 6});
        CHECK(batch.loss_weight_T == std::vector<float>(6, 1.0f));
        // dp rank 1 of 2 has the second pair of each four samples.
        const auto first = static_cast<std::int32_t>(100 * (kGlobal * pass + 4 * request.microbatch + 2));
        const auto at = [&](std::int32_t i) {
          return std::vector{first + i,       first + i + 1,   first + i + 2,
                             first + i + 100, first + i + 101, first + i + 102};
        };
        CHECK(batch.tokens_T == (request.tokens ? at(0) : std::vector<std::int32_t>{}));
        CHECK(batch.targets_T == (request.tokens ? at(1) : std::vector<std::int32_t>{}));
      }
    CHECK_THROWS_AS(loader.next({0, true}), std::logic_error);  // all passes are done
  }
}

TEST_CASE("microbatches are asked for in the order of a pass", "[batch]") {
  core::train::BatchLoader loader(options(1, 2), read_place);
  CHECK_THROWS_AS(loader.next({1, true}), std::logic_error);
}

TEST_CASE("a loader reads ahead as far as configured, and no further", "[batch]") {
  std::atomic<int> samples = 0;
  core::train::BatchLoader loader({.shape = kShape, .passes = {{{{0, true}}, 100, 4}}, .ahead = 5},
                                  [&](std::int64_t, HostSample&) { ++samples; });
  wait_until([&] { return samples == 5 * 2; });
  for (int taken = 1; taken <= 3; ++taken) {
    loader.next({0, true});
    wait_until([&] { return samples == (5 + taken) * 2; });
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  CHECK(samples == 8 * 2);
}

TEST_CASE("a loader announces each sample once before it reads it", "[batch]") {
  for (const std::int64_t announced : {0, 1, 3, 100}) {
    std::vector<std::int64_t> told, read;
    std::size_t least_ahead = 1000;
    core::train::BatchLoader::Options with = options(2, 4);
    with.announce = [&](std::int64_t sample) { told.push_back(sample); };
    with.announced = announced;
    {
      core::train::BatchLoader loader(with, [&](std::int64_t sample, HostSample& to) {
        read.push_back(sample);
        if (told.size() < 12) least_ahead = std::min(least_ahead, told.size() - read.size());
        read_place(sample, to);
      });
      for (int pass = 0; pass < 2; ++pass)
        for (const core::train::BatchRequest& request : kRequests) loader.next(request);
    }
    // Each pass has two microbatches, and a third without tokens; two samples each.
    CHECK(told == read);
    CHECK(read.size() == 12);
    if (announced == 3) CHECK(least_ahead == 4);
    if (announced == 100) CHECK(least_ahead == 1000);  // all samples were announced before the first read
  }
}

TEST_CASE("a loader's passes may be over batches of several sizes", "[batch][ramp]") {
  // Two ranks of two samples per microbatch; this is the second one. The shape's own size counts for nothing.
  const std::vector<core::train::BatchLoader::Passes> passes{
      {{{0, true}}, 2, 3}, {{{0, true}, {1, true}}, 1, 8}, {{{0, true}}, 1, 4}};
  // Sample 3 of the first two batches is padding.
  const std::vector<std::vector<std::int64_t>> expected{{2}, {5}, {8, 9}, {12, 13}, {16, 17}};
  for (const std::int64_t ahead : {0, 2, 64}) {
    std::vector<std::int64_t> told, read;
    core::train::BatchLoader::Options options{.shape = kShape, .passes = passes, .ahead = ahead};
    options.announce = [&](std::int64_t sample) { told.push_back(sample); };
    options.announced = 1;
    core::train::BatchLoader loader(std::move(options), [&](std::int64_t sample, HostSample& to) {
      read.push_back(sample);
      read_place(sample, to);
    });
    std::size_t at = 0;
    for (const auto& pass : passes)
      for (std::int64_t i = 0; i < pass.count; ++i)
        for (const core::train::BatchRequest& request : pass.requests) {
          CAPTURE(ahead, at);
          const core::train::HostBatch& batch = loader.next(request);
          const std::vector<std::int64_t>& samples = expected[at++];
          for (std::size_t s = 0; s < samples.size(); ++s)
            CHECK(batch.tokens_T[3 * s] == static_cast<std::int32_t>(100 * samples[s]));
          CHECK(batch.loss_weight == static_cast<double>(3 * samples.size()));
        }
    std::vector<std::int64_t> all;
    for (const auto& samples : expected) all.insert(all.end(), samples.begin(), samples.end());
    CHECK(read == all);
    if (ahead > 0) CHECK(told == all);
  }
}

TEST_CASE("a read error is thrown when its microbatch is requested", "[batch]") {
  for (const std::int64_t ahead : {0, 8}) {
    core::train::BatchLoader loader(options(2, ahead), [](std::int64_t sample, HostSample& to) {
      if (sample >= kGlobal) throw std::runtime_error("the file became shorter");
      read_place(sample, to);
    });
    for (const core::train::BatchRequest& request : kRequests) CHECK_NOTHROW(loader.next(request));
    CHECK_THROWS_WITH(loader.next({0, true}), "the file became shorter");
  }
}

TEST_CASE("a loader ends although a read does not return", "[batch]") {
  std::promise<void> disk;
  std::atomic<bool> blocked = false, returned = false;
  const auto shared = disk.get_future().share();
  const double begin = [&] {
    const core::train::BatchLoader loader(options(2, 4), [&, shared](std::int64_t, HostSample&) {
      blocked = true;
      shared.wait();
      returned = true;
    });
    wait_until([&] { return blocked.load(); });
    return base::monotonic_seconds();
  }();
  CHECK(base::monotonic_seconds() - begin < 30);
  disk.set_value();  // the detached thread finds that it must end
  wait_until([&] { return returned.load(); });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
}

TEST_CASE("a disk that stops shows in data_wait only beyond the read-ahead", "[batch]") {
  constexpr double kStall = 0.4;
  const core::job::JobSpec job = test::small_job();
  core::rank::DeviceRank rank(job, test::cpu_topology(1));
  core::train::Trainer& trainer = rank.trainer();
  trainer.initialise();
  const auto requests = trainer.batch_requests(parallel::Pass::train);
  const auto per_step = static_cast<std::int64_t>(requests.size());
  std::atomic<std::int64_t> read = 0;
  // The disk stops once, after the samples of two steps.
  const std::int64_t stops_at = 2 * job.batch.global;
  core::train::BatchLoader loader(
      {.shape = trainer.batch_shape(), .passes = {{requests, 4, job.batch.global}}, .ahead = 2 * per_step},
      [&](std::int64_t sample, HostSample& to) {
        if (sample == stops_at) std::this_thread::sleep_for(std::chrono::duration<double>(kStall));
        std::fill(to.tokens_S1.begin(), to.tokens_S1.end(), static_cast<std::int32_t>(sample % 7));
        ++read;
      });
  wait_until([&] { return read >= stops_at; });
  const double begin = base::monotonic_seconds();
  double within = 0;
  for (std::int64_t step = 1; step <= 2; ++step)
    within += trainer.step(step, loader, {}).time[base::LedgerPart::data_wait];
  const double computed = base::monotonic_seconds() - begin;
  const double beyond = trainer.step(3, loader, {}).time[base::LedgerPart::data_wait];
  INFO("two steps took " << computed << " s, of which " << within << " waited; the third waited " << beyond);
  CHECK(within < 0.25 * kStall);
  // The third step's microbatches were requested when the first step's were taken.
  CHECK(beyond > 0.5 * (kStall - computed));
  CHECK(trainer.step(4, loader, {}).time[base::LedgerPart::data_wait] < 0.25 * kStall);
}
