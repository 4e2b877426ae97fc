#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "parallel/schedule/schedule.h"

// Runs the action lists of a pipeline like real ranks: in any order that lists and messages allow, with
// ordered channels. An oracle that shares no code with the schedules.

namespace trainerd::test {

using parallel::Action;
using parallel::ActionKind;

enum class Sends {
  buffered,    ///< a send is done at once
  rendezvous,  ///< a group of transfers is done when each of them has met its other end
};

class ScheduleRun {
 public:
  /// `folded`: the second half of the chunks goes back over the ranks, from the last one to the first.
  ScheduleRun(const std::vector<std::vector<Action>>& lists, int chunks, int microbatches, Sends sends,
              bool folded = false)
      : lists_(lists),
        chunks_(chunks),
        microbatches_(microbatches),
        sends_(sends),
        folded_(folded),
        ranks_(lists.size()),
        latest_(static_cast<std::size_t>(2 * chunks), -1),
        done_(static_cast<std::size_t>(kKinds * chunks * microbatches), 0) {}

  /// Empty, or the first rule that was broken.
  std::string run(std::uint32_t seed) {
    std::mt19937 random(seed);
    for (std::size_t rank = 0; rank < lists_.size(); ++rank) awake_.push_back(rank);
    while (!awake_.empty() && problem_.empty()) {
      const std::size_t i = random() % awake_.size(), rank = awake_[i];
      if (step(rank)) continue;
      ranks_[rank].asleep = true;
      awake_[i] = awake_.back();
      awake_.pop_back();
    }
    for (std::size_t rank = 0; rank < lists_.size() && problem_.empty(); ++rank)
      if (ranks_[rank].next < lists_[rank].size())
        fail(rank, lists_[rank][ranks_[rank].next], "is never done: deadlock");
    return problem_;
  }

  bool did(ActionKind kind, int chunk, int microbatch) const {
    return done_[index(kind, chunk, microbatch)] != 0;
  }

 private:
  static constexpr int kKinds = 10;
  struct Rank {
    std::size_t next = 0;
    std::size_t posted_end = 0;  ///< end of the transfer group in progress
    std::size_t open = 0;        ///< transfers of the group without a matching other end yet
    bool asleep = false;
  };
  struct Channel {
    std::deque<Action> sent, wanted;  ///< messages, as their receive actions
  };

  std::size_t index(ActionKind kind, int chunk, int microbatch) const {
    return static_cast<std::size_t>((static_cast<int>(kind) * chunks_ + chunk) * microbatches_ + microbatch);
  }
  void fail(std::size_t rank, const Action& action, const std::string& what) {
    if (problem_.empty()) problem_ = "rank " + std::to_string(rank) + ": " + describe(action) + " " + what;
  }
  int stages() const { return static_cast<int>(lists_.size()); }
  int rank_of(int chunk) const {
    return folded_ && chunk >= stages() ? 2 * stages() - 1 - chunk : chunk % stages();
  }
  bool together(int chunk, int other) const { return rank_of(chunk) == rank_of(other); }
  /// Microbatch of a chunk's output (or input gradient) that is in its place: later ones overwrite it.
  int& latest(bool forward, int chunk) { return latest_[static_cast<std::size_t>(2 * chunk + forward)]; }
  void wake(std::size_t rank) {
    if (std::exchange(ranks_[rank].asleep, false)) awake_.push_back(rank);
  }

  /// The receive that matches a send.
  static Action receive_of(const Action& send, std::size_t rank) {
    const bool forward = send.kind == ActionKind::send_forward;
    return {forward ? ActionKind::recv_forward : ActionKind::recv_backward, send.chunk + (forward ? 1 : -1),
            send.microbatch, static_cast<int>(rank)};
  }

  /// Compares without the groups of the two ends.
  static bool same(const Action& a, const Action& b) {
    return a.kind == b.kind && a.chunk == b.chunk && a.microbatch == b.microbatch && a.peer == b.peer;
  }

  bool step(std::size_t rank) {
    Rank& r = ranks_[rank];
    if (r.next == lists_[rank].size()) return false;
    const Action& action = lists_[rank][r.next];
    if (rank_of(action.chunk) != static_cast<int>(rank)) fail(rank, action, "is on the wrong rank");
    if (!is_send(action.kind) && !is_receive(action.kind)) {
      compute(rank, action);
      ++r.next;
      return true;
    }
    return sends_ == Sends::buffered ? transfer(rank, action) : exchange(rank);
  }

  void finish(std::size_t rank, const Action& action) {
    std::uint8_t& done = done_[index(action.kind, action.chunk, action.microbatch)];
    if (done != 0) fail(rank, action, "is done twice");
    done = 1;
  }

