#include "apps/command_tree.h"

#include <CLI/CLI.hpp>
#include <algorithm>

namespace trainerd::apps {
namespace {

// CLI11 writes "TYPE:{a,b}" for an option with listed values and "TYPE:LIMITS" for one with limits.
std::vector<std::string> listed_words(const std::string& type) {
  const std::size_t open = type.find('{'), close = type.find('}');
  if (open == std::string::npos || close == std::string::npos) return {};
  std::vector<std::string> words(1);
  for (const char c : type.substr(open + 1, close - open - 1)) {
    if (c == ',') {
      words.emplace_back();
    } else {
      words.back() += c;
    }
  }
  return words;
}

std::string joined(const std::vector<std::string>& words, char between) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : std::string(1, between)) + word;
  return text;
}

OptionHelp option_help(const CLI::Option& option) {
  OptionHelp described;
  if (option.get_positional()) {
    described.names = {option.get_name(true)};
  } else {
    for (const std::string& name : option.get_snames()) described.names.push_back("-" + name);
    for (const std::string& name : option.get_lnames()) described.names.push_back("--" + name);
  }
  if (option.get_items_expected_max() > 0) {
    const std::string type = option.get_type_name();
    described.words = listed_words(type);
    // "HOST:PORT" is a name, ":POSITIVE" a limit. The listed words, or "N", tell more than CLI11's type
    // names.
    std::string name = type.starts_with("HOST:PORT") ? "HOST:PORT" : type.substr(0, type.find(':'));
    if (name == "TEXT") name = described.words.empty() ? "TEXT" : joined(described.words, '|');
    if (name == "INT" || name == "UINT") name = "N";
    if (name == "FLOAT") name = "NUMBER";
    described.value = name;
    described.values = std::max(1, option.get_items_expected_min());
  }
  described.help = option.get_description();
  described.fallback = option.get_default_str();
  for (const CLI::Option* needed : option.get_needs()) described.needs.push_back(needed->get_name());
  described.many = option.get_positional() && option.get_items_expected_max() > 1;
  described.required = option.get_required();
  return described;
}

}  // namespace

CommandHelp command_tree(const CLI::App& app) {
  CommandHelp described;
  described.name = app.get_name();
  described.help = app.get_description();
  for (const CLI::Option* option : app.get_options())
    if (!option->get_group().empty())
      (option->get_positional() ? described.positionals : described.options).push_back(option_help(*option));
  for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; }))
    if (!sub->get_group().empty()) described.subcommands.push_back(command_tree(*sub));
  return described;
}

}  // namespace trainerd::apps
