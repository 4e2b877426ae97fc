#include <cudnn.h>

#include <map>
#include <mutex>

#include "kernels/base/error.h"
#include "kernels/cuda/cudnn/attention_library.h"
#include "kernels/cuda/cudnn/attention_plans.h"

namespace trainerd::kernels::cuda {
namespace {

void check(cudnnStatus_t result, const char* doing) {
  if (result != CUDNN_STATUS_SUCCESS)
    throw base::device_error(std::string(doing) + ": cuDNN says " + cudnnGetErrorString(result));
}

class Cudnn final : public AttentionLibrary {
 public:
  Cudnn() { check(cudnnCreate(&handle_), "opening cuDNN"); }
  ~Cudnn() override {
    plans_.clear();
    cudnnDestroy(handle_);
  }

  bool run(cudaStream_t stream, const AttentionProblem& problem, const AttentionPointers& pointers,
           std::byte* workspace, std::int64_t workspace_bytes) override {
    auto found = plans_.find(problem);
    // Also remembers problems without a plan.
    if (found == plans_.end())
      found = plans_.emplace(problem, make_attention_graph(problem, {.handle = handle_, .description = {}}))
                  .first;
    if (found->second == nullptr || found->second->workspace_bytes() > workspace_bytes) return false;
    check(cudnnSetStream(handle_, stream), "choosing a stream");
    found->second->run(handle_, pointers, workspace);
    return true;
  }

 private:
  cudnnHandle_t handle_ = nullptr;
  std::map<AttentionProblem, std::unique_ptr<AttentionGraph>> plans_;
};

}  // namespace

std::string attention_library_name() {
  const std::size_t version = cudnnGetVersion();  // 91900 is 9.19.0
  return "cuDNN " + std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

PlannedWorkspace attention_workspace_plans() {
  return [](const Target& target, const AttentionCall& call) {
    static std::mutex mutex;
    static std::map<std::string, AttentionPlans> devices;
    const std::lock_guard lock(mutex);
    // Plans depend on the kind of device alone.
    const std::string kind =
        target.name + "/" + std::to_string(target.sm_version) + "/" + std::to_string(target.sm_count);
    auto found = devices.find(kind);
    if (found == devices.end()) {
      int device = 0;
      AttentionDevice described;
      if (cudaDeviceGetByPCIBusId(&device, target.pci_bus_id.c_str()) == cudaSuccess)
        described = describe_attention_device(device, target.sm_version);
      else cudaGetLastError();
      found = devices.emplace(kind, AttentionPlans(std::move(described))).first;
    }
    return found->second.workspace(call);
  };
}

std::unique_ptr<AttentionLibrary> make_attention_library(const Target&) { return std::make_unique<Cudnn>(); }

}  // namespace trainerd::kernels::cuda
