#include "core/sweep/points.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "core/spec/cluster.h"
#include "core/spec/compose.h"
#include "core/spec/fields.h"
#include "core/spec/json.h"
#include "core/spec/read.h"
#include "core/sweep/draw.h"
#include "core/sweep/sobol.h"
#include "io/text/json.h"

namespace trainerd::core::sweep {
namespace {

using Json = nlohmann::ordered_json;

/// A key of a job as named in one of the maps, and its value there.
struct Named {
  std::string path;
  spec::Place place;
  const spec::Node* value;
};

Json plain_json(const spec::Node& node) {
  Json json;
  switch (node.kind) {
    case spec::Node::Kind::nothing: return json;
    case spec::Node::Kind::scalar: return node.text;
    case spec::Node::Kind::list:
      json = Json::array();
      for (const spec::Node& item : node.items) json.push_back(plain_json(item));
      return json;
    case spec::Node::Kind::map:
      json = Json::object();
      for (const spec::Entry& entry : node.entries) json[entry.key] = plain_json(entry.value);
      return json;
  }
  return json;
}

/// One axis of a grid: a key and its values with their JSON.
struct AxisValues {
  Named key;
  std::vector<const spec::Node*> values;
  std::vector<std::string> json;
};

/// A key and the range to draw it from.
struct KeyRange {
  Named key;
  DrawRange range;
};

class PointMaker {
 public:
  PointMaker(std::string file, spec::Problems& problems) : file_(std::move(file)), problems_(problems) {
    job::JobSpec job;
    for (const spec::Field& field : spec::fields_of(job)) {
      fields_.insert(field.path);
      for (std::string s = spec::section_of(field.path); !s.empty(); s = spec::section_of(s))
        sections_.insert(s);
    }
  }

  void add_grid(const spec::Node& grid) {
    std::vector<AxisValues> axes;
    std::int64_t jobs = 1;
    for (const Named& key : keys_of(grid, "grid")) {
      if (key.value->kind != spec::Node::Kind::list || key.value->items.empty()) {
        problems_.add(key.value->place, key.path,
                      "expected a list of values, got " +
                          std::string(key.value->kind == spec::Node::Kind::list ? "an empty one"
                                                                                : describe(*key.value)));
        continue;
      }
      AxisValues axis{key, {}, {}};
      for (const spec::Node& item : key.value->items)
        if (const auto json = check(key, item)) axis.values.push_back(&item), axis.json.push_back(*json);
      jobs *= std::max<std::int64_t>(1, static_cast<std::int64_t>(axis.values.size()));
      if (too_many(jobs, grid.place, "grid")) return;
      axes.push_back(std::move(axis));
    }
    if (axes.empty() || !problems_.none()) return;
    std::vector<std::size_t> at(axes.size(), 0);
    for (std::int64_t job = 0; job < jobs; ++job) {
      SweepPoint point;
      for (std::size_t i = 0; i < axes.size(); ++i)
        add_to(point, axes[i].key, *axes[i].values[at[i]], axes[i].json[at[i]]);
      points_.push_back(std::move(point));
      for (std::size_t i = axes.size(); i-- > 0;) {  // counts up like an odometer
        if (++at[i] < axes[i].values.size()) break;
        at[i] = 0;
      }
    }
  }

  void add_list(const spec::Node& list) {
    if (list.kind != spec::Node::Kind::list || list.items.empty())
      return problems_.add(
          list.place, "list",
          "expected a list of maps from a key to its value, got " +
              std::string(list.kind == spec::Node::Kind::list ? "an empty one" : describe(list)));
    if (too_many(static_cast<std::int64_t>(list.items.size()), list.place, "list")) return;
    for (std::size_t i = 0; i < list.items.size(); ++i) {
      SweepPoint point;  // an empty map gives the unchanged base
      if (list.items[i].kind == spec::Node::Kind::map && list.items[i].entries.empty()) {
        points_.push_back(std::move(point));
        continue;
      }
      for (const Named& key : keys_of(list.items[i], "list[" + std::to_string(i) + "]"))
        if (const auto json = check(key, *key.value)) add_to(point, key, *key.value, *json);
      points_.push_back(std::move(point));
    }
  }

