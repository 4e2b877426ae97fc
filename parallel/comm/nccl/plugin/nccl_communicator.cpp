#include "parallel/comm/nccl/plugin/nccl_communicator.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "kernels/base/clock.h"
#include "kernels/cuda/runtime/check_runtime.h"
#include "kernels/cuda/runtime/cuda_stream.h"
#include "parallel/comm/nccl/plugin/nccl_rank_world.h"

namespace trainerd::parallel {
namespace {

using kernels::DType;
using kernels::Stream;
using kernels::Tensor;
using kernels::cuda::check;
using kernels::cuda::stream_of;

constexpr double kFinishSeconds = 5;
constexpr std::chrono::microseconds kPollInterval(50);

ncclDataType_t nccl_type(DType dtype) {
  switch (dtype) {
    case DType::f32: return ncclFloat32;
    case DType::bf16: return ncclBfloat16;
    case DType::f16: return ncclHalf;
    case DType::i32: return ncclInt32;
    case DType::f64: return ncclFloat64;
    case DType::u8: return ncclUint8;
  }
  base::check(false, "NCCL knows every dtype of ours");
  return ncclUint8;
}

ncclRedOp_t nccl_op(ReduceOp op) { return op == ReduceOp::sum ? ncclSum : ncclMax; }

/// NCCL adds in the tensor's dtype, or bf16 and fp16 in fp32. Throws std::logic_error if `accumulate` is
/// wider.
void require_accumulation(const Tensor& x, const CommOptions& options) {
  const bool wider = options.accumulate == DType::f64 && x.dtype != DType::f64;
  base::check(!wider || x.dtype == DType::i32 || x.dtype == DType::u8,
              "NCCL does not accumulate fp32, bf16 or fp16 summands in fp64");
}

std::size_t count_of(const Tensor& x) { return static_cast<std::size_t>(x.numel()); }

bool good(ncclResult_t result) { return result == ncclSuccess || result == ncclInProgress; }

/// Closes a group that was opened, also after an error in it.
ncclResult_t end_group(ncclResult_t result) {
  const ncclResult_t ended = ncclGroupEnd();
  return good(result) ? ended : result;
}

cudaEvent_t make_event() {
  cudaEvent_t event = nullptr;
  check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "making an event");
  return event;
}

bool is_done(cudaEvent_t event) {
  const cudaError_t state = cudaEventQuery(event);
  if (state != cudaErrorNotReady) check(state, "asking for an event");
  return state == cudaSuccess;
}

}  // namespace

class NcclCommunicator::NcclWork final : public Work {
 public:
  NcclWork(NcclCommunicator& owner, Flight flight) : owner_(owner), flight_(std::move(flight)) {}
  void wait(Stream& stream) override {
    owner_.world_.throw_if_ended(owner_.describe(flight_->record));
    check(cudaStreamWaitEvent(stream_of(stream), flight_->done, 0), "waiting for a communication");
  }
  void wait_host(double deadline_seconds) override { owner_.wait_host(*flight_, deadline_seconds); }

 private:
  NcclCommunicator& owner_;
  Flight flight_;
};

NcclCommunicator::NcclCommunicator(NcclRankWorld& world, std::shared_ptr<NcclLink> link, NcclGroup group,
                                   kernels::Backend& backend, FlightRecorder* recorder)
    : world_(world), link_(std::move(link)), group_(std::move(group)), recorder_(recorder) {
  base::check(backend.target().kind == kernels::DeviceKind::cuda, "NCCL is for CUDA devices");
  rank_ = std::find(group_.ranks.begin(), group_.ranks.end(), world_.options().rank) - group_.ranks.begin();
  barrier_ = backend.allocate(kernels::MemoryKind::device, kernels::kAlignment);
  int least = 0, greatest = 0;
  check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "making a stream");
  // Highest priority: its kernels are few, and others wait for them.
  check(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, greatest), "making a stream");
  ready_ = make_event();
  world_.watch(this);
}

NcclCommunicator::~NcclCommunicator() {
  world_.forget(this);
  const double deadline = base::monotonic_seconds() + kFinishSeconds;
  bool finished = false;
  if (!world_.ended()) {
    try {
      const auto left = [&] {
        const std::lock_guard lock(mutex_);
        land(base::monotonic_seconds());
        return !flights_.empty();
      };
      bool waiting = left();
      while (waiting && base::monotonic_seconds() < deadline && !world_.ended()) {
        std::this_thread::sleep_for(kPollInterval);
        waiting = left();
      }
      finished = !waiting && link_->finish(deadline);
    } catch (const base::Error&) {
      // The device has failed, so nothing can finish.
    }
  }
  if (!finished)
    world_.end("rank " + std::to_string(world_.options().rank) + " left group " + group_.name +
               " with operations under way");
  flights_.clear();
  for (cudaEvent_t event : unused_) cudaEventDestroy(event);
  cudaEventDestroy(ready_);
  cudaStreamDestroy(stream_);
}

// ---- operations

