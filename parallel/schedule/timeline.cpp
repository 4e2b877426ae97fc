#include "parallel/schedule/timeline.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>

namespace trainerd::parallel {
namespace {

constexpr double kNever = -1;

/// What an action produces for other actions, per chunk and microbatch.
enum class Product : unsigned char {
  output,
  input_grad,
  sent_forward,
  sent_backward,
  received_forward,
  received_backward
};
constexpr std::size_t kProducts = 6;

struct Need {
  Product product;
  int chunk;
};

/// When each product became available.
class Board {
 public:
  explicit Board(std::span<const std::vector<Action>> ranks) {
    for (std::size_t rank = 0; rank < ranks.size(); ++rank)
      for (const Action& action : ranks[rank]) {
        microbatches_ = std::max(microbatches_, action.microbatch + 1);
        if (action.chunk >= chunks()) rank_of_chunk_.resize(static_cast<std::size_t>(action.chunk) + 1);
        rank_of_chunk_[static_cast<std::size_t>(action.chunk)] = rank;
      }
    at_.assign(kProducts * rank_of_chunk_.size() * static_cast<std::size_t>(microbatches_), kNever);
  }
  int chunks() const { return static_cast<int>(rank_of_chunk_.size()); }
  std::size_t rank_of(int chunk) const { return rank_of_chunk_[static_cast<std::size_t>(chunk)]; }
  double& at(Product product, int chunk, int microbatch) {
    const std::size_t row =
        static_cast<std::size_t>(product) * rank_of_chunk_.size() + static_cast<std::size_t>(chunk);
    return at_[row * static_cast<std::size_t>(microbatches_) + static_cast<std::size_t>(microbatch)];
  }

 private:
  int microbatches_ = 0;
  std::vector<std::size_t> rank_of_chunk_;
  std::vector<double> at_;
};

std::optional<Product> product_of(ActionKind kind) {
  switch (kind) {
    case ActionKind::forward:
    case ActionKind::forward_only: return Product::output;
    case ActionKind::backward:
    case ActionKind::backward_input: return Product::input_grad;
    case ActionKind::send_forward: return Product::sent_forward;
    case ActionKind::send_backward: return Product::sent_backward;
    case ActionKind::recv_forward: return Product::received_forward;
    case ActionKind::recv_backward: return Product::received_backward;
    default: return std::nullopt;
  }
}

/// The receive product that a computation uses, if its rank has that receive.
std::optional<Product> received_for(ActionKind kind) {
  switch (kind) {
    case ActionKind::forward:
    case ActionKind::forward_only: return Product::received_forward;
    case ActionKind::backward:
    case ActionKind::backward_input: return Product::received_backward;
    default: return std::nullopt;
  }
}

/// The up to two products, of any rank, that must exist before an action.
std::array<std::optional<Need>, 2> needs_of(const Action& action, int chunks) {
  const int chunk = action.chunk;
  const bool first = chunk == 0, last = chunk + 1 == chunks;
  switch (action.kind) {
    case ActionKind::forward:
    case ActionKind::forward_only:
      if (first) return {};
      return {Need{Product::output, chunk - 1}};
    case ActionKind::backward:
    case ActionKind::backward_input:
      if (last) return {Need{Product::output, chunk}};
      return {Need{Product::output, chunk}, Need{Product::input_grad, chunk + 1}};
    case ActionKind::backward_weight:
    case ActionKind::send_backward: return {Need{Product::input_grad, chunk}};
    case ActionKind::send_forward: return {Need{Product::output, chunk}};
    case ActionKind::recv_forward: return {Need{Product::sent_forward, chunk - 1}};
    case ActionKind::recv_backward: return {Need{Product::sent_backward, chunk + 1}};
    case ActionKind::reduce_grads: return {};
  }
  return {};
}

/// Finds the action that makes a missing product, and its rank.
void find_maker(std::span<const std::vector<Action>> ranks, const Need& need, StuckRank& stuck) {
  stuck.waits_for = {ActionKind::forward, need.chunk, stuck.action.microbatch};
  for (const ActionKind kind :
       {ActionKind::forward, ActionKind::backward_input, ActionKind::send_forward, ActionKind::send_backward})
    if (product_of(kind) == need.product) stuck.waits_for.kind = kind;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank)
    for (const Action& action : ranks[rank])
      if (product_of(action.kind) == need.product && action.chunk == need.chunk &&
          action.microbatch == stuck.action.microbatch) {
        stuck.waits_for = action;
        stuck.waits_for_rank = static_cast<int>(rank);
        return;
      }
}

class Run {
 public:
  Run(std::span<const std::vector<Action>> ranks, const ActionCosts& costs)
      : lists_(ranks), costs_(costs), board_(ranks), now_(ranks.size(), 0.0) {
    result_.ranks.resize(ranks.size());
    result_.transfer = costs.transfer;
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) result_.ranks[rank].reserve(ranks[rank].size());
    for (const std::vector<Action>& list : ranks)
      for (const Action& action : list)
        has_transfers_ = has_transfers_ || is_send(action.kind) || is_receive(action.kind);
  }

