#include "parallel/grad_reducer.h"

namespace trainerd::parallel {

void GradReducer::ready(kernels::Stream& stream) {
  pending_ = dp_.all_reduce(stream, grads_, ReduceOp::sum, {.label = "gradients"});
}

void GradReducer::finish(kernels::Stream& stream) {
  base::check(pending_ != nullptr, "gradients are finished after they are ready");
  pending_->wait(stream);
  pending_.reset();
}

}  // namespace trainerd::parallel
