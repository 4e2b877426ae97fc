#pragma once

#include <string>

namespace trainerd::core {

/// "0.1.0"
std::string version();

}  // namespace trainerd::core
