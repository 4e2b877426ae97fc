#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/clock.h"
#include "kernels/base/error.h"
#include "kernels/base/seconds_text.h"
#include "parallel/comm/communicator.h"
#include "parallel/comm/flight_recorder.h"
#include "parallel/comm/op_record.h"
#include "parallel/comm/progress_thread.h"

namespace trainerd::parallel {

/// The common part of the host-side communicators: argument checks, sequence numbers, the flight recorder,
/// and background collectives. An engine moves the data (through shared memory or a network).
///
/// Collectives run in the calling thread or in a thread of the communicator (CommOptions::progress). The
/// sends of an exchange are copied and never block; its receives are filled once it has been waited for.
/// Calls on one communicator come from one thread. A Work must not outlive its communicator. A Work destroyed
/// without a wait gives up its receives (which, over a network, ends the world). Any error ends the world,
/// because a collective cannot continue halfway.
///
/// Engine: rank(), size(), world_rank(), name(), deadline_seconds(), describe(record);
///   run(operation): runs a collective to its end, one thread at a time; missing(): the ranks it waits for;
///   send(to, x, label): false if push(interrupt) must follow; wake(): ends the sleep of a push;
///   post_receive(from, x, label), wait(tickets, deadline_seconds), drop(ticket): from one thread;
///   throw_if_ended(record); fail(text): ends the world and throws CommError;
///   abort(why): ends the world, from any thread.
template <class Engine>
class EngineCommunicator final : public Communicator {
  using Stream = kernels::Stream;
  using Tensor = kernels::Tensor;
  /// How long a destructor waits for messages and background operations to finish.
  static constexpr double kFinishSeconds = 5;

 public:
  EngineCommunicator(std::unique_ptr<Engine> engine, kernels::Backend& backend, FlightRecorder* recorder)
      : engine_(std::move(engine)), recorder_(recorder) {
    base::check(backend.target().kind == kernels::DeviceKind::cpu, "this communicator is for CPU tensors");
  }
  ~EngineCommunicator() override {
    if (progress_ && !progress_->finish(base::monotonic_seconds() + kFinishSeconds))
      engine_->abort(who() + " left group " + engine_->name() + " with operations under way");
  }

  std::int64_t rank() const override { return engine_->rank(); }
  std::int64_t size() const override { return engine_->size(); }

  std::unique_ptr<Work> all_reduce(Stream&, const Tensor& x, ReduceOp op,
                                   const CommOptions& options) override {
    return collective({.kind = OpKind::all_reduce, .reduce = op}, x, x, options);
  }
  std::unique_ptr<Work> all_gather(Stream&, const Tensor& x, const Tensor& out,
                                   const CommOptions& options) override {
    base::check(out.numel() == x.numel() * size() && out.dtype == x.dtype,
                "all_gather: out holds every rank's x");
    return collective({.kind = OpKind::all_gather}, x, out, options);
  }
  std::unique_ptr<Work> reduce_scatter(Stream&, const Tensor& x, const Tensor& out,
                                       const CommOptions& options) override {
    base::check(x.numel() == out.numel() * size() && out.dtype == x.dtype,
                "reduce_scatter: x holds every rank's out");
    return collective({.kind = OpKind::reduce_scatter}, x, out, options);
  }
  std::unique_ptr<Work> all_to_all(Stream&, const Tensor& x, const Tensor& out,
                                   const CommOptions& options) override {
    base::check(x.numel() == out.numel() && x.numel() % size() == 0 && out.dtype == x.dtype,
                "all_to_all: x and out hold one part for each rank");
    return collective({.kind = OpKind::all_to_all}, x, out, options);
  }
  std::unique_ptr<Work> broadcast(Stream&, const Tensor& x, std::int64_t root,
                                  const CommOptions& options) override {
    base::check(root >= 0 && root < size(), "the root of a broadcast is a rank of the group");
    return collective({.root = static_cast<std::int32_t>(root), .kind = OpKind::broadcast}, x, x, options);
  }
  std::unique_ptr<Work> barrier(Stream&, const CommOptions& options) override {
    return collective({.kind = OpKind::barrier}, {}, {}, options);
  }

  std::unique_ptr<Work> exchange(Stream&, std::span<const Transfer> sends, std::span<const Transfer> receives,
                                 const CommOptions& options) override {
    OpRecord record{.sequence = ++exchanges_, .kind = OpKind::exchange};
    record.set_label(options.label);
    for (const auto& transfers : {sends, receives})
      for (const Transfer& t : transfers) {
        record.bytes += t.tensor.bytes();
        record.dtype = t.tensor.dtype;
      }
    engine_->throw_if_ended(record);
    const std::uint64_t flight = note(record);
    note_started(flight);
    bool sent = true;
    for (const Transfer& t : sends) sent = engine_->send(t.peer, t.tensor, options.label) && sent;
    if (!sent) progress().push_soon();
    std::vector<MessageTicket> tickets;
    tickets.reserve(receives.size());
    for (const Transfer& t : receives)
      tickets.push_back(engine_->post_receive(t.peer, t.tensor, options.label));
    if (receives.empty()) note_done(flight);
    return std::make_unique<ExchangeWork>(*this, std::move(tickets), flight);
  }

