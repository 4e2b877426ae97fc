#pragma once

#include <string>

namespace trainerd::io {

/// The page that follows a run in a browser, in the report's design. It has no figures of its own: it loads
/// live.css and live.js beside it and reads status.json every few seconds (`to_json(RunStatus)`).
std::string live_page();
std::string live_script();

}  // namespace trainerd::io
