#include "parallel/schedule/v_order.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <deque>
#include <tuple>

#include "kernels/base/error.h"

namespace trainerd::parallel {
namespace {

/// Forwards and input gradients of a rank, in order.
class Turns {
 public:
  Turns(const ScheduleShape& shape, int rank) : shape_(shape), rank_(rank) {}

  /// Each rank forwards its first chunk until its second one's first input is there, then both in turn.
  std::vector<Action> evaluation() {
    const int behind = shape_.stages - rank_;
    for (int i = 0; i < 2 * behind - 1; ++i) forward(0);
    for (int i = 0; i < shape_.microbatches; ++i) forward(1), forward(0);
    return std::move(list_);
  }

  /// Each microbatch begins six units after the one before it, and takes the same way through time: forth,
  /// back, and its gradients forth and back again, each with a number of units from rank to rank. The longer
  /// a way takes, the longer activations are held. The pauses where a way turns keep the computations of a
  /// rank apart.
  struct Pace {
    int forth = 1, back = 1, gradients_forth = 1, gradients_back = 1;
    int turn = 0, end = 0, gradients_turn = 0;  ///< pauses
  };
  std::vector<Action> paced(const Pace& pace) {
    struct Timed {
      int time, order;  ///< of computations at one time: gradients first, and what is farther on its way
      int microbatch;
    };
    const int last = shape_.stages - 1, behind = last - rank_;
    const int back_at = last * pace.forth + 1 + pace.turn,
              gradients_at = back_at + last * pace.back + 1 + pace.end,
              gradients_back_at = gradients_at + last * pace.gradients_forth + 1 + pace.gradients_turn;
    std::vector<Timed> all;
    for (int i = 0; i < shape_.microbatches; ++i) {
      all.push_back({6 * i + gradients_back_at + behind * pace.gradients_back, 0, i});
      all.push_back({6 * i + gradients_at + rank_ * pace.gradients_forth, 1, i});
      all.push_back({6 * i + back_at + behind * pace.back, 2, i});
      all.push_back({6 * i + rank_ * pace.forth, 3, i});
    }
    std::sort(all.begin(), all.end(), [](const Timed& a, const Timed& b) {
      return std::tie(a.time, a.order) < std::tie(b.time, b.order);
    });
    for (const Timed& t : all)
      add(t.order < 2 ? ActionKind::backward_input : ActionKind::forward,
          t.order == 1 || t.order == 2 ? 1 : 0, t.microbatch);
    return std::move(list_);
  }

  /// In the steady state a rank does one forward and one input gradient of each chunk in turn. Before that,
  /// it forwards what the ranks behind it need to begin, and behind it come the remaining gradients. The
  /// pattern is that of at least 2 x stages - 1 microbatches, without those that do not exist.
  std::vector<Action> training() {
    const int behind = shape_.stages - rank_, all = std::max(shape_.microbatches, 2 * shape_.stages - 1);
    for (int i = 0; i < 2 * behind - 1; ++i) forward(0);
    for (int i = 0; i < rank_; ++i) forward(1), forward(0);
    for (int i = 0; i < behind; ++i) forward(1), backward(1);
    while (forwards_[1] < all) {
      if (forwards_[0] < all) forward(0);
      backward(0), forward(1), backward(1);
    }
    for (int i = 0; i < rank_; ++i) backward(0), backward(1);
    for (int i = 0; i < behind; ++i) backward(0);
    return std::move(list_);
  }