  void abort() override { engine_->abort(who() + " aborted group " + engine_->name()); }

 private:
  class DoneWork final : public Work {
   public:
    void wait(Stream&) override {}
    void wait_host(double) override {}
  };

  class BackgroundWork final : public Work {
   public:
    BackgroundWork(EngineCommunicator& owner, const OpRecord& record, std::uint64_t ticket)
        : owner_(owner), record_(record), ticket_(ticket) {}
    void wait(Stream&) override { wait_host(owner_.engine_->deadline_seconds()); }
    void wait_host(double deadline_seconds) override {
      owner_.wait_background(record_, ticket_, deadline_seconds);
    }

   private:
    EngineCommunicator& owner_;
    OpRecord record_;
    std::uint64_t ticket_;
  };

  class ExchangeWork final : public Work {
   public:
    ExchangeWork(EngineCommunicator& owner, std::vector<MessageTicket> receives, std::uint64_t flight)
        : owner_(owner), receives_(std::move(receives)), flight_(flight), done_(receives_.empty()) {}
    ~ExchangeWork() override {
      if (done_) return;
      for (const MessageTicket& ticket : receives_) owner_.engine_->drop(ticket);
    }
    void wait(Stream&) override { wait_host(owner_.engine_->deadline_seconds()); }
    void wait_host(double deadline_seconds) override {
      if (done_) return;
      owner_.engine_->wait(receives_, deadline_seconds);
      done_ = true;
      owner_.note_done(flight_);
    }

   private:
    EngineCommunicator& owner_;
    std::vector<MessageTicket> receives_;
    std::uint64_t flight_;
    bool done_;
  };

  /// Fills in `record` and runs the operation.
  std::unique_ptr<Work> collective(OpRecord record, const Tensor& x, const Tensor& out,
                                   const CommOptions& options) {
    record.sequence = ++sequence_;
    record.bytes = x.bytes();
    record.dtype = x.dtype;
    record.accumulate = options.accumulate;
    record.set_label(options.label);
    const Operation op{.record = record, .x = x, .out = out, .flight = note(record)};
    if (options.progress == Progress::background)
      return std::make_unique<BackgroundWork>(*this, record, progress().enqueue([this, op] { run(op); }));
    // Operations keep their order: wait for those in progress first.
    if (progress_) wait_background(record, progress_->last_ticket(), engine_->deadline_seconds());
    run(op);
    return std::make_unique<DoneWork>();
  }

  void run(const Operation& op) {
    note_started(op.flight);
    engine_->run(op);
    note_done(op.flight);
  }

  void wait_background(const OpRecord& record, std::uint64_t ticket, double deadline_seconds) {
    if (progress_->wait(ticket, base::monotonic_seconds() + deadline_seconds)) return;
    const std::string missing = engine_->missing();
    engine_->fail(engine_->describe(record) + " was not done in " + base::seconds_text(deadline_seconds) +
                  (missing.empty() ? ": it is behind others, or slow"
                                   : ", waiting for " + missing + "; see what became of them there"));
  }

  /// Made on first use, because most communicators never do anything in the background.
  ProgressThread& progress() {
    if (!progress_)
      progress_ = std::make_unique<ProgressThread>(
          [this](const std::atomic<bool>& interrupt) { return engine_->push(interrupt); },
          [this] { engine_->wake(); });
    return *progress_;
  }

  std::string who() const { return "rank " + std::to_string(engine_->world_rank()); }

  std::uint64_t note(const OpRecord& record) const {
    if (recorder_ == nullptr) return 0;
    FlightRecord flight;
    flight.sequence = record.sequence;
    flight.bytes = record.bytes;
    flight.group_size = static_cast<std::int32_t>(size());
    flight.dtype = record.dtype;
    put_text(flight.op, to_string(record.kind));
    put_text(flight.group, engine_->name());
    put_text(flight.label, record.label.data());
    return recorder_->enqueued(flight);
  }
  void note_started(std::uint64_t flight) const {
    if (recorder_ != nullptr) recorder_->started(flight);
  }
  void note_done(std::uint64_t flight) const {
    if (recorder_ != nullptr) recorder_->done(flight);
  }

  std::unique_ptr<Engine> engine_;
  FlightRecorder* recorder_;
  std::uint64_t sequence_ = 0;   ///< number of collectives
  std::uint64_t exchanges_ = 0;  ///< counted separately, because members of a group exchange unequally often
  std::unique_ptr<ProgressThread> progress_;
};

}  // namespace trainerd::parallel
