#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>

#include "kernels/backend/cuda_plugin.h"
#include "kernels/backend/observed_backend.h"
#include "kernels/base/error.h"
#include "tests/kernels/world.h"

namespace trainerd::test {
namespace {

using kernels::Stream;
using kernels::Tensor;

/// The CUDA world with memory that the host reads as well (managed), and every call awaited, so that the
/// tests see it as they see the CPU's.
class ManagedBackend final : public kernels::ObservedBackend {
 public:
  explicit ManagedBackend(kernels::Backend& inner)
      : ObservedBackend(inner, [](const kernels::ObservedCall&) {}),
        cuda_(inner),
        done_(inner.make_event()) {}

  kernels::Buffer allocate(kernels::MemoryKind, std::int64_t bytes) override {
    void* memory = nullptr;
    const std::size_t size = static_cast<std::size_t>(std::max<std::int64_t>(bytes, 64));
    if (cudaMallocManaged(&memory, size) != cudaSuccess) throw base::device_error("no managed memory");
    std::memset(memory, 0, size);
    return {static_cast<std::byte*>(memory), bytes, [memory] { cudaFree(memory); }};
  }
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

// One CUDA backend serves all machines: opening its libraries takes longer than a test. The numbers of
// threads repeat a run, which must give the same bits.
std::unique_ptr<kernels::Backend> make_backend(const kernels::Target&, base::ThreadPool&) {
  // Never destroyed: at exit the libraries it would close may be gone.
  static kernels::Backend* const cuda = kernels::open_cuda_plugin().make_backend(0).release();
  return std::make_unique<ManagedBackend>(*cuda);
}

std::vector<kernels::Isa> instruction_sets() { return {kernels::Isa::portable}; }

std::optional<MatrixWork> matrix_work() { return {}; }

}  // namespace trainerd::test
