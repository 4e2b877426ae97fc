#pragma once

#include <cstdint>
#include <vector>

namespace trainerd::parallel {

/// A run of elements of the flat arrays that is reduced at once. Its size is a multiple of dp times the alignment.
struct Bucket {
  std::int64_t begin = 0;
  std::int64_t size = 0;
};

/// How the flat arrays of one rank are cut into buckets, and each bucket into one equal part for each data-parallel rank.
/// The partition is the same for every ZeRO stage: stages differ in what is kept, not in how sums are made.
struct BucketPlan {
  std::int64_t elements = 0;  ///< of the flat arrays: a multiple of dp times the alignment
  std::int64_t dp = 1;
  std::vector<Bucket> buckets;

  /// Elements of one rank's part of all buckets together.
  std::int64_t shard_elements() const { return elements / dp; }
  /// Where bucket `b`'s part of rank `r` begins in the flat arrays, and its size.
  Bucket part(std::size_t b, std::int64_t r) const {
    const std::int64_t size = buckets[b].size / dp;
    return {buckets[b].begin + r * size, size};
  }
  /// Where bucket `b`'s part begins in a rank's own array of parts, which are in bucket order.
  std::int64_t shard_begin(std::size_t b) const { return buckets[b].begin / dp; }
};

/// `elements` is rounded up. `bucket_elements` is a wish.
BucketPlan plan_buckets(std::int64_t elements, std::int64_t bucket_elements, std::int64_t dp);

}  // namespace trainerd::parallel
