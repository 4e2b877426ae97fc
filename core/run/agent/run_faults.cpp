#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <memory>
#include <utility>

#include "core/run/agent/guarded_storage.h"
#include "core/run/agent/run.h"
#include "io/checkpoint/files.h"
#include "io/checkpoint/folders.h"
#include "io/storage/failing_storage.h"

// Part of the run (run.h): the job's `faults` that agents inject. Node 0 records the injected faults of all
// nodes.

namespace trainerd::core::run {
namespace {

/// A store that rejects changes by an agent that no longer leads or may count as lost.
io::CheckpointStore guarded(const io::CheckpointStore& store, const io::Retention& retention, bool read_back,
                            const Membership& membership) {
  if (membership.leads() && !membership.coordinated()) return store;
  return {std::make_shared<GuardedStorage>(store.storage(), membership.storage_guard()), retention,
          read_back};
}

}  // namespace

void Run::begin_faults() {
  if (!job_.faults.any()) return;
  if (membership_.leads()) {
    fault_log_.emplace(output_.path() + "/faults-done");
    // Adds faults that were reported when the last leader was ending, and so are not in the log.
    for (const std::vector<std::string>& known : {membership_.known_faults(), series_.faults_done})
      for (const std::string& id : known) {
        const std::vector<std::string>& done = fault_log_->done();
        if (std::find(done.begin(), done.end(), id) == done.end()) fault_log_->add(id);
      }
    start_.faults_done = fault_log_->done();
  }
  checkpoint_faults_.emplace(job_.faults, attempt_->plan().layout.grid.ranks(), start_.faults_done);
}

void Run::on_injected(const FaultInjected& m) {
  // A fault that affects several computations of its step is reported each time.
  const bool known =
      std::find(start_.faults_done.begin(), start_.faults_done.end(), m.id) != start_.faults_done.end();
  if (!known) start_.faults_done.push_back(m.id);
  if (membership_.leads()) {
    if (!known && !membership_.lead_is_lost()) fault_log_->add(m.id);
    if (sinks_started_) notify(io::NoticeKind::injected, m.message);
    else
      changes_.push_back(
          {.kind = io::NoticeKind::injected, .step = step_, .message = m.message, .details = {}});
  } else {
    membership_.send(m);
  }
  if (!m.at_agent) return;
  switch (*m.at_agent) {
    case job::FaultKind::drop_link: return membership_.drop_link(m.seconds);
    case job::FaultKind::fill_disk: return disk_fault_->fail_for(m.seconds);
    case job::FaultKind::fail_store: return tier_fault_->fail_for(m.seconds);
    case job::FaultKind::device_error: return devices_.on_xid(m.rank, static_cast<int>(m.xid));
    default: ::kill(::getpid(), SIGKILL);
  }
}

io::CheckpointStore Run::run_store() const {
  const io::CheckpointOptions& options = job_.checkpoint;
  io::CheckpointStore store(output_.checkpoints(), options.keep, options.keep_every, options.read_back);
  const io::Retention retention{.keep = options.keep, .keep_every = options.keep_every};
  if (job_.faults.any())
    store = {std::make_shared<io::FailingStorage>(store.storage(), disk_fault_,
                                                  io::FailingStorage::Fails::writes, ENOSPC),
             retention, options.read_back};
  return guarded(store, retention, options.read_back, membership_);
}

/// Like `durable_store`, with the job's injected faults and the guard.
io::CheckpointStore Run::tier_store() const {
  io::CheckpointStore store = durable_store(options_);
  const io::DurableOptions& options = job_.checkpoint.durable;
  const io::Retention retention{.keep = options.keep, .keep_every = options.keep_every};
  if (job_.faults.any())
    store = {std::make_shared<io::FailingStorage>(store.storage(), tier_fault_,
                                                  io::FailingStorage::Fails::all, EIO),
             retention};
  return guarded(store, retention, false, membership_);
}

/// This node's shards of a checkpoint are on the disk. Makes the bit flips that are due.
void Run::break_checkpoint(std::int64_t step, const std::string& folder) {
  if (!checkpoint_faults_) return;
  for (const DueFault& due : checkpoint_faults_->take(step)) {
    const std::string path = output_.checkpoints() + "/" + folder + "/" + io::shard_file(due.fault.rank);
    on_injected({.id = due.id, .message = "injected: " + flip_bit_of_file(path)});
  }
}

}  // namespace trainerd::core::run