  void add_draw(const Draw& draw, const std::string& name) {
    std::vector<KeyRange> ranges;
    for (const Named& key : keys_of(draw.over, name + ".over"))
      if (auto range = read_range(key)) ranges.push_back({key, *range});
    if (name == "sobol" && ranges.size() > kSobolDimensions)
      return problems_.add(draw.over.place, name + ".over",
                           "has " + std::to_string(ranges.size()) +
                               " keys, and there are direction numbers for " +
                               std::to_string(kSobolDimensions));
    if (ranges.empty() || !problems_.none()) return;
    for (std::int64_t sample = 0; sample < draw.samples; ++sample) {
      SweepPoint point;
      for (std::size_t i = 0; i < ranges.size(); ++i) {
        const auto index = static_cast<std::uint32_t>(sample);
        const double unit = name == "sobol" ? sobol_unit(draw.seed, ranges[i].key.path, index, i)
                                            : random_unit(draw.seed, ranges[i].key.path, index);
        spec::Node value;
        value.kind = spec::Node::Kind::scalar;
        value.place = ranges[i].key.value->place;
        value.text = drawn_text(ranges[i].range, unit);
        const auto json = check(ranges[i].key, value);
        if (!json) return;
        add_to(point, ranges[i].key, value, *json);
      }
      points_.push_back(std::move(point));
    }
  }

  std::vector<SweepPoint> take() {
    if (points_.size() > static_cast<std::size_t>(kMaxSweepJobs))
      too_many(static_cast<std::int64_t>(points_.size()), {0, 1, 1}, "");
    return std::move(points_);
  }

 private:
  bool too_many(std::int64_t jobs, const spec::Place& place, const std::string& path) {
    if (jobs <= kMaxSweepJobs) return false;
    problems_.add(place, path, "makes more than " + std::to_string(kMaxSweepJobs) + " jobs");
    return true;
  }

  static void add_to(SweepPoint& point, const Named& key, const spec::Node& value, const std::string& json) {
    point.settings.push_back({key.path, value, key.place});
    point.set.push_back({key.path, json});
  }

  /// The keys of a map, given as "a.b" or as nested sections.
  std::vector<Named> keys_of(const spec::Node& map, const std::string& where) {
    std::vector<Named> keys;
    if (map.kind != spec::Node::Kind::map || map.entries.empty()) {
      problems_.add(map.place, where,
                    "expected a map from a key of the job, as optimizer.lr, got " +
                        std::string(map.kind == spec::Node::Kind::map ? "an empty one" : describe(map)));
      return keys;
    }
    std::set<std::string> seen;
    collect(map, "", seen, keys);
    return keys;
  }

  void collect(const spec::Node& map, const std::string& prefix, std::set<std::string>& seen,
               std::vector<Named>& keys) {
    for (const spec::Entry& entry : map.entries) {
      const std::string path = prefix.empty() ? entry.key : prefix + "." + entry.key;
      if (path.front() == '.' || path.back() == '.' || path.find("..") != std::string::npos) {
        problems_.add(entry.place, spec::printable(path), "the key path has an empty part");
      } else if (path == "name" || path == "output" || path == "extends") {
        problems_.add(entry.place, path,
                      path == "extends" ? "is read from the base's file alone: write it there"
                                        : "is made for each job from the sweep's: leave it out");
      } else if (!fields_.contains(path) && sections_.contains(path)) {
        if (entry.value.kind == spec::Node::Kind::map) collect(entry.value, path, seen, keys);
        else
          problems_.add(entry.value.place, path,
                        "is a section of the job: name one of its keys, as " + first_key(path));
      } else if (!fields_.contains(path)) {
        unknown(path, entry);
      } else if (!seen.insert(path).second) {
        problems_.add(entry.place, path, "is given twice: keep one");
      } else {
        keys.push_back({path, entry.place, &entry.value});
      }
    }
  }

  std::string first_key(const std::string& section) const {
    const auto at = fields_.lower_bound(section + ".");
    return at == fields_.end() ? section : *at;
  }

  /// Reports an unknown key like in a job file, with the nearest key.
  void unknown(const std::string& path, const spec::Entry& entry) {
    spec::Problems found;
    found.add_source(file_, spec::Problems::SourceKind::file);
    spec::Node root;
    spec::Node value = entry.value;
    value.null = false;  // must not remove the key here
    spec::put_value(root, path, std::move(value), entry.place, found);
    read_alone(root, found);
    problems_.add_all(found);
  }

  static void read_alone(const spec::Node& root, spec::Problems& found) {
    job::JobSpec unused;
    std::vector<spec::Field> fields = spec::fields_of(unused);
    spec::read_fields(root, fields, found);
  }

