#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "parallel/group/group.h"
#include "parallel/layout/layout.h"

namespace trainerd::parallel {

/// World ranks first, first + stride, ...: the members of every group lie so, as the process grid is an
/// array.
struct RankRange {
  std::int64_t first = 0;
  std::int64_t count = 1;
  std::int64_t stride = 1;

  std::int64_t operator[](std::int64_t i) const { return first + i * stride; }
  std::int64_t last() const { return (*this)[count - 1]; }
  /// A rank's place in the group; none for one that is no member.
  std::optional<std::int64_t> place(std::int64_t rank) const {
    const std::int64_t distance = rank - first;
    if (distance < 0 || distance % stride != 0 || distance / stride >= count) return std::nullopt;
    return distance / stride;
  }
  std::vector<std::int64_t> list() const;
  bool operator==(const RankRange&) const = default;
};

struct GroupMembers {
  Group group = Group::world;
  RankRange ranks;
  bool operator==(const GroupMembers&) const = default;
};

/// What a model asks of the groups beyond the grid.
struct GroupNeeds {
  std::int64_t kv_heads = 1;  ///< key and value heads: tensor-parallel ranks beyond their number share them
  bool tied_embedding = false;
};

/// The groups that a rank is a member of, in closed form. `tied` only at the ends of a pipeline of several
/// stages.
std::vector<GroupMembers> groups_of(const Layout& layout, std::int64_t rank, const GroupNeeds& needs);

/// The groups that begin with one of the ranks `among`: for all ranks of the world, each of its groups once.
std::vector<GroupMembers> groups_begun(const Layout& layout, const RankRange& among, const GroupNeeds& needs);

}  // namespace trainerd::parallel