std::unique_ptr<Work> NcclCommunicator::all_reduce(Stream& s, const Tensor& x, ReduceOp op,
                                                   const CommOptions& options) {
  require_accumulation(x, options);
  return start(s, {.bytes = x.bytes(), .kind = OpKind::all_reduce, .dtype = x.dtype, .reduce = op}, {},
               options, [&](ncclComm_t comm, cudaStream_t stream) {
                 return ncclAllReduce(x.data, x.data, count_of(x), nccl_type(x.dtype), nccl_op(op), comm,
                                      stream);
               });
}

std::unique_ptr<Work> NcclCommunicator::all_gather(Stream& s, const Tensor& x, const Tensor& out,
                                                   const CommOptions& options) {
  base::check(out.numel() == x.numel() * size() && out.dtype == x.dtype,
              "all_gather: out holds every rank's x");
  return start(s, {.bytes = x.bytes(), .kind = OpKind::all_gather, .dtype = x.dtype}, {}, options,
               [&](ncclComm_t comm, cudaStream_t stream) {
                 return ncclAllGather(x.data, out.data, count_of(x), nccl_type(x.dtype), comm, stream);
               });
}

std::unique_ptr<Work> NcclCommunicator::reduce_scatter(Stream& s, const Tensor& x, const Tensor& out,
                                                       const CommOptions& options) {
  base::check(x.numel() == out.numel() * size() && out.dtype == x.dtype,
              "reduce_scatter: x holds every rank's out");
  require_accumulation(x, options);
  return start(s, {.bytes = x.bytes(), .kind = OpKind::reduce_scatter, .dtype = x.dtype}, {}, options,
               [&](ncclComm_t comm, cudaStream_t stream) {
                 return ncclReduceScatter(x.data, out.data, count_of(out), nccl_type(x.dtype), ncclSum, comm,
                                          stream);
               });
}

std::unique_ptr<Work> NcclCommunicator::all_to_all(Stream& s, const Tensor& x, const Tensor& out,
                                                   const CommOptions& options) {
  base::check(x.numel() == out.numel() && x.numel() % size() == 0 && out.dtype == x.dtype,
              "all_to_all: x and out hold one part for each rank");
  base::check(x.data != out.data || x.bytes() == 0, "NCCL's all_to_all is not in place");
  const std::int64_t part = x.bytes() / size();
  return start(s, {.bytes = x.bytes(), .kind = OpKind::all_to_all, .dtype = x.dtype}, {}, options,
               [&](ncclComm_t comm, cudaStream_t stream) {
                 const std::size_t count = count_of(x) / static_cast<std::size_t>(size());
                 ncclResult_t result = ncclGroupStart();
                 for (int r = 0; r < size() && good(result); ++r) {
                   result = ncclSend(x.data + r * part, count, nccl_type(x.dtype), r, comm, stream);
                   if (good(result))
                     result = ncclRecv(out.data + r * part, count, nccl_type(x.dtype), r, comm, stream);
                 }
                 return end_group(result);
               });
}

std::unique_ptr<Work> NcclCommunicator::broadcast(Stream& s, const Tensor& x, std::int64_t root,
                                                  const CommOptions& options) {
  base::check(root >= 0 && root < size(), "the root of a broadcast is a rank of the group");
  return start(s,
               {.bytes = x.bytes(),
                .root = static_cast<std::int32_t>(root),
                .kind = OpKind::broadcast,
                .dtype = x.dtype},
               {}, options, [&](ncclComm_t comm, cudaStream_t stream) {
                 return ncclBroadcast(x.data, x.data, count_of(x), nccl_type(x.dtype), static_cast<int>(root),
                                      comm, stream);
               });
}

std::unique_ptr<Work> NcclCommunicator::barrier(Stream& s, const CommOptions& options) {
  return start(s, {.bytes = 4, .kind = OpKind::barrier}, {}, options,
               [&](ncclComm_t comm, cudaStream_t stream) {
                 return ncclAllReduce(barrier_.data(), barrier_.data(), 1, ncclInt32, ncclSum, comm, stream);
               });
}

std::unique_ptr<Work> NcclCommunicator::exchange(Stream& s, std::span<const Transfer> sends,
                                                 std::span<const Transfer> receives,
                                                 const CommOptions& options) {
  OpRecord record{.kind = OpKind::exchange};
  std::vector<std::int64_t> peers;
  for (const auto& transfers : {sends, receives})
    for (const Transfer& t : transfers) {
      base::check(t.peer >= 0 && t.peer < size(), "the peer of a transfer is a rank of the group");
      record.bytes += t.tensor.bytes();
      record.dtype = t.tensor.dtype;
      if (std::find(peers.begin(), peers.end(), world_rank(t.peer)) == peers.end())
        peers.push_back(world_rank(t.peer));
    }
  return start(s, record, std::move(peers), options, [&](ncclComm_t comm, cudaStream_t stream) {
    ncclResult_t result = ncclGroupStart();
    // Transfers of zero bytes are skipped; both sides know their sizes.
    for (const Transfer& t : sends)
      if (good(result) && t.tensor.bytes() > 0)
        result = ncclSend(t.tensor.data, count_of(t.tensor), nccl_type(t.tensor.dtype),
                          static_cast<int>(t.peer), comm, stream);
    for (const Transfer& t : receives)
      if (good(result) && t.tensor.bytes() > 0)
        result = ncclRecv(t.tensor.data, count_of(t.tensor), nccl_type(t.tensor.dtype),
                          static_cast<int>(t.peer), comm, stream);
    return end_group(result);
  });
}

