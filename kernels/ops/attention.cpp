#include "kernels/ops/attention.h"

#include <limits>

namespace trainerd::kernels {
namespace {

using base::check;

void check_rows(const AttentionRows& rows, std::int64_t sequences, std::int64_t count) {
  check(rows.cu_seqlens.dtype == DType::i32 && rows.cu_seqlens.numel() == sequences + 1,
        "attention: cu_seqlens is i32, one more bound than sequences");
  check(!rows.first_B.defined() || (rows.first_B.dtype == DType::i32 && rows.first_B.numel() == sequences),
        "attention: first_B is i32, one position for each sequence");
  check(rows.max_seqlen >= 0 && count <= sequences * rows.max_seqlen,
        "attention: sequences of max_seqlen hold all rows");
}

void check_view(const HeadView& x, std::int64_t rows, std::int64_t heads, std::int64_t head_size) {
  check(x.rows == rows && x.heads == heads && x.head_size == head_size,
        "attention: views have the rows and heads of the call");
  check(x.row_stride >= heads * head_size, "attention: rows of a view do not overlap");
}

}  // namespace

std::int64_t rotated_elements(const Tensor& rope_table_SR, const HeadGeometry& heads) {
  if (!rope_table_SR.defined()) return 0;
  const std::int64_t width = rope_table_SR.size(1);
  check(rope_table_SR.dtype == DType::f32 && width % 2 == 0 && width > 0 && width <= heads.head_size,
        "rope: an fp32 table of an even width, no wider than a head");
  return width;
}

void check_block(const AttentionBlock& b, const HeadView& q, const HeadView& k, const HeadView& v) {
  const HeadGeometry& h = b.heads;
  check(h.kv_heads > 0 && h.head_size > 0 && h.value_size >= 0 && h.heads > 0 && h.heads % h.kv_heads == 0,
        "attention: query heads are a multiple of the key heads");
  check(b.window == 0 || (b.window > 0 && b.mask == MaskKind::causal),
        "attention: a window is of a causal mask and holds at least a key");
  check(b.softcap >= 0 && b.softcap <= std::numeric_limits<float>::max(),
        "attention: a softcap is a number above 0, or 0 for none");
  check(is_float(q.dtype), "attention: fp32, bf16 or fp16");
  check(k.dtype == q.dtype && v.dtype == q.dtype, "attention: activations are of one dtype");
  check_view(q, q.rows, h.heads, h.head_size);
  check_view(k, k.rows, h.kv_heads, h.head_size);
  check_view(v, k.rows, h.kv_heads, h.values_size());
  check_rows(b.queries, b.sequences, q.rows);
  check_rows(b.keys, b.sequences, k.rows);
}

void check_like(const HeadView& x, const HeadView& like, DTypes dtypes) {
  check_output(x, like, like.head_size, dtypes);
}

void check_output(const HeadView& x, const HeadView& like, std::int64_t head_size, DTypes dtypes) {
  check_view(x, like.rows, like.heads, head_size);
  check(x.dtype == like.dtype || (dtypes == DTypes::its_own_or_f32 && x.dtype == DType::f32),
        "attention: gradients of outputs are of the activations' dtype, outputs of it or f32");
}

void check_sums(const Tensor& lse_HT, const HeadView& q) {
  check(lse_HT.dtype == DType::f32 && lse_HT.shape == Shape{q.heads, q.rows},
        "attention: a log-sum-exp for each head and query");
}

void check_sinks(const Tensor& sinks_H, const HeadView& out) {
  check(is_float(out.dtype), "attention: fp32, bf16 or fp16");
  check_not_mixed(out.dtype, sinks_H.dtype);
  check(sinks_H.numel() == out.heads, "attention: a sink for each head");
}

}  // namespace trainerd::kernels
