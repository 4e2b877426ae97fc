#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "parallel/layout/schedule_shape.h"

// Pipeline schedules as data. A chunk is named by its place in the model: 0 holds the embedding, the last one
// the head, and chunk c lives on pipeline rank c % stages.

namespace trainerd::parallel {

enum class ActionKind : std::uint8_t {
  forward,
  forward_only,     ///< evaluation: nothing is kept
  backward,         ///< input and weight gradients, segment by segment
  backward_input,   ///< the gradient of the chunk's input alone
  backward_weight,  ///< the weight gradients that backward_input left
  send_forward,     ///< what the chunk made, to the rank of chunk + 1
  recv_forward,     ///< the chunk's input, from the rank of chunk - 1
  send_backward,    ///< the gradient of the chunk's input, to the rank of chunk - 1
  recv_backward,    ///< the gradient of what the chunk made, from the rank of chunk + 1
  reduce_grads,     ///< the gradients of the chunk are complete on this rank
};
const char* to_string(ActionKind kind);
bool is_send(ActionKind kind);
bool is_receive(ActionKind kind);

/// One thing a rank does, on one chunk of the model and one microbatch.
struct Action {
  ActionKind kind = ActionKind::forward;
  int chunk = 0;
  int microbatch = 0;
  int peer = -1;       ///< of a transfer: the other pipeline rank
  bool joins = false;  ///< of a transfer: goes out as one group with the transfer before it
  bool operator==(const Action&) const = default;
};

/// "recv_forward of chunk 3, microbatch 5"
std::string describe(const Action& action);

/// How many actions from the first of `rest` on are done as one: a transfer and those that join it, or one.
std::size_t group_size(std::span<const Action> rest);

/// The action list of one rank: a pure function of its arguments, read alike by the executor, the memory plan
/// and the tests. Throws SpecError with the text of `schedule_problem`.
///
/// - Within a chunk, forwards, backwards and weight gradients each go through the microbatches in rising
/// order, in every
///   kind: gradients are summed in the same order.
/// - On each pair of ranks, messages are received in the order in which they are sent: no tags are needed.
/// - Ranks that do their lists in order, each group of transfers to its end before what follows, never
///   deadlock, whether sends are buffered or wait for their receiver; so neither do ranks that go on while
///   transfers are under way, nor communicators that run them in the order of issue.
/// - A message is received by the time it is used, and with `early_receives` posted before that where the
/// rank
///   has a place free for it (see `with_transfers`).
/// - A chunk's reduce_grads follows its last backward (and that one's send).
std::vector<Action> make_schedule(const ScheduleShape& shape, int pipeline_rank);

/// The lists of all ranks.
std::vector<std::vector<Action>> make_schedules(const ScheduleShape& shape);

}  // namespace trainerd::parallel
