#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/run/nodes/held_state.h"

namespace trainerd::core::run {

/// An offer and the node whose agent made it, as it is numbered now.
struct ShownOffer {
  std::int64_t from = 0;
  StateOffer offer;
};

/// From where all ranks can begin without a checkpoint.
struct StateChoice {
  StateCut cut;
  std::vector<StateSource> sources;  ///< by `of`

  bool from_copies() const;
};

/// The newest step, `most_step` at the most, whose snapshots together hold every box of `needed`. A node's
/// own snapshots are preferred to a partner's copy of them.
///
/// Ranks may have begun to overwrite a snapshot of their own that is neither `taken` nor of the newest step
/// that all agents with own snapshots of that lead hold (NodeSnapshots): those do not count.
std::optional<StateChoice> choose_state(std::span<const ShownOffer> shown,
                                        std::span<const io::TensorSlice> needed, std::int64_t most_step);

/// An answer to `ShowState`: the states, in messages of `boxes` boxes each at the most, or of one rank that
/// has more; then the last message.
std::vector<StateShown> shown_states(std::int64_t number, std::span<const HeldState> states,
                                     std::size_t boxes = 10'000);

}  // namespace trainerd::core::run
