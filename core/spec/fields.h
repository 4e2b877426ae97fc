#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <limits>
#include <string>
#include <variant>
#include <vector>

#include "core/job/job.h"
#include "io/text/interval.h"

namespace trainerd::core::spec {

struct Node;

/// An enum value and its word in a job file.
template <class Enum>
struct EnumWord {
  const char* word;
  Enum value;
};
/// A one-byte enum as words: `words[i]` stands for `values[i]`.
struct Choice {
  template <class Enum>
  Choice(Enum& held, std::initializer_list<EnumWord<Enum>> list)
      : value(reinterpret_cast<std::uint8_t*>(&held)) {
    static_assert(sizeof(Enum) == 1);
    for (const EnumWord<Enum>& known : list) {
      words.emplace_back(known.word);
      values.push_back(static_cast<std::uint8_t>(known.value));
    }
  }
  /// The word of the current value.
  const std::string& word() const;

  std::uint8_t* value;
  std::vector<std::string> words;
  std::vector<std::uint8_t> values;
};
struct NumberPair {
  double* first;
  double* second;
};
/// A recipe's name, or a map of the fields below it.
struct RecipeName {
  job::PrecisionRecipe* recipe;
};
/// A duration ("30s", "10m", "2h"), kept in seconds.
struct Duration {
  double* seconds;
};
/// A number of steps or a duration; also `auto` if `or_auto` is true.
struct StepsOrDuration {
  io::Interval* interval;
  bool or_auto = false;
};
/// An integer, or `auto`, stored as parallel::kAutomatic.
struct IntegerOrAuto {
  std::int64_t* value;
};
/// A key with only one value so far. Its value is not stored.
struct FixedWord {
  const char* word;
};
/// The path of the file that a job extends. It is merged before the fields are read, and not stored.
struct BaseFile {};
/// A part of the document with its own reader.
struct Subtree {
  Node* node;
};
struct Field;
/// A list of maps, each with its own fields.
struct MapList {
  template <class Item>
  MapList(std::vector<Item>& items, std::vector<Field> (*fields_of_item)(Item&))
      : size([&items] { return items.size(); }),
        resize([&items](std::size_t count) { items.assign(count, Item{}); }),
        fields([&items, fields_of_item](std::size_t i) { return fields_of_item(items.at(i)); }),
        plain_fields([fields_of_item](Visit visit) {
          Item plain;
          visit(fields_of_item(plain));
        }) {}
  using Visit = const std::function<void(const std::vector<Field>&)>&;

