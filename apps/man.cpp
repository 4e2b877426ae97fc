#include "apps/man.h"

#include <array>
#include <cctype>
#include <utility>

#include "apps/exit_codes.h"
#include "core/spec/spec.h"
#include "core/version/version.h"

namespace trainerd::apps {
namespace {

// Escapes troff's special characters. Markdown's `word` becomes bold.
std::string troff(const std::string& text) {
  std::string out;
  bool bold = false;
  for (const char c : text) {
    switch (c) {
      case '\\': out += "\\e"; break;
      case '-': out += "\\-"; break;  // a minus sign that can be copied into a shell
      case '\'': out += "\\(aq"; break;
      case '"': out += "\\(dq"; break;
      case '^': out += "\\(ha"; break;
      case '~': out += "\\(ti"; break;
      case '`': out += (bold = !bold) ? "\\fB" : "\\fR"; break;
      default: out += c;
    }
  }
  if (bold) out += "\\fR";
  return out.starts_with(".") ? "\\&" + out : out;
}
std::string bold(const std::string& text) { return "\\fB" + troff(text) + "\\fR"; }
std::string italic(const std::string& text) { return "\\fI" + troff(text) + "\\fR"; }

// Adds a full stop if there is none.
std::string sentence(const std::string& text) {
  return text.empty() || text.ends_with(".") ? troff(text) : troff(text) + ".";
}

std::string upper(std::string text) {
  for (char& c : text) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return text;
}

std::string heading(const std::string& page, int section, const std::string& what) {
  return ".TH " + troff(upper(page)) + " " + std::to_string(section) + " \"\" \"trainerd " +
         core::version::release() + "\" \"trainerd\"\n.SH NAME\n" + troff(page) + " \\- " + troff(what) +
         "\n";
}

std::string synopsis(const CommandHelp& command, const std::string& path) {
  std::string line = bold(path);
  if (!command.options.empty()) line += " [" + italic("OPTION") + " ...]";
  for (const OptionHelp& argument : command.positionals) {
    const std::string name = italic(argument.names[0]) + (argument.many ? " ..." : "");
    line += argument.required ? " " + name : " [" + name + "]";
  }
  if (!command.subcommands.empty()) line += " " + italic("COMMAND") + " ...";
  return line + "\n";
}

std::string entry(const OptionHelp& option) {
  std::string names;
  for (const std::string& name : option.names)
    names += (names.empty() ? "" : ", ") + (name[0] == '-' ? bold(name) : italic(name));
  if (!option.value.empty() && option.names[0][0] == '-') names += " " + italic(option.value);
  std::string help = sentence(option.help);
  if (option.names[0][0] != '-' && !option.words.empty()) {
    help += " One of:";
    for (std::size_t i = 0; i < option.words.size(); ++i)
      help += (i > 0 ? ", " : " ") + bold(option.words[i]);
    help += ".";
  }
  for (const std::string& needed : option.needs) help += " Only with " + bold(needed) + ".";
  if (!option.fallback.empty()) help += " Default: " + sentence(option.fallback);
  return ".TP\n" + names + "\n" + help + "\n";
}

std::string entries(const char* title, const std::vector<OptionHelp>& options) {
  std::string out;
  for (const OptionHelp& option : options) out += entry(option);
  return out.empty() ? "" : std::string(title) + "\n" + out;
}

// What to fix for each kind of error; the same as the table in core/run/README.md.
const char* meaning(base::ErrorKind kind) {
  switch (kind) {
    case base::ErrorKind::spec: return "fix the job or the command line";
    case base::ErrorKind::capacity: return "the job does not fit";
    case base::ErrorKind::data: return "data";
    case base::ErrorKind::checkpoint: return "checkpoint";
    case base::ErrorKind::diverged: return "the loss diverged";
    case base::ErrorKind::comm:
      return "a node was lost, workers ended more often than `restarts` allows, or a communication failed "
             "twice in the same step";
    case base::ErrorKind::device: return "the device";
  }
  return "";
}

std::string exit_statuses() {
  std::string out = ".SH EXIT STATUS\n.TP\n" + bold(std::to_string(kExitDone)) + "\ndone\n.TP\n" +
                    bold(std::to_string(kExitBug)) + "\na bug of trainerd\n";
  using base::ErrorKind;
  for (const ErrorKind kind :
       std::array{ErrorKind::spec, ErrorKind::capacity, ErrorKind::data, ErrorKind::checkpoint,
                  ErrorKind::diverged, ErrorKind::comm, ErrorKind::device})
    out += ".TP\n" + bold(std::to_string(exit_code(kind))) + "\n" + troff(meaning(kind)) + "\n";
  return out + ".TP\n" + bold("130") + ", " + bold("143") +
         "\nstopped by a signal (130: SIGINT) or a time limit, after saving\n";
}

std::string see_also(const CommandHelp& root, const std::string& page) {
  std::vector<std::pair<std::string, int>> others = {{"trainerd", 1}};
  for (const CommandHelp& command : root.subcommands) others.emplace_back("trainerd-" + command.name, 1);
  others.emplace_back("trainerd-job", 5);
  std::erase_if(others, [&](const auto& other) { return other.first == page; });
  std::string out = ".SH SEE ALSO\n";
  for (const auto& [name, section] : others)
    out += ".BR " + troff(name) + " (" + std::to_string(section) + ")" +
           (name == others.back().first ? "" : ",") + "\n";
  return out;
}

std::string commands(const CommandHelp& command, const std::string& path) {
  std::string out;
  for (const CommandHelp& sub : command.subcommands)
    out += ".SS " + troff(path + " " + sub.name) + "\n" + synopsis(sub, path + " " + sub.name) + ".PP\n" +
           sentence(sub.help) + "\n" + entries(".PP\nArguments:", sub.positionals) +
           entries(".PP\nOptions:", sub.options) + commands(sub, path + " " + sub.name);
  return out;
}

std::string command_page(const CommandHelp& root, const CommandHelp& command) {
  const std::string page = "trainerd-" + command.name, path = "trainerd " + command.name;
  std::string out = heading(page, 1, command.help) + ".SH SYNOPSIS\n" + synopsis(command, path) +
                    ".SH DESCRIPTION\n" + sentence(command.help) + "\n" +
                    entries(".SH ARGUMENTS", command.positionals) + entries(".SH OPTIONS", command.options);
  if (!command.subcommands.empty()) out += ".SH COMMANDS\n" + commands(command, path);
  return out + exit_statuses() + see_also(root, page);
}

std::string main_page(const CommandHelp& root) {
  std::string out = heading("trainerd", 1, "train large transformers") + ".SH SYNOPSIS\n" +
                    synopsis(root, "trainerd") + ".SH DESCRIPTION\n" + troff(root.help) +
                    "\nThe job is a YAML file; its keys are in\n.BR trainerd\\-job (5).\n"
                    ".SH COMMANDS\n";
  for (const CommandHelp& command : root.subcommands)
    out += ".TP\n.BR trainerd\\-" + troff(command.name) + " (1)\n" + sentence(command.help) + "\n";
  return out + entries(".SH OPTIONS", root.options) + exit_statuses() + see_also(root, "trainerd");
}

std::string job_page(const CommandHelp& root) {
  std::string out = heading("trainerd-job", 5, "the keys of a job of trainerd") +
                    ".SH DESCRIPTION\nA job is a YAML file. " + troff("`trainerd validate JOB`") +
                    " prints it with every default filled in, or every problem with its place.\n"
                    "On the command line " +
                    troff("`--set KEY=VALUE`") + " goes over the file.\n";
  std::string section = "?";
  for (const core::spec::KeyText& key : core::spec::job_keys()) {
    const std::size_t dot = key.path.rfind('.');
    const std::string own = dot == std::string::npos ? "" : key.path.substr(0, dot);
    if (own != section) {
      out += ".SH " + (own.empty() ? "TOP LEVEL" : troff(upper(own))) + "\n";
      section = own;
    }
    out += ".TP\n" + bold(key.path) + "\n" + sentence(key.meaning) + "\n";
    if (!key.type.empty()) out += ".br\nType: " + sentence(key.type) + "\n";
    if (key.fallback == "required") {
      out += "Required.\n";
    } else if (!key.fallback.empty()) {
      out += "Default: " + sentence(key.fallback) + "\n";
    }
  }
  return out + see_also(root, "trainerd-job");
}

}  // namespace

std::vector<ManPage> man_pages(const CommandHelp& root) {
  std::vector<ManPage> pages = {{"trainerd", 1, main_page(root)}};
  for (const CommandHelp& command : root.subcommands)
    pages.push_back({"trainerd-" + command.name, 1, command_page(root, command)});
  pages.push_back({"trainerd-job", 5, job_page(root)});
  return pages;
}

}  // namespace trainerd::apps
