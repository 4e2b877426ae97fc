#include <algorithm>

#include "kernels/cpu/cpu_backend.h"
#include "tests/kernels/world.h"

namespace trainerd::test {

std::unique_ptr<kernels::Backend> make_backend(const kernels::Target& cpu, base::ThreadPool& pool) {
  return std::make_unique<kernels::CpuBackend>(cpu, pool);
}

std::vector<std::byte> read_bytes(const kernels::Tensor& x) { return {x.data, x.data + x.bytes()}; }

void write_bytes(std::span<const std::byte> from, const kernels::Tensor& x) {
  std::copy(from.begin(), from.end(), x.data);
}

std::vector<kernels::Isa> instruction_sets() {
  std::vector<kernels::Isa> sets{kernels::Isa::portable};
  for (const kernels::Isa isa : {kernels::Isa::avx2, kernels::Isa::avx512, kernels::Isa::avx512_bf16})
    if (isa <= kernels::detect_cpu(1).isa) sets.push_back(isa);
  return sets;
}

std::optional<MatrixWork> matrix_work() { return {}; }
bool set_older_device(bool) { return false; }

}  // namespace trainerd::test
