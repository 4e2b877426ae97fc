#include "parallel/data/buckets.h"

#include <algorithm>
#include <numeric>

#include "kernels/base/error.h"
#include "kernels/memory/memory.h"

namespace trainerd::parallel {

BucketLayout lay_out_buckets(std::span<const Section> sections, std::int64_t bucket_elements,
                             std::int64_t parts, std::int64_t pieces, std::int64_t alignment) {
  base::check(bucket_elements > 0 && parts >= 1 && pieces >= 1 && alignment >= 1,
              "buckets are made of elements, for at least one rank");
  BucketLayout plan;
  plan.parts = parts;
  for (const Section& section : sections) {
    base::check(
        section.elements >= 0 && (section.unit + 1 == plan.units.size() || section.unit == plan.units.size()),
        "sections come unit by unit");
    if (section.unit == plan.units.size()) plan.units.push_back({plan.elements, 0, plan.buckets.size(), 0});
    plan.section_begins.push_back(plan.elements);
    Unit& unit = plan.units.back();
    // Every piece is aligned in every dtype.
    const std::int64_t grain = parts * std::lcm(pieces * alignment, section.part_multiple);
    const std::int64_t size = kernels::align_up(section.elements, grain);
    // As many buckets as requested, all of about one size. A small last bucket would cost a collective's
    // latency for little data.
    const std::int64_t count = (size + bucket_elements - 1) / bucket_elements;
    const std::int64_t each = count == 0 ? 0 : kernels::align_up((size + count - 1) / count, grain);
    for (std::int64_t at = 0; at < size; at += each)
      plan.buckets.push_back({plan.elements + at, std::min(each, size - at)});
    plan.elements += size;
    unit.size += size;
    unit.buckets = plan.buckets.size() - unit.first_bucket;
  }
  return plan;
}

}  // namespace trainerd::parallel
