#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>

#include "kernels/target/cuda_limits.h"
#include "kernels/target/tuning.h"
#include "kernels/tensor/dtype.h"

namespace trainerd::kernels {

enum class DeviceKind : std::uint8_t { cpu, cuda };
/// Instruction sets of the CPU kernels; each includes those before it. `portable` runs on every x86-64 or
/// other host, `avx2` includes FMA, `avx512` is F, BW, DQ and VL, `avx512_bf16` adds BF16 and VBMI.
enum class Isa : std::uint8_t { portable, avx2, avx512, avx512_bf16 };

const char* to_string(DeviceKind kind);
const char* to_string(Isa isa);
/// Parses the name of an instruction set. Returns false and leaves `isa` unchanged for an unknown name.
bool parse_isa(std::string_view text, Isa& isa);

/// The parameters of a library attention call on a CUDA device that its plan depends on: `sequences` of
/// `tokens` tokens, each attending to itself. A forward is always deterministic.
struct AttentionCall {
  bool backward = false, causal = true, deterministic = true;
  bool fp16 = false;  ///< else bf16
  std::int64_t sequences = 0, heads = 0, kv_heads = 0, tokens = 0, head_size = 0;
  std::int64_t value_size = 0;  ///< of a value head
  auto operator<=>(const AttentionCall&) const = default;
};
/// Values in place of workspace bytes: the library has no plan for the call; plans cannot be made in this
/// process.
constexpr std::int64_t kNoAttentionPlan = -1, kUnknownAttentionPlan = -2;

/// The properties of a device that costs, scratch sizes and kernel choices depend on. A plain value: the meta
/// backend for a target behaves (in memory and counts) like a backend on that device.
struct Target {
  DeviceKind kind = DeviceKind::cpu;
  std::string name = "cpu";
  Isa isa = Isa::portable;
  /// True if GEMMs on bf16 operands use bf16 instructions. Otherwise a bf16 job computes in fp32 and counts
  /// these GEMMs.
  bool bf16_gemm = false;
  bool amx = false;  ///< those instructions are AMX
  int threads = 1;
  Tuning tuning;
  /// name and version; results are only bit-for-bit reproducible with the same library
  std::string gemm_library;

  /// Bytes. Allocations of an arena start at a multiple of this. Parameters start at a multiple of this many
  /// elements.
  std::int64_t alignment = 64;
  /// A rank's rows of the vocabulary are padded to a multiple of this, in the embedding and in the head.
  std::int64_t vocab_multiple = 1;

  // CUDA devices only:
  int sm_version = 0;             ///< compute capability; 90 for sm_90
  int sm_count = 0;               ///< streaming multiprocessors
  std::string pci_bus_id;         ///< "0000:65:00.0"
  std::string attention_library;  ///< name and version; empty: our own attention kernels
  /// Workspace bytes of a call, according to the plans of the installed `attention_library` for this device,
  /// or one of the two values above. Null if the library is not available, as for a cluster's description; a
  /// formula is used then.
  std::int64_t (*attention_workspace)(const Target&, const AttentionCall&) = nullptr;
  /// Maximum workspace of attention's backward. A rank's plan raises it if memory is left.
  std::int64_t attention_limit_bytes = std::int64_t{1} << 30;
  std::int64_t memory_bytes = 0;  ///< memory of a rank's device, minus a cluster's overhead; 0: unknown

  /// True if a product can add another tensor without a separate pass over memory. Then the product that
  /// computes a layer's contribution adds it to the residual stream.
  bool adds_in_products = false;

  /// True if the host may run ahead of the device: work is enqueued on a stream, not done at once.
  bool runs_behind_host() const { return kind == DeviceKind::cuda; }
};

/// The common properties of all CUDA devices.
inline Target cuda_target() {
  Target target;
  target.kind = DeviceKind::cuda;
  target.bf16_gemm = true;
  target.alignment = kCudaAlignment;
  target.vocab_multiple = kCudaVocabMultiple;
  target.adds_in_products = true;  // cuBLASLt's C operand
  return target;
}

/// Describes the CPU of this process, limited to the instruction sets up to `most` and those that oneDNN may
/// use (ONEDNN_MAX_CPU_ISA). `threads` 0 means one per core that the process may use, according to its
/// affinity and its control group's quota (rounded up).
Target detect_cpu(int threads = 0, Isa most = Isa::avx512_bf16);

/// Limits oneDNN in this process to `most`. Must come before any other use of oneDNN, which detects the CPU
/// once. Throws DeviceError after that.
void limit_gemm_library(Isa most);

}  // namespace trainerd::kernels
