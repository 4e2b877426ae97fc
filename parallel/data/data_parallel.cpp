#include "parallel/data/data_parallel.h"

namespace trainerd::parallel {

using kernels::Stream;
using kernels::Tensor;

BucketGather::BucketGather(const DataParallelGroups& groups, Stream& stream, const Tensor& part,
                           const Tensor& whole, const CommOptions& options)
    : whole_(whole),
      options_(options),
      outside_(groups.shards_outside()),
      work_(outside_ ? groups.outer->all_gather(stream, part, groups.piece(whole), options)
                     : groups.inner->all_gather(stream, part, whole, options)) {}

void BucketGather::advance(const DataParallelGroups& groups, Stream& stream) {
  if (!outside_) return;
  work_->wait(stream);
  outside_ = false;
  work_ = groups.inner->all_gather(stream, groups.piece(whole_), whole_, options_);
}

void BucketGather::wait(const DataParallelGroups& groups, Stream& stream) {
  advance(groups, stream);
  work_->wait(stream);
}

}  // namespace trainerd::parallel
