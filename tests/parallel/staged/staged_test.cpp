// Properties of staged communicators: their host memory, and messages in pieces.

#include <catch2/catch.hpp>
#include <mutex>

#include "kernels/backend/observed_backend.h"
#include "kernels/base/error.h"
#include "kernels/cpu/cpu_backend.h"
#include "parallel/comm/staged/staged_communicator.h"
#include "tests/parallel/comm_support.h"

using namespace trainerd;
using namespace trainerd::parallel;
using namespace trainerd::test;

namespace {

/// Counts host allocations and refuses device allocations: `staged` must not use device memory.
class CountingBackend final : public kernels::ObservedBackend {
 public:
  explicit CountingBackend(kernels::Backend& inner)
      : ObservedBackend(inner, [](const kernels::ObservedCall&) {}) {}
  kernels::Buffer allocate(kernels::MemoryKind kind, std::int64_t bytes) override {
    base::check(kind == kernels::MemoryKind::host, "staged takes no device memory");
    host_bytes += bytes;
    return ObservedBackend::allocate(kind, bytes);
  }
  void enter_thread() override { ++threads; }
  std::int64_t host_bytes = 0;
  std::atomic<int> threads = 0;
};

}  // namespace

TEST_CASE(
    "a staged communicator holds the host memory that the plan counts, from its beginning, and one thread",
    "[staged]") {
  constexpr StagedOptions kOptions{.slot_bytes = 8192};
  LocalWorld world(3);
  world.run([&](std::int64_t rank) {
    RankMachine m;
    CountingBackend backend(m.backend);
    {
      const auto comm =
          make_staged(world.communicator(rank, m.backend, all_ranks(3), "all"), backend, kOptions);
      expect(backend.host_bytes == staged_bytes(3, kOptions) && backend.host_bytes == 2 * 8192,
             "host memory");
      const HostTensor x(DType::f32, 100'000), all(DType::f32, 300'000);
      comm->all_reduce(*m.stream, *x, ReduceOp::sum, {.label = "x"})->wait(*m.stream);
      comm->all_gather(*m.stream, *x, *all, {.label = "y"})->wait(*m.stream);
      expect(backend.host_bytes == 2 * 8192, "nothing more is taken in use");
    }
    expect(backend.threads == 1, "its thread makes itself known to the backend");
  });
  CHECK(staged_bytes(1) == 0);
}

TEST_CASE("a slot too small for a part of every rank is refused", "[staged]") {
  LocalWorld world(4);
  world.run([&](std::int64_t rank) {
    RankMachine m;
    auto inner = world.communicator(rank, m.backend, all_ranks(4), "all");
    bool refused = false;
    try {
      make_staged(std::move(inner), m.backend, {.slot_bytes = 511});
    } catch (const std::logic_error&) {
      refused = true;
    }
    expect(refused, "refused");
  });
  SUCCEED("on every rank");
}

TEST_CASE("messages of many pieces arrive complete, whichever is awaited first", "[staged]") {
  constexpr std::int64_t kNumel = 50'001;
  World world(3);
  world.run([&](std::int64_t rank) {
    RankMachine m;
    const auto comm = world.communicator(rank, m, all_ranks(3), "pp");
    const std::int64_t next = (rank + 1) % 3, before = (rank + 2) % 3;
    std::vector<HostTensor> out, in;
    std::vector<std::unique_ptr<Work>> works;
    for (std::uint64_t k = 0; k < 6; ++k) {
      out.emplace_back(DType::f32, values_of(DType::f32, k, rank, kNumel));
      in.emplace_back(DType::f32, kNumel);
      const Transfer send{k % 2 == 0 ? next : before, *out.back()},
          receive{k % 2 == 0 ? before : next, *in.back()};
      works.push_back(comm->exchange(*m.stream, {&send, 1}, {&receive, 1}, {.label = "piece"}));
    }
    for (const std::size_t k : {5u, 0u, 3u, 4u, 1u, 2u}) {
      works[k]->wait(*m.stream), m.sync();
      expect(in[k].values() == values_of(DType::f32, k, k % 2 == 0 ? before : next, kNumel),
             "message " + std::to_string(k));
    }
  });
  SUCCEED("every message");
}
