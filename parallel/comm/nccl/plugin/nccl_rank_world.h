#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "parallel/comm/nccl/nccl_world.h"
#include "parallel/comm/nccl/plugin/nccl_communicator.h"

namespace trainerd::parallel {

/// NcclWorld with NCCL: the communicator over all ranks, those split from it, and the watchdog.
class NcclRankWorld final : public NcclWorld {
 public:
  explicit NcclRankWorld(NcclOptions options);
  ~NcclRankWorld() override;

  std::unique_ptr<Communicator> communicator(kernels::Backend& backend,
                                             const std::vector<std::int64_t>& group_ranks,
                                             const std::string& name, FlightRecorder* recorder) override;
  void abort(std::string_view why) override { end(why); }
  void throw_if_ended() const override { throw_if_ended("communication"); }

  // For its communicators.
  const NcclOptions& options() const { return options_; }
  bool ended() const { return ended_; }
  void throw_if_ended(const std::string& what) const;
  /// Keeps the first caller's text. Any thread. Waits for seconds at most.
  void end(std::string_view why);
  std::string late_text(const NcclWait& wait, double seconds);
  void watch(NcclCommunicator* communicator);
  void forget(NcclCommunicator* communicator);

 private:
  /// Groups of one rank need no communicator, except in a world of one rank.
  bool wanted(const NcclGroup& group) const { return group.ranks.size() > 1 || options_.ranks == 1; }
  ncclConfig_t config(const std::string& name);
  void join();
  void split();
  /// Returns a check for use while NCCL makes a communicator. It throws CommError if the world has ended, and
  /// with the text `late` after the deadline.
  std::function<void()> until_made(double deadline, std::string late) const;
  void watchdog();
  /// Reports or ends an operation that has waited too long, for the watchdog.
  void look_at(const NcclWait& wait, double now);
  std::string word_key(const NcclWait& wait, std::int64_t rank) const;
  void report_wait(const NcclWait& wait);

  NcclOptions options_;
  // NCCL keeps pointers to these until it ends: where it writes new communicators, and their names.
  std::deque<ncclComm_t> made_;
  std::deque<std::string> names_;
  std::vector<std::shared_ptr<NcclLink>> links_;  ///< the first one covers the whole world
  /// Groups by name, until `communicator` takes them.
  std::map<std::string, std::pair<std::vector<std::int64_t>, std::shared_ptr<NcclLink>>> groups_;

  /// The aborts of `end` in progress, one thread per link.
  struct Aborts {
    std::mutex mutex;
    std::condition_variable none;
    std::size_t left = 0;
  };
  mutable std::mutex end_mutex_;
  std::string why_;
  std::shared_ptr<Aborts> aborts_;
  std::atomic<bool> ended_{false};

  std::mutex watch_mutex_;
  std::condition_variable stopping_;
  bool stop_ = false;
  std::vector<NcclCommunicator*> watched_;
  /// Number of the last wait written to the store, by group. Used only by the watchdog.
  std::map<std::string, std::uint64_t> reported_waits_;
  std::thread watchdog_;
};

}  // namespace trainerd::parallel
