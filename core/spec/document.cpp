#include "core/spec/document.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/parser.h>

#include <algorithm>
#include <optional>
#include <sstream>
#include <string_view>
#include <unordered_set>

namespace trainerd::core::spec {
namespace {

constexpr std::size_t kLongestText = 1 << 20;
constexpr std::size_t kDeepest = 16;

// Length of the UTF-8 sequence at `i`, or 0 if it is malformed (overlong, surrogate, cut off).
std::size_t sequence_length(const std::string& text, std::size_t i) {
  const auto at = [&](std::size_t k) { return k < text.size() ? static_cast<unsigned char>(text[k]) : 0u; };
  const unsigned lead = at(i);
  const std::size_t length = lead < 0x80   ? 1
                             : lead < 0xc2 ? 0
                             : lead < 0xe0 ? 2
                             : lead < 0xf0 ? 3
                             : lead < 0xf5 ? 4
                                           : 0;
  for (std::size_t k = 1; k < length; ++k)
    if ((at(i + k) & 0xc0u) != 0x80u) return 0;
  if ((lead == 0xe0 && at(i + 1) < 0xa0) || (lead == 0xed && at(i + 1) > 0x9f)) return 0;
  if ((lead == 0xf0 && at(i + 1) < 0x90) || (lead == 0xf4 && at(i + 1) > 0x8f)) return 0;
  return length;
}

// Refuses bytes that the YAML reader takes for the end of the text or for another encoding.
void check_bytes(const std::string& text, int source, const std::string& path, Problems& problems) {
  const auto refuse = [&](const Place& place, const std::string& what) {
    problems.add(place, path, what);
    throw Stop{};
  };
  Place place{source, 1, 1};
  if (text.size() > kLongestText) refuse(place, "is longer than 1 MiB: not a job");
  for (std::size_t i = 0; i < text.size();) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const bool control = byte < 0x20 && byte != '\n' && byte != '\r' && byte != '\t';
    if (control || byte == 0x7f) refuse(place, "has a control character: write plain UTF-8 text");
    const std::size_t length = sequence_length(text, i);
    if (length == 0) refuse(place, "is not UTF-8 here: write plain UTF-8 text");
    i += length;
    place = byte == '\n' ? Place{source, place.line + 1, 1} : Place{source, place.line, place.column + 1};
  }
}

// Builds the tree from the parser's events. The library's own tree would hide duplicates and expand aliases.
class TreeBuilder : public YAML::EventHandler {
 public:
  TreeBuilder(const std::string& text, int source, std::string path, Problems& problems)
      : text_(text), source_(source), root_path_(std::move(path)), problems_(problems) {}

  /// Call after the parser has finished.
  Node take_root() {
    if (stopped_) give_up();
    return std::move(root_);
  }

