#include "core/rank/fp8_check.h"

#include <string>

#include "kernels/base/error.h"
#include "kernels/cuda/launch/fp8_operand.h"

namespace trainerd::core::rank {

void require_fp8(const RankRecord& record, const kernels::Target& target) {
  using kernels::OpClass;
  if (target.kind != kernels::DeviceKind::cuda) return;
  for (const RecordedOp& op : record.ops) {
    const OpClass& g = op.what;
    if (g.format != kernels::GemmFormat::fp8) continue;
    if (target.sm_version != 90)
      throw base::capacity_error("fp8 runs on devices of compute capability 9.0 (Hopper), and " +
                                 target.name + " has " + std::to_string(target.sm_version / 10) + "." +
                                 std::to_string(target.sm_version % 10) + ": set precision to bf16");
    if (g.kind == OpClass::Kind::experts) {
      // Of the weight: [experts x n, c]. Rows of experts may be any number.
      const bool weight = g.role == kernels::GemmRole::wgrad;
      for (const std::int64_t size : {g.n, weight ? g.m : g.k})
        if (size % kernels::kFp8Block != 0)
          throw base::capacity_error(
              "with fp8 the widths of an expert's weights on a GPU are multiples of 128, and a rank has one "
              "of " +
              std::to_string(size) +
              ": change model.hidden, model.experts.ffn or what tp cuts (parallel.etp: 1 leaves experts "
              "whole), or set precision to bf16");
      continue;
    }
    for (const std::int64_t size : {g.m, g.n, g.k})
      if (size % kernels::cuda::kFp8Multiple != 0)
        throw base::capacity_error(
            "with fp8 the sizes of a product on a GPU are multiples of 16, and a rank has one of " +
            std::to_string(g.m) + " x " + std::to_string(g.n) + " with sums of " + std::to_string(g.k) +
            " (tokens of a microbatch, widths of the model by tp): change them, or set precision to bf16");
  }
}

}  // namespace trainerd::core::rank
