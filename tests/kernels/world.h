#pragma once

// The world whose operators a test binary runs: the same cases are compiled for each world.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "kernels/backend/backend.h"
#include "kernels/base/thread_pool.h"

namespace trainerd::test {

/// A backend of this world. `cpu` selects an instruction set, if the world has any. `pool` has 1, 2 or 3
/// threads; a world without threads maps the number to other orders of execution, which must give the same
/// bits.
std::unique_ptr<kernels::Backend> make_backend(const kernels::Target& cpu, base::ThreadPool& pool);

/// Copy bytes from and to a tensor of this world or in host memory: the host cannot access device memory
/// otherwise. All work on the tensor must be complete.
std::vector<std::byte> read_bytes(const kernels::Tensor& x);
void write_bytes(std::span<const std::byte> from, const kernels::Tensor& x);

/// The instruction sets that can run on this machine; a single one for a world without instruction sets.
std::vector<kernels::Isa> instruction_sets();

/// Counts of warp-wide matrix instructions since the start of the process: products, and reads of shared
/// memory with bank conflicts.
struct MatrixWork {
  std::int64_t products = 0, conflicts = 0;
};
/// Empty for a world that does not count.
std::optional<MatrixWork> matrix_work();

/// Whether later backends stand for a device without products of warp groups (sm_80). Returns false, and
/// changes nothing, in a world of one kind of device.
bool set_older_device(bool older);

}  // namespace trainerd::test
