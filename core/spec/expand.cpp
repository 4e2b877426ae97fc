#include "core/spec/expand.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <system_error>

#include "io/tokens/file_list.h"
#include "kernels/base/error.h"

namespace trainerd::core::spec {
namespace {

bool starts_name(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_name(const std::string& name) {
  return !name.empty() && starts_name(name[0]) && std::all_of(name.begin(), name.end(), [](char c) {
    return starts_name(c) || (c >= '0' && c <= '9');
  });
}

/// Expands one text; calls `problem` with what is wrong with it.
template <class Problem>
std::string expanded(const std::string& text, const Environment& environment, const Problem& problem) {
  const auto value_of = [&](const std::string& name) {
    return environment ? environment(name) : std::nullopt;
  };
  std::string out;
  std::size_t at = 0;
  // Expands the '~' at the start of `path`. Nothing, with a problem, if that is impossible.
  const auto at_home = [&](const std::string& path) -> std::optional<std::string> {
    if (path.size() > 1 && path[1] != '/')
      return problem("'~' is the home directory before a '/' alone: write the path out"), std::nullopt;
    const auto home = value_of("HOME");
    if (!home || home->empty())
      return problem("'~' is the directory HOME, which is not set in the environment"), std::nullopt;
    return *home + path.substr(1);
  };
  if (text.starts_with('~')) {
    const auto home = at_home(text.substr(0, 2));
    if (!home) return text;
    out = *home;
    at = std::min<std::size_t>(2, text.size());
  }
  while (at < text.size()) {
    const std::size_t dollar = std::min(text.find('$', at), text.size());
    out += text.substr(at, dollar - at);
    at = dollar + 1;
    if (dollar == text.size()) break;
    const char next = at < text.size() ? text[at] : '\0';
    if (next == '$' || next == '~') ++at;
    if (next != '{') {
      out += next == '~' ? '~' : '$';
      continue;
    }
    const std::size_t end = text.find('}', at);
    if (end == std::string::npos) return problem("'${' has no '}' after it; '$$' is a dollar"), text;
    const std::string inside = text.substr(at + 1, end - at - 1);
    const std::size_t colon = inside.find(":-");
    const std::string name = inside.substr(0, colon);
    if (!is_name(name))
      return problem(show(name) +
                     " is no name of a variable: expected ${NAME} or ${NAME:-default}; '$$' is a dollar"),
             text;
    const auto value = value_of(name);
    // As in a shell, an empty variable also takes the default.
    if (colon != std::string::npos && (!value || value->empty())) {
      std::string otherwise = inside.substr(colon + 2);
      if (out.empty() && otherwise.starts_with('~')) {
        const auto home = at_home(otherwise);
        if (!home) return text;
        otherwise = *home;
      }
      out += otherwise;
    } else if (value) {
      out += *value;
    } else {
      return problem("the variable " + name + " is not set in the environment: set it, or write ${" + name +
                     ":-default}"),
             text;
    }
    at = end + 1;
  }
  return out;
}

// `key` is the path without item numbers.
void expand(Node& node, const std::string& path, const std::string& key, const std::set<std::string>& texts,
            const Environment& environment, Problems& problems) {
  const auto scalar = [&](Node& at, const std::string& of) {
    if (at.kind != Node::Kind::scalar || at.text.find_first_of("$~") == std::string::npos) return;
    at.text =
        expanded(at.text, environment, [&](const std::string& what) { problems.add(at.place, of, what); });
  };
  if (texts.contains(key)) scalar(node, path);
  for (std::size_t i = 0; i < node.items.size(); ++i) {
    const std::string item = path + "[" + std::to_string(i) + "]";
    if (texts.contains(key)) scalar(node.items[i], item);
    expand(node.items[i], item, key + "[]", texts, environment, problems);
  }
  for (Entry& entry : node.entries)
    expand(entry.value, path.empty() ? entry.key : path + "." + entry.key,
           key.empty() ? entry.key : key + "." + entry.key, texts, environment, problems);
}

bool is_there(const std::filesystem::path& path) {
  std::error_code ignored;
  if (std::filesystem::exists(path, ignored)) return true;
  // A Megatron data set is named by the common prefix of its files.
  if (std::filesystem::exists(path.string() + ".idx", ignored)) return true;
  if (path.string().find_first_of("*?[") == std::string::npos) return false;
  try {
    return !io::list_files({path.string()}).empty();
  } catch (const base::DataError&) {
    return false;
  }
}

}  // namespace

void expand_texts(Node& root, const std::set<std::string>& texts, const Environment& environment,
                  Problems& problems) {
  expand(root, "", "", texts, environment, problems);
}

std::string unexpanded(const std::string& text) {
  std::string out = text.starts_with('~') ? "$" : "";
  for (const char c : text) out += c == '$' ? std::string("$$") : std::string(1, c);
  return out;
}

void anchor_paths(std::vector<std::string>& paths, const std::string& directory) {
  std::error_code error;
  const std::filesystem::path here = std::filesystem::current_path(error);
  for (std::string& path : paths) {
    if (std::filesystem::path(path).is_absolute() || io::is_s3(path)) continue;
    for (const std::filesystem::path& base : {here / directory, here}) {
      if (error || !is_there(base / path)) continue;
      path = (base / path).lexically_normal().string();
      break;
    }
  }
}

}  // namespace trainerd::core::spec