  void OnDocumentStart(const YAML::Mark& mark) override {
    if (++documents_ > 1 && !stopped_)
      stop(mark, "the job has ended before this, but more follows: a job is one document");
  }
  void OnDocumentEnd() override {}

  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    if (stopped_) return;
    if (expects_key()) return stop(mark, "a key is missing before this ':'");
    refuse_anchor(mark, anchor);
    Node node;
    node.null = writes_null(mark);
    // An absent value has no useful place of its own, so it gets the key's.
    node.place = stack_.empty() || stack_.back().node.kind != Node::Kind::map ? place_of(mark)
                                                                              : stack_.back().key_place;
    attach(std::move(node));
  }

  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override {
    if (stopped_) return;
    if (expects_key()) return stop(mark, "aliases ('*name') are not supported: write the key out");
    problems_.add(place_of(mark), path(), "aliases ('*name') are not supported: write the value out");
    Node node;
    node.place = place_of(mark);
    attach(std::move(node));
  }

  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    if (stopped_) return;
    if (expects_key()) {
      take_key(mark, value);
      refuse_anchor(mark, anchor);
      refuse_tag(mark, tag);
      return;
    }
    refuse_anchor(mark, anchor);
    refuse_tag(mark, tag);
    Node node;
    node.kind = Node::Kind::scalar;
    node.place = place_of(mark);
    node.quoted = tag == "!";
    node.text = value;
    attach(std::move(node));
  }

  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    open(Node::Kind::list, mark, tag, anchor);
  }
  void OnSequenceEnd() override { close(); }

  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    open(Node::Kind::map, mark, tag, anchor);
  }
  void OnMapEnd() override { close(); }

 private:
  struct Frame {
    Node node;
    std::string path;
    std::string key;  // of the value being read
    Place key_place;
    bool has_key = false;
    bool duplicate = false;
    std::unordered_set<std::string> seen;
  };

  struct StopReason {
    Place place;
    std::string path;
    std::string what;
  };

  [[noreturn]] void give_up() {
    problems_.add(stopped_->place, stopped_->path, stopped_->what);
    throw Stop{};
  }

  Place place_of(const YAML::Mark& mark) const { return {source_, mark.line + 1, mark.column + 1}; }

  // The library has the same event for `key: ~` and `key:`. For the latter, the mark is that of the next
  // token.
  bool writes_null(const YAML::Mark& mark) const {
    // The library counts bytes, without the byte order mark.
    const std::size_t begin =
        static_cast<std::size_t>(mark.pos) + (text_.starts_with("\xef\xbb\xbf") ? 3 : 0);
    for (const std::string_view word : {"~", "null", "Null", "NULL"}) {
      const std::size_t end = begin + word.size();
      if (text_.compare(std::min(begin, text_.size()), word.size(), word) == 0)
        return end >= text_.size() ||
               std::string_view(" \t\r\n,]}").find(text_[end]) != std::string_view::npos;
    }
    return false;
  }

  bool expects_key() const {
    return !stack_.empty() && stack_.back().node.kind == Node::Kind::map && !stack_.back().has_key;
  }

  // Path of the next value.
  std::string path() const {
    if (stack_.empty()) return root_path_;
    const Frame& frame = stack_.back();
    if (frame.node.kind == Node::Kind::list)
      return frame.path + "[" + std::to_string(frame.node.items.size()) + "]";
    return frame.path.empty() ? printable(frame.key) : frame.path + "." + printable(frame.key);
  }

  // Ignores all further events. If the parser itself fails later, that failure is the cause.
  void stop(const YAML::Mark& mark, const std::string& what) {
    stopped_ = StopReason{place_of(mark), stack_.empty() ? root_path_ : stack_.back().path, what};
  }

  void refuse_anchor(const YAML::Mark& mark, YAML::anchor_t anchor) {
    if (anchor != 0) problems_.add(place_of(mark), path(), "anchors ('&name') are not supported: remove it");
  }

  // "?" is an untagged plain value and "!" an untagged quoted one.
  void refuse_tag(const YAML::Mark& mark, const std::string& tag) {
    if (tag.empty() || tag == "?" || tag == "!") return;
    problems_.add(place_of(mark), path(), "tags (" + show(tag) + ") are not supported: remove it");
  }

  void take_key(const YAML::Mark& mark, const std::string& key) {
    Frame& frame = stack_.back();
    frame.key = key;
    frame.key_place = place_of(mark);
    frame.has_key = true;
    frame.duplicate = !frame.seen.insert(key).second;
    if (frame.duplicate) problems_.add(frame.key_place, path(), "is given twice: keep one");
  }

  void open(Node::Kind kind, const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor) {
    if (stopped_) return;
    if (expects_key()) return stop(mark, "a key must be a single word");
    if (stack_.size() >= kDeepest) {
      stop(mark, "is nested too deeply: not a job");
      give_up();  // stops at once, to bound the recursion
    }
    refuse_anchor(mark, anchor);
    refuse_tag(mark, tag);
    Frame frame;
    frame.node.kind = kind;
    frame.node.place = place_of(mark);
    frame.path = path();
    stack_.push_back(std::move(frame));
  }

  void close() {
    if (stopped_) return;
    Node node = std::move(stack_.back().node);
    stack_.pop_back();
    attach(std::move(node));
  }

  void attach(Node node) {
    if (stack_.empty()) {
      root_ = std::move(node);
      return;
    }
    Frame& frame = stack_.back();
    if (frame.node.kind == Node::Kind::list) {
      frame.node.items.push_back(std::move(node));
      return;
    }
    if (!frame.duplicate)
      frame.node.entries.push_back({std::move(frame.key), frame.key_place, std::move(node)});
    frame.has_key = false;
  }

  const std::string& text_;
  int source_;
  std::string root_path_;
  Problems& problems_;
  Node root_;
  std::vector<Frame> stack_;
  std::optional<StopReason> stopped_;
  int documents_ = 0;
};

}  // namespace

const Node* Node::find(const std::string& key) const {
  for (const Entry& entry : entries)
    if (entry.key == key) return &entry.value;
  return nullptr;
}

Node* Node::find(const std::string& key) {
  for (Entry& entry : entries)
    if (entry.key == key) return &entry.value;
  return nullptr;
}

std::string describe(const Node& node) {
  switch (node.kind) {
    case Node::Kind::nothing: return "nothing";
    case Node::Kind::scalar: return (node.quoted ? "the text " : "") + show(node.text);
    case Node::Kind::list: return "a list";
    case Node::Kind::map: return "a map";
  }
  return "?";
}

namespace {

/// Names the first line up to `last` that is indented by a tab; empty if none is. The parser's message may be
/// of what follows from it.
std::string tab_hint(const std::string& text, int last) {
  std::istringstream lines(text);
  std::string line;
  for (int n = 1; n <= last && std::getline(lines, line); ++n)
    if (line.substr(0, line.find_first_not_of(" \t")).find('\t') != std::string::npos)
      return "; line " + std::to_string(n) + " is indented by a tab, and YAML takes spaces alone";
  return "";
}

}  // namespace

Node parse_document(const std::string& text, int source, const std::string& path, Problems& problems) {
  check_bytes(text, source, path, problems);
  std::istringstream stream(text);
  TreeBuilder builder(text, source, path, problems);
  try {
    YAML::Parser parser(stream);
    // The second call detects a second document. There must be no third: for a stray ',' the parser produces
    // empty documents without end.
    if (parser.HandleNextDocument(builder)) parser.HandleNextDocument(builder);
  } catch (const YAML::Exception& e) {
    const Place place{source, e.mark.is_null() ? 1 : e.mark.line + 1,
                      e.mark.is_null() ? 1 : e.mark.column + 1};
    problems.add(place, path, "is not valid YAML: " + e.msg + tab_hint(text, place.line));
    throw Stop{};
  }
  return builder.take_root();
}

}  // namespace trainerd::core::spec
