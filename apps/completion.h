#pragma once

#include <string>
#include <vector>

#include "apps/command_tree.h"

namespace trainerd::apps {

/// The script by which "bash", "zsh" or "fish" completes trainerd. It asks the typed executable for
/// candidates (`trainerd __complete WORD...`), so it contains no subcommands or options itself.
std::string completion_script(const std::string& shell);

/// The candidates for the last of `words`, which follow the executable's name; the last may be empty. The
/// first line is "FILES SPACE PREFIX". FILES is "none", "files", "yaml" or "directories": paths that are
/// candidates too, after PREFIX, a part of the last word. SPACE is "nospace" if a candidate is not a complete
/// word. Then follows a line "CANDIDATE<TAB>HELP" per candidate.
std::string completions(const CommandHelp& root, const std::vector<std::string>& words);

}  // namespace trainerd::apps
