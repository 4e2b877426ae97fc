#include "core/spec/read.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <optional>

#include "core/spec/write.h"
#include "io/text/text.h"

namespace trainerd::core::spec {
namespace {

/// True for "0.0" and "0".
bool is_same_number(const std::string& a, const std::string& b) {
  const auto value = [](const std::string& text) -> std::optional<double> {
    double number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (text.empty() || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
    return number;
  };
  const auto x = value(a);
  return x && x == value(b);
}

bool is_true(const std::string& t) { return t == "true" || t == "True" || t == "TRUE"; }
bool is_false(const std::string& t) { return t == "false" || t == "False" || t == "FALSE"; }

// YAML's spellings of infinity and NaN, which number parsers do not know.
bool is_infinite_or_nan(std::string t) {
  if (t.starts_with('+') || t.starts_with('-')) t.erase(0, 1);
  return t == ".inf" || t == ".Inf" || t == ".INF" || t == ".nan" || t == ".NaN" || t == ".NAN";
}

// A limit in a message: "1.5", or "2" for a whole number.
std::string limit_text(double x) {
  return x == std::floor(x) && std::abs(x) < 1e15 ? std::to_string(static_cast<std::int64_t>(x))
                                                  : number_text(x);
}

std::string hint(const std::string& valid) { return valid.empty() ? "" : " (nearest valid: " + valid + ")"; }

class Reader {
 public:
  Reader(std::vector<Field>& fields, Problems& problems) : fields_(fields), problems_(problems) {
    for (Field& field : fields_) {
      by_path_[field.path] = &field;
      for (std::string s = section_of(field.path); !s.empty(); s = section_of(s)) sections_.insert(s);
    }
  }

  Places read(const Node& root) {
    if (root.kind == Node::Kind::map) {
      walk(root, "");
    } else {
      problems_.add(root.place, "",
                    root.kind == Node::Kind::nothing
                        ? "is empty: write a job, for example from configs/quickstart.yaml"
                        : "a job is a map of keys, got " + describe(root));
    }
    return std::move(places_);
  }

 private:
  void walk(const Node& map, const std::string& prefix) {
    for (const Entry& entry : map.entries) {
      const std::string path = prefix.empty() ? entry.key : prefix + "." + entry.key;
      // A key with a dot must not match a path.
      const bool plain = entry.key.find('.') == std::string::npos;
      const auto field = plain ? by_path_.find(path) : by_path_.end();
      const bool section = plain && sections_.contains(path);
      if (field == by_path_.end() && !section) {
        unknown(entry, prefix);
        continue;
      }
      places_[path] = section ? entry.place : entry.value.place;
      if (problems_.bad(path, entry.value.place.source)) continue;
      if (section && entry.value.kind == Node::Kind::map) {
        if (field != by_path_.end()) start_custom(*field->second);
        walk(entry.value, path);
      } else if (field != by_path_.end()) {
        store(*field->second, entry.value);
      } else {
        problems_.add(entry.value.place, path,
                      "expected a map of keys, got " + describe(entry.value) + "; its keys are " +
                          list_words(keys_of(path)));
      }
    }
  }

  std::vector<std::string> keys_of(const std::string& section) const {
    std::vector<std::string> keys;
    const std::string prefix = section.empty() ? "" : section + ".";
    for (const Field& field : fields_) {
      if (!field.path.starts_with(prefix)) continue;
      std::string key = field.path.substr(prefix.size());
      key.resize(std::min(key.size(), key.find('.')));
      if (std::find(keys.begin(), keys.end(), key) == keys.end()) keys.push_back(std::move(key));
    }
    return keys;
  }

  void unknown(const Entry& entry, const std::string& prefix) {
    const std::string path = (prefix.empty() ? "" : prefix + ".") + printable(entry.key);
    if (problems_.bad(path, entry.place.source)) return;
    if (entry.key == "<<") {
      problems_.add(entry.place, path, "merge keys are not supported: write the keys out");
      return;
    }
    const std::vector<std::string> keys = keys_of(prefix);
    std::string valid = nearest(entry.key, keys);
    if (valid.empty()) {
      // Often it is the right key in the wrong section.
      for (const Field& field : fields_)
        if (field.path.substr(section_of(field.path).size() + (section_of(field.path).empty() ? 0 : 1)) ==
            entry.key)
          valid = field.path;
    }
    const std::string where = prefix.empty() ? "the top level" : prefix;
    problems_.add(entry.place, path,
                  "unknown key" +
                      (valid.empty() ? "; the keys of " + where + " are " + list_words(keys) : hint(valid)));
  }

  void store(Field& field, const Node& node) {
    std::visit(Overloaded{
                   [&](std::int64_t* value) { integer(field, node, *value); },
                   [&](std::uint64_t* value) { integer(field, node, *value); },
                   [&](double* value) { number(field, node, field.path, *value); },
                   [&](bool* value) { flag(field, node, *value); },
                   [&](std::string* value) { text(node, field.path, *value); },
                   [&](std::vector<std::string>* value) { texts(field, node, *value); },
                   [&](std::vector<std::int64_t>* value) { integers(field, node, *value); },
                   [&](std::vector<double>* value) { reals(field, node, *value); },
                   [&](const Choice& choice) {
                     if (const auto index = word(field, node, choice.words))
                       *choice.value = choice.values[*index];
                   },
                   [&](const NumberPair& pair) { numbers(field, node, pair); },
                   [&](const IntegerOrAuto& i) { integer_or_auto(field, node, *i.value); },
                   [&](const Duration& d) {
                     duration(field, node, *d.seconds, "a duration such as 30s, 10m or 2h");
                   },
                   [&](const StepsOrDuration& s) { steps_or_duration(field, node, s); },
                   [&](const RecipeName& name) {
                     const std::vector<std::string> words = recipe_names();
                     if (const auto index = word(field, node, words))
                       recipe_by_name(words[*index], *name.recipe);
                   },
                   [&](const FixedWord& fixed) {
                     if (node.kind == Node::Kind::scalar &&
                         (node.text == fixed.word || is_same_number(node.text, fixed.word)))
                       return;
                     problems_.add(node.place, field.path,
                                   describe(node) + " is not available yet: set it to " + fixed.word);
                   },
                   [&](const BaseFile&) {
                     problems_.add(node.place, field.path,
                                   "is read from the job's file alone: write it there");
                   },
                   [&](const Subtree& part) { *part.node = node; },
                   [&](const MapList& list) { maps(field, node, list); },
               },
               field.storage);
  }

  // A map of a recipe starts from the plainest recipe. A section with a switch is on if given as a map.
  static void start_custom(const Field& field) {
    if (bool* const* on = std::get_if<bool*>(&field.storage)) **on = true;
    if (const auto* name = std::get_if<RecipeName>(&field.storage)) {
      *name->recipe = job::PrecisionRecipe{};
      name->recipe->name = "custom";
    }
  }

  void wrong(const std::string& path, const Node& node, const std::string& expected,
             const std::string& valid = "") {
    problems_.add(node.place, path,
                  node.kind == Node::Kind::nothing
                      ? "has no value; expected " + expected
                      : "expected " + expected + ", got " + describe(node) + hint(valid));
  }

  template <class Integer>
  void integer(const Field& field, const Node& node, Integer& value) {
    const char* expected = std::is_signed_v<Integer> ? "an integer" : "an integer of 0 or more";
    if (node.kind != Node::Kind::scalar || node.quoted) return wrong(field.path, node, expected);
    const std::string digits = node.text.starts_with('+') ? node.text.substr(1) : node.text;
    Integer parsed = 0;
    const char* end = digits.data() + digits.size();
    const auto [stopped, error] = std::from_chars(digits.data(), end, parsed);
    const bool negative_unsigned = !std::is_signed_v<Integer> && digits.starts_with('-');
    if (digits.starts_with('+') || negative_unsigned || stopped != end ||
        error == std::errc::invalid_argument) {
      const auto as_number = parse_number(node.text);
      const bool whole =
          as_number && *as_number == std::floor(*as_number) && std::abs(*as_number) < 1e15 && *as_number >= 0;
      return wrong(field.path, node, expected, whole ? limit_text(*as_number) : "");
    }
    if (error == std::errc::result_out_of_range) {
      problems_.add(node.place, field.path, show(node.text) + " is out of the range of a 64-bit integer");
      return;
    }
    if (inside(field, node, field.path, static_cast<double>(parsed))) value = parsed;
  }

  bool duration(const Field& field, const Node& node, double& seconds, const std::string& expected) {
    const auto parsed = node.kind == Node::Kind::scalar ? io::parse_duration(node.text) : std::nullopt;
    // A plain number lacks its unit.
    const bool bare =
        node.kind == Node::Kind::scalar && parse_number(node.text) && *parse_number(node.text) >= 0;
    if (!parsed) return wrong(field.path, node, expected, bare ? node.text + "s" : ""), false;
    if (!inside(field, node, field.path, *parsed)) return false;
    seconds = *parsed;
    return true;
  }

  void steps_or_duration(const Field& field, const Node& node, const StepsOrDuration& value) {
    io::Interval read;
    if (value.or_auto && node.kind == Node::Kind::scalar && node.text == "auto") {
      read.automatic = true;
      *value.interval = read;
    } else if (node.kind == Node::Kind::scalar && !node.quoted && parse_number(node.text)) {
      integer(field, node, read.steps);
      *value.interval = read;
    } else if (duration(field, node, read.seconds,
                        value.or_auto ? "an integer of steps, a duration such as 30s, 10m or 2h, or auto"
                                      : "an integer of steps or a duration such as 30s, 10m or 2h")) {
      *value.interval = read;
    }
  }

  void integer_or_auto(const Field& field, const Node& node, std::int64_t& value) {
    if (node.kind == Node::Kind::scalar && node.text == "auto") value = parallel::kAutomatic;
    else if (node.kind != Node::Kind::scalar || node.quoted || !parse_number(node.text))
      wrong(field.path, node, "an integer or auto", nearest(node.text, {"auto"}));
    else integer(field, node, value);
  }

  void integers(const Field& field, const Node& node, std::vector<std::int64_t>& value) {
    if (node.kind != Node::Kind::list) return wrong(field.path, node, "a list of integers");
    std::vector<std::int64_t> read;
    for (const Node& item : node.items) integer(field, item, read.emplace_back());
    value = read;
  }

  void reals(const Field& field, const Node& node, std::vector<double>& value) {
    if (node.kind != Node::Kind::list) return wrong(field.path, node, "a list of numbers");
    std::vector<double> read;
    for (const Node& item : node.items) number(field, item, field.path, read.emplace_back());
    value = read;
  }

  static std::optional<double> parse_number(const std::string& text, bool* out_of_range = nullptr) {
    const char* begin = text.data() + (text.starts_with('+') ? 1 : 0);
    const char* end = text.data() + text.size();
    double parsed = 0;
    const auto [stopped, error] = std::from_chars(begin, end, parsed);
    if (stopped != end || begin == end || *begin == '+') return std::nullopt;
    if (out_of_range != nullptr) *out_of_range = error == std::errc::result_out_of_range;
    return error == std::errc{} ? std::optional(parsed) : std::nullopt;
  }

  void number(const Field& field, const Node& node, const std::string& path, double& value) {
    if (node.kind != Node::Kind::scalar || node.quoted) return wrong(path, node, "a number");
    bool out_of_range = false;
    const auto parsed = parse_number(node.text, &out_of_range);
    if (is_infinite_or_nan(node.text) || (parsed && !std::isfinite(*parsed)))
      problems_.add(node.place, path, "must be finite, got " + show(node.text));
    else if (out_of_range)
      problems_.add(node.place, path, show(node.text) + " is out of the range of a 64-bit number");
    else if (!parsed) wrong(path, node, "a number");
    else if (inside(field, node, path, *parsed)) value = *parsed;
  }

  bool inside(const Field& field, const Node& node, const std::string& path, double x) {
    const Limits& l = field.limits;
    const bool too_low = x < l.low || (l.above_low && x == l.low);
    const bool too_high = x > l.high || (l.below_high && x == l.high);
    if (!too_low && !too_high) return true;
    const double limit = too_low ? l.low : l.high;
    const bool open = too_low ? l.above_low : l.below_high;
    const std::string relation = too_low ? (open ? "must be greater than " : "must be at least ")
                                         : (open ? "must be less than " : "must be at most ");
    problems_.add(
        node.place, path,
        relation + limit_text(limit) + ", got " + show(node.text) + (open ? "" : hint(limit_text(limit))));
    return false;
  }

  void flag(const Field& field, const Node& node, bool& value) {
    if (node.kind == Node::Kind::scalar && !node.quoted && (is_true(node.text) || is_false(node.text))) {
      value = is_true(node.text);
      return;
    }
    const std::string& t = node.text;
    const bool yes = t == "yes" || t == "on" || t == "y" || t == "1" || is_true(t);
    const bool no = t == "no" || t == "off" || t == "n" || t == "0" || is_false(t);
    wrong(field.path, node, "true or false", yes ? "true" : no ? "false" : nearest(t, {"true", "false"}));
  }

  bool text(const Node& node, const std::string& path, std::string& value) {
    if (node.kind == Node::Kind::nothing) {
      problems_.add(node.place, path, "has no value; expected a text");
    } else if (node.kind != Node::Kind::scalar) {
      problems_.add(node.place, path, "expected a text, got " + describe(node));
    } else if (has_control(node.text)) {
      problems_.add(node.place, path, "must not have control characters, got " + show(node.text));
    } else {
      value = node.text;
      return true;
    }
    return false;
  }

  static bool has_control(const std::string& t) {
    for (const char c : t)
      if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) return true;
    return false;
  }

  void texts(const Field& field, const Node& node, std::vector<std::string>& value) {
    std::vector<std::string> read;
    if (node.kind == Node::Kind::scalar) {  // a single text is a list of one item
      std::string item;
      if (!text(node, field.path, item)) return;
      if (item.empty()) problems_.add(node.place, field.path, "is empty");
      read.push_back(item);
    } else if (node.kind == Node::Kind::list) {
      for (std::size_t i = 0; i < node.items.size(); ++i) {
        const std::string path = field.path + "[" + std::to_string(i) + "]";
        std::string item;
        if (problems_.bad(path, node.place.source) || !text(node.items[i], path, item)) continue;
        if (item.empty()) problems_.add(node.items[i].place, path, "is empty");
        read.push_back(item);
      }
    } else {
      return wrong(field.path, node, "a list of texts");
    }
    value = read;
  }

  // Reads each item by its own fields, under the path of the list plus its index.
  void maps(const Field& field, const Node& node, const MapList& list) {
    if (node.kind != Node::Kind::list) return wrong(field.path, node, "a list of maps");
    list.resize(node.items.size());
    for (std::size_t i = 0; i < node.items.size(); ++i) {
      const Node& item = node.items[i];
      const std::string path = field.path + "[" + std::to_string(i) + "]";
      if (item.kind != Node::Kind::map) {
        wrong(path, item, "a map of keys");
        continue;
      }
      std::vector<Field> fields = list.fields(i);
      for (Field& of_item : fields) of_item.path.insert(0, path + ".");
      Reader reader(fields, problems_);
      reader.walk(item, path);
      for (const Field& of_item : fields)
        if (of_item.required && !reader.places_.contains(of_item.path))
          problems_.add(item.place, of_item.path, "is required: " + of_item.meaning);
      places_.merge(reader.places_);
    }
  }

  void numbers(const Field& field, const Node& node, const NumberPair& pair) {
    if (node.kind != Node::Kind::list || node.items.size() != 2)
      return wrong(field.path, node, "a list of two numbers");
    number(field, node.items[0], field.path + "[0]", *pair.first);
    number(field, node.items[1], field.path + "[1]", *pair.second);
  }

  std::optional<std::size_t> word(const Field& field, const Node& node,
                                  const std::vector<std::string>& words) {
    if (node.kind == Node::Kind::scalar)
      for (std::size_t i = 0; i < words.size(); ++i)
        if (node.text == words[i]) return i;
    wrong(field.path, node, list_words(words),
          node.kind == Node::Kind::scalar ? nearest(node.text, words) : "");
    return std::nullopt;
  }

  std::vector<Field>& fields_;
  Problems& problems_;
  std::map<std::string, Field*> by_path_;
  std::set<std::string> sections_;
  Places places_;
};

}  // namespace

Places read_fields(const Node& root, std::vector<Field>& fields, Problems& problems) {
  return Reader(fields, problems).read(root);
}

}  // namespace trainerd::core::spec
