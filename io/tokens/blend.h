#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace trainerd::io {

/// One source of a blend.
struct BlendShare {
  static constexpr std::int64_t kUnlimited = -1;
  double weight = 1;                ///< more than 0, in any unit
  std::int64_t limit = kUnlimited;  ///< most samples that the blend takes from it
  std::int64_t number = 0;          ///< distinct; orders sources of equal weight
};

/// Computes which source gives each sample of a blend. A position is found without visiting earlier ones.
///
/// The sources are the leaves of a binary tree, built like a Huffman tree by weight. A node sends each of its
/// samples left or right, so that after p samples the left side has round(p x its share). In every prefix of
/// the blend each source is then within 2 samples of its exact share, for any number of sources. A level adds
/// at most 1/2 to the error of the level above times its own share, and that share is at most 2/3 except at a
/// leaf. (Megatron takes from the source that lags most. That rule needs the counts at all earlier
/// positions.)
///
/// A source leaves the blend when it reaches its limit. The others continue by their weights. The result does
/// not depend on the order of `shares`.
class Blend {
 public:
  explicit Blend(std::vector<BlendShare> shares);

  struct Place {
    std::size_t source = 0;   ///< index into `shares`
    std::int64_t sample = 0;  ///< number of earlier samples from that source
    bool operator==(const Place&) const = default;
  };
  /// Returns the place of the sample at `position`, in [0, length()).
  Place at(std::int64_t position) const;
  /// Returns the number of samples from each source among the first `positions`.
  std::vector<std::int64_t> taken(std::int64_t positions) const;
  /// Number of samples until every source reaches its limit; kEndless if a source has no limit.
  std::int64_t length() const { return length_; }
  static constexpr std::int64_t kEndless = std::int64_t{1} << 61;

 private:
  /// Children are indices of nodes. In a leaf both hold the index of its share.
  struct Node {
    std::size_t left = 0, right = 0;
    std::uint64_t left_share = 0;  ///< fraction of samples that go left, times 2^62
    bool leaf = false;
  };
  /// A range of positions with a fixed set of active sources.
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
