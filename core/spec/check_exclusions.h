#pragma once

#include <functional>
#include <string>
#include <vector>

#include "core/spec/fields.h"
#include "core/spec/problems.h"

namespace trainerd::core::spec {

/// What is known of the key at a path.
struct KeyFacts {
  using Asked = std::function<bool(const std::string& path)>;
  Asked given;         ///< the job says it, or its preset
  Asked given_by_job;  ///< the job itself says it
  Asked bad;           ///< its value means nothing
};

/// Keys of the table that exclude each other in the job that it is bound to (Exclusion). Of keys that have no
/// effect none, and none where a key that takes part is bad.
std::vector<KeyProblem> exclusion_problems(const std::vector<Field>& fields, const KeyFacts& facts);

}  // namespace trainerd::core::spec