  /// DualPipe-V. Until the first gradients arrive a rank forwards as in ZB-V. Then a forward of each chunk
  /// takes turns with a backward of the other. The last gradients of a rank leave their weight gradients for
  /// the times when it would wait. The pattern is that of at least 2 x stages microbatches, without those
  /// that do not exist.
  std::vector<Action> with_turns() {
    const int behind = shape_.stages - rank_ - 1, all = std::max(shape_.microbatches, 2 * shape_.stages);
    for (int i = 0; i < 2 * behind; ++i) forward(0);
    for (int i = 0; i <= rank_; ++i) forward(0), forward(1);
    for (int i = 0; i < behind; ++i) backward(1), weights(1), forward(1);
    for (int i = 0; i < all - 2 * shape_.stages + rank_ + 1; ++i) {
      // The last rank's first gradient has the longest way, and its forward does not wait for it.
      if (i == 0 && behind == 0) forward(0), both(1);
      else in_turns(0, 1);
      in_turns(1, 0);
    }
    for (int i = 0; i < behind; ++i) both(1), in_turns(1, 0);
    for (int i = 0; i < 2 * (rank_ + 1); ++i) {
      const std::size_t chunk = i % 2 == 0 ? 1 : 0;
      if (i <= rank_) both(chunk);
      else backward(chunk);
    }
    for (int i = 0; i < behind; ++i) weights(1), backward(0);
    weights(late_.size());
    return std::move(list_);
  }

 private:
  void forward(std::size_t chunk) {
    const ActionKind kind = shape_.pass == Pass::train ? ActionKind::forward : ActionKind::forward_only;
    add(kind, chunk, forwards_[chunk]++);
  }
  void backward(std::size_t chunk) { add(ActionKind::backward_input, chunk, backwards_[chunk]++); }
  /// Input and weight gradients.
  void both(std::size_t chunk) { add(ActionKind::backward, chunk, backwards_[chunk]++); }
  void in_turns(std::size_t forwards, std::size_t backwards) {
    const std::size_t before = list_.size();
    forward(forwards);
    both(backwards);
    if (list_.size() == before + 2) list_.back().joins = true;
  }
  /// The next `count` weight gradients that were left out, if there are as many.
  void weights(std::size_t count) {
    for (; count > 0 && !late_.empty(); --count, late_.pop_front()) list_.push_back(late_.front());
  }
  void add(ActionKind kind, std::size_t chunk, int microbatch) {
    if (microbatch >= shape_.microbatches) return;
    list_.push_back({kind, shape_.chunk_of(rank_, static_cast<int>(chunk)), microbatch});
    if (kind == ActionKind::backward_input)
      late_.push_back({ActionKind::backward_weight, list_.back().chunk, microbatch});
  }

  const ScheduleShape& shape_;
  int rank_;
  std::array<int, 2> forwards_{}, backwards_{};  // by chunk of the rank
  std::deque<Action> late_;                      // weight gradients that input gradients left out
  std::vector<Action> list_;
};

/// Puts the weight gradients between the other computations of all ranks. Every computation takes one unit of
/// time, messages none. A rank does its next turn as soon as it can. While it must wait for another rank, or
/// has no memory for a forward or for what one more weight gradient needs, it makes up for a weight gradient.
/// Those of its second chunk come first, so that their reduction can overlap the others.
class Filling {
 public:
  Filling(const ScheduleShape& shape, const std::vector<std::vector<Action>>& turns)
      : shape_(shape),
        turns_(turns),
        ranks_(turns.size()),
        most_held_(most_held(shape)),
        made_(static_cast<std::size_t>(2 * shape.chunks() * shape.microbatches), kNever) {}

  std::vector<std::vector<Action>> run() {
    bool left = true;
    for (int now = 0; left; ++now) {
      left = false;
      for (std::size_t r = 0; r < ranks_.size(); ++r) left = advance(r, now) || left;
      base::check(now <= 6 * shape_.chunks() * shape_.microbatches, "a filled schedule comes to its end");
    }
    std::vector<std::vector<Action>> lists;
    for (Rank& rank : ranks_) lists.push_back(std::move(rank.list));
    return lists;
  }

