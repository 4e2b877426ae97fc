#include <algorithm>

#include "tests/kernels/simt/simt.h"
#include "tests/kernels/simt/simt_backend.h"
#include "tests/kernels/world.h"

namespace trainerd::test {
namespace {
bool older_device = false;
}

bool set_older_device(bool older) {
  older_device = older;
  return true;
}

// The number of threads selects the order in which blocks and threads run.
std::unique_ptr<kernels::Backend> make_backend(const kernels::Target& cpu, base::ThreadPool& pool) {
  constexpr simt::Order kOrders[] = {simt::Order::forward, simt::Order::backward, simt::Order::shuffled};
  simt::set_order(kOrders[(pool.threads() - 1) % 3]);
  return std::make_unique<SimtBackend>(cpu, pool, older_device ? 80 : 90);
}

std::vector<std::byte> read_bytes(const kernels::Tensor& x) {
  const simt::DeviceAccess access;
  return {x.data, x.data + x.bytes()};
}

void write_bytes(std::span<const std::byte> from, const kernels::Tensor& x) {
  const simt::DeviceAccess access;
  std::copy(from.begin(), from.end(), x.data);
}

std::vector<kernels::Isa> instruction_sets() { return {kernels::Isa::portable}; }

std::optional<MatrixWork> matrix_work() {
  const simt::MatrixCounts counts = simt::matrix_counts();
  return MatrixWork{counts.products, counts.conflicts};
}

}  // namespace trainerd::test
