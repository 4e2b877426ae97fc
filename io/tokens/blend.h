#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace trainerd::io {

/// One source of a blend, as its arithmetic sees it.
struct BlendShare {
  static constexpr std::int64_t kUnlimited = -1;
  double weight = 1;                ///< more than 0, in any unit
  std::int64_t limit = kUnlimited;  ///< samples that the blend takes of it at most
  std::int64_t number = 0;          ///< distinct: orders sources of the same weight
};

/// Which source gives each sample of a blend, by arithmetic alone: a place is found without those before it.
///
/// The sources are the leaves of a binary tree, made as Huffman's by weight. Each node gives its p-th sample
/// to one of its two sides, so that of the first p samples the nearest integer to p x (the side's share) are
/// that side's. Every prefix of the blend then has of each source its share to within 2 samples, however many
/// sources there are: a level adds at most 1/2 to the error of the level above it times its share, which is
/// at most 2/3 everywhere but at the leaf. (Megatron's rule, which takes the source that lacks most, needs
/// the counts of all places before.)
///
/// A source that has given all that its limit allows leaves the blend there; the others go on by their
/// weights. The order of `shares` does not matter.
class Blend {
 public:
  explicit Blend(std::vector<BlendShare> shares);

  struct Place {
    std::size_t source = 0;   ///< index of its share
    std::int64_t sample = 0;  ///< how many samples of that source come before it
    bool operator==(const Place&) const = default;
  };
  /// Of the sample at `position`, which is in [0, length()).
  Place at(std::int64_t position) const;
  /// Samples of each source among the first `positions`.
  std::vector<std::int64_t> taken(std::int64_t positions) const;
  /// Samples until every source has reached its limit; kEndless where one has none.
  std::int64_t length() const { return length_; }
  static constexpr std::int64_t kEndless = std::int64_t{1} << 61;

 private:
  /// Children are indices of nodes; of a leaf both are the same, the index of its share.
  struct Node {
    std::size_t left = 0, right = 0;
    std::uint64_t left_share = 0;  ///< of 2^62
    bool leaf = false;
  };
  /// A stretch of the blend that has the same sources throughout.
  struct Phase {
    std::int64_t first = 0;            ///< position
    std::vector<std::int64_t> before;  ///< samples taken of each share
    std::vector<Node> nodes;           ///< the root is the last
  };
  static std::vector<Node> make_tree(const std::vector<BlendShare>& shares,
                                     const std::vector<std::size_t>& active);
  const Phase& phase_of(std::int64_t position) const;
  static void count(const Phase& phase, std::size_t node, std::int64_t positions,
                    std::vector<std::int64_t>& taken);

  std::vector<Phase> phases_;
  std::size_t sources_ = 0;
  std::int64_t length_ = 0;
};

}  // namespace trainerd::io
