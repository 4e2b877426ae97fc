#include "parallel/comm/observed_communicator.h"

#include <utility>

namespace trainerd::parallel {
namespace {

using kernels::Stream;
using kernels::Tensor;

class ObservedWork final : public Work {
 public:
  ObservedWork(std::unique_ptr<Work> inner, const ObserveComm& observe, const CommCall& call)
      : inner_(std::move(inner)), observe_(observe), call_(call) {}
  void wait(Stream& s) override {
    observe_(s, CommMoment::wait, call_);
    inner_->wait(s);
    observe_(s, CommMoment::done, call_);
  }
  void wait_host(double deadline_seconds) override { inner_->wait_host(deadline_seconds); }

 private:
  std::unique_ptr<Work> inner_;
  const ObserveComm& observe_;
  CommCall call_;
};

std::int64_t bytes_of(std::span<const Transfer> transfers) {
  std::int64_t bytes = 0;
  for (const Transfer& t : transfers) bytes += t.tensor.bytes();
  return bytes;
}

class ObservedCommunicator final : public Communicator {
 public:
  ObservedCommunicator(Communicator& inner, ObserveComm observe)
      : inner_(inner), observe_(std::move(observe)) {}
  std::int64_t rank() const override { return inner_.rank(); }
  std::int64_t size() const override { return inner_.size(); }

  std::unique_ptr<Work> all_reduce(Stream& s, const Tensor& x, ReduceOp op, const CommOptions& o) override {
    return observed(s, {OpKind::all_reduce, o.label, x.bytes(), &x},
                    [&] { return inner_.all_reduce(s, x, op, o); });
  }
  std::unique_ptr<Work> all_gather(Stream& s, const Tensor& x, const Tensor& out,
                                   const CommOptions& o) override {
    return observed(s, {OpKind::all_gather, o.label, out.bytes(), &x},
                    [&] { return inner_.all_gather(s, x, out, o); });
  }
  std::unique_ptr<Work> reduce_scatter(Stream& s, const Tensor& x, const Tensor& out,
                                       const CommOptions& o) override {
    return observed(s, {OpKind::reduce_scatter, o.label, x.bytes(), &x},
                    [&] { return inner_.reduce_scatter(s, x, out, o); });
  }
  std::unique_ptr<Work> all_to_all(Stream& s, const Tensor& x, const Tensor& out,
                                   const CommOptions& o) override {
    return observed(s, {OpKind::all_to_all, o.label, x.bytes(), &x},
                    [&] { return inner_.all_to_all(s, x, out, o); });
  }
  std::unique_ptr<Work> broadcast(Stream& s, const Tensor& x, std::int64_t root,
                                  const CommOptions& o) override {
    return observed(s, {OpKind::broadcast, o.label, x.bytes(), rank() == root ? &x : nullptr},
                    [&] { return inner_.broadcast(s, x, root, o); });
  }
  std::unique_ptr<Work> barrier(Stream& s, const CommOptions& o) override {
    return observed(s, {OpKind::barrier, o.label, 0}, [&] { return inner_.barrier(s, o); });
  }
  std::unique_ptr<Work> exchange(Stream& s, std::span<const Transfer> sends,
                                 std::span<const Transfer> receives, const CommOptions& o) override {
    return observed(s,
                    {OpKind::exchange, o.label, bytes_of(sends) + bytes_of(receives),
                     sends.empty() ? nullptr : &sends.front().tensor},
                    [&] { return inner_.exchange(s, sends, receives, o); });
  }
  void abort() override { inner_.abort(); }

 private:
  template <class Call>
  std::unique_ptr<Work> observed(Stream& s, CommCall observed_call, const Call& call) {
    observe_(s, CommMoment::issue, observed_call);
    observed_call.sent = nullptr;
    std::unique_ptr<Work> work = call();
    observe_(s, CommMoment::done, observed_call);
    return std::make_unique<ObservedWork>(std::move(work), observe_, observed_call);
  }
  Communicator& inner_;
  ObserveComm observe_;
};

}  // namespace

std::unique_ptr<Communicator> make_observed(Communicator& inner, ObserveComm observe) {
  return std::make_unique<ObservedCommunicator>(inner, std::move(observe));
}

}  // namespace trainerd::parallel
