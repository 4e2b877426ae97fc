#include "core/run/wire/judgement_json.h"

#include <array>
#include <cstddef>
#include <nlohmann/json.hpp>

namespace trainerd::core::run {
namespace {

constexpr std::array kFound{ResultsDiffer::Found::one_of_three, ResultsDiffer::Found::no_two_alike,
                            ResultsDiffer::Found::after_spike, ResultsDiffer::Found::changed_state};
constexpr std::array kActions{job::SpikeAction::retry, job::SpikeAction::skip, job::SpikeAction::rollback};

}  // namespace

nlohmann::json to_json(const SpikeHistory& m) { return {m.used, m.losses, m.norms}; }

SpikeHistory spike_history_from(const nlohmann::json& j) { return {j.at(0), j.at(1), j.at(2)}; }

nlohmann::json to_json(const ResultsDiffer& m) {
  return {{"type", "differ"},     {"rank", m.rank},   {"step", m.step},
          {"tensors", m.tensors}, {"ranks", m.ranks}, {"found", static_cast<int>(m.found)},
          {"attempt", m.attempt}};
}

ResultsDiffer results_differ_from(const nlohmann::json& j) {
  return {j.at("rank"),
          j.at("step"),
          j.at("tensors"),
          j.at("ranks"),
          kFound.at(j.at("found").get<std::size_t>()),
          j.at("attempt")};
}

nlohmann::json to_json(const SpikeActed& m) {
  return {{"type", "spike"}, {"step", m.step},       {"action", static_cast<int>(m.action)},
          {"used", m.used},  {"message", m.message}, {"cursor", m.cursor}};
}

SpikeActed spike_acted_from(const nlohmann::json& j) {
  return {j.at("step"), kActions.at(j.at("action").get<std::size_t>()), j.at("used"), j.at("message"),
          j.at("cursor")};
}

}  // namespace trainerd::core::run
