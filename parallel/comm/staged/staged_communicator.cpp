#include "parallel/comm/staged/staged_communicator.h"

#include <algorithm>
#include <deque>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/clock.h"
#include "kernels/base/error.h"
#include "kernels/base/seconds_text.h"
#include "parallel/comm/local_communicator.h"
#include "parallel/comm/op_record.h"
#include "parallel/comm/progress_thread.h"
#include "parallel/comm/staged/slots.h"

namespace trainerd::parallel {
namespace {

using kernels::align_up;
using kernels::kAlignment;
using kernels::Stream;
using kernels::Tensor;

/// Longer than any wait. The operations waited for have their own deadlines.
constexpr double kForever = 1e8;
/// How long a destructor waits for operations to finish, and how long operations may take after an abort.
constexpr double kFinishSeconds = 5;

Tensor piece(std::byte* data, kernels::DType dtype, std::int64_t bytes) {
  return {data, dtype, {bytes / kernels::size_of(dtype)}};
}
Tensor piece(const Tensor& x, std::int64_t begin, std::int64_t bytes) {
  return piece(x.data + begin, x.dtype, bytes);
}

/// Reuses events, so that a step creates none once there are enough.
class EventPool {
 public:
  explicit EventPool(kernels::Backend& backend) : backend_(backend) {}
  std::shared_ptr<kernels::Event> take() {
    const std::lock_guard lock(mutex_);
    if (unused_.empty()) unused_.push_back(backend_.make_event());
    kernels::Event* event = unused_.back().release();
    unused_.pop_back();
    return {event, [this](kernels::Event* e) {
              const std::lock_guard again(mutex_);
              unused_.emplace_back(e);
            }};
  }

 private:
  kernels::Backend& backend_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<kernels::Event>> unused_;
};

/// An operation in progress; for an exchange, its sends.
struct StagedOp {
  OpRecord record;
  Tensor x, out;
  CommOptions options;                    ///< `label` points into `record`
  std::shared_ptr<kernels::Event> ready;  ///< recorded after earlier work on the caller's stream
  std::shared_ptr<kernels::Event> done;   ///< recorded after the copies back to the device
};

struct StagedReceive {
  std::shared_ptr<StagedOp> op;
  std::int64_t peer = 0;
  Tensor tensor;
  bool dropped = false;
};

class StagedCommunicator final : public Communicator {
 public:
  StagedCommunicator(std::unique_ptr<Communicator> inner, kernels::Backend& backend,
                     const StagedOptions& options)
      : inner_(std::move(inner)),
        backend_(backend),
        slots_(backend, options.slot_bytes),
        events_(backend),
        expected_(static_cast<std::size_t>(inner_->size())),
        // No messages to push: `inner` copies sends.
        progress_([](const std::atomic<bool>&) { return true; }, [] {}) {
    progress_.enqueue([this] { backend_.enter_thread(); });
  }
  ~StagedCommunicator() override {
    if (!progress_.finish(base::monotonic_seconds() + kFinishSeconds)) inner_->abort();
  }

  std::int64_t rank() const override { return inner_->rank(); }
  std::int64_t size() const override { return inner_->size(); }

