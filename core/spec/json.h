#pragma once

#include <nlohmann/json_fwd.hpp>

#include "core/spec/fields.h"

namespace trainerd::core::spec {

/// The value of a field; null if the resolved job does not contain it.
nlohmann::ordered_json value_json(const Field& field);

}  // namespace trainerd::core::spec
