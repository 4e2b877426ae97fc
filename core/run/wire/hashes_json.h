#pragma once

#include <nlohmann/json_fwd.hpp>

#include "core/run/wire/messages.h"

namespace trainerd::core::run {

/// The hashes as they go from worker to agent and from agent to agent.
nlohmann::json to_json(const CopiesHashed& m);
CopiesHashed copies_hashed_from(const nlohmann::json& j);

}  // namespace trainerd::core::run
