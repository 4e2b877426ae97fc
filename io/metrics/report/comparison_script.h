#pragma once

namespace trainerd::io {

/// Of the comparison's page, behind page_script(): its controls and charts, from the data of comparison.cpp.
extern const char* const kComparisonScript;

}  // namespace trainerd::io
