#include "parallel/comm/shm/shared_communicator.h"

#include "kernels/base/error.h"
#include "kernels/base/seconds_text.h"
#include "parallel/comm/engine_communicator.h"
#include "parallel/comm/shm/collectives.h"
#include "parallel/comm/shm/mailbox.h"

namespace trainerd::parallel {
namespace {

using kernels::Tensor;

/// Engine of EngineCommunicator over shared memory.
class SharedEngine {
 public:
  explicit SharedEngine(const GroupContext& context)
      : context_(context), mailbox_(context_), collectives_(context_, mailbox_) {
    base::check(context_.group.member(context_.rank).taken.exchange(1) == 0,
                "a rank makes its communicator of a group once: both count the group's operations from one");
  }

  std::int64_t rank() const { return context_.rank; }
  std::int64_t size() const { return context_.size(); }
  std::int64_t world_rank() const { return context_.world_rank(context_.rank); }
  const std::string& name() const { return context_.name; }
  double deadline_seconds() const { return context_.deadline_seconds; }
  std::string describe(const OpRecord& record) const { return context_.describe(record); }

  void run(const Operation& op) { collectives_.run(op); }
  std::string missing() const { return context_.missing(collectives_.meeting()); }

  bool send(std::int64_t to, const Tensor& x, const char* label) { return mailbox_.send(to, x, label); }
  MessageTicket post_receive(std::int64_t from, const Tensor& x, const char* label) {
    return mailbox_.post_receive(from, x, label);
  }
  void wait(std::span<const MessageTicket> receives, double deadline_seconds) {
    mailbox_.wait(receives, deadline_seconds);
  }
  void drop(const MessageTicket& receive) { mailbox_.drop(receive); }

  bool push(const std::atomic<bool>& interrupt) {
    // Woken when a receiver has made room, and by `wake`.
    bool all = false;
    const double deadline = base::monotonic_seconds() + context_.deadline_seconds;
    if (!wait_on(context_.notifier(), deadline, 0, [&] { return (all = mailbox_.flush()) || interrupt; }))
      fail("messages of rank " + std::to_string(world_rank()) + " in group " + context_.name +
           " were not received for " + base::seconds_text(context_.deadline_seconds) +
           "; see what became of the ranks it sends to");
    return all;
  }
  void wake() { notify(context_.notifier()); }

  void throw_if_ended(const OpRecord& record) const { context_.throw_if_ended(record); }
  [[noreturn]] void fail(const std::string& text) const { context_.fail(text); }
  void abort(const std::string& why) const { context_.world.abort(why); }

 private:
  GroupContext context_;
  Mailbox mailbox_;
  Collectives collectives_;
};

}  // namespace

std::unique_ptr<Communicator> make_shared_communicator(const GroupContext& context, kernels::Backend& backend,
                                                       FlightRecorder* recorder) {
  return std::make_unique<EngineCommunicator<SharedEngine>>(std::make_unique<SharedEngine>(context), backend,
                                                            recorder);
}

}  // namespace trainerd::parallel
