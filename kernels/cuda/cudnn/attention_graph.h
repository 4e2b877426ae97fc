#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

struct cudnnContext;

namespace trainerd::kernels::cuda {

/// Elements between rows of each tensor, which may be part of a merged projection.
struct AttentionStrides {
  std::int64_t q = 0, k = 0, v = 0, out = 0;
  std::int64_t dout = 0, dq = 0, dk = 0, dv = 0;  ///< backward
  auto operator<=>(const AttentionStrides&) const = default;
};

/// One call of the library: `sequences` of `tokens` tokens each; heads and key heads of one piece.
struct AttentionProblem {
  bool backward = false;
  bool causal = true;
  bool deterministic = true;
  bool fp16 = false;  ///< else bf16
  std::int64_t sequences = 0, heads = 0, kv_heads = 0, tokens = 0, head_size = 0;
  std::int64_t value_size = 0;  ///< of a value head
  AttentionStrides strides;
  float scale = 1.0f;
  auto operator<=>(const AttentionProblem&) const = default;
};

/// First elements of the piece. `stats` is packed [sequences, heads, tokens] fp32; the forward writes it and
/// the backward reads it.
struct AttentionPointers {
  const std::byte *q = nullptr, *k = nullptr, *v = nullptr;
  std::byte* out = nullptr;
  std::byte* stats = nullptr;
  const std::byte* dout = nullptr;
  std::byte *dq = nullptr, *dk = nullptr, *dv = nullptr;
};

/// The device of a plan: either a handle, or a description (in cuDNN's serialised form), which needs no
/// device.
struct AttentionDevice {
  cudnnContext* handle = nullptr;
  std::vector<std::uint8_t> description;
  std::int32_t sm_version = 0;
};

/// A plan made by cuDNN's front end.
class AttentionGraph {
 public:
  virtual ~AttentionGraph() = default;
  virtual std::int64_t workspace_bytes() const = 0;
  /// Runs on the handle's stream. Throws DeviceError.
  virtual void run(cudnnContext* handle, const AttentionPointers& pointers, std::byte* workspace) = 0;
};

/// Null if the library does not support the problem; `why`, if given, gets its message.
std::unique_ptr<AttentionGraph> make_attention_graph(const AttentionProblem& problem,
                                                     const AttentionDevice& device,
                                                     std::string* why = nullptr);

/// Describes a device of this process, for plans without a handle. Creates no context. Empty if cuDNN cannot.
AttentionDevice describe_attention_device(int device, std::int32_t sm_version);

}  // namespace trainerd::kernels::cuda
