#include "core/model/adapter_walk.h"

#include "kernels/base/error.h"

namespace trainerd::core::model {

using namespace kernels;

AdapterWalk::AdapterWalk(const WalkContext& walk, const LinearParams& params)
    : walk_(walk),
      params_(params),
      scope_(walk.stream.scratch()),
      a_(walk.params.use(params.adapter.a, WeightForm::plain, walk.stream)),
      b_(walk.params.use(params.adapter.b, WeightForm::plain, walk.stream)) {
  if (!params.adapter.present()) return;
  adapter_ = {.a_RC = a_.weight(), .b_NR = b_.weight(), .scale = walk.model.lora.scale()};
  if (spread()) spread_b(b_.tensor());
}

bool AdapterWalk::spread() const {
  const auto& weight = walk_.params.info(params_.weight).shard;
  return weight.dim == 0 && weight.segments.size() > 1 && !params_.adapter.whole;
}

Shape AdapterWalk::spread_shape() const {
  const auto& weight = walk_.params.info(params_.weight).shard;
  return {parallel::local_shape(weight, walk_.tp.group.size())[0],
          walk_.params.info(params_.adapter.a).shard.logical[0]};
}

std::vector<MatrixBox> AdapterWalk::boxes() const {
  const std::vector<parallel::WholeMatrix> whole =
      parallel::whole_matrices(walk_.params.info(params_.weight).shard, walk_.tp.group.size());
  const std::int64_t rank = walk_.model.lora.rank;
  std::vector<MatrixBox> boxes;
  std::int64_t begin = 0;
  for (const std::size_t segment : params_.adapter.segments) {
    const parallel::WholeMatrix& m = whole.at(segment);
    boxes.push_back({.begin = begin,
                     .row = m.local_begin / m.columns,
                     .column = static_cast<std::int64_t>(boxes.size()) * rank,
                     .rows = m.local_count / m.columns,
                     .columns = rank});
    begin += boxes.back().rows * rank;
  }
  return boxes;
}

// Boxes are copied in fp32.
void AdapterWalk::spread_b(const Tensor& b) {
  Arena& scratch = walk_.stream.scratch();
  const Tensor out = scratch.take(b.dtype, spread_shape(), MemoryTerm::workspace);
  adapter_.b_NR = {out, {}};
  const ArenaScope scope(scratch);
  Tensor packed = b, matrix = out;
  if (b.dtype != DType::f32) {
    packed = scratch.take(DType::f32, b.shape, MemoryTerm::workspace);
    matrix = scratch.take(DType::f32, out.shape, MemoryTerm::workspace);
    walk_.backend().cast(walk_.stream, {b, packed});
  }
  walk_.backend().fill_zero(walk_.stream, matrix);
  const std::vector<MatrixBox> all = boxes();
  walk_.backend().copy_boxes(walk_.stream,
                             {.to = CopyBoxes::To::matrix, .boxes = all, .packed = packed, .matrix = matrix});
  if (b.dtype != DType::f32) walk_.backend().cast(walk_.stream, {matrix, out});
}

void AdapterWalk::gather_b(const Tensor& spread, const Tensor& grad, WriteMode mode) const {
  Arena& scratch = walk_.stream.scratch();
  const ArenaScope scope(scratch);
  const bool direct = grad.dtype == DType::f32 && mode == WriteMode::assign;
  const Tensor packed = direct ? grad : scratch.take(DType::f32, grad.shape, MemoryTerm::workspace);
  const std::vector<MatrixBox> all = boxes();
  walk_.backend().copy_boxes(walk_.stream,
                             {.to = CopyBoxes::To::packed, .boxes = all, .packed = packed, .matrix = spread});
  if (direct) return;
  if (mode == WriteMode::assign) return walk_.backend().cast(walk_.stream, {packed, grad});
  Tensor more = packed;
  if (grad.dtype != DType::f32) {
    more = scratch.take(grad.dtype, grad.shape, MemoryTerm::workspace);
    walk_.backend().cast(walk_.stream, {packed, more});
  }
  walk_.backend().add(walk_.stream, {grad, more, grad});
}

void AdapterWalk::gradients(const Tensor& dy_TN, const Tensor& x_TC, const Make& make) const {
  const ArenaScope scope(walk_.stream.scratch());
  const WriteMode mode = walk_.params.grad_mode(params_.adapter.a);
  base::check(walk_.params.grad_mode(params_.adapter.b) == mode, "an adapter gets its gradients together");
  const Tensor db = walk_.params.grad(params_.adapter.b);
  parallel::AdapterWgrad wgrad{.dy_TN = dy_TN,
                               .x_TC = x_TC,
                               .adapter = adapter_,
                               .da_RC = walk_.params.grad(params_.adapter.a),
                               .db_NR = db,
                               .a_mode = mode,
                               .b_mode = mode};
  if (spread()) {
    wgrad.db_NR = walk_.stream.scratch().take(DType::f32, spread_shape(), MemoryTerm::workspace);
    wgrad.b_mode = WriteMode::assign;
  }
  make(wgrad);
  if (spread()) gather_b(wgrad.db_NR, db, mode);
}

}  // namespace trainerd::core::model
