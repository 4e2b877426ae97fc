#pragma once

// Expert parallelism: ranks share the experts of a layer. Each gets tokens of all ranks, computes those of
// its own experts, and the ranks add up the results. All sizes of the communication are known before the
// step, whatever the router chooses: either every rank gathers all tokens (Megatron-LM's all-gather
// dispatcher), or each token is sent to the ranks of its experts, in a fixed number of slots for each rank
// (all-to-all, as in GShard, Lepikhin et al., arXiv 2006.16668, but with the slots of a rank, not of an
// expert, and a token once for all of its experts there).

#include <memory>

#include "kernels/backend/backend.h"
#include "parallel/comm/communicator.h"

namespace trainerd::parallel {

struct ExpertParallel {
  Communicator* group = nullptr;  ///< null: this rank has all experts
  std::int64_t rows = 0;          ///< that the experts of this rank have memory for, in one microbatch
  std::int64_t slots =
      0;  ///< for tokens from one rank to one, itself included; 0: every rank gathers all tokens

  bool overlap = false;  ///< send in the background where there is computation to hide it
  /// Each tensor-parallel rank routes its own part of its group's tokens, and experts are whole. Otherwise
  /// all of them route all tokens, and have a part of each expert.
  bool own_tokens = false;

  /// `computes`: there is computation to hide a message, apart from that of another pass on the stream.
  Progress progress(const kernels::Stream& stream, bool computes) const {
    return overlap && (computes || stream.shared()) ? Progress::background : Progress::caller;
  }

  std::int64_t ranks() const { return group != nullptr ? group->size() : 1; }
  std::int64_t rank() const { return group != nullptr ? group->rank() : 0; }
  /// Tokens that a rank's experts get if each rank has `tokens`, with those of empty slots.
  std::int64_t received(std::int64_t tokens) const { return slots > 0 ? ranks() * slots : ranks() * tokens; }
};

/// The slots of the rank's own tokens (kernels::PlaceTokens); undefined if all tokens are gathered.
struct TokenSlots {
  kernels::Tensor slot_TK, source_NS;
};

/// The rank's choices and the router's weights, of T tokens.
struct Choices {
  kernels::Tensor expert_TK, weight_TK;
};
/// Chooses slots, if tokens are sent, and brings the choices of received tokens to `received`; empty slots
/// have the expert -1.
void send_choices(const ExpertParallel&, kernels::Backend&, kernels::Stream&, const Choices& own,
                  const TokenSlots& slots, std::int64_t experts_of_rank, const kernels::Tensor& flag,
                  float flag_value, const Choices& received);

/// Tokens on their way to the ranks of their experts: memory in the stream's scratch, and a message that may
/// run beside what the stream does next, unless the caller runs it.
class TokenTransfer {
 public:
  /// Takes the memory for tokens like `x` [T, D].
  TokenTransfer(const ExpertParallel&, kernels::Stream&, const kernels::Tensor& x);
  void start(const ExpertParallel&, kernels::Backend&, kernels::Stream&, const kernels::Tensor& x,
             const TokenSlots& slots, const char* label, Progress progress);
  /// Waits for the received tokens of all ranks: `x` itself with one rank. Empty slots have no defined value.
  const kernels::Tensor& arrived(kernels::Stream&) const;

 private:
  kernels::Tensor sent_, all_;
  std::shared_ptr<Work> work_;
};

/// Memory for results for received tokens: `to` [T, ...] itself, or in scratch.
kernels::Tensor take_results(const ExpertParallel&, kernels::Stream&, const kernels::Tensor& to);

/// Results on their way back to the ranks of their tokens, like TokenTransfer.
class ResultTransfer {
 public:
  /// Takes the memory for results for `to`, and starts to send `results` [received, ...]. Neither may be
  /// used until `add_up`.
  ResultTransfer(const ExpertParallel&, kernels::Stream&, const kernels::Tensor& results,
                 const kernels::Tensor& to, const char* label, Progress progress);
  /// Adds up those of all ranks, and writes the sums to `to` [T, D].
  void add_up(const ExpertParallel&, kernels::Backend&, kernels::Stream&, const TokenSlots& slots) const;
  /// The same for numbers of choices, f32 [T, K], which only the rank of the choice's expert has.
  void add_up_choices(const ExpertParallel&, kernels::Backend&, kernels::Stream&,
                      const TokenSlots& slots) const;

 private:
  kernels::Tensor back_, to_;
  std::shared_ptr<Work> work_;
};

}  // namespace trainerd::parallel
