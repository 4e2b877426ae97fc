#pragma once

namespace trainerd::io {

/// Script of the comparison page, placed after page_script(): controls and charts for the data of
/// comparison.cpp.
extern const char* const kComparisonScript;

}  // namespace trainerd::io
