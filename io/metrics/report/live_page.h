#pragma once

#include <string>

namespace trainerd::io {

/// The page that follows a run in a browser, in the report's design. It contains no figures: it loads
/// live.css and live.js and reads status.json (`to_json(RunStatus)`) every few seconds.
std::string live_page();
std::string live_script();

}  // namespace trainerd::io
