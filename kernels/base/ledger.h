#pragma once

// The time ledger (core/README.md, section 4): how the seconds of a step are spent. This is the only list of
// its parts. The step's clock, its records and metrics, the plan and the replay all use it.

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <utility>

namespace trainerd::base {

/// Communication is exposed while the compute stream issues an operation or waits for one. Each stall is
/// charged to the axis of the group it waited for.
enum class LedgerPart : std::uint8_t {
  compute,
  exposed_tp,     ///< tensor parallel, replicated key and value heads included
  exposed_cp,     ///< context parallel: attention's inputs and outputs
  exposed_ep,     ///< expert parallel: tokens to experts and their outputs back
  exposed_dp,     ///< gradients and parameters
  exposed_pp,     ///< sending flows to pipeline neighbours, and a tied embedding's gradient
  exposed_world,  ///< gradient norm, loss and votes of all ranks
  exposed_host,   ///< offloaded parameters and gradients, between a device and its host
  bubble,         ///< waiting for a pipeline neighbour's flow, including its transfer
  data_wait,
  optimizer,
  checkpoint,
  other,
};

struct LedgerPartInfo {
  LedgerPart part;
  const char* name;  ///< in steps.jsonl, traces and plans
  const char* axis;  ///< axis of exposed communication; else empty
};
inline constexpr std::array kLedgerParts{
    LedgerPartInfo{LedgerPart::compute, "compute", ""},
    LedgerPartInfo{LedgerPart::exposed_tp, "exposed_tp", "tp"},
    LedgerPartInfo{LedgerPart::exposed_cp, "exposed_cp", "cp"},
    LedgerPartInfo{LedgerPart::exposed_ep, "exposed_ep", "ep"},
    LedgerPartInfo{LedgerPart::exposed_dp, "exposed_dp", "dp"},
    LedgerPartInfo{LedgerPart::exposed_pp, "exposed_pp", "pp"},
    LedgerPartInfo{LedgerPart::exposed_world, "exposed_world", "world"},
    LedgerPartInfo{LedgerPart::exposed_host, "exposed_host", "host"},
    LedgerPartInfo{LedgerPart::bubble, "bubble", ""},
    LedgerPartInfo{LedgerPart::data_wait, "data_wait", ""},
    LedgerPartInfo{LedgerPart::optimizer, "optimizer", ""},
    LedgerPartInfo{LedgerPart::checkpoint, "checkpoint", ""},
    LedgerPartInfo{LedgerPart::other, "other", ""},
};
static_assert(
    [] {
      for (std::size_t i = 0; i < kLedgerParts.size(); ++i)
        if (static_cast<std::size_t>(kLedgerParts[i].part) != i) return false;
      return kLedgerParts.back().part == LedgerPart::other;
    }(),
    "the table has every part, in the enum's order");

constexpr const LedgerPartInfo& info(LedgerPart part) { return kLedgerParts[static_cast<std::size_t>(part)]; }

/// Seconds by part; they sum to the step's time.
class TimeLedger {
 public:
  constexpr TimeLedger() = default;
  constexpr TimeLedger(std::initializer_list<std::pair<LedgerPart, double>> parts) {
    for (const auto& [part, seconds] : parts) (*this)[part] += seconds;
  }
  constexpr double& operator[](LedgerPart part) { return seconds_[static_cast<std::size_t>(part)]; }
  constexpr double operator[](LedgerPart part) const { return seconds_[static_cast<std::size_t>(part)]; }
  constexpr double sum() const {
    double all = 0;
    for (const double seconds : seconds_) all += seconds;
    return all;
  }

 private:
  std::array<double, kLedgerParts.size()> seconds_{};
};

}  // namespace trainerd::base
