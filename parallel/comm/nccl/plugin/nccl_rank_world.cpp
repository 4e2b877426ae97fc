#include "parallel/comm/nccl/plugin/nccl_rank_world.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <optional>
#include <utility>

#include "kernels/base/clock.h"
#include "kernels/base/seconds_text.h"
#include "kernels/cuda/runtime/check_runtime.h"
#include "parallel/comm/nccl/plugin/make_world.h"

namespace trainerd::parallel {
namespace {

using kernels::cuda::check;

/// How long `end` waits for NCCL's aborts, and a destructor for its peers.
constexpr double kWorldFinishSeconds = 5;
/// A waiting rank writes what it waits for to the store after this fraction of its deadline, or after this
/// many seconds if that is sooner. So it is there before the first rank gives up and reads it.
constexpr double kReportPart = 0.25, kMaxReportSeconds = 5;

std::string names(const std::vector<std::int64_t>& ranks) {
  std::string text;
  for (const std::int64_t rank : ranks) text += (text.empty() ? "rank " : ", rank ") + std::to_string(rank);
  return text;
}

}  // namespace

NcclRankWorld::NcclRankWorld(NcclOptions options) : options_(std::move(options)) {
  base::check(options_.id.size() == sizeof(ncclUniqueId), "the id of a world is NCCL's");
  check(cudaSetDevice(options_.device), "choosing a CUDA device");
  join();
  split();
  watchdog_ = std::thread([this] { watchdog(); });
}

NcclRankWorld::~NcclRankWorld() {
  {
    const std::lock_guard lock(watch_mutex_);
    stop_ = true;
  }
  stopping_.notify_all();
  watchdog_.join();
  // Links of communicators are already finished. A link that peers keep from finishing is aborted.
  const double deadline = base::monotonic_seconds() + kWorldFinishSeconds;
  for (auto link = links_.rbegin(); link != links_.rend() && !ended_; ++link)
    if (!(*link)->finish(deadline))
      end("rank " + std::to_string(options_.rank) + " left the world before others");
}

ncclConfig_t NcclRankWorld::config(const std::string& name) {
  ncclConfig_t made = NCCL_CONFIG_INITIALIZER;
  made.blocking = 0;
  made.commName = names_.emplace_back(name).c_str();
  return made;
}

void NcclRankWorld::join() {
  ncclUniqueId id;
  std::memcpy(&id, options_.id.data(), sizeof(id));
  ncclConfig_t settings = config("world");
  ncclComm_t& comm = made_.emplace_back(nullptr);
  const ncclResult_t result = ncclCommInitRankConfig(&comm, static_cast<int>(options_.ranks), id,
                                                     static_cast<int>(options_.rank), &settings);
  if (result != ncclSuccess && result != ncclInProgress)
    throw base::comm_error("rank " + std::to_string(options_.rank) + " cannot meet the others: NCCL says " +
                           nccl_text(result, nullptr));
  links_.push_back(std::make_shared<NcclLink>(comm, options_.device));
  links_[0]->call(
      "meeting the other ranks", [&](ncclComm_t) { return result; },
      until_made(base::monotonic_seconds() + options_.start_seconds,
                 "the " + std::to_string(options_.ranks) + " ranks did not meet by NCCL in " +
                     base::seconds_text(options_.start_seconds) +
                     "; see what became of the others, and of the network between them"));
}

std::function<void()> NcclRankWorld::until_made(double deadline, std::string late) const {
  return [this, deadline, late = std::move(late)] {
    if (options_.ended)
      if (const std::string why = options_.ended(); !why.empty())
        throw base::comm_error("the world ended before it began: " + why);
    if (base::monotonic_seconds() > deadline) throw base::comm_error(late);
  };
}

// Every rank takes part in every split, in the same order. All groups of one name are made by one split.
void NcclRankWorld::split() {
  std::vector<std::string> order;
  for (const NcclGroup& group : options_.groups)
    if (wanted(group) && std::find(order.begin(), order.end(), group.name) == order.end())
      order.push_back(group.name);
  const double deadline = base::monotonic_seconds() + options_.start_seconds;
  bool whole_taken = false;
  for (const std::string& name : order) {
    int color = NCCL_SPLIT_NOCOLOR, key = 0;
    const NcclGroup* mine = nullptr;
    for (std::size_t i = 0; i < options_.groups.size(); ++i) {
      const NcclGroup& group = options_.groups[i];
      if (group.name != name) continue;
      const auto place = std::find(group.ranks.begin(), group.ranks.end(), options_.rank);
      if (!wanted(group) || place == group.ranks.end()) continue;
      base::check(mine == nullptr, "groups of one name have no rank in common");
      mine = &group, color = static_cast<int>(i), key = static_cast<int>(place - group.ranks.begin());
    }
    // The first group that contains the whole world in order uses the world's communicator.
    if (const bool whole = mine != nullptr && std::cmp_equal(mine->ranks.size(), options_.ranks) &&
                           std::is_sorted(mine->ranks.begin(), mine->ranks.end());
        whole && !whole_taken) {
      whole_taken = true;
      groups_[name] = {mine->ranks, links_[0]};
      continue;
    }
    ncclConfig_t settings = config(name);
    ncclComm_t& comm = made_.emplace_back(nullptr);
    const std::function<void()> interrupt = until_made(
        deadline, "group " + name + " was not made in " + base::seconds_text(options_.start_seconds) +
                      "; see what became of the other ranks");
    const std::string doing = "making group " + name;
    // NCCL 2.28 returns success at once and creates the communicator in the background. Until then the
    // world's communicator is in progress.
    links_[0]->call(
        doing.c_str(),
        [&](ncclComm_t world) {
          const ncclResult_t result = ncclCommSplit(world, color, key, &comm, &settings);
          return result == ncclSuccess ? ncclInProgress : result;
        },
        interrupt);
    if (mine == nullptr) continue;
    base::check(comm != nullptr, "a member of a group gets its communicator");
    links_.push_back(std::make_shared<NcclLink>(comm, options_.device));
    links_.back()->call(
        doing.c_str(), [](ncclComm_t) { return ncclInProgress; }, interrupt);
    groups_[name] = {mine->ranks, links_.back()};
  }
}

std::unique_ptr<Communicator> NcclRankWorld::communicator(kernels::Backend& backend,
                                                          const std::vector<std::int64_t>& group_ranks,
                                                          const std::string& name, FlightRecorder* recorder) {
  const auto group = groups_.find(name);
  base::check(group != groups_.end() && group->second.first == group_ranks,
              "a rank makes the communicator of a group of its world once");
  auto made = std::make_unique<NcclCommunicator>(*this, group->second.second, NcclGroup{name, group_ranks},
                                                 backend, recorder);
  groups_.erase(group);
  return made;
}

// ---- the end

void NcclRankWorld::throw_if_ended(const std::string& what) const {
  if (!ended_) [[likely]]
    return;
  const std::lock_guard lock(end_mutex_);
  throw base::comm_error(what + " was ended: " + why_);
}

void NcclRankWorld::end(std::string_view why) {
  std::shared_ptr<Aborts> aborts;
  bool first = false;
  {
    const std::lock_guard lock(end_mutex_);
    first = !ended_;
    if (first) {
      why_ = why;
      aborts_ = std::make_shared<Aborts>();
      aborts_->left = links_.size();
      ended_ = true;
    }
    aborts = aborts_;
  }
  if (first) {
    if (options_.end) options_.end(why);
    // An abort may wait for the device, and the device for an operation of another communicator. So all run
    // at once, and each is waited for only briefly.
    for (const std::shared_ptr<NcclLink>& link : links_)
      std::thread([link, aborts] {
        link->abort();
        const std::lock_guard lock(aborts->mutex);
        if (--aborts->left == 0) aborts->none.notify_all();
      }).detach();
  }
  // The caller may free memory that running operations read, so a second caller waits too.
  std::unique_lock lock(aborts->mutex);
  aborts->none.wait_for(lock, std::chrono::duration<double>(kWorldFinishSeconds),
                        [&] { return aborts->left == 0; });
}

// ---- the watchdog

void NcclRankWorld::watch(NcclCommunicator* communicator) {
  const std::lock_guard lock(watch_mutex_);
  watched_.push_back(communicator);
}

void NcclRankWorld::forget(NcclCommunicator* communicator) {
  const std::lock_guard lock(watch_mutex_);
  std::erase(watched_, communicator);
}

void NcclRankWorld::watchdog() {
  cudaSetDevice(options_.device);
  std::unique_lock lock(watch_mutex_);
  while (!stopping_.wait_for(lock, std::chrono::duration<double>(options_.poll_seconds),
                             [&] { return stop_; })) {
    if (ended_) continue;
    std::vector<NcclWait> waits;
    std::string error;
    try {
      for (NcclCommunicator* c : watched_) {
        if (error.empty() && !(error = c->error()).empty()) error = "NCCL says " + error;
        if (auto wait = c->oldest()) waits.push_back(std::move(*wait));
      }
    } catch (const base::Error& failure) {
      error = failure.what();
    }
    // Reports go over the network, so the lock is released for them.
    lock.unlock();
    if (!error.empty() && !waits.empty()) error = waits.front().what + ": " + error;
    if (error.empty() && options_.ended) error = options_.ended();
    if (!error.empty()) end(error);
    const double now = base::monotonic_seconds();
    for (const NcclWait& wait : waits)
      if (wait.since > 0 && !ended_) look_at(wait, now);
    lock.lock();
  }
}

void NcclRankWorld::look_at(const NcclWait& wait, double now) {
  const double waited = now - wait.since;
  if (waited > std::min(kMaxReportSeconds, kReportPart * options_.deadline_seconds)) report_wait(wait);
  if (waited > options_.deadline_seconds) end(late_text(wait, options_.deadline_seconds));
}

std::string NcclRankWorld::word_key(const NcclWait& wait, std::int64_t rank) const {
  return "nccl/waits/" + wait.group + "/" + std::to_string(wait.number) + "/" + std::to_string(rank);
}

void NcclRankWorld::report_wait(const NcclWait& wait) {
  if (options_.store == nullptr || !wait.peers.empty()) return;
  std::uint64_t& last = reported_waits_[wait.group];
  if (last == wait.number) return;
  last = wait.number;
  try {
    options_.store->set(word_key(wait, options_.rank), wait.what);
  } catch (const base::Error&) {
    // The other ranks will not find what this rank waits for.
  }
}

/// Names the ranks that have not arrived, from what the others wrote to the store.
std::string NcclRankWorld::late_text(const NcclWait& wait, double seconds) {
  std::string text = wait.what + " was not done in " + base::seconds_text(seconds);
  if (wait.since == 0) return text + ": it is behind others";
  std::vector<std::int64_t> missing;
  if (!wait.peers.empty()) {
    missing = wait.peers;
  } else if (options_.store != nullptr) {
    try {
      for (const std::int64_t rank : wait.members)
        if (rank != options_.rank && !options_.store->get(word_key(wait, rank))) missing.push_back(rank);
    } catch (const base::Error& error) {
      return text + "; the missing ranks are not known: " + error.what();
    }
    if (missing.empty()) return text + ": all ranks have come, so that the network or a device is at fault";
  } else {
    return text + "; see what became of the other ranks of " + names(wait.members);
  }
  return text + ", waiting for " + names(missing) + "; see what became of them there";
}

// ---- entry points of the plugin

std::string nccl_unique_id() {
  ncclUniqueId id;
  if (const ncclResult_t result = ncclGetUniqueId(&id); result != ncclSuccess)
    throw base::comm_error("ranks cannot meet by NCCL: it says " + nccl_text(result, nullptr));
  return {reinterpret_cast<const char*>(&id), sizeof(id)};
}

std::unique_ptr<NcclWorld> make_nccl_world(NcclOptions options) {
  return std::make_unique<NcclRankWorld>(std::move(options));
}

}  // namespace trainerd::parallel
