#include "parallel/context/context.h"

#include <algorithm>
#include <array>
#include <span>

#include "parallel/comm/turns.h"

namespace trainerd::parallel {

using namespace kernels;

namespace {

std::int64_t columns_of(const HeadGeometry& heads) { return heads.key_columns() + heads.value_columns(); }
/// First column of the keys in a merged projection.
std::int64_t first_column(const HeadGeometry& heads) { return heads.query_columns(); }

/// Columns of a rank's heads in a merged projection of all heads, and in one of its own.
struct PartColumns {
  std::int64_t whole = 0, part = 0, count = 0;
};

/// First key head of the heads of rank `rank`.
std::int64_t first_key_head(const HeadGeometry& heads, std::int64_t rank, std::int64_t ranks) {
  return rank * heads.kv_heads / ranks;
}

/// Queries, keys and values of rank `rank`.
std::array<PartColumns, 3> columns_of_rank(const HeadGeometry& heads, const HeadGeometry& part,
                                           std::int64_t rank, std::int64_t ranks) {
  const std::int64_t key = first_key_head(heads, rank, ranks), keys = part.query_columns(),
                     values = keys + part.key_columns();
  return {{{rank * part.query_columns(), 0, part.query_columns()},
           {first_column(heads) + key * heads.head_size, keys, part.key_columns()},
           {first_column(heads) + heads.key_columns() + key * heads.values_size(), values,
            part.value_columns()}}};
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
          .head_size = heads.head_size,
          .value_size = heads.value_size};
}

void tokens_to_heads(const ContextParallel& cp, Backend& backend, Stream& s, const HeadGeometry& heads,
                     const Tensor& x, std::int64_t sequences, const Tensor& to) {
  const HeadGeometry part = heads_of_rank(cp, heads);
  const std::int64_t ranks = cp.group->size(), rows = x.size(0);
  const ArenaScope scope(s.scratch());
  const Tensor received = take_blocks(cp, s, x.dtype, rows, part);
  {
    const ArenaScope sending(s.scratch());
    const Tensor sent = take_blocks(cp, s, x.dtype, rows, part);
    for (std::int64_t rank = 0; rank < ranks; ++rank)
      for (const PartColumns& c : columns_of_rank(heads, part, rank, ranks))
        if (c.count > 0)
          backend.copy_rows(s, {.in = x,
                                .out = sent.rows(rank * rows, rows),
                                .columns = c.count,
                                .in_column = c.whole,
                                .out_column = c.part});
    wait_in_turns(*cp.group->all_to_all(s, sent, received, in_turns(s, "tokens for heads")), s);
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
  const std::int64_t ranks = cp.group->size(), rows = to.size(0);
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
    wait_in_turns(*cp.group->all_to_all(s, sent, received, in_turns(s, "heads for tokens")), s);
  }
  // With fewer key heads than ranks, several ranks have parts of one head's gradients.
  const bool shared = heads.kv_heads > 0 && heads.kv_heads < ranks;
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    const std::array<PartColumns, 3> all = columns_of_rank(heads, part, rank, ranks);
    for (const PartColumns& c : std::span(all).first(shared ? 1 : 3))
      if (c.count > 0)
        backend.copy_rows(s, {.in = received.rows(rank * rows, rows),
                              .out = to,
                              .columns = c.count,
                              .in_column = c.part,
                              .out_column = c.whole});
  }
  if (!shared) return;
  // One key head and its value head, side by side, from each of several ranks.
  const std::int64_t sharing = ranks / heads.kv_heads, columns = columns_of(part);
  const Tensor parts = s.scratch().take(x.dtype, {sharing * rows, columns}, MemoryTerm::activations),
               sum = s.scratch().take(x.dtype, {rows, columns}, MemoryTerm::activations);
  for (std::int64_t head = 0; head < heads.kv_heads; ++head) {
    backend.copy_rows(s, {.in = received.rows(head * sharing * rows, sharing * rows),
                          .out = parts,
                          .columns = columns,
                          .in_column = first_column(part)});
    backend.sum_parts(s, {.x = parts, .out = sum, .parts = sharing});
    const std::array<PartColumns, 3> all = columns_of_rank(heads, part, head * sharing, ranks);
    for (const PartColumns& c : std::span(all).last(2))
      backend.copy_rows(s, {.in = sum,
                            .out = to,
                            .columns = c.count,
                            .in_column = c.part - first_column(part),
                            .out_column = c.whole});
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
  wait_in_turns(*cp.group->all_gather(s, mine, by_rank, in_turns(s, "keys and values")), s);
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
  wait_in_turns(*cp.group->reduce_scatter(s, by_rank, mine, in_turns(s, "key and value gradients")), s);
  backend.copy_rows(s, {.in = mine, .out = dqkv, .columns = columns, .out_column = first_column(heads)});
}

void sum_over_context(const ContextParallel& cp, Stream& s, const Tensor& x) {
  // A few bytes, and only some ranks of a tp group call it: it gives no other pass a turn.
  if (cp.group != nullptr && cp.group->size() > 1)
    cp.group->all_reduce(s, x, ReduceOp::sum, {.label = "cp sums"})->wait(s);
}

}  // namespace trainerd::parallel
