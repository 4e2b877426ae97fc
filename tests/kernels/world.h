#pragma once

// The world whose operators a test binary runs: the same cases are compiled for each of them.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "kernels/backend/backend.h"
#include "kernels/base/thread_pool.h"

namespace trainerd::test {

/// A backend of this world. `cpu` asks for an instruction set, where the world has any, and for `pool`'s
/// threads: 1, 2 or 3, or in their place other ways to run that must give the same bits.
std::unique_ptr<kernels::Backend> make_backend(const kernels::Target& cpu, base::ThreadPool& pool);

/// Copies out of a tensor of this world, or of host memory, and into one: the host has no other way to a
/// device's memory. All work on it is done.
std::vector<std::byte> read_bytes(const kernels::Tensor& x);
void write_bytes(std::span<const std::byte> from, const kernels::Tensor& x);

/// The instruction sets that can run here; one for a world without any.
std::vector<kernels::Isa> instruction_sets();

/// What the world has counted of warp-wide matrix instructions since the process began: products, and reads
/// of shared memory that met in a bank.
struct MatrixWork {
  std::int64_t products = 0, conflicts = 0;
};
/// Empty for a world that does not count.
std::optional<MatrixWork> matrix_work();

}  // namespace trainerd::test
