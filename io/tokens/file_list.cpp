#include "io/tokens/file_list.h"

#include <fnmatch.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <system_error>
#include <tuple>
#include <utility>

#include "kernels/base/error.h"

namespace trainerd::io {
namespace {

namespace fs = std::filesystem;

fs::file_status status_of(const fs::path& path) {
  std::error_code error;
  return fs::status(path, error);  // follows links; "not found" on any error
}

// The same for a file that was found by its name. A link to nothing is an error: its file is missing, perhaps
// because a file system is not mounted.
fs::file_type type_of_found(const fs::path& path) {
  const fs::file_type type = status_of(path).type();
  std::error_code error;
  if ((type != fs::file_type::not_found && type != fs::file_type::none) ||
      fs::symlink_status(path, error).type() != fs::file_type::symlink)
    return type;
  const std::string target = fs::read_symlink(path, error).string();
  if (target.empty())
    throw base::data_error(path.string() + ": a link that cannot be read: " + error.message());
  throw base::data_error(path.string() + ": a link to " + target +
                         ", which is not there or cannot be seen: bring it back, or remove the link");
}

// Returns the names in a directory, sorted by bytes.
std::vector<std::string> names_in(const fs::path& directory) {
  std::error_code error;
  std::vector<std::string> names;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error))
    names.push_back(it->path().filename().string());
  if (error) throw base::data_error(directory.string() + ": cannot list this directory: " + error.message());
  std::sort(names.begin(), names.end());
  return names;
}

bool is_real_directory(const fs::path& path) {
  std::error_code error;
  return fs::symlink_status(path, error).type() == fs::file_type::directory;
}

void collect_below(const fs::path& directory, std::vector<std::string>& files) {
  for (const std::string& name : names_in(directory)) {
    const fs::path path = directory / name;
    if (is_real_directory(path)) collect_below(path, files);
    else if (type_of_found(path) == fs::file_type::regular) files.push_back(path.string());
  }
}

bool is_pattern(const std::string& name) { return name.find_first_of("*?[") != std::string::npos; }

// Appends the files below `base` that match the names of the pattern from index `at` on.
void match(const fs::path& base, const std::vector<std::string>& names, std::size_t at,
           std::vector<std::string>& files) {
  if (at == names.size()) {
    const fs::file_type type = type_of_found(base);
    if (type == fs::file_type::regular) files.push_back(base.string());
    if (type == fs::file_type::directory) collect_below(base, files);
    return;
  }
  const std::string& name = names[at];
  if (!is_pattern(name)) {
    if (fs::exists(fs::file_status(type_of_found(base / name)))) match(base / name, names, at + 1, files);
    return;
  }
  const fs::path directory = base.empty() ? fs::path(".") : base;
  if (status_of(directory).type() != fs::file_type::directory) return;
  if (name == "**") match(base, names, at + 1, files);  // `**` may match no directory
  for (const std::string& entry : names_in(directory)) {
    const fs::path path = base / entry;
    if (name == "**") {
      if (entry.front() != '.' && is_real_directory(path)) match(path, names, at, files);
    } else if (fnmatch(name.c_str(), entry.c_str(), FNM_PERIOD) == 0) {
      match(path, names, at + 1, files);
    }
  }
}

std::vector<std::string> match_pattern(const std::string& pattern) {
  const fs::path path(pattern);
  std::vector<std::string> names;
  for (const fs::path& part : path.relative_path())
    if (!part.empty()) names.push_back(part.string());
  std::vector<std::string> files;
  match(path.root_path(), names, 0, files);
  return files;
}

std::vector<std::string> names_of_key(const std::string& key) {
  std::vector<std::string> names;
  for (std::size_t at = 0; at <= key.size();) {
    const std::size_t slash = std::min(key.find('/', at), key.size());
    names.push_back(key.substr(at, slash - at));
    at = slash + 1;
  }
  return names;
}

// Returns true if names[of...] match pattern[at...]. When the pattern ends first, it has matched a directory
// and the remaining names are below it.
bool matches(const std::vector<std::string>& pattern, std::size_t at, const std::vector<std::string>& names,
             std::size_t of) {
  if (at == pattern.size()) return true;
  if (of == names.size()) return false;
  const std::string& name = pattern[at];
  if (name == "**")
    return matches(pattern, at + 1, names, of) ||
           (!names[of].starts_with('.') && of + 1 < names.size() && matches(pattern, at, names, of + 1));
  const bool here =
      is_pattern(name) ? fnmatch(name.c_str(), names[of].c_str(), FNM_PERIOD) == 0 : name == names[of];
  return here && matches(pattern, at + 1, names, of + 1);
}

/// Returns the objects that an s3:// path stands for, and whether the path is the key of a single object.
std::pair<std::vector<std::string>, bool> objects_of(const std::string& path, const DataFiles& from) {
  if (!path.ends_with('/') && from.exists(path)) return {{path}, true};
  const std::size_t special = path.find_first_of("*?[");
  if (special == std::string::npos) {
    std::vector<std::string> below = from.list_objects(path.ends_with('/') ? path : path + "/");
    if (below.empty())
      throw base::data_error(path + ": there is no such object, and no key begins with \"" +
                             parse_s3(path).key + "/\": check bucket and key");
    return {std::move(below), false};
  }
  // Lists all keys with the pattern's prefix up to its first name with a special character, and filters them.
  const std::vector<std::string> pattern = names_of_key(parse_s3(path).key);
  std::vector<std::string> found;
  for (std::string& uri : from.list_objects(path.substr(0, path.rfind('/', special) + 1)))
    if (matches(pattern, 0, names_of_key(parse_s3(uri).key), 0)) found.push_back(std::move(uri));
  return {std::move(found), false};
}

// Two names of one file have the same identity.
std::string identity_of(const std::string& path) {
  if (is_s3(path)) return path;
  std::error_code error;
  const fs::path canonical = fs::canonical(path, error);
  return error ? path : canonical.string();
}

/// ", from the working directory /home/me": where a relative path was looked up, which may be meant
/// otherwise.
std::string looked_up_from(const std::string& path) {
  std::error_code error;
  const fs::path here = fs::current_path(error);
  return error || is_s3(path) || fs::path(path).is_absolute()
             ? ""
             : ", from the working directory " + here.string();
}

}  // namespace

std::vector<ListedFile> list_files(const std::vector<std::string>& paths, const DataFiles& from) {
  std::vector<ListedFile> all;
  std::set<std::string> seen;
  for (const std::string& path : paths) {
    std::vector<std::string> files;
    const fs::file_type type = status_of(path).type();
    bool named = type == fs::file_type::regular;
    if (is_s3(path)) std::tie(files, named) = objects_of(path, from);
    else if (named) files.push_back(path);
    else if (type == fs::file_type::directory) collect_below(path, files);
    else if (fs::exists(status_of(path)))
      throw base::data_error(
          path + ": not a regular file; data is read by position, from files or directories of files");
    else if (is_pattern(path)) files = match_pattern(path);
    else
      throw base::data_error(path + ": no such file or directory, or no permission to see it" +
                             looked_up_from(path));
    if (files.empty())
      throw base::data_error(
          path + (is_pattern(path) ? ": no file matches this pattern" : ": no file in this directory") +
          looked_up_from(path));
    std::sort(files.begin(), files.end());
    for (std::string& file : files)
      if (seen.insert(identity_of(file)).second) all.push_back({std::move(file), named});
  }
  return all;
}

}  // namespace trainerd::io
