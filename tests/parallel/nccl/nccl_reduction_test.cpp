// Gradients exchanged over the NCCL stand-in are summed in rank order, with the same bits as on every other
// transport.

#include <catch2/catch.hpp>
#include <utility>

#include "nccl.h"
#include "tests/parallel/grad_reduction.h"

using namespace trainerd;
using namespace trainerd::test;
using parallel::GradDtypes;
using parallel::Progress;

TEST_CASE("gradients exchanged over NCCL give the fp32 sums in rank order, bit for bit", "[nccl]") {
  REQUIRE_FALSE(kSumsInRankOrder);  // NCCL's own sums have another order
  for (const DType held : {DType::f32, DType::bf16})
    for (const auto& [inner, outer] : {std::pair<std::int64_t, std::int64_t>{3, 1}, {5, 1}, {2, 2}, {3, 2}})
      for (const bool replicas : {false, true})
        for (const bool sharded : {false, true}) {
          if (replicas && outer == 1) continue;
          const ReductionCase c{.inner = inner,
                                .outer = outer,
                                .replicas = replicas,
                                .sharded = sharded,
                                .progress = sharded ? Progress::background : Progress::caller,
                                .dtypes = GradDtypes{held, DType::bf16},
                                .microbatches = 2};
          CAPTURE(text_of(c));
          World world(c.ranks());
          CHECK_NOTHROW(world.run([&](std::int64_t rank) {
            RankMachine machine;
            check_reductions(c, rank, machine,
                             [&](const std::vector<std::int64_t>& ranks, const std::string& name) {
                               return world.communicator(rank, machine, ranks, name);
                             });
          }));
        }
  CHECK(std::string(nccl_misuse()).empty());
  CHECK(nccl_communicators_left() == 0);
}
