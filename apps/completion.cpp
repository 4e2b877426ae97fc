#include "apps/completion.h"

#include <algorithm>

#include "core/spec/cluster.h"
#include "core/spec/spec.h"
#include "kernels/base/error.h"

namespace trainerd::apps {
namespace {

constexpr const char* kBash = R"(# Completion of trainerd for bash. Made by `trainerd completion bash`.
_trainerd() {
  # Bash splits words at = and : as well, which keys and options have in them: put together what no blank divides.
  local rest=$COMP_LINE word i
  local -a words=()
  for ((i = 0; i <= COMP_CWORD; ++i)); do
    word=${COMP_WORDS[i]}
    if [[ $i -eq 0 || $rest == [[:space:]]* ]]; then words+=("$word"); else words[-1]+=$word; fi
    rest=${rest#"${rest%%[![:space:]]*}"}
    rest=${rest#"$word"}
  done
  local program=${words[0]/#\~\//$HOME/} files space prefix current=${words[-1]}
  local -a answer found=()
  mapfile -t answer < <("$program" __complete "${words[@]:1}" 2>/dev/null)
  [[ ${#answer[@]} -gt 0 ]] || return
  read -r files space prefix <<< "${answer[0]}"
  COMPREPLY=("${answer[@]:1}")
  COMPREPLY=("${COMPREPLY[@]%%$'\t'*}")
  word=${current#"$prefix"}
  case $files in
    files) mapfile -t found < <(compgen -f -- "$word") ;;
    yaml) mapfile -t found < <(compgen -d -- "$word"; compgen -f -X '!*.yaml' -- "$word"; compgen -f -X '!*.yml' -- "$word") ;;
    directories) mapfile -t found < <(compgen -d -- "$word") ;;
  esac
  if [[ ${#found[@]} -gt 0 ]]; then
    compopt -o filenames
    COMPREPLY+=("${found[@]/#/"$prefix"}")
  fi
  [[ $space != nospace ]] || compopt -o nospace
  # Bash replaces what follows the last = or : alone.
  local breaks=${COMP_WORDBREAKS//[!=:]/}
  if [[ -n $breaks && $current == *[$breaks]* ]]; then
    prefix=${current%"${current##*[$breaks]}"}
    COMPREPLY=("${COMPREPLY[@]#"$prefix"}")
  fi
}
complete -F _trainerd trainerd
)";

constexpr const char* kZsh = R"(#compdef trainerd
# Completion of trainerd for zsh. Made by `trainerd completion zsh`.
_trainerd() {
  local -a answer candidates texts blank
  local line files space prefix
  answer=("${(@f)$(${(Q)words[1]} __complete "${(@Q)words[2,CURRENT]}" 2>/dev/null)}")
  read -r files space prefix <<< "$answer[1]"
  for line in "${(@)answer[2,-1]}"; do
    candidates+=("${line%%$'\t'*}")
    texts+=("${line%%$'\t'*}  ${line#*$'\t'}")
  done
  [[ $space != nospace ]] || blank=(-S '')
  (( $#candidates == 0 )) || compadd "${(@)blank}" -l -d texts -- "${(@)candidates}"
  [[ $files != none ]] || return 0
  [[ -z $prefix ]] || compset -P "${(b)prefix}"
  case $files in
    files) _files ;;
    yaml) _files -g '*.(yaml|yml)' ;;
    directories) _files -/ ;;
  esac
}
if [[ $funcstack[1] == _trainerd ]]; then _trainerd "$@"; else compdef _trainerd trainerd; fi
)";

constexpr const char* kFish = R"(# Completion of trainerd for fish. Made by `trainerd completion fish`.
function __trainerd_complete
    set -l words (commandline -opc)
    set -l current (commandline -ct)
    set -l answer ($words[1] __complete $words[2..-1] "$current" 2>/dev/null)
    test (count $answer) -gt 0; or return
    set -l first (string split -m 2 ' ' -- $answer[1])
    string join \n -- $answer[2..-1]
    set -l paths
    switch $first[1]
        case files
            set paths (__fish_complete_path (string replace -- "$first[3]" '' "$current"))
        case yaml
            set paths (__fish_complete_path (string replace -- "$first[3]" '' "$current") | string match -r '^[^\t]*(?:/|\.ya?ml)(?:\t.*)?$')
        case directories
            set paths (__fish_complete_path (string replace -- "$first[3]" '' "$current") | string match -r '^[^\t]*/(?:\t.*)?$')
    end
    test (count $paths) -eq 0; or string join \n -- "$first[3]"$paths
end
complete -c trainerd -f -a '(__trainerd_complete)'
)";

struct Answer {
  std::string files = "none";
  bool whole = true;   ///< candidates are complete words: a blank may follow
  std::string prefix;  ///< of the candidate files
  std::vector<std::pair<std::string, std::string>> candidates;  ///< with help texts
};

const OptionHelp* option_called(const CommandHelp& command, const std::string& name) {
  for (const OptionHelp& option : command.options)
    if (std::find(option.names.begin(), option.names.end(), name) != option.names.end()) return &option;
  return nullptr;
}

bool has(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

// For KEY=VALUE: first keys, then the key's values.
void add_keys(Answer& answer, const std::string& before, const std::string& typed) {
  const std::size_t equals = typed.find('=');
  for (const core::spec::KeyText& key : core::spec::job_keys()) {
    if (has(key.path, "[]")) continue;  // inside a list, which is set as a whole
    if (equals == std::string::npos) {
      answer.candidates.emplace_back(before + key.path + "=", key.meaning);
      answer.whole = false;
    } else if (key.path == typed.substr(0, equals)) {
      for (const std::string& word : key.words)
        answer.candidates.emplace_back(before + key.path + "=" + word, "");
      if (key.words.empty() && key.type.starts_with("text")) {
        answer.files = "files";
        answer.prefix = before + key.path + "=";
      }
    }
  }
}

// `before` is the word's part before the value: "--svg=".
void add_values(Answer& answer, const OptionHelp& option, const std::string& before,
                const std::string& typed) {
  for (const std::string& word : option.words) answer.candidates.emplace_back(before + word, "");
  if (!option.words.empty()) return;
  if (option.value == "KEY=VALUE") return add_keys(answer, before, typed);
  if (option.value == "NAME|FILE")  // a cluster
    for (const std::string& name : core::spec::cluster_preset_names())
      answer.candidates.emplace_back(before + name, "built-in cluster");
  const bool positional = !option.names[0].starts_with("-");
  answer.prefix = before;
  if (has(option.help, "YAML file")) answer.files = "yaml";
  else if (positional || has(option.value, "FILE") || has(option.value, "PATH")) answer.files = "files";
  else if (has(option.value, "DIR")) answer.files = "directories";
}

void add_options(Answer& answer, const CommandHelp& command) {
  for (const OptionHelp& option : command.options)
    for (const std::string& name : option.names)
      if (name.starts_with("--") || option.names.size() == 1)
        answer.candidates.emplace_back(name, option.help);
}

Answer answer_for(const CommandHelp& root, const std::vector<std::string>& words) {
  const CommandHelp* command = &root;
  const OptionHelp* open = nullptr;  // its value comes next
  int values_left = 0;
  std::size_t positionals = 0;
  bool options_ended = false;  // by "--"
  for (std::size_t i = 0; i + 1 < words.size(); ++i) {
    const std::string& word = words[i];
    if (open != nullptr) {
      if (--values_left == 0) open = nullptr;
    } else if (!options_ended && word == "--") {
      options_ended = true;
    } else if (!options_ended && word.size() > 1 && word[0] == '-') {
      const OptionHelp* option = option_called(*command, word);
      if (option != nullptr && option->values > 0) open = option, values_left = option->values;
    } else {
      const auto sub = std::find_if(command->subcommands.begin(), command->subcommands.end(),
                                    [&](const CommandHelp& c) { return c.name == word; });
      if (sub != command->subcommands.end()) {
        command = &*sub;
        positionals = 0;
      } else {
        ++positionals;
      }
    }
  }
  Answer answer;
  const std::string& typed = words.back();
  const std::size_t equals = typed.find('=');
  if (open != nullptr) {
    add_values(answer, *open, "", typed);
  } else if (!options_ended && typed.starts_with("--") && equals != std::string::npos) {
    const OptionHelp* option = option_called(*command, typed.substr(0, equals));
    if (option != nullptr && option->values > 0)
      add_values(answer, *option, typed.substr(0, equals + 1), typed.substr(equals + 1));
  } else if (!options_ended && typed.starts_with("-")) {
    add_options(answer, *command);
  } else if (!command->subcommands.empty()) {
    if (positionals == 0)  // otherwise an unknown subcommand precedes
      for (const CommandHelp& sub : command->subcommands) answer.candidates.emplace_back(sub.name, sub.help);
  } else if (positionals < command->positionals.size()) {
    add_values(answer, command->positionals[positionals], "", typed);
  } else if (!command->positionals.empty() && command->positionals.back().many) {
    add_values(answer, command->positionals.back(), "", typed);
  } else if (!options_ended) {
    add_options(answer, *command);
  }
  return answer;
}

}  // namespace

std::string completion_script(const std::string& shell) {
  if (shell == "bash") return kBash;
  if (shell == "zsh") return kZsh;
  if (shell == "fish") return kFish;
  throw base::spec_error("completion: no script for " + shell);
}

std::string completions(const CommandHelp& root, const std::vector<std::string>& words) {
  const std::vector<std::string> none = {""};
  const std::vector<std::string>& given = words.empty() ? none : words;
  const Answer answer = answer_for(root, given);
  std::string out = answer.files + (answer.whole ? " space " : " nospace ") + answer.prefix + "\n";
  for (const auto& [candidate, help] : answer.candidates)
    if (candidate.starts_with(given.back())) out += candidate + "\t" + help + "\n";
  return out;
}

}  // namespace trainerd::apps
