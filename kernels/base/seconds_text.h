#pragma once

#include <string>

namespace trainerd::base {

/// "2.5 s", "0.033 s": for messages.
std::string seconds_text(double seconds);
/// "2.5", "12.0"
std::string one_decimal(double value);

}  // namespace trainerd::base