  std::unique_ptr<Work> all_reduce(Stream& s, const Tensor& x, ReduceOp op,
                                   const CommOptions& options) override {
    return start(s, {.kind = OpKind::all_reduce, .reduce = op}, x, x, options);
  }
  std::unique_ptr<Work> all_gather(Stream& s, const Tensor& x, const Tensor& out,
                                   const CommOptions& options) override {
    base::check(out.numel() == x.numel() * size() && out.dtype == x.dtype,
                "all_gather: out holds every rank's x");
    return start(s, {.kind = OpKind::all_gather}, x, out, options);
  }
  std::unique_ptr<Work> reduce_scatter(Stream& s, const Tensor& x, const Tensor& out,
                                       const CommOptions& options) override {
    base::check(x.numel() == out.numel() * size() && out.dtype == x.dtype,
                "reduce_scatter: x holds every rank's out");
    return start(s, {.kind = OpKind::reduce_scatter}, x, out, options);
  }
  std::unique_ptr<Work> all_to_all(Stream& s, const Tensor& x, const Tensor& out,
                                   const CommOptions& options) override {
    base::check(x.numel() == out.numel() && x.numel() % size() == 0 && out.dtype == x.dtype,
                "all_to_all: x and out hold one part for each rank");
    return start(s, {.kind = OpKind::all_to_all}, x, out, options);
  }
  std::unique_ptr<Work> broadcast(Stream& s, const Tensor& x, std::int64_t root,
                                  const CommOptions& options) override {
    base::check(root >= 0 && root < size(), "the root of a broadcast is a rank of the group");
    return start(s, {.root = static_cast<std::int32_t>(root), .kind = OpKind::broadcast}, x, x, options);
  }
  std::unique_ptr<Work> barrier(Stream& s, const CommOptions& options) override {
    return start(s, {.kind = OpKind::barrier}, {}, {}, options);
  }
  std::unique_ptr<Work> exchange(Stream&, std::span<const Transfer> sends, std::span<const Transfer> receives,
                                 const CommOptions&) override;
  void abort() override { inner_->abort(); }

 private:
  using Op = std::shared_ptr<StagedOp>;
  using Receives = std::vector<std::shared_ptr<StagedReceive>>;

  class StagedWork final : public Work {
   public:
    StagedWork(StagedCommunicator& owner, Op op, std::uint64_t ticket, Receives receives = {})
        : owner_(owner), op_(std::move(op)), ticket_(ticket), receives_(std::move(receives)) {}
    ~StagedWork() override {
      if (!receives_.empty()) owner_.drop(std::move(receives_));
    }
    void wait(Stream& stream) override {
      come_to_host(kForever);
      owner_.backend_.wait(stream, *op_->done);
    }
    void wait_host(double deadline_seconds) override {
      come_to_host(deadline_seconds);
      owner_.backend_.wait_host(*op_->done);
    }

   private:
    /// Waits until the host's part is done and `done` is recorded.
    void come_to_host(double deadline_seconds) {
      if (!receives_.empty()) {
        ticket_ = owner_.receive(op_, std::exchange(receives_, {}), deadline_seconds);
        deadline_seconds += kFinishSeconds;  // the receive itself observes the deadline and names the sender
      }
      owner_.await(*op_, ticket_, deadline_seconds);
    }
    StagedCommunicator& owner_;
    Op op_;
    std::uint64_t ticket_;
    Receives receives_;  ///< set for an exchange that has not been waited for
  };

  Op make_op(Stream& stream, OpRecord record, const Tensor& x, const Tensor& out, const CommOptions& options);
  std::unique_ptr<Work> start(Stream& stream, const OpRecord& record, const Tensor& x, const Tensor& out,
                              const CommOptions& options) {
    const Op op = make_op(stream, record, x, out, options);
    return std::make_unique<StagedWork>(*this, op, progress_.enqueue([this, op] { run(*op); }));
  }
  void await(const StagedOp& op, std::uint64_t ticket, double deadline_seconds);
  std::uint64_t receive(const Op& op, Receives receives, double deadline_seconds);
  void drop(Receives receives);

  // On the communicator's thread:
  void run(const StagedOp& op);
  void collective(const StagedOp& op);
  void parts_in(const Tensor& x, std::int64_t at, std::int64_t bytes, std::byte* slot);
  void parts_out(std::byte* slot, const Tensor& out, std::int64_t at, std::int64_t bytes);
  void send(const StagedOp& op, const Transfer& transfer);
  void fill(const StagedReceive& receive, double deadline);

