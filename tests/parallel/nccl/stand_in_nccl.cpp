// NCCL between threads of one process: calls are matched by their number, data is in host memory, and the
// device's part runs on streams.

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "kernels/tensor/dtype.h"
#include "nccl.h"

namespace {

using trainerd::kernels::Bf16;
using trainerd::kernels::Fp16;

/// Number of polls after each call for which a communicator is in progress.
constexpr int kTimesInProgress = 3;

/// One collective: each rank's input, and the number of ranks that have reached each of its two barriers.
struct Call {
  std::vector<const std::byte*> in;
  std::array<int, 2> met{};
};
struct Message {
  const std::byte* data;
  std::size_t bytes;
  bool taken = false;
};
/// State shared by all ranks of a communicator. One global lock is enough for small tests.
struct Group {
  explicit Group(int n) : size(n) {}
  int size;
  int joined = 0;
  bool broken = false;  // a member was aborted: its memory may be gone
  std::map<long, Call> calls;
  std::map<std::pair<int, int>, std::deque<std::shared_ptr<Message>>> messages;  // from, to
  struct Split {
    int asked = 0;
    std::vector<std::pair<int, int>> wants;  // color, key; by rank
    std::map<int, std::shared_ptr<Group>> made;
  };
  std::map<long, Split> splits;
};

std::mutex mutex;
std::condition_variable changed;
std::map<std::string, std::shared_ptr<Group>> groups_by_id;
std::map<std::string, std::vector<int>> devices_by_id;
std::map<int, ncclResult_t> broken;
std::string misuse;
int left = 0;

}  // namespace

/// One rank's state, also held by its work on streams.
struct CommState {
  std::shared_ptr<Group> group;
  int rank = 0, device = 0;
  long calls = 0, splits = 0;
  bool aborted = false, finalised = false;
  int in_progress = 0;                                 // polls left that report "in progress"
  int on_device = 0;                                   // operations that are not complete
  std::function<bool()> joined = [] { return true; };  // true if the call needs no other rank
  std::function<void()> launch;
};
struct ncclComm {
  std::shared_ptr<CommState> state = std::make_shared<CommState>();
};

