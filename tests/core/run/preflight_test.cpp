#include "core/run/preflight/preflight.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <memory>

#include "core/rank/backend.h"
#include "core/rank/canary.h"
#include "core/run/preflight/storage_probe.h"
#include "core/run/worker/probe.h"
#include "core/spec/machines.h"
#include "io/storage/local_storage.h"
#include "kernels/backend/observed_backend.h"
#include "kernels/base/error.h"
#include "kernels/base/thread_pool.h"
#include "tests/core/spec/spec_test_support.h"
#include "tests/io/temp_dir.h"

namespace trainerd::core {
namespace {

using kernels::DType;

/// A device on which `break_it` changes the result of each GEMM of one kind.
class BrokenBackend : public kernels::ObservedBackend {
 public:
  using Break = std::function<void(const kernels::Tensor&)>;
  explicit BrokenBackend(kernels::Backend& inner)
      : ObservedBackend(inner, [](const kernels::ObservedCall&) {}) {}
  void linear_fprop(kernels::Stream& s, const kernels::LinearFprop& a) override {
    ObservedBackend::linear_fprop(s, a);
    if (fprop) fprop(a.y_TN);
  }
  void linear_dgrad(kernels::Stream& s, const kernels::LinearDgrad& a) override {
    ObservedBackend::linear_dgrad(s, a);
    if (dgrad) dgrad(a.dx_TC);
  }
  void linear_wgrad(kernels::Stream& s, const kernels::LinearWgrad& a) override {
    ObservedBackend::linear_wgrad(s, a);
    if (wgrad) wgrad(a.dweight_NC);
  }
  Break fprop, dgrad, wgrad;
};

/// Flips the lowest bit of each element's most significant byte, which holds the sign and exponent bits.
BrokenBackend::Break flip(std::vector<std::int64_t> elements) {
  return [elements](const kernels::Tensor& x) {
    const std::int64_t size = kernels::size_of(x.dtype);
    for (const std::int64_t i : elements) static_cast<std::byte*>(x.data)[size * (i + 1) - 1] ^= std::byte{1};
  };
}

}  // namespace

TEST_CASE("a device that computes a product wrongly is found, with the place", "[preflight]") {
  base::ThreadPool pool(2);
  const auto backend = rank::make_backend(spec::job_topology(spec::parse_job(kJob, "job.yaml")), pool, 0);
  for (const DType dtype : {DType::f32, DType::bf16}) {
    CAPTURE(kernels::name_of(dtype));
    BrokenBackend broken(*backend);
    CHECK(rank::wrong_products(broken, dtype).empty());
    broken.wgrad = flip({0});
    CHECK_THAT(
        rank::wrong_products(broken, dtype),
        Catch::Matchers::StartsWith("linear_wgrad: 1 of 65536 elements is wrong, the first at [0, 0]: "));
    broken.dgrad = flip({65535});
    CHECK_THAT(
        rank::wrong_products(broken, dtype),
        Catch::Matchers::StartsWith("linear_dgrad: 1 of 65536 elements is wrong, the first at [255, 255]: "));
    job::JobSpec job;
    job.precision.compute = dtype;
    const rank::PeakRate peak(5e9, [] { return 5e9; });
    CHECK_THROWS_WITH(
        run::probe_device(job, 3, broken, peak),
        Catch::Matchers::StartsWith("rank 3 computes wrongly before its first step: linear_dgrad: 1 of") &&
            Catch::Matchers::EndsWith("; take its device out of use, or its host where it has none"));
    broken.fprop = flip({3 * 256 + 17, 40000});
    CHECK_THAT(
        rank::wrong_products(broken, dtype),
        Catch::Matchers::StartsWith("linear_fprop: 2 of 65536 elements are wrong, the first at [3, 17]: "));
  }
}

TEST_CASE("a device is slow beside the median of its kind", "[preflight]") {
  const std::vector<run::RankRate> rates{{0, "A", 10e12}, {1, "A", 11e12}, {2, "A", 4e12},
                                         {3, "B", 1e12},  {4, "A", 0},     {5, "B", 0.6e12}};
  const auto slow = run::slow_devices(rates, run::kSlowGpu);
  REQUIRE(slow.size() == 1);
  CHECK(slow[0].rank == 2);
  CHECK(run::slow_devices(rates, run::kSlowCpu).empty());
  CHECK(slow[0].text == "computes at 4.00 TFLOP/s, and the median of 3 A is 10.0 TFLOP/s");
  CHECK(run::slow_devices(std::vector<run::RankRate>{{0, "A", 5e12}, {1, "A", 2e12}}, run::kSlowGpu)
            .at(0)
            .rank == 1);
  CHECK(run::slow_devices(std::vector<run::RankRate>{{0, "A", 5e12}}, run::kSlowGpu).empty());
}

TEST_CASE("a link is slow beside the median of all links, or the cluster's rate", "[preflight]") {
  const auto link = [](std::int64_t from, double speed, double latency = 20e-6) {
    return run::LinkTime{from, from + 2, latency, speed};
  };
  const std::vector<run::LinkTime> links{link(0, 10e9), link(1, 11e9), link(2, 4e9), link(3, 10e9, 5e-3)};
  auto slow = run::slow_links(links, 0, run::kSlowLink);
  REQUIRE(slow.size() == 2);
  CHECK(slow[0].link == links[2]);
  CHECK(slow[0].text == "4.00 GB/s, and the median of 4 links is 10.0 GB/s");
  CHECK(slow[1].link == links[3]);
  CHECK(slow[1].text == "a message takes 5.0 ms, and the median of 4 links is 0.0 ms");
  CHECK(run::slow_links(links, 0, run::kSlowLinkOnCpu).size() == 1);
  slow = run::slow_links(links, 50e9, run::kSlowLinkOnCpu);
  REQUIRE(slow.size() == 4);
  CHECK(slow[0].text == "10.0 GB/s, and the cluster's rate is 50.0 GB/s");
  // Two links: the worse is held against the better.
  CHECK(run::slow_links(std::vector<run::LinkTime>{link(0, 5e9), link(1, 1e9)}, 0, run::kSlowLink)
            .at(0)
            .link.from_rank == 1);
  CHECK(run::slow_links(std::vector<run::LinkTime>{link(0, 5e9)}, 0, run::kSlowLink).empty());
  CHECK(run::slow_links({}, 0, run::kSlowLink).empty());
  // A latency that people would not notice is no finding.
  CHECK(run::slow_links(std::vector<run::LinkTime>{link(0, 5e9), link(1, 5e9), link(2, 5e9, 1e-3)}, 0,
                        run::kSlowLink)
            .empty());
}

TEST_CASE("replicas that make something else of the same step are named", "[preflight]") {
  const auto made = [](std::int64_t rank, std::uint64_t loss, std::uint64_t gradients,
                       const char* kind = "tp 0") {
    return run::CanaryResult{rank, kind, loss, gradients};
  };
  using Results = std::vector<run::CanaryResult>;
  CHECK(run::canary_finding(Results{}).empty());
  CHECK(
      run::canary_finding(Results{made(0, 1, 2), made(1, 8, 9, "tp 1"), made(2, 1, 2), made(3, 8, 9, "tp 1")})
          .empty());
  CHECK(run::canary_finding(Results{made(0, 1, 2, ""), made(1, 3, 4, "")}).empty());
  CHECK(run::canary_finding(Results{made(0, 1, 2), made(1, 1, 2), made(2, 1, 3), made(3, 1, 2)}) ==
        "rank 2 computes other gradients than 3 replicas from the same weights and batch, before the first "
        "step: "
        "it computes wrongly, or has loaded other weights; take its device out of use, or its host where it "
        "has "
        "none");
  CHECK_THAT(run::canary_finding(Results{made(0, 5, 2), made(1, 1, 2), made(2, 1, 2)}),
             Catch::StartsWith("rank 0 computes another loss than 2 replicas"));
  CHECK(run::canary_finding(Results{made(4, 1, 2, "tp 1"), made(5, 1, 3, "tp 1")}) ==
        "ranks 4, 5 do not compute the same gradients from the same weights and batch, before the first "
        "step: one "
        "of them computes wrongly, or has loaded other weights");
}

TEST_CASE("a clock is told of when records of two nodes would not agree", "[preflight]") {
  CHECK(run::clock_finding({.least = -0.9, .most = 0.9}).empty());
  CHECK(run::clock_finding({.least = 35, .most = 36}) == "its clock is at least 35.0 s ahead of node 0's");
  CHECK(run::clock_finding({.least = -95, .most = -90.04}) == "its clock is at least 90.0 s behind node 0's");
  // Delayed messages prove nothing.
  CHECK(run::clock_finding({.least = -40, .most = 30}).empty());
}

namespace {

const std::string kName = ".preflight-node-1";

class TestFile : public io::StoredFile {
 public:
  TestFile(std::unique_ptr<io::StoredFile> inner, bool corrupt)
      : inner_(std::move(inner)), corrupt_(corrupt) {}
  std::int64_t bytes() const override { return inner_->bytes(); }
  void read(std::int64_t offset, std::span<std::byte> out) const override {
    inner_->read(offset, out);
    if (corrupt_) out[out.size() / 2] ^= std::byte{4};
  }

