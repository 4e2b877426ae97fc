#pragma once

#include <map>
#include <string>
#include <vector>

#include "core/spec/document.h"
#include "core/spec/fields.h"
#include "core/spec/problems.h"

namespace trainerd::core::spec {

/// Where every key that was given stands; a section stands at its own key.
using Places = std::map<std::string, Place>;

/// Stores every value of the tree in its field and returns where each was. Unknown keys, wrong types and
/// values out of their limits become problems.
Places read_fields(const Node& root, std::vector<Field>& fields, Problems& problems);

}  // namespace trainerd::core::spec
