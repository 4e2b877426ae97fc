#pragma once

// Context parallelism: ranks share sequences. Everything but attention works on each rank's own tokens. For
// attention either ranks exchange tokens for heads: each has all tokens of some heads, as if there were one
// rank (DeepSpeed Ulysses, arXiv 2309.14509). Or its queries are the rank's own and keys and values are
// gathered (Llama 3, arXiv 2407.21783, section 3.3.2); with grouped heads they are much smaller than queries.

#include "kernels/backend/backend.h"
#include "kernels/ops/head_view.h"
#include "parallel/comm/communicator.h"

namespace trainerd::parallel {

struct ContextParallel {
  Communicator* group = nullptr;  ///< null: one rank
  bool by_heads = false;          ///< ranks exchange tokens for heads
};

/// The heads that a rank computes attention for: H / cp and K / cp, or one key head, which several ranks
/// share. `heads` may have no key heads: attention's output.
kernels::HeadGeometry heads_of_rank(const ContextParallel&, const kernels::HeadGeometry& heads);

/// Writes to `to` [sequences x seq_len, columns of heads_of_rank] this rank's heads of all tokens, in the
/// order of their positions, from all ranks' `x` [T, columns] with all heads of the rank's tokens (rows as in
/// SequenceShare).
void tokens_to_heads(const ContextParallel&, kernels::Backend&, kernels::Stream&,
                     const kernels::HeadGeometry&, const kernels::Tensor& x, std::int64_t sequences,
                     const kernels::Tensor& to);
/// The inverse, and the backward: gradients of a key head that several ranks have are added, in fp32.
void heads_to_tokens(const ContextParallel&, kernels::Backend&, kernels::Stream&,
                     const kernels::HeadGeometry&, const kernels::Tensor& x, std::int64_t sequences,
                     const kernels::Tensor& to);

/// Keys and values of whole sequences, in the order of their positions: [sequences x seq_len, K (E + Ev)]. A
/// row has the K key heads, then the value heads.
struct KeysAndValues {
  kernels::Tensor rows;
  kernels::HeadGeometry heads;

  kernels::HeadView keys() const { return heads_from(rows, 0, heads.kv_heads, heads.head_size); }
  kernels::HeadView values() const {
    return heads_from(rows, heads.key_columns(), heads.kv_heads, heads.values_size());
  }
};

/// Memory for keys and values of `sequences` sequences, or their gradients, of which this rank has the rows
/// of `qkv`. In the stream's scratch.
KeysAndValues take_keys_and_values(const ContextParallel&, kernels::Stream&, const kernels::HeadGeometry&,
                                   const kernels::Tensor& qkv, kernels::DType dtype);

/// Writes to `to` the keys and values of all ranks' `qkv` [T, columns], a merged projection of `sequences`
/// sequences (rows as in SequenceShare).
void gather_keys_and_values(const ContextParallel&, kernels::Backend&, kernels::Stream&,
                            const kernels::HeadGeometry&, const kernels::Tensor& qkv, std::int64_t sequences,
                            const KeysAndValues& to);

/// The backward: adds up all ranks' gradients `from` (f32), and writes this rank's rows of the sum to the key
/// and value columns of `dqkv`.
void scatter_key_and_value_gradients(const ContextParallel&, kernels::Backend&, kernels::Stream&,
                                     const kernels::HeadGeometry&, const KeysAndValues& from,
                                     std::int64_t sequences, const kernels::Tensor& dqkv);

/// Adds up `x` of all ranks, in place.
void sum_over_context(const ContextParallel&, kernels::Stream&, const kernels::Tensor& x);

}  // namespace trainerd::parallel
