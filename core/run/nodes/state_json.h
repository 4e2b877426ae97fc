#pragma once

#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "core/run/nodes/node_messages.h"

namespace trainerd::core::run {

// Held states as agents speak of them. The readers throw nlohmann::json::exception on what is none,
// CommError for an unknown dtype.
nlohmann::json to_json(const StateCut& cut);
StateCut cut_from(const nlohmann::json& json);
nlohmann::json to_json(const std::vector<StateSource>& sources);
std::vector<StateSource> sources_from(const nlohmann::json& list);
/// With its type: a whole message.
nlohmann::json to_json(const StateShown& shown);
StateShown state_shown_from(const nlohmann::json& json);

}  // namespace trainerd::core::run
