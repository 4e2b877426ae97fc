#pragma once

#include <nlohmann/json_fwd.hpp>

#include "parallel/layout/layout.h"

namespace trainerd::core::run {

// A layout as it crosses from the agent to its workers. `layout_from` throws nlohmann::json::exception on
// what is no layout.
nlohmann::json layout_to_json(const parallel::Layout& layout);
parallel::Layout layout_from(const nlohmann::json& json);

}  // namespace trainerd::core::run
