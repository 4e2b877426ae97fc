#include <cuda_runtime_api.h>

#include "kernels/backend/cuda_plugin.h"
#include "kernels/backend/observed_backend.h"
#include "kernels/cuda/runtime/check_runtime.h"
#include "tests/kernels/world.h"

namespace trainerd::test {
namespace {

using kernels::Stream;
using kernels::Tensor;

/// The CUDA world with synchronous calls, so that tests can use it like the CPU's.
class AwaitedBackend final : public kernels::ObservedBackend {
 public:
  explicit AwaitedBackend(kernels::Backend& inner)
      : ObservedBackend(inner, [](const kernels::ObservedCall&) {}),
        cuda_(inner),
        done_(inner.make_event()) {}

  void copy(Stream& s, const Tensor& from, const Tensor& to) override {
    cuda_.copy(s, from, to);
    wait_for(s);
  }
  void fill_zero(Stream& s, const Tensor& x) override {
    cuda_.fill_zero(s, x);
    wait_for(s);
  }
  void write(Stream& s, std::span<const std::byte> from, const Tensor& to) override {
    cuda_.write(s, from, to);
    wait_for(s);
  }

 private:
  void wait_for(Stream& s) {
    cuda_.record(s, *done_);
    cuda_.wait_host(*done_);
  }
  kernels::Backend& cuda_;
  std::unique_ptr<kernels::Event> done_;
};

}  // namespace

// One CUDA backend serves all machines: opening its libraries takes longer than a test. Runs for other
// numbers of threads repeat the same computation and must give the same bits.
std::unique_ptr<kernels::Backend> make_backend(const kernels::Target&, base::ThreadPool&) {
  // Never destroyed: at exit its libraries may already be unloaded.
  static kernels::Backend* const cuda = kernels::open_cuda_plugin().make_backend(0).release();
  return std::make_unique<AwaitedBackend>(*cuda);
}

// cudaMemcpyDefault: the oracle's tensors are in host memory, others in device memory.
std::vector<std::byte> read_bytes(const Tensor& x) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(x.bytes()));
  kernels::cuda::check(cudaMemcpy(bytes.data(), x.data, bytes.size(), cudaMemcpyDefault), "reading a tensor");
  return bytes;
}

void write_bytes(std::span<const std::byte> from, const Tensor& x) {
  kernels::cuda::check(cudaMemcpy(x.data, from.data(), from.size(), cudaMemcpyDefault), "filling a tensor");
  // A copy from pageable memory may return before the device has the bytes, and the operators' streams do not
  // wait for it.
  kernels::cuda::check(cudaStreamSynchronize(cudaStreamLegacy), "filling a tensor");
}

std::vector<kernels::Isa> instruction_sets() { return {kernels::Isa::portable}; }

std::optional<MatrixWork> matrix_work() { return {}; }
bool set_older_device(bool) { return false; }

}  // namespace trainerd::test
