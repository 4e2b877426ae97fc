#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace trainerd::parallel {

/// A run of elements of the flat arrays that is reduced at once. Its size is a multiple of the parts, times
/// the pieces of one, times the alignment; each part is a multiple of `Section::part_multiple`.
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

/// How the flat arrays of one rank are cut into units, those into buckets, and each bucket into one equal
/// part for each rank that shards. The partition is the same for every ZeRO stage: stages differ in what is
/// kept, not in how sums are made.
struct BucketLayout {
  std::int64_t elements = 0;  ///< of the flat arrays: a multiple of what a bucket's is
  std::int64_t parts = 1;
  std::vector<Bucket> buckets;
  std::vector<Unit> units;
  /// Where each section that was asked for begins in the flat arrays.
  std::vector<std::int64_t> section_begins;

  /// Elements of one rank's part of all buckets together.
  std::int64_t shard_elements() const { return elements / parts; }
  /// Where bucket `b`'s part `r` begins in the flat arrays, and its size.
  Bucket part(std::size_t b, std::int64_t r) const {
    const std::int64_t size = buckets[b].size / parts;
    return {buckets[b].begin + r * size, size};
  }
  /// Where bucket `b`'s part begins in a rank's own array of parts, which are in bucket order.
  std::int64_t shard_begin(std::size_t b) const { return buckets[b].begin / parts; }
};

/// A run of elements that is cut into parts by itself, so that ranks that hold it next to other
/// parameters cut it alike.
struct Section {
  std::size_t unit = 0;  ///< rising: sections of a unit follow each other
  std::int64_t elements = 0;
  std::int64_t part_multiple = 1;  ///< each part is a multiple of so many elements: a row of blocks
};

/// Sizes are rounded up to what can be cut; `bucket_elements` is a wish. Each part can be cut once more, into
/// `pieces` equal ones. All begin at multiples of `alignment` elements.
BucketLayout lay_out_buckets(std::span<const Section> sections, std::int64_t bucket_elements,
                             std::int64_t parts, std::int64_t pieces, std::int64_t alignment);

}  // namespace trainerd::parallel
