#pragma once

#include <map>
#include <string>
#include <vector>

#include "core/spec/document.h"
#include "core/spec/fields.h"
#include "core/spec/problems.h"

namespace trainerd::core::spec {

/// The place of every given key. A section's place is that of its key.
using Places = std::map<std::string, Place>;

/// Stores all values of the tree in their fields and returns their places. Unknown keys, wrong types and
/// values out of limits become problems.
Places read_fields(const Node& root, std::vector<Field>& fields, Problems& problems);

}  // namespace trainerd::core::spec
