#pragma once

#include <nlohmann/json_fwd.hpp>

#include "core/spec/fields.h"

namespace trainerd::core::spec {

/// The value of a field; null for what the resolved job does not write either.
nlohmann::ordered_json value_json(const Field& field);

}  // namespace trainerd::core::spec
