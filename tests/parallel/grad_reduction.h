#pragma once

// Reductions of gradients against reference sums, one element at a time, on every rank.

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "parallel/data/grad_reducer.h"
#include "tests/parallel/comm_support.h"

namespace trainerd::test {

struct ReductionCase {
  std::int64_t inner = 1, outer = 1;  ///< ranks in a group of each level
  bool replicas = false;              ///< the outer ranks are replicas of the inner groups' shards
  bool sharded = false;               ///< gradients are sharded, not only the optimizer state
  parallel::Progress progress = parallel::Progress::background;
  parallel::GradDtypes dtypes{DType::f32, DType::bf16};
  std::int64_t microbatches = 1;
  std::int64_t bucket_elements = 1024;
  std::int64_t ranks() const { return inner * outer; }
};

inline std::string text_of(const ReductionCase& c) {
  return std::to_string(c.inner) + " x " + std::to_string(c.outer) + (c.replicas ? " replicas" : "") +
         (c.sharded ? " sharded" : " whole") +
         (c.progress == parallel::Progress::background ? " background " : " caller ") +
         kernels::name_of(c.dtypes.held) + " by " + kernels::name_of(c.dtypes.wire) + ", " +
         std::to_string(c.microbatches) + " microbatches, buckets of " + std::to_string(c.bucket_elements);
}

/// Units of one, several and unequal sections, with sizes that no group divides evenly.
inline std::vector<parallel::Section> reduction_sections() {
  return {{0, 1003}, {1, 4001}, {2, 37}, {2, 1801}, {2, 129}, {3, 4001}, {4, 65}};
}
constexpr std::size_t kOwnUnit = 0, kVectorUnit = 4, kReductionUnits = 5;

/// Rounds to 8 significant bits (bf16), ties to even.
inline float nearest_of_8_digits(float x) {
  if (x == 0) return x;
  const double unit = std::ldexp(1.0, std::ilogb(x) - 7);
  return static_cast<float>(std::nearbyint(static_cast<double>(x) / unit) * unit);
}

inline float reduction_gradient(std::int64_t step, std::int64_t microbatch, std::size_t unit,
                                std::int64_t rank, std::int64_t i) {
  const auto seed = static_cast<std::uint64_t>(step * 1000 + microbatch * 10) + unit;
  return static_cast<float>(value_in_rank_order(DType::f32, seed, rank, i));
}

/// Element i of a unit after reduction, by the definition.
inline float reduced_by_hand(const ReductionCase& c, std::int64_t step, std::size_t unit, std::int64_t i) {
  const std::int64_t reductions = c.sharded && unit != kOwnUnit ? c.microbatches : 1;
  const auto held = [&](float x) { return c.dtypes.held == DType::bf16 ? nearest_of_8_digits(x) : x; };
  const auto gradient = [&](std::int64_t reduction, std::int64_t rank) {
    float sum = held(reduction_gradient(step, reduction, unit, rank, i));
    for (std::int64_t m = 1; reductions == 1 && m < c.microbatches; ++m)
      sum = held(sum + held(reduction_gradient(step, m, unit, rank, i)));
    return sum;
  };
  const auto crossing = [&](float x) { return c.dtypes.exchanged() ? nearest_of_8_digits(x) : x; };
  if (c.ranks() == 1) return gradient(0, 0);
  const auto inside = [&](std::int64_t reduction, std::int64_t outer) {
    float sum = crossing(gradient(reduction, outer * c.inner));
    for (std::int64_t k = 1; k < c.inner; ++k) sum += crossing(gradient(reduction, outer * c.inner + k));
    return held(sum);
  };
  const auto outside = [&](const std::function<float(std::int64_t)>& summand) {
    if (c.outer == 1) return summand(0);
    float sum = crossing(summand(0));
    for (std::int64_t o = 1; o < c.outer; ++o) sum += crossing(summand(o));
    return held(sum);
  };
  const auto over_reductions = [&](const std::function<float(std::int64_t)>& summand) {
    float sum = summand(0);
    for (std::int64_t r = 1; r < reductions; ++r) sum = held(sum + summand(r));
    return sum;
  };
  if (c.replicas)
    return outside(
        [&](std::int64_t o) { return over_reductions([&](std::int64_t r) { return inside(r, o); }); });
  return over_reductions(
      [&](std::int64_t r) { return outside([&](std::int64_t o) { return inside(r, o); }); });
}

/// Runs two steps of rank `rank`. Throws if a bit differs, or if the used memory differs from the counted
/// memory.
inline void check_reductions(
    const ReductionCase& c, std::int64_t rank, RankMachine& machine,
    const std::function<std::unique_ptr<parallel::Communicator>(const std::vector<std::int64_t>& ranks,
                                                                const std::string& name)>& communicator) {
  std::vector<std::int64_t> inner, outer;
  for (std::int64_t k = 0; k < c.inner; ++k) inner.push_back(rank / c.inner * c.inner + k);
  for (std::int64_t o = 0; o < c.outer; ++o) outer.push_back(o * c.inner + rank % c.inner);
  const auto inside = communicator(inner, "inner");
  const auto outside = c.outer > 1 ? communicator(outer, "outer") : nullptr;
  const parallel::DataParallelGroups groups{.inner = inside.get(),
                                            .outer = outside.get(),
                                            .replicas = c.replicas,
                                            .gradients = c.progress,
                                            .parameters = parallel::Progress::caller};
  const std::vector<parallel::Section> sections = reduction_sections();
  const parallel::BucketLayout plan =
      parallel::lay_out_buckets(sections, c.bucket_elements, groups.parts(),
                                c.dtypes.exchanged() ? groups.pieces() : 1, kernels::kAlignment);
  std::vector<parallel::GradUnit> units(kReductionUnits);
  for (std::size_t u = 0; u < units.size(); ++u) {
    if (u == kOwnUnit) units[u].ring = parallel::GradUnit::Ring::own;
    if (u == kVectorUnit) units[u].ring = parallel::GradUnit::Ring::vectors;
    if (u != kOwnUnit && c.sharded) units[u].reductions = c.microbatches;
  }
  const auto make = [&](kernels::Arena& arena) {
    return parallel::GradReducer(groups, plan, units, c.sharded, c.dtypes, machine.backend, arena);
  };
  kernels::Arena counted = kernels::Arena::dry("gradients");
  make(counted);
  const kernels::Buffer memory = make_memory(counted.top());
  std::memset(memory.data(), 0xff, static_cast<std::size_t>(memory.bytes()));  // NaNs
  kernels::Arena arena("gradients", memory.data(), memory.bytes());
  parallel::GradReducer reducer = make(arena);
  expect(arena.top() == counted.top(), "memory that was not counted");

  kernels::Stream& stream = *machine.stream;
  const auto add_gradients = [&](std::int64_t step, std::int64_t m, std::size_t unit) {
    const Tensor x = reducer.open(stream, unit);
    machine.sync();
    expect(x.numel() == plan.units[unit].size, "a unit's gradients are of its size");
    for (std::int64_t i = 0; i < x.numel(); ++i) {
      const float g = reduction_gradient(step, m, unit, rank, i);
      const bool first = m == 0 || units[unit].reductions > 1;
      const bool narrow = x.dtype == DType::bf16;
      const float summand = narrow ? nearest_of_8_digits(g) : g;
      put(x, i, static_cast<double>(first ? summand : static_cast<float>(get(x, i)) + summand));
    }
  };
  for (std::int64_t step = 1; step <= 2; ++step) {
    reducer.begin_step();
    for (std::int64_t m = 0; m < c.microbatches; ++m) {
      const auto reduce = [&](std::size_t unit) {
        if (units[unit].reductions > 1 || m == c.microbatches - 1) reducer.reduce(stream, unit);
      };
      add_gradients(step, m, kVectorUnit);  // complete last, like norms
      for (std::size_t unit = kVectorUnit; unit-- > 0;) {
        add_gradients(step, m, unit);
        reduce(unit);
      }
      reduce(kVectorUnit);
    }
    reducer.finish(stream, {});
    if (!c.sharded) reducer.gather(stream);
    machine.sync();
    for (std::size_t unit = 0; unit < kReductionUnits; ++unit)
      for (std::size_t b = plan.units[unit].first_bucket;
           b < plan.units[unit].first_bucket + plan.units[unit].buckets; ++b) {
        // After a gather every rank holds the whole bucket.
        const parallel::Bucket held = c.sharded ? plan.part(b, groups.part()) : plan.buckets[b];
        const Tensor x = c.sharded ? reducer.part(b) : reducer.flat().rows(held.begin, held.size);
        for (std::int64_t i = 0; i < held.size; ++i) {
          const float expected = reduced_by_hand(c, step, unit, held.begin - plan.units[unit].begin + i);
          expect(static_cast<float>(get(x, i)) == expected,
                 text_of(c) + ": step " + std::to_string(step) + ", rank " + std::to_string(rank) +
                     ", unit " + std::to_string(unit) + ", element " + std::to_string(i) + " of bucket " +
                     std::to_string(b) + " is " + std::to_string(get(x, i)) + ", by hand " +
                     std::to_string(expected));
        }
      }
  }
}

}  // namespace trainerd::test
