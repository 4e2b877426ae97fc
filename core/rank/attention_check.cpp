#include "core/rank/attention_check.h"

#include "kernels/base/error.h"

namespace trainerd::core::rank {

using kernels::AttentionKernel;
using kernels::OpClass;

std::string describe_attention(const OpClass& what) {
  return "of " + std::to_string(what.length) + " tokens, with heads of " + std::to_string(what.head_size);
}

void require_attention(const job::JobSpec& job, const RankRecord& record) {
  if (job.attention.require != job::AttentionRequire::library) return;
  for (const RecordedOp& op : record.ops) {
    const OpClass& a = op.what;
    if (a.kernel != AttentionKernel::tensor_cores && a.kernel != AttentionKernel::plain) continue;
    const bool forward = a.kind == OpClass::Kind::attention_forward;
    const std::string limit = std::to_string(record.attention_limit_bytes >> 20) + " MiB";
    throw base::capacity_error(
        "attention.require is library, and the " + std::string(forward ? "forward " : "backward ") +
        describe_attention(a) + ", would run by our own kernels" +
        (a.limited ? ": one key head needs more workspace than the " + limit +
                         " that the plan has for it; set attention.backward: fast, or attention.require: any"
                   : ", as the library does not serve it; set attention.require: any"));
  }
}

}  // namespace trainerd::core::rank