  Timeline run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t rank = 0; rank < lists_.size(); ++rank)
        while (advance(rank)) moved = true;
    }
    finish();
    return std::move(result_);
  }

 private:
  std::optional<Need> missing(const Action& action) {
    for (const auto& need : needs_of(action, board_.chunks()))
      if (need && (need->chunk < 0 || need->chunk >= board_.chunks() ||
                   board_.at(need->product, need->chunk, action.microbatch) == kNever))
        return need;
    return std::nullopt;
  }

  /// Transfer time of a product of another rank, if the lists have no transfers.
  double implied_transfer(int chunk, std::size_t rank) const {
    return has_transfers_ || board_.rank_of(chunk) == rank ? 0 : costs_.transfer;
  }

  /// The rank's next action, and the one that takes turns with it.
  std::span<const Action> next_together(std::size_t rank) const {
    const std::span<const Action> rest = std::span(lists_[rank]).subspan(result_.ranks[rank].size());
    return rest.first(
        std::min<std::size_t>(rest.size(), rest.size() > 1 && take_turns(rest[0], rest[1]) ? 2 : 1));
  }

  /// Runs the rank's next action, or the next two that take turns, if the products they need exist.
  bool advance(std::size_t rank) {
    const std::span<const Action> actions = next_together(rank);
    if (actions.empty()) return false;
    for (const Action& action : actions)
      if (missing(action)) return false;
    double start = now_[rank], end = start;
    for (const Action& action : actions) {
      for (const auto& need : needs_of(action, board_.chunks()))
        if (need)
          end = std::max(end, board_.at(need->product, need->chunk, action.microbatch) +
                                  implied_transfer(need->chunk, rank));
      if (const auto input = received_for(action.kind))
        end = std::max(end, board_.at(*input, action.chunk, action.microbatch));
    }
    if (!is_receive(actions.front().kind)) {  // a receive is posted, and the rank continues
      start = end;
      for (const Action& action : actions) end += costs_.of(action.kind);
      now_[rank] = end;
    }
    for (const Action& action : actions) {
      busy_ += costs_.of(action.kind);
      result_.ranks[rank].push_back({action, start, end});
      if (const auto product = product_of(action.kind))
        board_.at(*product, action.chunk, action.microbatch) =
            end + (is_send(action.kind) ? costs_.transfer : 0);
    }
    return true;
  }

  void finish() {
    for (std::size_t rank = 0; rank < lists_.size(); ++rank) {
      result_.makespan = std::max(result_.makespan, now_[rank]);
      for (const Action& action : next_together(rank)) {
        const std::optional<Need> need = missing(action);
        if (!need) continue;
        StuckRank stuck{.rank = static_cast<int>(rank), .action = action};
        find_maker(lists_, *need, stuck);
        result_.stuck.push_back(stuck);
        break;
      }
    }
    const double all = static_cast<double>(lists_.size()) * result_.makespan;
    result_.bubble_fraction = all > 0 ? 1 - busy_ / all : 0;
  }

  std::span<const std::vector<Action>> lists_;
  ActionCosts costs_;
  Board board_;
  std::vector<double> now_;
  double busy_ = 0;
  bool has_transfers_ = false;
  Timeline result_;
};

}  // namespace

double ActionCosts::of(ActionKind kind) const {
  switch (kind) {
    case ActionKind::forward:
    case ActionKind::forward_only: return forward;
    case ActionKind::backward: return backward_input + backward_weight;
    case ActionKind::backward_input: return backward_input;
    case ActionKind::backward_weight: return backward_weight;
    default: return 0;
  }
}

Timeline timeline(std::span<const std::vector<Action>> ranks, const ActionCosts& costs) {
  return Run(ranks, costs).run();
}

std::string describe(std::span<const StuckRank> stuck) {
  std::string text;
  for (const StuckRank& s : stuck)
    text += "rank " + std::to_string(s.rank) + " is at " + describe(s.action) + " and waits for " +
            describe(s.waits_for) +
            (s.waits_for_rank < 0 ? ", which no rank does\n"
                                  : " of rank " + std::to_string(s.waits_for_rank) + "\n");
  return text;
}

}  // namespace trainerd::parallel
