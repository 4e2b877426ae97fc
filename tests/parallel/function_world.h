#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "parallel/group/world.h"

namespace trainerd::test {

/// A world whose communicators are made by a function.
class FunctionWorld final : public parallel::World {
 public:
  using Make = std::function<std::unique_ptr<parallel::Communicator>(
      kernels::Backend& backend, const std::string& name, const std::vector<std::int64_t>& members)>;
  explicit FunctionWorld(Make make) : make_(std::move(make)) {}
  std::unique_ptr<parallel::Communicator> communicator(kernels::Backend& backend,
                                                       const parallel::GroupMembers& group) override {
    return make_(backend, info(group.group).name, group.ranks.list());
  }

 private:
  Make make_;
};

}  // namespace trainerd::test
