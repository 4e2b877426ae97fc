#include "parallel/comm/local_communicator.h"

#include <utility>
#include <vector>

#include "kernels/base/error.h"

namespace trainerd::parallel {
namespace {

using kernels::Stream;
using kernels::Tensor;

/// The operation is ordered on the stream it was called with.
class DoneWork final : public Work {
 public:
  void wait(Stream&) override {}
  void wait_host(double) override {}
};

using Events = std::vector<std::unique_ptr<kernels::Event>>;

/// The operation runs on a stream of its own. Its event returns to `spare`.
class EventWork final : public Work {
 public:
  EventWork(kernels::Backend& backend, std::unique_ptr<kernels::Event> done, std::shared_ptr<Events> spare)
      : backend_(backend), done_(std::move(done)), spare_(std::move(spare)) {}
  ~EventWork() override { spare_->push_back(std::move(done_)); }
  void wait(Stream& stream) override { backend_.wait(stream, *done_); }
  void wait_host(double) override { backend_.wait_host(*done_); }

 private:
  kernels::Backend& backend_;
  std::unique_ptr<kernels::Event> done_;
  std::shared_ptr<Events> spare_;
};

class SingleRank final : public Communicator {
 public:
  explicit SingleRank(kernels::Backend& backend) : backend_(backend) {}
  std::int64_t rank() const override { return 0; }
  std::int64_t size() const override { return 1; }

  std::unique_ptr<Work> all_reduce(Stream&, const Tensor&, ReduceOp, const CommOptions& options) override {
    return done(options);
  }
  std::unique_ptr<Work> all_gather(Stream& s, const Tensor& x, const Tensor& out,
                                   const CommOptions& options) override {
    return copied(s, x, out, options);
  }
  std::unique_ptr<Work> reduce_scatter(Stream& s, const Tensor& x, const Tensor& out,
                                       const CommOptions& options) override {
    return copied(s, x, out, options);
  }
  std::unique_ptr<Work> all_to_all(Stream& s, const Tensor& x, const Tensor& out,
                                   const CommOptions& options) override {
    return copied(s, x, out, options);
  }
  std::unique_ptr<Work> broadcast(Stream&, const Tensor&, std::int64_t root,
                                  const CommOptions& options) override {
    base::check(root == 0, "the root of a broadcast is a rank of the group");
    return done(options);
  }
  std::unique_ptr<Work> barrier(Stream&, const CommOptions& options) override { return done(options); }
  std::unique_ptr<Work> exchange(Stream&, std::span<const Transfer> sends, std::span<const Transfer> receives,
                                 const CommOptions& options) override {
    base::check(sends.empty() && receives.empty(), "a group of one has no peers to exchange with");
    return done(options);
  }
  void abort() override { aborted_ = true; }

 private:
  std::unique_ptr<Work> done(const CommOptions& options) const {
    if (aborted_) throw base::comm_error(std::string("the communicator was aborted before ") + options.label);
    return std::make_unique<DoneWork>();
  }
  std::unique_ptr<Work> copied(Stream& s, const Tensor& x, const Tensor& out, const CommOptions& options) {
    if (options.progress == Progress::background && backend_.target().runs_behind_host())
      return copied_beside(s, x, out, options);
    if (x.data != out.data) backend_.copy(s, x, out);
    return done(options);
  }
  std::unique_ptr<Work> copied_beside(Stream& s, const Tensor& x, const Tensor& out,
                                      const CommOptions& options) {
    done(options);
    if (!copies_) copies_ = backend_.make_stream("copies", &no_scratch_), begun_ = backend_.make_event();
    backend_.record(s, *begun_);
    backend_.wait(*copies_, *begun_);
    if (x.data != out.data) backend_.copy(*copies_, x, out);
    std::unique_ptr<kernels::Event> over;
    if (spare_->empty()) over = backend_.make_event();
    else over = std::move(spare_->back()), spare_->pop_back();
    backend_.record(*copies_, *over);
    return std::make_unique<EventWork>(backend_, std::move(over), spare_);
  }

  kernels::Backend& backend_;
  kernels::Arena no_scratch_;
  std::unique_ptr<Stream> copies_;         ///< of background copies
  std::unique_ptr<kernels::Event> begun_;  ///< the work that a copy follows
  std::shared_ptr<Events> spare_ = std::make_shared<Events>();
  bool aborted_ = false;
};

}  // namespace

std::unique_ptr<Communicator> make_single_rank(kernels::Backend& backend) {
  return std::make_unique<SingleRank>(backend);
}

}  // namespace trainerd::parallel
