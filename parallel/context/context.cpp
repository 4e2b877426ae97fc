#include "parallel/context/context.h"

#include <algorithm>

namespace trainerd::parallel {

using namespace kernels;

namespace {

std::int64_t columns_of(const HeadGeometry& heads) { return 2 * heads.kv_heads * heads.head_size; }
/// First column of the keys in a merged projection.
std::int64_t first_column(const HeadGeometry& heads) { return heads.heads * heads.head_size; }

/// First key head of the heads of rank `rank`.
std::int64_t first_key_head(const HeadGeometry& heads, std::int64_t rank, std::int64_t ranks) {
  return rank * heads.kv_heads / ranks;
}

/// Memory for the rows of all ranks' tokens, or this rank's of all heads.
Tensor take_blocks(const ContextParallel& cp, Stream& s, DType dtype, std::int64_t rows,
                   const HeadGeometry& part) {
  return s.scratch().take(dtype, {rows * cp.group->size(), part.columns()}, MemoryTerm::activations);
}

}  // namespace

HeadGeometry heads_of_rank(const ContextParallel& cp, const HeadGeometry& heads) {
  const std::int64_t ranks = cp.group->size();
  return {.heads = heads.heads / ranks,
          .kv_heads = heads.kv_heads == 0 ? 0 : std::max<std::int64_t>(1, heads.kv_heads / ranks),
          .head_size = heads.head_size};
}

void tokens_to_heads(const ContextParallel& cp, Backend& backend, Stream& s, const HeadGeometry& heads,
                     const Tensor& x, std::int64_t sequences, const Tensor& to) {
  const HeadGeometry part = heads_of_rank(cp, heads);
  const std::int64_t ranks = cp.group->size(), rows = x.size(0), e = heads.head_size;
  const ArenaScope scope(s.scratch());
  const Tensor received = take_blocks(cp, s, x.dtype, rows, part);
  {
    const ArenaScope sending(s.scratch());
    const Tensor sent = take_blocks(cp, s, x.dtype, rows, part);
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
      const std::int64_t key = first_key_head(heads, rank, ranks);
      const auto copy = [&](std::int64_t from, std::int64_t at, std::int64_t count) {
        if (count > 0)
          backend.copy_rows(s, {.in = x,
                                .out = sent.rows(rank * rows, rows),
                                .columns = count * e,
                                .in_column = from * e,
                                .out_column = at * e});
      };
      copy(rank * part.heads, 0, part.heads);
      copy(heads.heads + key, part.heads, part.kv_heads);
      copy(heads.heads + heads.kv_heads + key, part.heads + part.kv_heads, part.kv_heads);
    }
    cp.group->all_to_all(s, sent, received, {.label = "tokens for heads"})->wait(s);
  }
  backend.copy_rows(s, {.in = received,
                        .out = to,
                        .columns = part.columns(),
                        .order = RowOrder::rank_to_sequence,
                        .ranks = ranks,
                        .sequences = sequences});
}

