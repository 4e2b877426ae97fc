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

/// One rank's access to the other ranks, independent of the transport.
class World {
 public:
  World() = default;
  World(const World&) = delete;
  World& operator=(const World&) = delete;
  virtual ~World() = default;

  /// Makes the communicator of a group that this rank belongs to. All members of a group call it at the same
  /// time; all ranks make their common groups in the same order.
  virtual std::unique_ptr<Communicator> communicator(kernels::Backend& backend,
                                                     const GroupMembers& group) = 0;
  /// Throws CommError if the world has ended. For worlds whose operations do not report it.
  virtual void require_alive() const {}
};

/// The world of a single rank. Throws std::logic_error for a group of several.
class SingleRankWorld final : public World {
 public:
  std::unique_ptr<Communicator> communicator(kernels::Backend& backend, const GroupMembers& group) override;
};

/// Moves no data; reports every call.
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