void NcclCommunicator::abort() {
  world_.abort("rank " + std::to_string(world_.options().rank) + " aborted group " + group_.name);
}

std::unique_ptr<Work> NcclCommunicator::start(Stream& stream, OpRecord record,
                                              std::vector<std::int64_t> peers, const CommOptions& options,
                                              const Act& act) {
  record.sequence = record.kind == OpKind::exchange ? ++exchanges_ : ++sequence_;
  record.accumulate = options.accumulate;
  record.set_label(options.label);
  const std::string what = describe(record);
  world_.throw_if_ended(what);
  const Flight flight = take_flight();
  flight->record = record;
  flight->peers = std::move(peers);
  flight->called_at = base::monotonic_seconds();
  if (recorder_ != nullptr) {
    FlightRecord note{.sequence = record.sequence,
                      .bytes = record.bytes,
                      .group_size = static_cast<std::int32_t>(size()),
                      .dtype = record.dtype};
    put_text(note.op, to_string(record.kind));
    put_text(note.group, group_.name);
    put_text(note.label, record.label.data());
    flight->order = recorder_->enqueued(note);
  }
  check(cudaEventRecord(ready_, stream_of(stream)), "ordering a communication");
  check(cudaStreamWaitEvent(stream_, ready_, 0), "ordering a communication");
  check(cudaEventRecord(flight->begun, stream_), "ordering a communication");
  {
    const std::lock_guard lock(mutex_);
    land(flight->called_at);
    flights_.push_back(flight);
  }
  if (record.bytes > 0) {
    try {
      link_->call(
          what.c_str(), [&](ncclComm_t comm) { return act(comm, stream_); },
          [&] { world_.throw_if_ended(what); });
    } catch (const base::CommError& error) {
      world_.end(error.what());
      throw;
    }
  }
  check(cudaEventRecord(flight->done, stream_), "ordering a communication");
  const std::lock_guard lock(mutex_);
  flight->started = true;
  return std::make_unique<NcclWork>(*this, flight);
}

NcclCommunicator::Flight NcclCommunicator::take_flight() {
  const auto event = [&] {
    const std::lock_guard lock(events_mutex_);
    if (unused_.empty()) unused_.push_back(make_event());
    const cudaEvent_t taken = unused_.back();
    unused_.pop_back();
    return taken;
  };
  const Flight flight(new NcclFlight, [this](NcclFlight* f) {
    {
      const std::lock_guard lock(events_mutex_);
      for (const cudaEvent_t e : {f->begun, f->done})
        if (e != nullptr) unused_.push_back(e);
    }
    delete f;
  });
  flight->begun = event();
  flight->done = event();
  return flight;
}

// ---- operations in progress

void NcclCommunicator::land(double now) {
  while (!flights_.empty()) {
    NcclFlight& f = *flights_.front();
    if (!f.started) return;
    if (f.begun_at == 0 && is_done(f.begun)) {
      f.begun_at = now;
      if (recorder_ != nullptr) recorder_->started(f.order);
    }
    if (!is_done(f.done)) return;
    if (recorder_ != nullptr) recorder_->done(f.order);
    flights_.pop_front();
  }
}

std::optional<NcclWait> NcclCommunicator::oldest() {
  const std::lock_guard lock(mutex_);
  land(base::monotonic_seconds());
  if (flights_.empty()) return std::nullopt;
  return wait_of(*flights_.front());
}

NcclWait NcclCommunicator::wait_of(const NcclFlight& f) const {
  // Until NCCL has started an operation, it waits for peers to connect, so the wait counts from the call.
  return {.what = describe(f.record),
          .group =
              group_.name + "-" + std::to_string(*std::min_element(group_.ranks.begin(), group_.ranks.end())),
          .number = f.record.sequence,
          .members = group_.ranks,
          .peers = f.peers,
          .since = f.started ? f.begun_at : f.called_at};
}

void NcclCommunicator::wait_host(const NcclFlight& flight, double deadline_seconds) {
  const double deadline = base::monotonic_seconds() + deadline_seconds;
  for (;;) {
    world_.throw_if_ended(describe(flight.record));
    if (is_done(flight.done)) return;
    if (base::monotonic_seconds() >= deadline) break;
    std::this_thread::sleep_for(kPollInterval);
  }
  NcclWait wait;
  {
    const std::lock_guard lock(mutex_);
    wait = wait_of(flight);
  }
  world_.end(world_.late_text(wait, deadline_seconds));
  world_.throw_if_ended(wait.what);
}

std::string NcclCommunicator::describe(const OpRecord& record) const {
  return parallel::describe(record) + " (number " + std::to_string(record.sequence) + " of group " +
         group_.name + ")";
}

}  // namespace trainerd::parallel
