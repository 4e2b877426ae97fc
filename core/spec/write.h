#pragma once

#include <string>

namespace trainerd::core::spec {

/// The shortest decimal that reads back to the same double, always with a point, because YAML 1.1 readers
/// take "1e-05" for a text.
std::string number_text(double x);

}  // namespace trainerd::core::spec
