#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace trainerd::apps {

/// An option or a positional argument, as the command line declares it.
struct OptionHelp {
  std::vector<std::string> names;  ///< "-h", "--help"; for a positional argument only its name: "JOB"
  std::string value;               ///< placeholder of its value: "FILE", "NAME|FILE"; empty: a flag
  std::vector<std::string> words;  ///< the possible values, if they are listed
  std::string help;
  std::string fallback;            ///< the default; empty: none
  std::vector<std::string> needs;  ///< names of options that it requires
  int values = 0;                  ///< number of words that follow its name; 0: a flag
  bool required = false;
  bool many = false;  ///< a positional argument that can be repeated
};

/// A command with its subcommands. Hidden ones are left out.
struct CommandHelp {
  std::string name;  ///< "run"
  std::string help;
  std::vector<OptionHelp> options, positionals;
  std::vector<CommandHelp> subcommands;
};

/// The description of the command line, from which the man pages and the completion are made.
CommandHelp command_tree(const CLI::App& app);

}  // namespace trainerd::apps
