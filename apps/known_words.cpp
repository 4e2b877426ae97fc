#include "apps/known_words.h"

#include <string>
#include <vector>

#include "core/spec/problems.h"
#include "kernels/base/error.h"

namespace trainerd::apps {
namespace {

/// For an option at the place of a subcommand: throws if it is unknown.
void require_known_option(const CLI::App& at, const std::string& command, const std::string& word) {
  if (at.get_subcommands([](const CLI::App*) { return true; }).empty()) return;
  const std::string name = word.substr(0, word.find('='));
  std::vector<std::string> names;
  for (const CLI::Option* option : at.get_options()) {
    if (option->check_name(name)) return;
    for (const std::string& long_name : option->get_lnames()) names.push_back("--" + long_name);
  }
  const std::string near = core::spec::nearest(name, names);
  throw base::spec_error(
      command + " has no option " + core::spec::show(name) +
      (near.empty() ? ": it has " + core::spec::list_words(names) : " (nearest valid: " + near + ")"));
}

}  // namespace

void require_known_words(const CLI::App& app, int argc, char** argv) {
  const CLI::App* at = &app;
  std::string command = "trainerd";
  for (int i = 1; i < argc; ++i) {
    if (argv[i][0] == '-') return require_known_option(*at, command, argv[i]);
    std::vector<std::string> names;  // listed subcommands
    const std::string word = argv[i];
    const CLI::App* next = nullptr;
    for (const CLI::App* sub : at->get_subcommands([](const CLI::App*) { return true; })) {
      if (!sub->get_group().empty()) names.push_back(sub->get_name());
      if (sub->get_name() == word) next = sub;
    }
    if (names.empty()) return;
    if (next == nullptr) {
      const std::string near = core::spec::nearest(word, names);
      throw base::spec_error(
          command + " has no subcommand " + core::spec::show(word) +
          (near.empty() ? ": it has " + core::spec::list_words(names) : " (nearest valid: " + near + ")"));
    }
    at = next;
    command += " " + word;
  }
}

}  // namespace trainerd::apps