  /// The value's JSON. Nothing, with problems, if the key cannot have it.
  std::optional<std::string> check(const Named& key, const spec::Node& value) {
    if (value.null) return "null";  // removes the key
    spec::Problems found;           // separate, so that a key's second wrong value is reported too
    found.add_source(file_, spec::Problems::SourceKind::file);
    spec::Node root;
    spec::put_value(root, key.path, value, key.place, found);
    job::JobSpec job;
    std::vector<spec::Field> fields = spec::fields_of(job);
    spec::read_fields(root, fields, found);
    if (found.none()) check_word(key.path, value, spec::fields_of(job), found);
    if (found.none()) check_preset(key.path, value, found);
    if (!found.none()) {
      problems_.add_all(found);
      return std::nullopt;
    }
    const auto field =
        std::find_if(fields.begin(), fields.end(), [&](const spec::Field& f) { return f.path == key.path; });
    const bool word = std::holds_alternative<spec::IntegerOrAuto>(field->storage) && value.text == "auto";
    Json json = word ? Json() : spec::value_json(*field);
    if (json.is_null()) json = plain_json(value);
    return io::to_text(json);
  }

  /// Refuses a value that no job supports. `now` has the fields of the job with this value.
  static void check_word(const std::string& path, const spec::Node& value,
                         const std::vector<spec::Field>& now, spec::Problems& found) {
    for (const spec::Field& field : now)
      if (field.path == path && !field.honoured && !field.allowed.empty())
        found.add(value.place, path, describe(value) + " is not available yet: " + field.remedy);
  }

  static void check_preset(const std::string& path, const spec::Node& value, spec::Problems& found) {
    if (path == "model.preset")
      spec::find_preset({"model.preset", "configs/models/", spec::model_preset_texts()}, value.text,
                        value.place, found);
    if (path == "cluster.preset" && value.text != "local") spec::read_cluster(value.text, value.place, found);
  }

  std::optional<DrawRange> read_range(const Named& key) {
    const spec::Node& node = *key.value;
    const std::string expected = "expected [low, high] or [low, high, log]";
    const auto wrong = [&](const spec::Place& place, const std::string& what) {
      problems_.add(place, key.path, what);
      return std::nullopt;
    };
    const std::optional<DrawKind> kind = kind_of(key.path);
    if (!kind) return wrong(key.place, "a range is for keys of one number: give its values in grid or list");
    if (node.kind != spec::Node::Kind::list || node.items.size() < 2 || node.items.size() > 3)
      return wrong(node.place,
                   expected + ", got " +
                       (node.kind == spec::Node::Kind::list ? "a list of " + std::to_string(node.items.size())
                                                            : describe(node)));
    const auto low = check(key, node.items[0]), high = check(key, node.items[1]);
    const bool log = node.items.size() == 3;
    if (log && (node.items[2].kind != spec::Node::Kind::scalar || node.items[2].text != "log"))
      return wrong(node.items[2].place, expected + ", got " + describe(node.items[2]));
    if (!low || !high) return std::nullopt;
    DrawRange range{*kind, 0, 0, log};
    const Json first = Json::parse(*low), second = Json::parse(*high);
    if (!first.is_number() || !second.is_number()) return wrong(node.place, expected + " of numbers");
    range.low = first.get<double>(), range.high = second.get<double>();
    if (range.low >= range.high) return wrong(node.place, "low must be less than high");
    if (log && range.low <= 0) return wrong(node.items[0].place, "low must be greater than 0 for log");
    if (*kind == DrawKind::integer && range.high > kMaxDrawnInteger)
      return wrong(node.items[1].place, "high must be at most 2^53 for an integer that is drawn");
    return range;
  }

  /// The kind of a numeric key that can be drawn.
  static std::optional<DrawKind> kind_of(const std::string& path) {
    job::JobSpec job;
    for (const spec::Field& field : spec::fields_of(job)) {
      if (field.path != path) continue;
      if (std::holds_alternative<double*>(field.storage)) return DrawKind::real;
      if (std::holds_alternative<std::int64_t*>(field.storage) ||
          std::holds_alternative<std::uint64_t*>(field.storage) ||
          std::holds_alternative<spec::IntegerOrAuto>(field.storage))
        return DrawKind::integer;
    }
    return std::nullopt;
  }

  std::string file_;
  spec::Problems& problems_;
  std::set<std::string> fields_, sections_;
  std::vector<SweepPoint> points_;
};

}  // namespace

std::vector<SweepPoint> make_points(const PointSources& sources, const std::string& file,
                                    spec::Problems& problems) {
  PointMaker maker(file, problems);
  if (sources.grid) maker.add_grid(*sources.grid);
  if (sources.list) maker.add_list(*sources.list);
  if (sources.random) maker.add_draw(*sources.random, "random");
  if (sources.sobol) maker.add_draw(*sources.sobol, "sobol");
  return maker.take();
}

}  // namespace trainerd::core::sweep
