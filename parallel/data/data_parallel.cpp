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

BucketGather::BucketGather(const DataParallelGroups& groups, Stream& stream, const Tensor& part,
                           const Tensor& whole, const CommOptions& options, Communicator& from_host,
                           Stream& chain)
    : whole_(whole), options_(options), outside_(groups.shards_outside()) {
  const std::int64_t size = part.numel();
  const Tensor gathered = outside_ ? groups.piece(whole) : whole;
  Communicator& group = outside_ ? *groups.outer : *groups.inner;
  const Tensor mine = gathered.rows(group.rank() * size, size);
  copied_ =
      from_host.all_gather(stream, part, mine, {.label = options.label, .progress = Progress::background});
  if (groups.parts() == 1) return;
  copied_->wait(chain);
  work_ = group.all_gather(chain, mine, gathered, options);
}

void BucketGather::advance(const DataParallelGroups& groups, Stream& stream) {
  if (!outside_) return;
  work_->wait(stream);
  outside_ = false;
  work_ = groups.inner->all_gather(stream, groups.piece(whole_), whole_, options_);
}

void BucketGather::wait(const DataParallelGroups& groups, Stream& stream) {
  if (copied_) copied_->wait(stream);
  advance(groups, stream);
  if (work_) work_->wait(stream);
}

}  // namespace trainerd::parallel