void heads_to_tokens(const ContextParallel& cp, Backend& backend, Stream& s, const HeadGeometry& heads,
                     const Tensor& x, std::int64_t sequences, const Tensor& to) {
  const HeadGeometry part = heads_of_rank(cp, heads);
  const std::int64_t ranks = cp.group->size(), rows = to.size(0), e = heads.head_size;
  const ArenaScope scope(s.scratch());
  const Tensor received = take_blocks(cp, s, x.dtype, rows, part);
  {
    const ArenaScope sending(s.scratch());
    const Tensor sent = take_blocks(cp, s, x.dtype, rows, part);
    backend.copy_rows(s, {.in = x,
                          .out = sent,
                          .columns = part.columns(),
                          .order = RowOrder::sequence_to_rank,
                          .ranks = ranks,
                          .sequences = sequences});
    cp.group->all_to_all(s, sent, received, {.label = "heads for tokens"})->wait(s);
  }
  const auto copy = [&](const Tensor& from, std::int64_t column, std::int64_t at, std::int64_t count) {
    if (count > 0)
      backend.copy_rows(
          s, {.in = from, .out = to, .columns = count * e, .in_column = column * e, .out_column = at * e});
  };
  const auto of_rank = [&](std::int64_t rank) { return received.rows(rank * rows, rows); };
  for (std::int64_t rank = 0; rank < ranks; ++rank) copy(of_rank(rank), 0, rank * part.heads, part.heads);
  if (heads.kv_heads == 0) return;
  if (heads.kv_heads >= ranks) {
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
      const std::int64_t key = first_key_head(heads, rank, ranks);
      copy(of_rank(rank), part.heads, heads.heads + key, part.kv_heads);
      copy(of_rank(rank), part.heads + part.kv_heads, heads.heads + heads.kv_heads + key, part.kv_heads);
    }
    return;
  }
  // One key head and its value head, side by side, from each of several ranks.
  const std::int64_t sharing = ranks / heads.kv_heads;
  const Tensor parts = s.scratch().take(x.dtype, {sharing * rows, 2 * e}, MemoryTerm::activations),
               sum = s.scratch().take(x.dtype, {rows, 2 * e}, MemoryTerm::activations);
  for (std::int64_t head = 0; head < heads.kv_heads; ++head) {
    backend.copy_rows(s, {.in = received.rows(head * sharing * rows, sharing * rows),
                          .out = parts,
                          .columns = 2 * e,
                          .in_column = part.heads * e});
    backend.sum_parts(s, {.x = parts, .out = sum, .parts = sharing});
    copy(sum, 0, heads.heads + head, 1);
    copy(sum, 1, heads.heads + heads.kv_heads + head, 1);
  }
}

KeysAndValues take_keys_and_values(const ContextParallel& cp, Stream& s, const HeadGeometry& heads,
                                   const Tensor& qkv, DType dtype) {
  const std::int64_t rows = qkv.size(0) * cp.group->size();
  return {s.scratch().take(dtype, {rows, columns_of(heads)}, MemoryTerm::activations), heads};
}

void gather_keys_and_values(const ContextParallel& cp, Backend& backend, Stream& s, const HeadGeometry& heads,
                            const Tensor& qkv, std::int64_t sequences, const KeysAndValues& to) {
  const std::int64_t ranks = cp.group->size(), columns = columns_of(heads), own = qkv.size(0);
  const ArenaScope scope(s.scratch());
  const Tensor by_rank = s.scratch().take(qkv.dtype, to.rows.shape, MemoryTerm::activations),
               mine = by_rank.rows(cp.group->rank() * own, own);
  backend.copy_rows(s, {.in = qkv, .out = mine, .columns = columns, .in_column = first_column(heads)});
  cp.group->all_gather(s, mine, by_rank, {.label = "keys and values"})->wait(s);
  backend.copy_rows(s, {.in = by_rank,
                        .out = to.rows,
                        .columns = columns,
                        .order = RowOrder::rank_to_sequence,
                        .ranks = ranks,
                        .sequences = sequences});
}

void scatter_key_and_value_gradients(const ContextParallel& cp, Backend& backend, Stream& s,
                                     const HeadGeometry& heads, const KeysAndValues& from,
                                     std::int64_t sequences, const Tensor& dqkv) {
  const std::int64_t ranks = cp.group->size(), columns = columns_of(heads), own = dqkv.size(0);
  const ArenaScope scope(s.scratch());
  const Tensor by_rank = s.scratch().take(DType::f32, from.rows.shape, MemoryTerm::activations),
               mine = by_rank.rows(cp.group->rank() * own, own);
  backend.copy_rows(s, {.in = from.rows,
                        .out = by_rank,
                        .columns = columns,
                        .order = RowOrder::sequence_to_rank,
                        .ranks = ranks,
                        .sequences = sequences});
  cp.group->reduce_scatter(s, by_rank, mine, {.label = "key and value gradients"})->wait(s);
  backend.copy_rows(s, {.in = mine, .out = dqkv, .columns = columns, .out_column = first_column(heads)});
}

void sum_over_context(const ContextParallel& cp, Stream& s, const Tensor& x) {
  if (cp.group != nullptr && cp.group->size() > 1)
    cp.group->all_reduce(s, x, ReduceOp::sum, {.label = "cp sums"})->wait(s);
}

}  // namespace trainerd::parallel