namespace {

using State = std::shared_ptr<CommState>;
using Lock = std::unique_lock<std::mutex>;

ncclResult_t misused(const std::string& how) {
  if (misuse.empty()) misuse = how;
  return ncclInvalidUsage;
}

ncclComm_t make(std::shared_ptr<Group> group, int rank, int device) {
  auto* comm = new ncclComm;
  comm->state->group = std::move(group);
  comm->state->rank = rank;
  comm->state->device = device;
  ++comm->state->group->joined;
  comm->state->in_progress = kTimesInProgress;
  comm->state->joined = [g = comm->state->group] { return g->joined == g->size; };
  ++left;
  changed.notify_all();
  return comm;
}

/// Puts the device's part on the stream once the call is no longer in progress.
ncclResult_t begin(ncclComm_t comm, cudaStream_t stream, std::function<void(const State&)> device) {
  const State s = comm->state;
  if (s->in_progress > 0 || s->finalised)
    return misused("a call on a communicator that is in progress or finalised");
  s->in_progress = kTimesInProgress;
  ++s->on_device;
  s->joined = [] { return true; };
  s->launch = [=] {
    trainerd::test::enqueue(stream, [=] {
      device(s);
      const Lock lock(mutex);
      --s->on_device;
      changed.notify_all();
    });
  };
  return ncclInProgress;
}

/// Waits for `ready`. False if the communicator was aborted first. If another member was aborted, `ready`
/// never counts.
template <class Ready>
bool wait(Lock& lock, const State& s, const Ready& ready) {
  changed.wait(lock, [&] { return s->aborted || (!s->group->broken && ready()); });
  return !s->aborted;
}

std::size_t size_of(ncclDataType_t type) {
  return type == ncclUint8 ? 1 : type == ncclBfloat16 || type == ncclHalf ? 2 : type == ncclFloat64 ? 8 : 4;
}

template <class T>
void combine(T* into, const std::byte* from, std::size_t count, ncclRedOp_t op) {
  const auto* x = reinterpret_cast<const T*>(from);
  for (std::size_t i = 0; i < count; ++i) {
    if constexpr (sizeof(T) == 2) {
      using trainerd::kernels::rounded_to, trainerd::kernels::to_float;
      const float a = to_float(into[i]), b = to_float(x[i]);
      into[i] = rounded_to<T>(op == ncclSum ? a + b : std::max(a, b));  // rounded at every hop
    } else {
      into[i] = static_cast<T>(op == ncclSum ? into[i] + x[i] : std::max(into[i], x[i]));
    }
  }
}
void combine(ncclDataType_t type, std::byte* into, const std::byte* from, std::size_t count, ncclRedOp_t op) {
  switch (type) {
    case ncclUint8: return combine(reinterpret_cast<unsigned char*>(into), from, count, op);
    case ncclInt32: return combine(reinterpret_cast<int*>(into), from, count, op);
    case ncclFloat32: return combine(reinterpret_cast<float*>(into), from, count, op);
    case ncclFloat64: return combine(reinterpret_cast<double*>(into), from, count, op);
    case ncclBfloat16: return combine(reinterpret_cast<Bf16*>(into), from, count, op);
    case ncclHalf: return combine(reinterpret_cast<Fp16*>(into), from, count, op);
  }
}

/// Every rank gives `in`. When all results are computed, the rank writes `result(inputs, rank)` to `out`.
ncclResult_t collective(
    ncclComm_t comm, cudaStream_t stream, const void* in, void* out,
    std::function<std::vector<std::byte>(const std::vector<const std::byte*>&, int rank)> result) {
  const Lock lock(mutex);
  const long number = comm->state->calls++;
  return begin(comm, stream, [=](const State& s) {
    Lock held(mutex);
    Call& call = s->group->calls[number];
    call.in.resize(static_cast<std::size_t>(s->group->size));
    call.in[static_cast<std::size_t>(s->rank)] = static_cast<const std::byte*>(in);
    const auto meet = [&](std::size_t which) {
      ++call.met[which];
      changed.notify_all();
      return wait(held, s, [&] { return call.met[which] == s->group->size; });
    };
    if (!meet(0)) return;
    const std::vector<std::byte> made = result(call.in, s->rank);
    if (!meet(1)) return;
    if (!made.empty()) std::memcpy(out, made.data(), made.size());
  });
}

/// The sum of the ranks' parts at `begin` in the order of a ring that starts at rank `first`.
std::vector<std::byte> reduced(const std::vector<const std::byte*>& in, ncclDataType_t type,
                               std::size_t begin, std::size_t count, ncclRedOp_t op, int first) {
  const std::size_t bytes = count * size_of(type), n = in.size();
  const std::byte* start = in[static_cast<std::size_t>(first) % n] + begin;
  std::vector<std::byte> sum(start, start + bytes);
  for (std::size_t k = 1; k < n; ++k)
    combine(type, sum.data(), in[(static_cast<std::size_t>(first) + k) % n] + begin, count, op);
  return sum;
}

struct QueuedTransfer {
  std::byte* data;
  std::size_t bytes;
  int peer;
  bool send;
};
thread_local int group_depth = 0;
thread_local ncclComm_t group_comm = nullptr;
thread_local cudaStream_t group_stream = nullptr;
thread_local std::vector<QueuedTransfer> group_transfers;

ncclResult_t transfer(ncclComm_t comm, cudaStream_t stream, QueuedTransfer t) {
  if (group_depth == 0) return misused("a transfer outside a group");
  group_comm = comm, group_stream = stream;
  group_transfers.push_back(t);
  return ncclSuccess;
}

}  // namespace

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  static std::atomic<int> next = 0;
  *id = {};
  std::snprintf(id->internal, sizeof(id->internal), "stand-in %d", ++next);
  return ncclSuccess;
}
const char* ncclGetErrorString(ncclResult_t result) {
  return result == ncclRemoteError    ? "remote process exited or there was a network error"
         : result == ncclInvalidUsage ? "invalid usage"
                                      : "error";
}
const char* ncclGetLastError(ncclComm_t) { return "the stand-in's words"; }

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  const Lock lock(mutex);
  if (config->blocking != 0) return misused("a communicator that blocks");
  int device = 0;
  cudaGetDevice(&device);
  std::vector<int>& devices = devices_by_id[id.internal];
  if (std::find(devices.begin(), devices.end(), device) != devices.end())
    return ncclInvalidUsage;  // like NCCL
  devices.push_back(device);
  std::shared_ptr<Group>& group = groups_by_id[id.internal];
  if (!group) group = std::make_shared<Group>(ranks);
  *comm = make(group, rank, device);
  return ncclInProgress;
}

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* made, ncclConfig_t* config) {
  const Lock lock(mutex);
  const State s = comm->state;
  if (s->in_progress > 0 || config->blocking != 0)
    return misused("a split of a communicator that is in progress, or one that blocks");
  Group::Split& split = s->group->splits[s->splits++];
  split.wants.resize(static_cast<std::size_t>(s->group->size), {NCCL_SPLIT_NOCOLOR, 0});
  split.wants[static_cast<std::size_t>(s->rank)] = {color, key};
  ++split.asked;
  s->in_progress = kTimesInProgress;
  s->joined = [&split, n = s->group->size] { return split.asked == n; };
  *made = nullptr;
  // The peers are known when all ranks have called: then the communicator is created.
  s->launch = [=, &split] {
    if (color == NCCL_SPLIT_NOCOLOR) return;
    std::vector<std::pair<int, int>> members;  // key, rank
    for (std::size_t r = 0; r < split.wants.size(); ++r)
      if (split.wants[r].first == color) members.emplace_back(split.wants[r].second, static_cast<int>(r));
    std::sort(members.begin(), members.end());
    std::shared_ptr<Group>& group = split.made[color];
    if (!group) group = std::make_shared<Group>(static_cast<int>(members.size()));
    const auto mine = std::find(members.begin(), members.end(), std::pair(key, s->rank));
    *made = make(group, static_cast<int>(mine - members.begin()), s->device);
  };
  changed.notify_all();
  return ncclSuccess;  // as NCCL 2.28 does: `comm` is in progress, and `*made` is null until it is done
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state) {
  const Lock lock(mutex);
  const State s = comm->state;
  *state = ncclSuccess;
  if (const auto error = broken.find(s->device); error != broken.end())
    return *state = error->second, ncclSuccess;
  if (s->finalised && s->on_device > 0) *state = ncclInProgress;
  if (s->in_progress == 0) return ncclSuccess;
  *state = ncclInProgress;
  if (s->in_progress > 1 || s->joined()) --s->in_progress;
  if (s->in_progress == 0 && s->launch) std::exchange(s->launch, nullptr)();
  return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  const Lock lock(mutex);
  if (comm->state->in_progress > 0) return misused("finalising what is in progress");
  comm->state->finalised = true;
  comm->state->in_progress = kTimesInProgress;
  comm->state->joined = [] { return true; };
  return ncclInProgress;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  const Lock lock(mutex);
  if (!comm->state->finalised || comm->state->in_progress > 0 || comm->state->on_device > 0)
    misused("destroying what is not finalised");
  --left;
  delete comm;
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  Lock lock(mutex);
  const State s = comm->state;
  s->aborted = s->group->broken = true;
  // A call that was not launched yet is dropped.
  if (std::exchange(s->launch, nullptr)) s->on_device = std::max(0, s->on_device - 1);
  changed.notify_all();
  --left;
  delete comm;
  return ncclSuccess;
}

