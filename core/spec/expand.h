#pragma once

#include <set>
#include <string>
#include <vector>

#include "core/spec/document.h"
#include "core/spec/problems.h"
#include "core/spec/surroundings.h"

namespace trainerd::core::spec {

/// Replaces `${NAME}`, `${NAME:-default}`, `$$` (a dollar) and `$~` (a tilde), and a `~` or `~/` at the start
/// (of a default there, too) by ${HOME}, in the scalars of the keys `texts` (dotted paths) and in their
/// lists. Variables are of the environment; what is put in is not expanded again. A variable that is not set
/// and has no default, an unknown `~user` and an unfinished `${` become problems.
void expand_texts(Node& root, const std::set<std::string>& texts, const Environment& environment,
                  Problems& problems);

/// The text that expands to `text`.
std::string unexpanded(const std::string& text);

/// Makes relative paths (or patterns) of data absolute: in `directory` where they exist there, else in the
/// working directory where they exist there. Others stay as they are.
void anchor_paths(std::vector<std::string>& paths, const std::string& directory);

}  // namespace trainerd::core::spec
