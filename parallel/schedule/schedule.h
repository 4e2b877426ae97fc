#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "parallel/layout/schedule_shape.h"

// Pipeline schedules as data. A chunk is identified by its index in the model: 0 has the embedding, the last
// one the head. ScheduleShape::rank_of is its pipeline rank. A chunk whose input another chunk of its rank
// makes (ScheduleShape::stays_on_rank) reads it where that one wrote it, before that one writes again.

namespace trainerd::parallel {

enum class ActionKind : std::uint8_t {
  forward,
  forward_only,     ///< evaluation: nothing is kept
  backward,         ///< input and weight gradients, segment by segment
  backward_input,   ///< only the gradient of the chunk's input
  backward_weight,  ///< the weight gradients that backward_input left out
  send_forward,     ///< the chunk's output, to the rank of chunk + 1
  recv_forward,     ///< the chunk's input, from the rank of chunk - 1
  send_backward,    ///< the gradient of the chunk's input, to the rank of chunk - 1
  recv_backward,    ///< the gradient of the chunk's output, from the rank of chunk + 1
  reduce_grads,     ///< reduces the chunk's gradients, which are complete on this rank
};
const char* to_string(ActionKind kind);
bool is_send(ActionKind kind);
bool is_receive(ActionKind kind);

/// One action of a rank, on one chunk of the model and one microbatch.
struct Action {
  ActionKind kind = ActionKind::forward;
  int chunk = 0;
  int microbatch = 0;
  int peer = -1;  ///< other pipeline rank of a transfer
  /// A transfer that runs as one group with the transfer before it, or a backward that takes turns with the
  /// forward before it, of another chunk: one computes while the other waits for messages.
  bool joins = false;
  bool operator==(const Action&) const = default;
};

/// True if both actions, in this order in a list, are computations that take turns.
bool take_turns(const Action& before, const Action& action);

/// "recv_forward of chunk 3, microbatch 5"
std::string describe(const Action& action);

/// Number of actions at the start of `rest` that run as one: a transfer with those that join it, a forward
/// and a backward that take turns, or one action.
std::size_t group_size(std::span<const Action> rest);

/// The action list of one rank: a pure function of its arguments, used by the executor, the memory plan and
/// the tests. Throws SpecError with the text of `schedule_problem`.
///
/// - Within a chunk, forwards, backwards and weight gradients each process microbatches in rising order, in
///   every kind of schedule. So gradients are always summed in the same order.
/// - On each pair of ranks, messages are received in the order they are sent. No tags are needed.
/// - Ranks that run their lists in order never deadlock, if they complete each group of transfers before they
///   continue, whether or not sends are buffered. So neither do ranks that continue while transfers are in
///   progress, nor communicators that run transfers in the order of issue.
/// - A message is received before it is used. With `early_receives` its receive is posted earlier, if the
///   rank has a free buffer for it (see `with_transfers`).
/// - A chunk's reduce_grads follows its last backward (and the send of that backward).
std::vector<Action> make_schedule(const ScheduleShape& shape, int pipeline_rank);

/// The action lists of all ranks.
std::vector<std::vector<Action>> make_schedules(const ScheduleShape& shape);

}  // namespace trainerd::parallel
