#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "parallel/group/group.h"
#include "parallel/layout/layout.h"

namespace trainerd::parallel {

/// World ranks first, first + stride, ... All groups have this form, because the process grid is an array.
struct RankRange {
  std::int64_t first = 0;
  std::int64_t count = 1;
  std::int64_t stride = 1;

  std::int64_t operator[](std::int64_t i) const { return first + i * stride; }
  std::int64_t last() const { return (*this)[count - 1]; }
  /// Index of a rank in the group; none if it is not a member.
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

/// Properties of the model that determine groups, in addition to the grid.
struct GroupNeeds {
  std::int64_t kv_heads = 1;  ///< key and value heads; more tensor-parallel ranks than these share heads
  bool tied_embedding = false;
};

/// The groups of a rank, in closed form. `tied` exists only where the two ends of the model are on different
/// ranks of a pipeline, and there only at these.
std::vector<GroupMembers> groups_of(const Layout& layout, std::int64_t rank, const GroupNeeds& needs);

/// The groups whose first rank is one of `among`. With `among` = all ranks this lists each group once.
std::vector<GroupMembers> groups_begun(const Layout& layout, const RankRange& among, const GroupNeeds& needs);

}  // namespace trainerd::parallel
