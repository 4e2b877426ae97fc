#pragma once

#include <nlohmann/json_fwd.hpp>

#include "core/run/wire/messages.h"

namespace trainerd::core::run {

/// JSON of a step judge's findings, for messages from worker to agent and between agents.
nlohmann::json to_json(const SpikeHistory& m);
SpikeHistory spike_history_from(const nlohmann::json& j);
nlohmann::json to_json(const ResultsDiffer& m);
ResultsDiffer results_differ_from(const nlohmann::json& j);
nlohmann::json to_json(const SpikeActed& m);
SpikeActed spike_acted_from(const nlohmann::json& j);

}  // namespace trainerd::core::run