  std::function<std::size_t()> size;
  std::function<void(std::size_t)> resize;                ///< sets the size, with default items
  std::function<std::vector<Field>(std::size_t)> fields;  ///< of an item; their paths are map keys
  std::function<void(Visit)> plain_fields;                ///< visits the fields of a default item
};

using Storage =
    std::variant<std::int64_t*, std::uint64_t*, double*, bool*, std::string*, std::vector<std::string>*,
                 std::vector<std::int64_t>*, std::vector<double>*, Choice, NumberPair, IntegerOrAuto,
                 Duration, StepsOrDuration, RecipeName, FixedWord, BaseFile, Subtree, MapList>;
/// True if two storages of the same kind hold equal values; false for kinds that are not compared.
bool same_value(const Storage& a, const Storage& b);

/// One lambda per kind of storage, for std::visit.
template <class... Lambdas>
struct Overloaded : Lambdas... {
  using Lambdas::operator()...;
};
template <class... Lambdas>
Overloaded(Lambdas...) -> Overloaded<Lambdas...>;

struct Limits {
  double low = -std::numeric_limits<double>::infinity();
  double high = std::numeric_limits<double>::infinity();
  bool above_low = false;   ///< `low` itself is excluded
  bool below_high = false;  ///< `high` itself is excluded
};

/// What a key says where it takes part in an exclusion.
enum class Says : std::uint8_t {
  anything,     ///< it is given
  not_default,  ///< its value is not the default
  word,         ///< its value is a certain one
};
struct KeySays {
  std::string path;
  Says says = Says::word;
  std::string word = {};  ///< of Says::word: "true", "muon"
};
/// What a key must not say where all the others say what they do. The job's checks and its schema are made
/// from it.
struct Exclusion {
  KeySays own;
  std::vector<KeySays> others;
  std::string what;  ///< the problem, at the key that has the exclusion
};

/// One key of the job spec. The list of these is the only description of the spec: parsing, checking,
/// suggestions, the resolved job and the reference are all made from it.
struct Field {
  std::string path;  ///< "optimizer.schedule.warmup"
  Storage storage;
  std::string meaning;
  Limits limits = {};
  bool required = false;
  std::string fallback = {};  ///< the default in words, if it is not simply the value in an empty JobSpec
  std::string only = {};      ///< the supported values in words, if not all are
  std::vector<std::string> allowed = {};  ///< those values, if they do not depend on other keys
  bool honoured = true;                   ///< the current value is supported
  std::string remedy = {};                ///< what to do instead of an unsupported value
  bool settable = true;                   ///< false: only one value so far; not in the reference
  bool short_form = false;  ///< the key is also a section; its value stands for a map with one key
  bool written = true;      ///< false: the resolved job has the short form instead
  std::string idle = {};    ///< why the key has no effect in this job; empty when it has one
  std::vector<Exclusion> exclusions = {};  ///< the first that applies is reported

  Field& between(double low, double high) { return limits = {low, high, false, false}, *this; }
  Field& at_least(double low) {
    return limits = {low, std::numeric_limits<double>::infinity(), false, false}, *this;
  }
  Field& above(double low, double high = std::numeric_limits<double>::infinity()) {
    return limits = {low, high, true, false}, *this;
  }
  Field& from_below(double low, double high) { return limits = {low, high, false, true}, *this; }
  Field& needed() { return required = true, *this; }
  Field& or_else(std::string words) { return fallback = std::move(words), *this; }
  /// Values other than `words` are known but not supported yet.
  Field& only_if(bool condition, std::string words, std::string instead) {
    return only = std::move(words), honoured = condition, remedy = std::move(instead), *this;
  }
  /// `value` is the only supported value so far.
  Field& reserved(bool held, const std::string& value, const std::string& or_else_do = {}) {
    settable = false;
    allowed = {value};
    return only_if(held, "`" + value + "`", "set it to " + value + or_else_do);
  }
  Field& heads_section() { return short_form = true, *this; }
  Field& written_if(bool condition) { return written = condition, *this; }
  Field& idle_if(bool condition, std::string why) {
    return idle = condition ? std::move(why) : std::string(), *this;
  }
  /// A job has a value of this key or of `other`.
  Field& not_with(const std::string& other, std::string what, Says says = Says::not_default) {
    exclusions.push_back({{path, says}, {{other, says}}, std::move(what)});
    return *this;
  }
  /// A job that gives this key the value `word` contradicts itself where `others` say what they do.
  Field& contradicts(const std::string& word, std::vector<KeySays> others, std::string what) {
    exclusions.push_back({{path, Says::word, word}, std::move(others), std::move(what)});
    return *this;
  }
};

/// The table, bound to `job`: the storage points into it, and `honoured` and `idle` describe its current
/// values.
std::vector<Field> fields_of(job::JobSpec& job);

/// Finds the recipe `name` ("fp32", "bf16", ...). For another name it returns false and leaves `recipe`
/// unchanged.
bool recipe_by_name(const std::string& name, job::PrecisionRecipe& recipe);
/// Names of the recipes.
std::vector<std::string> recipe_names();

/// Everything before the last dot of a path; empty for a top-level key.
std::string section_of(const std::string& path);

}  // namespace trainerd::core::spec
