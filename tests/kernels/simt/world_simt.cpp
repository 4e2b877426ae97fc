#include "tests/kernels/simt/simt.h"
#include "tests/kernels/simt/simt_backend.h"
#include "tests/kernels/world.h"

namespace trainerd::test {

// The numbers of threads stand for the orders in which blocks and threads run.
std::unique_ptr<kernels::Backend> make_backend(const kernels::Target& cpu, base::ThreadPool& pool) {
  constexpr simt::Order kOrders[] = {simt::Order::forward, simt::Order::backward, simt::Order::shuffled};
  simt::set_order(kOrders[(pool.threads() - 1) % 3]);
  return std::make_unique<SimtBackend>(cpu, pool);
}

std::vector<kernels::Isa> instruction_sets() { return {kernels::Isa::portable}; }

std::optional<MatrixWork> matrix_work() {
  const simt::MatrixCounts counts = simt::matrix_counts();
  return MatrixWork{counts.products, counts.conflicts};
}

}  // namespace trainerd::test
