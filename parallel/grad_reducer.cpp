#include "parallel/grad_reducer.h"

#include <utility>

namespace trainerd::parallel {

using kernels::Stream;

GradReducer::GradReducer(Communicator& dp, const BucketPlan& plan, const kernels::Tensor& grads, const kernels::Tensor& parts,
                         std::vector<PartialSum> partial_sums)
    : dp_(dp), plan_(plan), grads_(grads), parts_(parts), partial_sums_(std::move(partial_sums)) {
  pending_.reserve(plan_.buckets.size());
}

void GradReducer::ready(Stream& stream) {
  for (const PartialSum& sum : partial_sums_)
    sum.group->all_reduce(stream, sum.grad, ReduceOp::sum, {.label = sum.label})->wait(stream);
  if (plan_.dp == 1) return;
  for (std::size_t b = plan_.buckets.size(); b-- > 0;) {
    const Bucket& bucket = plan_.buckets[b];
    pending_.push_back(dp_.reduce_scatter(stream, grads_.rows(bucket.begin, bucket.size),
                                          parts_.rows(plan_.shard_begin(b), bucket.size / plan_.dp), {.label = "gradients"}));
  }
}

void GradReducer::finish(Stream& stream) {
  for (const auto& work : pending_) work->wait(stream);
  pending_.clear();
}

void GradReducer::gather(Stream& stream) {
  if (plan_.dp == 1) return;
  for (std::size_t b = 0; b < plan_.buckets.size(); ++b) {
    const Bucket& bucket = plan_.buckets[b];
    dp_.all_gather(stream, parts_.rows(plan_.shard_begin(b), bucket.size / plan_.dp), grads_.rows(bucket.begin, bucket.size),
                   {.label = "gradients"})
        ->wait(stream);
  }
}

}  // namespace trainerd::parallel
