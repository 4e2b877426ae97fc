#pragma once

#include <memory>
#include <string>

#include "parallel/comm/nccl/nccl_world.h"

namespace trainerd::parallel {

// NcclPlugin's functions: by NCCL (nccl_world.cpp), or none (nccl_none.cpp).
std::string nccl_unique_id();
std::unique_ptr<NcclWorld> make_nccl_world(NcclOptions options);

}  // namespace trainerd::parallel
