#include "parallel/context/context.h"

namespace trainerd::parallel {

using namespace kernels;

namespace {

std::int64_t columns_of(const HeadGeometry& heads) { return 2 * heads.kv_heads * heads.head_size; }
/// First column of the keys in a merged projection.
std::int64_t first_column(const HeadGeometry& heads) { return heads.heads * heads.head_size; }

}  // namespace

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

}  // namespace trainerd::parallel
