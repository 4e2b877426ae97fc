#pragma once

#include <compare>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace trainerd::core::spec {

/// Where a value was written: `source` indexes Problems' list of sources. Lines and columns count from 1.
struct Place {
  int source = 0;
  int line = 1;
  int column = 1;
  auto operator<=>(const Place&) const = default;
};

/// A key and what is wrong with its value.
struct KeyProblem {
  std::string path;
  std::string what;
};

/// Collects all problems of a job for one SpecError.
class Problems {
 public:
  enum class SourceKind { file, base, argument };

  /// Adds a source: a file or a base (problems are "name:line:column: ..."), or an argument (problems are
  /// "name: ..."). Returns its index.
  int add_source(std::string name, SourceKind kind);
  /// `path` is the dotted path of a key, or empty for the document itself. The path then counts as bad.
  void add(const Place& place, const std::string& path, const std::string& what);
  /// True if a problem was found at `path`, so its value must not be used.
  bool bad(const std::string& path) const { return bad_.contains(path); }
  /// True if a problem was found at the value from `source`. Several files may give one.
  bool bad(const std::string& path, int source) const;
  /// True if the place is in a file that a job extends.
  bool of_base(const Place& place) const;
  /// Adds the problems of `other`. Its first sources must be the sources of this.
  void add_all(const Problems& other);
  bool none() const { return lines_.empty(); }
  /// Throws a SpecError with all problems in order of position, if there are any.
  void throw_if_any() const;

 private:
  struct Source {
    std::string name;
    SourceKind kind;
  };
  struct Line {
    Place place;
    std::string text;
  };
  std::vector<Source> sources_;
  std::vector<Line> lines_;
  std::map<std::string, std::set<int>> bad_;  // sources by path
};

/// Thrown within this folder if a document is too broken to continue. The problem is already in Problems.
struct Stop {};

/// 'text' in quotes, for a message. Long texts are shortened, control characters are escaped.
std::string show(std::string_view text);
/// As `show`, without quotes: for keys inside a path.
std::string printable(std::string_view text, std::size_t longest = 48);

/// The candidate with the smallest edit distance to `word`; empty if none is near enough.
std::string nearest(std::string_view word, const std::vector<std::string>& candidates);
/// "a, b or c".
std::string list_words(const std::vector<std::string>& words);

}  // namespace trainerd::core::spec