ncclResult_t ncclGroupStart() {
  if (group_depth++ == 0) group_comm = nullptr, group_transfers.clear();
  return ncclSuccess;
}

// A send is complete when its receiver has taken the message.
ncclResult_t ncclGroupEnd() {
  if (--group_depth > 0) return ncclSuccess;
  if (group_comm == nullptr) return ncclSuccess;
  const Lock lock(mutex);
  return begin(group_comm, group_stream, [transfers = group_transfers](const State& s) {
    Lock held(mutex);
    std::vector<std::shared_ptr<Message>> sent;
    for (const QueuedTransfer& t : transfers)
      if (t.send) {
        sent.push_back(std::make_shared<Message>(Message{t.data, t.bytes}));
        s->group->messages[{s->rank, t.peer}].push_back(sent.back());
      }
    changed.notify_all();
    for (const QueuedTransfer& t : transfers) {
      if (t.send) continue;
      auto& queue = s->group->messages[{t.peer, s->rank}];
      if (!wait(held, s, [&] { return !queue.empty(); })) return;
      Message& m = *queue.front();
      if (m.bytes != t.bytes) misused("a message of another size than its receiver expects");
      std::memcpy(t.data, m.data, std::min(m.bytes, t.bytes));
      m.taken = true;
      queue.pop_front();
      changed.notify_all();
    }
    for (const auto& m : sent)
      if (!wait(held, s, [&] { return m->taken; })) return;
  });
}

ncclResult_t ncclSend(const void* x, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return transfer(comm, stream,
                  {static_cast<std::byte*>(const_cast<void*>(x)), count * size_of(type), peer, true});
}
ncclResult_t ncclRecv(void* x, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return transfer(comm, stream, {static_cast<std::byte*>(x), count * size_of(type), peer, false});
}

ncclResult_t ncclAllReduce(const void* in, void* out, std::size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream) {
  return collective(comm, stream, in, out,
                    [=](const auto& inputs, int) { return reduced(inputs, type, 0, count, op, 1); });
}
ncclResult_t ncclAllGather(const void* in, void* out, std::size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
  return collective(comm, stream, in, out, [=](const auto& inputs, int) {
    std::vector<std::byte> all;
    for (const std::byte* part : inputs) all.insert(all.end(), part, part + count * size_of(type));
    return all;
  });
}
ncclResult_t ncclReduceScatter(const void* in, void* out, std::size_t count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return collective(comm, stream, in, out, [=](const auto& inputs, int rank) {
    return reduced(inputs, type, static_cast<std::size_t>(rank) * count * size_of(type), count, op, rank + 1);
  });
}
ncclResult_t ncclBroadcast(const void* in, void* out, std::size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream) {
  return collective(comm, stream, in, out, [=](const auto& inputs, int) {
    const std::byte* from = inputs[static_cast<std::size_t>(root)];
    return std::vector<std::byte>(from, from + count * size_of(type));
  });
}

void trainerd::test::break_nccl(int device, ncclResult_t error) {
  const Lock lock(mutex);
  if (error == ncclSuccess) broken.erase(device);
  else broken[device] = error;
}
int trainerd::test::nccl_communicators_left() {
  const Lock lock(mutex);
  return left;
}
const char* trainerd::test::nccl_misuse() {
  const Lock lock(mutex);
  return misuse.c_str();
}
