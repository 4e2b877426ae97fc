#pragma once

#include <nlohmann/json_fwd.hpp>

#include "core/run/wire/messages.h"

namespace trainerd::core::run {

/// JSON of the hashes, for messages from worker to agent and between agents.
nlohmann::json to_json(const CopiesHashed& m);
CopiesHashed copies_hashed_from(const nlohmann::json& j);

}  // namespace trainerd::core::run
