#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "kernels/backend/backend.h"
#include "parallel/comm/communicator.h"
#include "parallel/comm/meta/meta_communicator.h"
#include "parallel/group/members.h"

namespace trainerd::parallel {

/// How one rank reaches the others, whatever carries the bytes.
class World {
 public:
  World() = default;
  World(const World&) = delete;
  World& operator=(const World&) = delete;
  virtual ~World() = default;

  /// The communicator of a group that the rank is a member of. All members of a group make it at a time; all
  /// ranks make those they share in one order.
  virtual std::unique_ptr<Communicator> communicator(kernels::Backend& backend,
                                                     const GroupMembers& group) = 0;
  /// Throws CommError when the world has ended where no operation says so by itself.
  virtual void require_alive() const {}
};

/// Of a rank that is alone. Throws where it would not be.
class SingleRankWorld final : public World {
 public:
  std::unique_ptr<Communicator> communicator(kernels::Backend& backend, const GroupMembers& group) override;
};

/// Moves nothing; reports every call.
class MetaWorld final : public World {
 public:
  using OnCollective = std::function<void(Group group, const MetaCollective& collective)>;
  explicit MetaWorld(std::int64_t rank, OnCollective on_collective = {})
      : rank_(rank), on_collective_(std::move(on_collective)) {}
  std::unique_ptr<Communicator> communicator(kernels::Backend& backend, const GroupMembers& group) override;

 private:
  std::int64_t rank_;
  OnCollective on_collective_;
};

}  // namespace trainerd::parallel
