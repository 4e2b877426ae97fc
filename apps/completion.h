#pragma once

#include <string>
#include <vector>

#include "apps/command_tree.h"

namespace trainerd::apps {

/// The script by which "bash", "zsh" or "fish" completes trainerd. It asks the executable that the user types
/// what may follow (`trainerd __complete WORD...`), so it knows neither a subcommand nor an option itself.
std::string completion_script(const std::string& shell);

/// What may stand in place of the last of `words`, which follow the name of the executable; the last may be
/// empty. First a line "FILES SPACE PREFIX": FILES is "none", "files", "yaml" or "directories", paths that
/// may stand there too, after PREFIX, a part of the last word; SPACE is "nospace" where a candidate is not
/// yet a whole word. Then a line "CANDIDATE<TAB>HELP" for each.
std::string completions(const CommandHelp& root, const std::vector<std::string>& words);

}  // namespace trainerd::apps
