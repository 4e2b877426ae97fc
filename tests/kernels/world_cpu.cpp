#include "kernels/cpu/cpu_backend.h"
#include "tests/kernels/world.h"

namespace trainerd::test {

std::unique_ptr<kernels::Backend> make_backend(const kernels::Target& cpu, base::ThreadPool& pool) {
  return std::make_unique<kernels::CpuBackend>(cpu, pool);
}

std::vector<kernels::Isa> instruction_sets() {
  std::vector<kernels::Isa> sets{kernels::Isa::portable};
  if (kernels::detect_cpu(1).isa == kernels::Isa::avx512) sets.push_back(kernels::Isa::avx512);
  return sets;
}

std::optional<MatrixWork> matrix_work() { return {}; }

}  // namespace trainerd::test
