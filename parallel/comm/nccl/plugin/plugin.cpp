// Entry point of the CUDA plugin's communication part, for parallel/comm/nccl/nccl_plugin.h.

#include "parallel/comm/nccl/nccl_plugin.h"
#include "parallel/comm/nccl/plugin/make_world.h"

extern "C" __attribute__((visibility("default"))) const trainerd::parallel::NcclPlugin*
trainerd_nccl_plugin() {
  using namespace trainerd::parallel;
  static constexpr NcclPlugin kPlugin{.interface_hash = TRAINERD_COMM_INTERFACE_HASH,
                                      .unique_id = nccl_unique_id,
                                      .make_world = make_nccl_world};
  return &kPlugin;
}
