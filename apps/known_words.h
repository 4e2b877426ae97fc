#pragma once

#include <CLI/CLI.hpp>

namespace trainerd::apps {

/// The library says of an unknown word, or of an unknown option in place of a subcommand, that a subcommand
/// is missing. Throws SpecError that names it.
void require_known_words(const CLI::App& app, int argc, char** argv);

}  // namespace trainerd::apps
