#pragma once

#include <CLI/CLI.hpp>

namespace trainerd::apps {

/// Throws SpecError that names an unknown subcommand or option. CLI11 would only report that a subcommand is
/// missing.
void require_known_words(const CLI::App& app, int argc, char** argv);

}  // namespace trainerd::apps
