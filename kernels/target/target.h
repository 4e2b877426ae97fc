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
/// Instruction set that the CPU's kernels use; each has those before it. `portable` is what every x86-64 or
/// other host runs, `avx2` has FMA, `avx512` is F, BW, DQ and VL, `avx512_bf16` also BF16 and VBMI.
enum class Isa : std::uint8_t { portable, avx2, avx512, avx512_bf16 };

const char* to_string(DeviceKind kind);
const char* to_string(Isa isa);
/// The instruction set called `text`; false, and `isa` unchanged, when there is none.
bool parse_isa(std::string_view text, Isa& isa);

/// One call of a library's attention on a CUDA device, as far as its plan depends on it: `sequences` of
/// `tokens` tokens, each against itself. A forward is always deterministic.
struct AttentionCall {
  bool backward = false, causal = true, deterministic = true;
  std::int64_t sequences = 0, heads = 0, kv_heads = 0, tokens = 0, head_size = 0;
  auto operator<=>(const AttentionCall&) const = default;
};
/// In place of workspace bytes: the library has no plan for the call; plans cannot be made in this process.
constexpr std::int64_t kNoAttentionPlan = -1, kUnknownAttentionPlan = -2;

/// What costs, scratch sizes and kernel choices depend on. A plain value: the meta world is given one and
/// behaves (in memory and counts) as a backend on that device would.
struct Target {
  DeviceKind kind = DeviceKind::cpu;
  std::string name = "cpu";
  Isa isa = Isa::portable;
  /// Whether GEMMs on bf16 operands run on bf16 instructions. When not, a bf16 job computes in fp32 and
  /// counts it.
  bool bf16_gemm = false;
  bool amx = false;  ///< those instructions are AMX's
  int threads = 1;
  Tuning tuning;
  std::string gemm_library;  ///< name and version: part of what bit-for-bit continuation depends on

  /// Bytes: what is taken of an arena begins at a multiple of this, and parameters at one of as many
  /// elements.
  std::int64_t alignment = 64;
  /// A rank's rows of the vocabulary are padded to a multiple of this, in the embedding and the head.
  std::int64_t vocab_multiple = 1;

  // CUDA devices alone.
  int sm_version = 0;             ///< compute capability as in sm_90: 90
  int sm_count = 0;               ///< streaming multiprocessors
  std::string pci_bus_id;         ///< "0000:65:00.0"
  std::string attention_library;  ///< name and version; empty: our own attention kernels
  /// Workspace bytes of a call by the plans of the installed `attention_library` for this device, or one of
  /// the two above. Null where the library is not at hand, as of a cluster's description: a formula stands
  /// for it.
  std::int64_t (*attention_workspace)(const Target&, const AttentionCall&) = nullptr;
  /// The most workspace that attention's backward may take. A rank's plan raises it where memory is left.
  std::int64_t attention_limit_bytes = std::int64_t{1} << 30;
  std::int64_t memory_bytes = 0;  ///< of a rank's device, without a cluster's overhead; 0: not known

  /// Whether a product adds another tensor without a pass over memory of its own, so that a layer's
  /// contribution is added to the residual stream by the product that makes it.
  bool adds_in_products = false;

  /// Whether the host may run ahead of the device: work is put on a stream, not done at once.
  bool runs_behind_host() const { return kind == DeviceKind::cuda; }
};

/// What all CUDA devices have alike.
inline Target cuda_target() {
  Target target;
  target.kind = DeviceKind::cuda;
  target.bf16_gemm = true;
  target.alignment = kCudaAlignment;
  target.vocab_multiple = kCudaVocabMultiple;
  target.adds_in_products = true;  // cuBLASLt's C operand
  return target;
}

/// The CPU this process runs on, with at most `most` of its instruction sets and of those that oneDNN may use
/// (ONEDNN_MAX_CPU_ISA). `threads` 0 means one for each core the process may use, by its affinity and its
/// control group's quota (rounded up).
Target detect_cpu(int threads = 0, Isa most = Isa::avx512_bf16);

/// Limits oneDNN in this process to `most`. Before anything else here asks for a CPU: oneDNN looks once.
/// Throws DeviceError after that.
void limit_gemm_library(Isa most);

}  // namespace trainerd::kernels