 private:
  std::unique_ptr<io::StoredFile> inner_;
  bool corrupt_;
};

/// A directory that corrupts what it keeps, or hangs in a write.
class TestStorage : public io::LocalStorage {
 public:
  TestStorage(const std::string& root, bool corrupt, std::shared_future<void> hold = {},
              std::shared_ptr<std::promise<void>> removed = nullptr)
      : LocalStorage(root), corrupt_(corrupt), hold_(std::move(hold)), removed_(std::move(removed)) {}
  void write(const std::string& name, std::span<const std::byte> bytes, const io::Wanted& = {}) override {
    if (hold_.valid()) hold_.wait();
    LocalStorage::write(name, bytes);
  }
  void remove(const std::string& name) override {
    LocalStorage::remove(name);
    if (removed_) removed_->set_value();
  }
  std::unique_ptr<io::StoredFile> open(const std::string& name) const override {
    return std::make_unique<TestFile>(LocalStorage::open(name), corrupt_);
  }

 private:
  bool corrupt_;
  std::shared_future<void> hold_;
  std::shared_ptr<std::promise<void>> removed_;
};

}  // namespace

TEST_CASE("a storage is checked with a file that is written, read back and removed", "[preflight]") {
  const test::TempDir directory;
  const std::string root = directory.path();
  const auto files = [&] {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(root))
      names.push_back(entry.path().filename().string());
    return names;
  };
  SECTION("a sound one, with a file that an earlier try left") {
    std::ofstream(root + "/" + kName + "-left") << "left";
    std::ofstream(root + "/" + kName + "0-of-another-node") << "left";
    CHECK(run::StorageProbe(
              root, [&] { return std::make_unique<io::LocalStorage>(root); }, kName, 60)
              .finding()
              .empty());
    CHECK(files() == std::vector<std::string>{kName + "0-of-another-node"});
  }
  SECTION("one that corrupts what it keeps") {
    run::StorageProbe probe(
        root, [&] { return std::make_unique<TestStorage>(root, true); }, kName, 60);
    CHECK_THROWS_WITH(probe.finding(),
                      Catch::Matchers::StartsWith(root + "/" + kName + "-") &&
                          Catch::Matchers::EndsWith(
                              ": other bytes were read than had been written: the storage corrupts what "
                              "it keeps; look at its health, or set `output` to another one"));
  }
  SECTION("one that is not there") {
    const std::string missing = root + "/none";
    run::StorageProbe probe(
        missing, [&] { return std::make_unique<io::LocalStorage>(missing); }, kName, 60);
    CHECK_THAT(probe.finding(),
               Catch::Matchers::StartsWith("storage: ") && Catch::Matchers::Contains(missing));
  }
  SECTION("one that hangs") {
    std::promise<void> hold;
    const auto removed = std::make_shared<std::promise<void>>();
    std::future<void> is_removed = removed->get_future();
    {
      run::StorageProbe probe(
          root,
          [root, held = hold.get_future().share(), removed] {
            return std::make_unique<TestStorage>(root, false, held, removed);
          },
          kName, 0.05);
      CHECK(probe.finding() == "storage: " + root + ": 1 MiB was not written and read back within 0.05s");
    }
    hold.set_value();
    // The hanging thread continues, and the directory must outlive it.
    REQUIRE(is_removed.wait_for(std::chrono::seconds(60)) == std::future_status::ready);
    CHECK(files().empty());
  }
}

}  // namespace trainerd::core