  std::unique_ptr<Communicator> inner_;
  kernels::Backend& backend_;
  Stream host_{"host", nullptr};  ///< stream for calls of `inner`; host tensors need none
  Slots slots_;
  EventPool events_;
  std::uint64_t sequence_ = 0;
  /// By peer, in the order of its sends. Used only by the thread.
  std::vector<std::deque<std::shared_ptr<StagedReceive>>> expected_;
  ProgressThread progress_;
};

StagedCommunicator::Op StagedCommunicator::make_op(Stream& stream, OpRecord record, const Tensor& x,
                                                   const Tensor& out, const CommOptions& options) {
  const Op op = std::make_shared<StagedOp>();
  record.sequence = ++sequence_;
  record.bytes = x.bytes();
  record.dtype = x.dtype;
  record.accumulate = options.accumulate;
  record.set_label(options.label);
  *op = {.record = record,
         .x = x,
         .out = out,
         .options = options,
         .ready = events_.take(),
         .done = events_.take()};
  op->options.label = op->record.label.data();
  op->options.progress = Progress::caller;
  backend_.record(stream, *op->ready);
  return op;
}

void StagedCommunicator::await(const StagedOp& op, std::uint64_t ticket, double deadline_seconds) {
  if (progress_.wait(ticket, base::monotonic_seconds() + deadline_seconds)) return;
  const std::string late =
      describe(op.record) + " was not done in " + base::seconds_text(deadline_seconds) + ": ";
  // The error of the abort names the rank that the operation waited for.
  inner_->abort();
  try {
    progress_.wait(ticket, base::monotonic_seconds() + kFinishSeconds);
  } catch (const base::CommError& error) {
    throw base::comm_error(late + error.what());
  }
  throw base::comm_error(late + "it is behind others, or the device is slow");
}

void StagedCommunicator::run(const StagedOp& op) {
  backend_.wait(slots_.copies(), *op.ready);
  collective(op);
  backend_.record(slots_.copies(), *op.done);
}

/// Copies a piece of every rank's part of `x` into the slot, one after the other.
void StagedCommunicator::parts_in(const Tensor& x, std::int64_t at, std::int64_t bytes, std::byte* slot) {
  for (std::int64_t r = 0; r < size(); ++r)
    slots_.copy(piece(x, r * (x.bytes() / size()) + at, bytes), piece(slot + r * bytes, x.dtype, bytes));
}

void StagedCommunicator::parts_out(std::byte* slot, const Tensor& out, std::int64_t at, std::int64_t bytes) {
  for (std::int64_t r = 0; r < size(); ++r)
    slots_.copy(piece(slot + r * bytes, out.dtype, bytes),
                piece(out, r * (out.bytes() / size()) + at, bytes));
}

// Every operation passes through `inner` at least once, so that ranks meet even without data. A piece is
// loaded before the previous one is stored; this is safe in place because pieces do not overlap.
void StagedCommunicator::collective(const StagedOp& op) {
  const kernels::DType dtype = op.x.dtype;
  const CommOptions& options = op.options;
  const std::int64_t whole = slots_.bytes() / kAlignment * kAlignment;
  const std::int64_t part = slots_.bytes() / size() / kAlignment * kAlignment;
  const std::int64_t half = slots_.bytes() / (2 * size()) / kAlignment * kAlignment;
  /// Divides `total` bytes into pieces of `most`. Each function gets its piece's offset and length.
  const auto pass = [&](std::int64_t total, std::int64_t most, const auto& load, const auto& work,
                        const auto& store) {
    const auto cut = [&](const auto& act) {
      return [&act, total, most](std::int64_t i, std::byte* slot) {
        act(i * most, std::min(most, total - i * most), slot);
      };
    };
    slots_.pass(std::max<std::int64_t>(1, (total + most - 1) / most), cut(load), cut(work), cut(store));
  };
  const auto nothing = [](std::int64_t, std::int64_t, std::byte*) {};
  const auto load_x = [&](std::int64_t at, std::int64_t n, std::byte* slot) {
    slots_.copy(piece(op.x, at, n), piece(slot, dtype, n));
  };
  switch (op.record.kind) {
    case OpKind::all_reduce:
      return pass(
          op.x.bytes(), whole, load_x,
          [&](std::int64_t, std::int64_t n, std::byte* slot) {
            inner_->all_reduce(host_, piece(slot, dtype, n), op.record.reduce, options)->wait(host_);
          },
          [&](std::int64_t at, std::int64_t n, std::byte* slot) {
            slots_.copy(piece(slot, dtype, n), piece(op.x, at, n));
          });
    case OpKind::all_gather:
      return pass(
          op.x.bytes(), part,
          [&](std::int64_t at, std::int64_t n, std::byte* slot) {
            slots_.copy(piece(op.x, at, n), piece(slot + rank() * n, dtype, n));
          },
          [&](std::int64_t, std::int64_t n, std::byte* slot) {
            inner_
                ->all_gather(host_, piece(slot + rank() * n, dtype, n), piece(slot, dtype, n * size()),
                             options)
                ->wait(host_);
          },
          [&](std::int64_t at, std::int64_t n, std::byte* slot) { parts_out(slot, op.out, at, n); });
    case OpKind::reduce_scatter:
      return pass(
          op.out.bytes(), part,
          [&](std::int64_t at, std::int64_t n, std::byte* slot) { parts_in(op.x, at, n, slot); },
          [&](std::int64_t, std::int64_t n, std::byte* slot) {
            inner_
                ->reduce_scatter(host_, piece(slot, dtype, n * size()), piece(slot + rank() * n, dtype, n),
                                 options)
                ->wait(host_);
          },
          [&](std::int64_t at, std::int64_t n, std::byte* slot) {
            slots_.copy(piece(slot + rank() * n, dtype, n), piece(op.out, at, n));
          });
    case OpKind::all_to_all:
      return pass(
          op.x.bytes() / size(), half,
          [&](std::int64_t at, std::int64_t n, std::byte* slot) { parts_in(op.x, at, n, slot); },
          [&](std::int64_t, std::int64_t n, std::byte* slot) {
            inner_
                ->all_to_all(host_, piece(slot, dtype, n * size()),
                             piece(slot + n * size(), dtype, n * size()), options)
                ->wait(host_);
          },
          [&](std::int64_t at, std::int64_t n, std::byte* slot) {
            parts_out(slot + n * size(), op.out, at, n);
          });
    case OpKind::broadcast: {
      const bool root = op.record.root == rank();
      return pass(
          op.x.bytes(), whole,
          [&](std::int64_t at, std::int64_t n, std::byte* slot) {
            if (root) load_x(at, n, slot);
          },
          [&](std::int64_t, std::int64_t n, std::byte* slot) {
            inner_->broadcast(host_, piece(slot, dtype, n), op.record.root, options)->wait(host_);
          },
          [&](std::int64_t at, std::int64_t n, std::byte* slot) {
            if (!root) slots_.copy(piece(slot, dtype, n), piece(op.x, at, n));
          });
    }
    case OpKind::barrier:
      return pass(
          0, whole, nothing,
          [&](std::int64_t, std::int64_t, std::byte*) { inner_->barrier(host_, options)->wait(host_); },
          nothing);
    case OpKind::exchange: break;
  }
  base::check(false, "an exchange is not a collective");
}

// ---- messages

std::unique_ptr<Work> StagedCommunicator::exchange(Stream& stream, std::span<const Transfer> sends,
                                                   std::span<const Transfer> receives,
                                                   const CommOptions& options) {
  const Op op = make_op(stream, {.kind = OpKind::exchange}, {}, {}, options);
  for (const auto& transfers : {sends, receives})
    for (const Transfer& t : transfers) {
      op->record.bytes += t.tensor.bytes();
      op->record.dtype = t.tensor.dtype;
    }
  Receives expected;
  for (const Transfer& t : receives)
    expected.push_back(std::make_shared<StagedReceive>(StagedReceive{op, t.peer, t.tensor}));
  const std::uint64_t ticket =
      progress_.enqueue([this, op, expected, sends = std::vector<Transfer>(sends.begin(), sends.end())] {
        backend_.wait(slots_.copies(), *op->ready);
        for (const auto& r : expected) expected_[static_cast<std::size_t>(r->peer)].push_back(r);
        for (const Transfer& t : sends) send(*op, t);
        backend_.record(slots_.copies(), *op->done);
      });
  return std::make_unique<StagedWork>(*this, op, ticket, std::move(expected));
}

void StagedCommunicator::send(const StagedOp& op, const Transfer& t) {
  const std::int64_t total = t.tensor.bytes(), most = slots_.bytes() / kAlignment * kAlignment;
  const auto length = [&](std::int64_t i) { return std::min(most, total - i * most); };
  slots_.pass(
      std::max<std::int64_t>(1, (total + most - 1) / most),
      [&](std::int64_t i, std::byte* slot) {
        slots_.copy(piece(t.tensor, i * most, length(i)), piece(slot, t.tensor.dtype, length(i)));
      },
      [&](std::int64_t i, std::byte* slot) {
        const Transfer part{t.peer, piece(slot, t.tensor.dtype, length(i))};
        inner_->exchange(host_, {&part, 1}, {}, op.options)->wait(host_);
      },
      [](std::int64_t, std::byte*) {});
}

/// Receives a peer's messages in order, including earlier ones that were not waited for.
std::uint64_t StagedCommunicator::receive(const Op& op, Receives receives, double deadline_seconds) {
  const double deadline = base::monotonic_seconds() + deadline_seconds;
  return progress_.enqueue([this, op, receives = std::move(receives), deadline] {
    for (const auto& wanted : receives) {
      auto& expected = expected_[static_cast<std::size_t>(wanted->peer)];
      while (std::find(expected.begin(), expected.end(), wanted) != expected.end()) {
        const std::shared_ptr<StagedReceive> next = expected.front();
        fill(*next, deadline);
        expected.pop_front();
      }
    }
    backend_.record(slots_.copies(), *op->done);
  });
}

void StagedCommunicator::fill(const StagedReceive& r, double deadline) {
  const std::int64_t total = r.tensor.bytes(), most = slots_.bytes() / kAlignment * kAlignment;
  const auto length = [&](std::int64_t i) { return std::min(most, total - i * most); };
  backend_.wait(slots_.copies(), *r.op->ready);
  slots_.pass(
      std::max<std::int64_t>(1, (total + most - 1) / most), [](std::int64_t, std::byte*) {},
      [&](std::int64_t i, std::byte* slot) {
        const Transfer part{r.peer, piece(slot, r.tensor.dtype, length(i))};
        const std::unique_ptr<Work> work = inner_->exchange(host_, {}, {&part, 1}, r.op->options);
        const double left = deadline - base::monotonic_seconds();
        // Without a deadline, the deadline of `inner` applies.
        if (left > kForever / 2) work->wait(host_);
        else work->wait_host(std::max(left, 0.0));
      },
      [&](std::int64_t i, std::byte* slot) {
        if (!r.dropped)
          slots_.copy(piece(slot, r.tensor.dtype, length(i)), piece(r.tensor, i * most, length(i)));
      });
}

void StagedCommunicator::drop(Receives receives) {
  progress_.enqueue([receives = std::move(receives)] {
    for (const auto& r : receives) r->dropped = true;
  });
}

}  // namespace

std::int64_t staged_bytes(std::int64_t size, const StagedOptions& options) {
  return size > 1 ? 2 * options.slot_bytes : 0;
}

std::unique_ptr<Communicator> make_staged(std::unique_ptr<Communicator> inner, kernels::Backend& backend,
                                          const StagedOptions& options) {
  if (inner->size() == 1) return make_single_rank(backend);
  base::check(options.slot_bytes >= 2 * inner->size() * kAlignment,
              "a slot has room for something of every rank, twice");
  return std::make_unique<StagedCommunicator>(std::move(inner), backend, options);
}

}  // namespace trainerd::parallel
