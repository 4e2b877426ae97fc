#pragma once

#include <memory>
#include <string>

#include "parallel/comm/nccl/nccl_world.h"

namespace trainerd::parallel {

// The functions of NcclPlugin: with NCCL (nccl_rank_world.cpp), or stubs that throw (nccl_none.cpp).
std::string nccl_unique_id();
std::unique_ptr<NcclWorld> make_nccl_world(NcclOptions options);

}  // namespace trainerd::parallel