  void check_send(std::size_t rank, const Action& send) {
    const int to = receive_of(send, rank).chunk;
    if (to < 0 || to >= chunks_ || rank_of(to) != send.peer) fail(rank, send, "goes to the wrong rank");
    const bool forward = send.kind == ActionKind::send_forward;
    if (!(forward ? has_output(send) : has_input_grad(send))) fail(rank, send, "sends what is not made yet");
  }

  bool transfer(std::size_t rank, const Action& action) {
    if (is_send(action.kind)) {
      check_send(rank, action);
      channels_[{rank, action.peer}].sent.push_back(receive_of(action, rank));
      wake(static_cast<std::size_t>(action.peer));
    } else {
      Channel& channel = channels_[{static_cast<std::size_t>(action.peer), static_cast<int>(rank)}];
      if (channel.sent.empty()) return false;
      if (!same(channel.sent.front(), action)) fail(rank, action, "finds another message first");
      channel.sent.pop_front();
    }
    finish(rank, action);
    ++ranks_[rank].next;
    return true;
  }

  bool exchange(std::size_t rank) {
    Rank& r = ranks_[rank];
    const std::vector<Action>& list = lists_[rank];
    if (r.posted_end <= r.next) {
      for (r.posted_end = r.next; r.posted_end < list.size(); ++r.posted_end) {
        const Action& action = list[r.posted_end];
        if (r.posted_end > r.next && !action.joins) break;
        if (is_send(action.kind)) {
          check_send(rank, action);
          ++r.open;
          Channel& channel = channels_[{rank, action.peer}];
          channel.sent.push_back(receive_of(action, rank));
          meet(channel, rank, static_cast<std::size_t>(action.peer));
        } else if (is_receive(action.kind)) {
          ++r.open;
          Channel& channel = channels_[{static_cast<std::size_t>(action.peer), static_cast<int>(rank)}];
          channel.wanted.push_back(action);
          meet(channel, static_cast<std::size_t>(action.peer), rank);
        } else {
          break;
        }
      }
    }
    if (r.open != 0) return false;
    for (; r.next < r.posted_end; ++r.next) finish(rank, list[r.next]);
    return true;
  }

  void meet(Channel& channel, std::size_t sender, std::size_t receiver) {
    if (channel.sent.empty() || channel.wanted.empty()) return;
    if (!same(channel.sent.front(), channel.wanted.front()))
      fail(receiver, channel.wanted.front(), "finds another message first");
    channel.sent.pop_front();
    channel.wanted.pop_front();
    for (const std::size_t rank : {sender, receiver}) {
      --ranks_[rank].open;
      wake(rank);
    }
  }

  bool has_output(const Action& a) const {
    return did(ActionKind::forward, a.chunk, a.microbatch) ||
           did(ActionKind::forward_only, a.chunk, a.microbatch);
  }
  bool has_input_grad(const Action& a) const {
    return did(ActionKind::backward, a.chunk, a.microbatch) ||
           did(ActionKind::backward_input, a.chunk, a.microbatch);
  }

  void compute(std::size_t rank, const Action& a) {
    switch (a.kind) {
      case ActionKind::forward:
      case ActionKind::forward_only: {
        if (a.chunk > 0 &&
            !(together(a.chunk - 1, a.chunk) ? latest(true, a.chunk - 1) == a.microbatch
                                             : did(ActionKind::recv_forward, a.chunk, a.microbatch)))
          fail(rank, a, "has no input");
        latest(true, a.chunk) = a.microbatch;
        break;
      }
      case ActionKind::backward:
      case ActionKind::backward_input: {
        if (!did(ActionKind::forward, a.chunk, a.microbatch)) fail(rank, a, "comes before its forward");
        if (a.chunk + 1 < chunks_ &&
            !(together(a.chunk, a.chunk + 1) ? latest(false, a.chunk + 1) == a.microbatch
                                             : did(ActionKind::recv_backward, a.chunk, a.microbatch)))
          fail(rank, a, "has no gradient");
        latest(false, a.chunk) = a.microbatch;
        break;
      }
      case ActionKind::backward_weight:
        if (!did(ActionKind::backward_input, a.chunk, a.microbatch))
          fail(rank, a, "comes before backward_input");
        break;
      default:
        for (int m = 0; m < microbatches_; ++m)
          if (!did(ActionKind::backward, a.chunk, m) && !did(ActionKind::backward_weight, a.chunk, m))
            fail(rank, a, "comes before the last weight gradient");
    }
    finish(rank, a);
  }

  const std::vector<std::vector<Action>>& lists_;
  int chunks_, microbatches_;
  Sends sends_;
  bool folded_;
  std::vector<Rank> ranks_;
  std::vector<int> latest_;
  std::vector<std::uint8_t> done_;
  std::map<std::pair<std::size_t, int>, Channel> channels_;
  std::vector<std::size_t> awake_;
  std::string problem_;
};

}  // namespace trainerd::test
