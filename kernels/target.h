#pragma once

#include <cstdint>
#include <string>

#include "kernels/dtype.h"

namespace trainerd::kernels {

enum class DeviceKind : std::uint8_t { cpu, cuda };
/// Instruction set that the vector kernels use. `portable` is what every x86-64 or other host runs.
enum class Isa : std::uint8_t { portable, avx512 };

const char* to_string(DeviceKind kind);
const char* to_string(Isa isa);

/// What costs, scratch sizes and kernel choices depend on. A plain value: the meta world is given one and behaves
/// (in memory and counts) as a backend on that device would.
struct Target {
  DeviceKind kind = DeviceKind::cpu;
  std::string name = "cpu";
  Isa isa = Isa::portable;
  /// Whether GEMMs on bf16 operands run on bf16 instructions. When not, a bf16 job computes in fp32 and counts it.
  bool bf16_gemm = false;
  int threads = 1;
  std::string gemm_library;  ///< name and version: part of what bit-for-bit continuation depends on

  // CUDA devices alone.
  int sm_version = 0;             ///< compute capability as in sm_90: 90
  int sm_count = 0;               ///< streaming multiprocessors
  std::string pci_bus_id;         ///< "0000:65:00.0"
  std::string attention_library;  ///< name and version; empty: our own attention kernels

  /// Whether the host may run ahead of the device: work is put on a stream, not done at once.
  bool runs_behind_host() const { return kind == DeviceKind::cuda; }
};

/// The CPU this process runs on. `threads` 0 means one for each core the process may use, by its
/// affinity and its control group's quota (rounded up).
Target detect_cpu(int threads = 0);

}  // namespace trainerd::kernels
