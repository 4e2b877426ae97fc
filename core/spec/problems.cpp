#include "core/spec/problems.h"

#include <algorithm>
#include <array>
#include <cstdio>

#include "kernels/base/error.h"

namespace trainerd::core::spec {
namespace {

// A file that is not a job could have a problem on every line; users do not read more than this.
constexpr std::size_t kMaxLines = 200;
constexpr std::size_t kLongestWord = 48;

// Insertions, deletions, substitutions and swaps of neighbours (optimal string alignment), three rows at a
// time.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before(b.size() + 1), previous(b.size() + 1), row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::swap(before, previous);
    std::swap(previous, row);
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t cost = a[i - 1] == b[j - 1] ? 0 : 1;
      row[j] = std::min({previous[j] + 1, row[j - 1] + 1, previous[j - 1] + cost});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        row[j] = std::min(row[j], before[j - 2] + 1);
    }
  }
  return row[b.size()];
}

}  // namespace

int Problems::add_source(std::string name, SourceKind kind) {
  sources_.push_back({std::move(name), kind});
  return static_cast<int>(sources_.size()) - 1;
}

void Problems::add(const Place& place, const std::string& path, const std::string& what) {
  const Source& source = sources_.at(static_cast<std::size_t>(place.source));
  std::string text = source.name;
  if (source.kind != SourceKind::argument)
    text.append(":").append(std::to_string(place.line)).append(":").append(std::to_string(place.column));
  text += ": ";
  if (!path.empty()) text += path + ": ";
  lines_.push_back({place, text + what});
  bad_[path].insert(place.source);
  // A bad item makes its list bad.
  if (const std::size_t bracket = path.find('['); bracket != std::string::npos)
    bad_[path.substr(0, bracket)].insert(place.source);
}

void Problems::add_all(const Problems& other) {
  lines_.insert(lines_.end(), other.lines_.begin(), other.lines_.end());
  for (const auto& [path, sources] : other.bad_) bad_[path].insert(sources.begin(), sources.end());
}

bool Problems::bad(const std::string& path, int source) const {
  const auto found = bad_.find(path);
  return found != bad_.end() && found->second.contains(source);
}

bool Problems::of_base(const Place& place) const {
  return sources_.at(static_cast<std::size_t>(place.source)).kind == SourceKind::base;
}

void Problems::throw_if_any() const {
  if (lines_.empty()) return;
  std::vector<Line> lines = lines_;
  std::stable_sort(lines.begin(), lines.end(),
                   [](const Line& a, const Line& b) { return a.place < b.place; });
  std::string message;
  for (std::size_t i = 0; i < std::min(lines.size(), kMaxLines); ++i) {
    if (i > 0) message += '\n';
    message += lines[i].text;
  }
  if (lines.size() > kMaxLines)
    message += "\n... and " + std::to_string(lines.size() - kMaxLines) + " more problems";
  throw base::spec_error(message);
}

std::string printable(std::string_view text, std::size_t longest) {
  std::string out;
  for (const char c : text.substr(0, longest)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f) {
      std::array<char, 8> escape{};
      std::snprintf(escape.data(), escape.size(), "\\x%02x", byte);
      out += escape.data();
    } else {
      out += c;
    }
  }
  if (text.size() > longest) {
    // Do not cut within a UTF-8 sequence.
    std::size_t end = out.size();
    while (end > 0 && (static_cast<unsigned char>(out[end - 1]) & 0xc0u) == 0x80u) --end;
    if (end > 0 && static_cast<unsigned char>(out[end - 1]) >= 0xc0u) --end;
    if (end < out.size()) out.resize(end);
    out += "...";
  }
  return out;
}

std::string show(std::string_view text) { return std::string("'").append(printable(text)).append("'"); }

std::string nearest(std::string_view word, const std::vector<std::string>& candidates) {
  if (word.empty() || word.size() > kLongestWord) return {};
  const std::size_t near_enough = std::max<std::size_t>(1, std::min<std::size_t>(3, (word.size() + 1) / 3));
  std::size_t best = near_enough + 1;
  std::string found;
  for (const std::string& candidate : candidates) {
    const std::size_t distance = edit_distance(word, candidate);
    if (distance < best) {
      best = distance;
      found = candidate;
    }
  }
  return found;
}

std::string list_words(const std::vector<std::string>& words) {
  std::string out;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (i > 0) out += i + 1 == words.size() ? " or " : ", ";
    out += words[i];
  }
  return out;
}

}  // namespace trainerd::core::spec
