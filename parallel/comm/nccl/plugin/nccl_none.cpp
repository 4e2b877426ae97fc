#include "kernels/base/error.h"
#include "parallel/comm/nccl/plugin/make_world.h"

namespace trainerd::parallel {
namespace {

base::DeviceError no_nccl() {
  return base::device_error(
      "this build has no NCCL, which ranks on CUDA devices of their own need: install its header and library "
      "(deploy/install-cuda-deps.sh "
      "fetches them) and build again, or set cluster.communication: staged");
}

}  // namespace

std::string nccl_unique_id() { throw no_nccl(); }
std::unique_ptr<NcclWorld> make_nccl_world(NcclOptions) { throw no_nccl(); }

}  // namespace trainerd::parallel
