#include "core/model/tensor_sections.h"

#include <catch2/catch.hpp>
#include <vector>

using namespace trainerd;
using core::model::TensorSection;

namespace {

/// Equal matrices of 8 x 16 elements.
parallel::ShardSpec experts(std::int64_t count) {
  parallel::ShardSpec spec;
  spec.logical = {count * 8, 16};
  spec.granularity = parallel::Granularity::matrix;
  spec.stacked = count;
  return spec;
}

}  // namespace

TEST_CASE("equal matrices that their ranks can divide are one section of whole matrices", "[muon]") {
  const auto sections = [](std::int64_t count, std::int64_t parts, std::int64_t alignment) {
    return core::model::tensor_sections(experts(count), 1, parts, alignment);
  };
  CHECK(sections(6, 3, 16) == std::vector<TensorSection>{{6 * 128, 128}});
  CHECK(sections(6, 6, 16) == std::vector<TensorSection>{{6 * 128, 128}});
  // A rank more than matrices, or a number that is no multiple: each is shared by all.
  CHECK(sections(2, 4, 16) == std::vector<TensorSection>{{128}, {128}});
  CHECK(sections(3, 2, 16) == std::vector<TensorSection>{{128}, {128}, {128}});
  // Matrices that do not begin at multiples of the alignment, and shares that need padding.
  CHECK(sections(6, 3, 256) == std::vector<TensorSection>{{6 * 128}});
  CHECK(sections(3, 2, 256) == std::vector<TensorSection>{{3 * 128}});
  CHECK(sections(2, 1, 16) == std::vector<TensorSection>{{128}, {128}});
}
