#include "parallel/data/data_parallel.h"

namespace trainerd::parallel {

using kernels::Stream;
using kernels::Tensor;

BucketGather::BucketGather(const DataParallelGroups& groups, Stream& stream, const Tensor& part,
                           const Tensor& whole, const CommOptions& options, Communicator* from_host,
                           Stream* chain)
    : whole_(whole), options_(options), outside_(groups.shards_outside()) {
  Communicator& group = outside_ ? *groups.outer : *groups.inner;
  const Tensor gathered = outside_ ? groups.piece(whole) : whole;
  Tensor mine = part;
  if (from_host != nullptr) {
    mine = gathered.rows(group.rank() * part.numel(), part.numel());
    before_.push_back(from_host->all_gather(stream, part, mine,
                                            {.label = options.label, .progress = Progress::background}));
    if (groups.parts() == 1) return;
    before_.back()->wait(*chain);
  }
  work_ = group.all_gather(from_host != nullptr ? *chain : stream, mine, gathered, options);
  if (!outside_ || chain == nullptr) return;
  work_->wait(*chain);
  before_.push_back(std::move(work_));
  gather_inside(groups, *chain);
}

void BucketGather::gather_inside(const DataParallelGroups& groups, Stream& stream) {
  outside_ = false;
  work_ = groups.inner->all_gather(stream, groups.piece(whole_), whole_, options_);
}

void BucketGather::advance(const DataParallelGroups& groups, Stream& stream) {
  if (!outside_) return;
  work_->wait(stream);
  gather_inside(groups, stream);
}

void BucketGather::wait(const DataParallelGroups& groups, Stream& stream) {
  for (const std::unique_ptr<Work>& work : before_) work->wait(stream);
  advance(groups, stream);
  if (work_) work_->wait(stream);
}

}  // namespace trainerd::parallel
