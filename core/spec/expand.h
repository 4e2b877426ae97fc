#pragma once

#include <set>
#include <string>
#include <vector>

#include "core/spec/document.h"
#include "core/spec/problems.h"
#include "core/spec/surroundings.h"

namespace trainerd::core::spec {

/// Expands the scalars and lists of the keys `texts` (dotted paths): `${NAME}`, `${NAME:-default}`, `$$` (a
/// dollar), `$~` (a tilde), and `~` or `~/` at the start (also of a default) to ${HOME}. Variables come from
/// the environment; their values are not expanded again. An unset variable without a default, an unknown
/// `~user` and an unfinished `${` become problems.
void expand_texts(Node& root, const std::set<std::string>& texts, const Environment& environment,
                  Problems& problems);

/// The text that expands to `text`.
std::string unexpanded(const std::string& text);

/// Makes relative data paths (or patterns) absolute: in `directory` if they exist there, else in the working
/// directory if they exist there. Others stay as they are.
void anchor_paths(std::vector<std::string>& paths, const std::string& directory);

}  // namespace trainerd::core::spec
