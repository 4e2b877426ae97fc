#include "parallel/comm/meta/meta_communicator.h"

#include <utility>

namespace trainerd::parallel {
namespace {

using kernels::Stream;
using kernels::Tensor;

using Observe = std::function<void(const MetaCollective&)>;

class MetaWork final : public Work {
 public:
  MetaWork(MetaCollective collective, const Observe& observe)
      : collective_(std::move(collective)), observe_(observe) {
    collective_.moment = CommMoment::wait;
  }
  void wait(Stream& s) override {
    collective_.stream = s.name().c_str();
    if (observe_) observe_(collective_);
  }
  void wait_host(double) override {}

 private:
  MetaCollective collective_;
  const Observe& observe_;
};

class MetaCommunicator final : public Communicator {
 public:
  MetaCommunicator(std::int64_t rank, std::int64_t size, Observe observe)
      : rank_(rank), size_(size), observe_(std::move(observe)) {}
  std::int64_t rank() const override { return rank_; }
  std::int64_t size() const override { return size_; }

  std::unique_ptr<Work> all_reduce(Stream& s, const Tensor& x, ReduceOp, const CommOptions& o) override {
    return note(s, OpKind::all_reduce, x.bytes(), o);
  }
  std::unique_ptr<Work> all_gather(Stream& s, const Tensor&, const Tensor& out,
                                   const CommOptions& o) override {
    return note(s, OpKind::all_gather, out.bytes(), o);
  }
  std::unique_ptr<Work> reduce_scatter(Stream& s, const Tensor& x, const Tensor&,
                                       const CommOptions& o) override {
    return note(s, OpKind::reduce_scatter, x.bytes(), o);
  }
  std::unique_ptr<Work> all_to_all(Stream& s, const Tensor& x, const Tensor&, const CommOptions& o) override {
    return note(s, OpKind::all_to_all, x.bytes(), o);
  }
  std::unique_ptr<Work> broadcast(Stream& s, const Tensor& x, std::int64_t, const CommOptions& o) override {
    return note(s, OpKind::broadcast, x.bytes(), o);
  }
  std::unique_ptr<Work> barrier(Stream& s, const CommOptions& o) override {
    return note(s, OpKind::barrier, 0, o);
  }
  std::unique_ptr<Work> exchange(Stream& s, std::span<const Transfer> sends,
                                 std::span<const Transfer> receives, const CommOptions& o) override {
    std::int64_t bytes = 0;
    for (const Transfer& t : sends) bytes += t.tensor.bytes();
    for (const Transfer& t : receives) bytes += t.tensor.bytes();
    return note(s, OpKind::exchange, bytes, o);
  }
  void abort() override {}

 private:
  std::unique_ptr<Work> note(const Stream& s, OpKind kind, std::int64_t bytes, const CommOptions& o) {
    MetaCollective collective{.sequence = ++sequence_,
                              .kind = kind,
                              .label = o.label,
                              .stream = s.name().c_str(),
                              .group_size = size_,
                              .bytes = bytes,
                              .progress = o.progress};
    if (observe_) observe_(collective);
    return std::make_unique<MetaWork>(std::move(collective), observe_);
  }
  std::int64_t rank_;
  std::int64_t size_;
  Observe observe_;
  std::int64_t sequence_ = 0;
};

}  // namespace

std::unique_ptr<Communicator> make_meta_communicator(std::int64_t rank, std::int64_t size,
                                                     std::function<void(const MetaCollective&)> observe) {
  return std::make_unique<MetaCommunicator>(rank, size, std::move(observe));
}

}  // namespace trainerd::parallel
