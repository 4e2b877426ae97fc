#include "parallel/buckets.h"

#include <algorithm>

#include "kernels/base/error.h"
#include "kernels/memory.h"

namespace trainerd::parallel {

BucketPlan plan_buckets(std::int64_t elements, std::int64_t bucket_elements, std::int64_t dp) {
  base::check(elements >= 0 && bucket_elements > 0 && dp >= 1, "buckets are made of elements, for at least one rank");
  // A part begins on a cache line in every dtype.
  const std::int64_t grain = dp * kernels::kAlignment;
  BucketPlan plan;
  plan.dp = dp;
  plan.elements = kernels::align_up(elements, grain);
  const std::int64_t size = kernels::align_up(bucket_elements, grain);
  for (std::int64_t begin = 0; begin < plan.elements; begin += size)
    plan.buckets.push_back({begin, std::min(size, plan.elements - begin)});
  return plan;
}

}  // namespace trainerd::parallel
