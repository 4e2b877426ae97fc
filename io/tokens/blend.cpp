#include "io/tokens/blend.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <utility>

#include "kernels/base/error.h"

namespace trainerd::io {
namespace {

constexpr int kShareBits = 62;
__extension__ using Wide = unsigned __int128;

// Returns how many of a node's first `positions` samples go left: the exact share, rounded to nearest. So it
// grows by 0 or 1 per position.
std::int64_t left_of(std::int64_t positions, std::uint64_t share) {
  const auto product = static_cast<Wide>(positions) * share;
  return static_cast<std::int64_t>((product + (std::uint64_t{1} << (kShareBits - 1))) >> kShareBits);
}

}  // namespace

std::vector<Blend::Node> Blend::make_tree(const std::vector<BlendShare>& shares,
                                          const std::vector<std::size_t>& active) {
  struct Root {
    double weight;
    std::int64_t number;  // lowest number of its sources
    std::size_t node;
    bool operator>(const Root& other) const {
      return weight != other.weight ? weight > other.weight : number > other.number;
    }
  };
  std::vector<Node> nodes;
  std::vector<Root> roots;  // min-heap by weight
  for (const std::size_t share : active) {
    roots.push_back({shares[share].weight, shares[share].number, nodes.size()});
    nodes.push_back({.left = share, .right = share, .left_share = 0, .leaf = true});
  }
  std::make_heap(roots.begin(), roots.end(), std::greater<>());
  const auto lightest = [&roots] {
    std::pop_heap(roots.begin(), roots.end(), std::greater<>());
    const Root root = roots.back();
    roots.pop_back();
    return root;
  };
  while (roots.size() > 1) {
    const Root left = lightest(), right = lightest();
    const double weight = left.weight + right.weight;
    nodes.push_back({.left = left.node,
                     .right = right.node,
                     .left_share = static_cast<std::uint64_t>(std::ldexp(left.weight / weight, kShareBits)),
                     .leaf = false});
    roots.push_back({weight, std::min(left.number, right.number), nodes.size() - 1});
    std::push_heap(roots.begin(), roots.end(), std::greater<>());
  }
  return nodes;
}

Blend::Blend(std::vector<BlendShare> shares) : sources_(shares.size()) {
  base::check(!shares.empty(), "a blend has a source");
  for (const BlendShare& share : shares)
    base::check(share.weight > 0 && std::isfinite(share.weight), "a source's weight is more than 0");
  // Divides by the largest weight so that sums stay finite.
  double heaviest = 0;
  for (const BlendShare& share : shares) heaviest = std::max(heaviest, share.weight);
  for (BlendShare& share : shares) share.weight /= heaviest;
  std::vector<std::int64_t> before(sources_, 0);
  for (;;) {
    std::vector<std::size_t> active;
    for (std::size_t i = 0; i < sources_; ++i)
      if (shares[i].limit < 0 || before[i] < shares[i].limit) active.push_back(i);
    if (active.empty()) return;
    phases_.push_back({length_, before, make_tree(shares, active)});
    const Phase& phase = phases_.back();
    const auto taken_in = [&](std::int64_t positions) {
      std::vector<std::int64_t> taken = before;
      count(phase, phase.nodes.size() - 1, positions, taken);
      return taken;
    };
    const auto reaches_limit = [&](const std::vector<std::int64_t>& taken) {
      return std::any_of(active.begin(), active.end(),
                         [&](std::size_t i) { return shares[i].limit >= 0 && taken[i] >= shares[i].limit; });
    };
    // Finds the first position at which a source reaches its limit.
    std::int64_t low = 0, high = kEndless - length_;
    if (!reaches_limit(taken_in(high))) {
      length_ = kEndless;
      return;
    }
    while (high - low > 1) {
      const std::int64_t middle = low + (high - low) / 2;
      (reaches_limit(taken_in(middle)) ? high : low) = middle;
    }
    before = taken_in(high);
    length_ += high;
  }
}

const Blend::Phase& Blend::phase_of(std::int64_t position) const {
  const auto after = std::upper_bound(phases_.begin(), phases_.end(), position,
                                      [](std::int64_t p, const Phase& phase) { return p < phase.first; });
  return *std::prev(after);
}

Blend::Place Blend::at(std::int64_t position) const {
  base::check(position >= 0 && position < length_, "the position is inside the blend");
  const Phase& phase = phase_of(position);
  position -= phase.first;
  const Node* node = &phase.nodes.back();
  while (!node->leaf) {
    const std::int64_t left = left_of(position, node->left_share);
    const bool is_left = left_of(position + 1, node->left_share) > left;
    position = is_left ? left : position - left;
    node = &phase.nodes[is_left ? node->left : node->right];
  }
  return {node->left, phase.before[node->left] + position};
}

void Blend::count(const Phase& phase, std::size_t node, std::int64_t positions,
                  std::vector<std::int64_t>& taken) {
  const Node& n = phase.nodes[node];
  if (n.leaf) {
    taken[n.left] += positions;
    return;
  }
  const std::int64_t left = left_of(positions, n.left_share);
  count(phase, n.left, left, taken);
  count(phase, n.right, positions - left, taken);
}

std::vector<std::int64_t> Blend::taken(std::int64_t positions) const {
  base::check(positions >= 0 && positions <= length_, "the blend has that many positions");
  std::vector<std::int64_t> taken(sources_, 0);
  if (phases_.empty()) return taken;
  const Phase& phase = phase_of(positions);
  taken = phase.before;
  count(phase, phase.nodes.size() - 1, positions - phase.first, taken);
  return taken;
}

}  // namespace trainerd::io
