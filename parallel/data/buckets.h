#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace trainerd::parallel {

/// Range of the flat arrays that is reduced at once. Its size is a multiple of parts x pieces x alignment,
/// and each part is a multiple of `Section::part_multiple`.
struct Bucket {
  std::int64_t begin = 0;
  std::int64_t size = 0;
};

/// Parameters that are gathered, reduced and freed together (a layer's matrices): a run of whole buckets.
struct Unit {
  std::int64_t begin = 0;
  std::int64_t size = 0;
  std::size_t first_bucket = 0;
  std::size_t buckets = 0;
};

/// Layout of one rank's flat arrays: units, divided into buckets, each divided into one equal part per rank
/// that shards. It is the same for every ZeRO stage. Stages differ in what they keep, not in how sums are
/// made.
struct BucketLayout {
  std::int64_t elements = 0;  ///< size of the flat arrays, a multiple of a bucket's granularity
  std::int64_t parts = 1;
  std::vector<Bucket> buckets;
  std::vector<Unit> units;
  /// Start of each section passed to `lay_out_buckets`, in the flat arrays.
  std::vector<std::int64_t> section_begins;

  /// Elements of one rank's parts of all buckets.
  std::int64_t shard_elements() const { return elements / parts; }
  /// Part `r` of bucket `b`: its start in the flat arrays, and its size.
  Bucket part(std::size_t b, std::int64_t r) const {
    const std::int64_t size = buckets[b].size / parts;
    return {buckets[b].begin + r * size, size};
  }
  /// Start of a rank's part of bucket `b` in that rank's array of parts, which are in bucket order.
  std::int64_t shard_begin(std::size_t b) const { return buckets[b].begin / parts; }
};

/// Range of elements that is divided into parts separately, so that ranks that hold it next to different
/// parameters divide it alike.
struct Section {
  std::size_t unit = 0;  ///< index of its unit; does not decrease from section to section
  std::int64_t elements = 0;
  std::int64_t part_multiple = 1;  ///< each part is a multiple of this many elements (one row of blocks)
};

/// Rounds sizes up to what can be divided; `bucket_elements` is a target. Each part can be divided further,
/// into `pieces` equal pieces. Parts and pieces start at multiples of `alignment` elements.
BucketLayout lay_out_buckets(std::span<const Section> sections, std::int64_t bucket_elements,
                             std::int64_t parts, std::int64_t pieces, std::int64_t alignment);

}  // namespace trainerd::parallel