 private:
  static constexpr int kNever = -1;
  /// Chunks whose activations a rank has memory for.
  static int most_held(const ScheduleShape& shape) {
    if (shape.kind == ScheduleKind::v_half) return shape.stages + 2;
    if (shape.kind == ScheduleKind::v_min) return 2 * ((shape.stages + 2) / 3) + 2;
    return shape.chunks();
  }
  int most_late(std::size_t rank) const {
    return shape_.kind == ScheduleKind::zb_v ? 2 * static_cast<int>(rank) + 1 : 3;
  }

  struct Rank {
    std::size_t next = 0;                       ///< of its turns
    int held = 0;                               ///< forwards without their weight gradient
    std::array<std::deque<Action>, 2> weights;  ///< gradients that its input gradients left out, by chunk
    std::vector<Action> list;
  };

  /// When a chunk's output or its input gradient is there.
  int& made(bool forward, int chunk, int microbatch) {
    return made_[static_cast<std::size_t>(
        ((forward ? 0 : 1) * shape_.chunks() + chunk) * shape_.microbatches + microbatch)];
  }

  bool has_input(const Action& turn, int now) {
    const auto there = [&](bool forward, int chunk) {
      const int at = made(forward, chunk, turn.microbatch);
      return at != kNever && at <= now;
    };
    if (turn.kind == ActionKind::forward) return turn.chunk == 0 || there(true, turn.chunk - 1);
    return turn.chunk + 1 == shape_.chunks() || there(false, turn.chunk + 1);
  }

  /// The rank's computation at this time, if it has one; false if it has done all.
  bool advance(std::size_t r, int now) {
    Rank& rank = ranks_[r];
    const std::vector<Action>& turns = turns_[r];
    if (rank.next < turns.size()) {
      const Action& turn = turns[rank.next];
      const bool forward = turn.kind == ActionKind::forward;
      const int late = static_cast<int>(rank.weights[0].size() + rank.weights[1].size());
      if (has_input(turn, now) && (forward ? rank.held < most_held_ : late < most_late(r))) {
        ++rank.next;
        made(forward, turn.chunk, turn.microbatch) = now + 1;
        rank.list.push_back(turn);
        if (forward) ++rank.held;
        else
          rank.weights[static_cast<std::size_t>(shape_.place_of(turn.chunk))].push_back(
              {ActionKind::backward_weight, turn.chunk, turn.microbatch});
        return true;
      }
    }
    std::deque<Action>& weights = rank.weights[rank.weights[1].empty() ? 0 : 1];
    if (weights.empty()) return rank.next < turns.size();
    rank.list.push_back(weights.front());
    weights.pop_front();
    --rank.held;
    return true;
  }

  const ScheduleShape& shape_;
  const std::vector<std::vector<Action>>& turns_;
  std::vector<Rank> ranks_;
  int most_held_;
  std::vector<int> made_;
};

}  // namespace

std::vector<std::vector<Action>> v_orders(const ScheduleShape& shape) {
  std::vector<std::vector<Action>> turns;
  for (int rank = 0; rank < shape.stages; ++rank) {
    Turns of_rank(shape, rank);
    const bool even = shape.stages % 2 == 0, thirds = shape.stages % 3 == 0;
    if (shape.pass == Pass::evaluate) turns.push_back(of_rank.evaluation());
    else if (shape.kind == ScheduleKind::zb_v) turns.push_back(of_rank.training());
    else if (shape.kind == ScheduleKind::dualpipe_v) turns.push_back(of_rank.with_turns());
    else if (shape.kind == ScheduleKind::v_min)
      turns.push_back(of_rank.paced({.turn = thirds ? 2 : 0, .gradients_turn = thirds ? 2 : 0}));
    else
      turns.push_back(of_rank.paced(
          {.forth = 2, .gradients_forth = 2, .turn = even ? 3 : 0, .gradients_turn = even ? 3 : 1}));
  }
  if (shape.pass == Pass::evaluate || shape.kind == ScheduleKind::dualpipe_v) return turns;
  return Filling(shape, turns).run();
}

}  // namespace trainerd::parallel
