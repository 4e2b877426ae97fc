#include "core/run/worker/resume_check.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <span>
#include <utility>

#include "core/run/worker/batches.h"
#include "core/spec/changes.h"
#include "io/hash/hash.h"
#include "io/prepare/line_reader.h"
#include "io/text/text.h"
#include "io/tokens/dataset_info.h"
#include "kernels/base/error.h"

namespace trainerd::core::run {
namespace {

// These threads wait for storage, not for cores.
constexpr int kReadThreads = 16;

// Keys in a checkpoint's identity. Old versions wrote only the first, without content.
constexpr const char* kFiles = "data";
constexpr const char* kContent = "data.content";
constexpr const char* kValid = "data.valid";

std::optional<std::string> entry(const io::TrainingState& saved, const char* key) {
  const auto it = saved.identity.find(key);
  return it == saved.identity.end() ? std::nullopt : std::optional(it->second);
}

// A checkpoint of an old version has one source and no sample count.
std::vector<io::SourceState> sources_of(const io::TrainingState& saved) {
  if (!saved.sources.empty()) return saved.sources;
  return {{.name = {},
           .files = entry(saved, kFiles).value_or("none on record"),
           .content = entry(saved, kContent).value_or(""),
           .weight = 1,
           .limit = -1,
           .stream = saved.order_stream,
           .before = 0,
           .taken = saved.cursor - saved.order_start}};
}

// Shortest text that gives `x` again: "0.7".
std::string shortest(double x) {
  std::array<char, 32> digits{};
  return {digits.data(), std::to_chars(digits.data(), digits.data() + digits.size(), x).ptr};
}

std::string share_text(double weight, std::int64_t limit) {
  return "weight " + shortest(weight) + (limit < 0 ? "" : ", at most " + io::with_commas(limit) + " samples");
}

/// Matches a checkpoint's sources with the job's by their data.
class SourceMatch {
 public:
  SourceMatch(std::vector<io::SourceState> saved, const std::vector<io::SourceFacts>& now)
      : saved_(std::move(saved)), now_(now), known_(now.size()), used_(saved_.size(), false) {
    for (std::size_t i = 0; i < now_.size(); ++i)
      for (std::size_t j = 0; j < saved_.size() && !known_[i]; ++j) {
        if (used_[j] || !same_data(saved_[j], now_[i])) continue;
        known_[i] = j;
        used_[j] = true;
      }
  }

  /// The differences if sources were both added and removed; else empty.
  std::vector<std::string> replaced() const {
    std::vector<const io::SourceFacts*> came;
    std::vector<const io::SourceState*> gone;
    for (std::size_t i = 0; i < now_.size(); ++i)
      if (!known_[i]) came.push_back(&now_[i]);
    for (std::size_t j = 0; j < saved_.size(); ++j)
      if (!used_[j] && saved_[j].weight > 0) gone.push_back(&saved_[j]);
    if (came.empty() || gone.empty()) return {};
    if (came.size() == 1 && gone.size() == 1) return {difference(*gone[0], *came[0])};
    std::vector<std::string> lines;
    for (const io::SourceState* source : gone)
      lines.push_back("data: the checkpoint has " + source->name +
                      ", the job has not: " + data_text(source->files, source->content));
    for (const io::SourceFacts* source : came)
      lines.push_back("data: the job has " + source->name +
                      ", the checkpoint has not: " + data_text(source->files, source->content));
    return lines;
  }

  /// Texts about sources that were added, removed or reweighted.
  std::vector<std::string> changes() const {
    std::vector<std::string> lines;
    for (std::size_t i = 0; i < now_.size(); ++i) {
      const io::SourceFacts& source = now_[i];
      const std::string is = share_text(source.weight, source.limit);
      if (!known_[i]) {
        lines.push_back(source.name + ": added, " + is);
        continue;
      }
      const io::SourceState& was = saved_[*known_[i]];
      const std::string after = " after " + io::with_commas(was.taken) + " samples";
      if (was.weight == 0) lines.push_back(source.name + ": added again" + after + ", " + is);
      else if (was.weight != source.weight || was.limit != source.limit)
        lines.push_back(source.name + ": " + share_text(was.weight, was.limit) + " -> " + is + after);
    }
    for (std::size_t j = 0; j < saved_.size(); ++j)
      if (!used_[j] && saved_[j].weight > 0)
        lines.push_back(saved_[j].name + ": taken away after " + io::with_commas(saved_[j].taken) +
                        " samples");
    return lines;
  }

  DataCourse course(const io::TrainingState& saved, bool changed) const {
    DataCourse course{.order = {.start = changed ? saved.cursor : saved.order_start, .sources = {}},
                      .gone = {}};
    std::int64_t next_stream = 0;
    for (const io::SourceState& source : saved_) next_stream = std::max(next_stream, source.stream + 1);
    for (const std::optional<std::size_t>& known : known_)
      if (known)
        course.order.sources.push_back(
            {saved_[*known].stream, changed ? saved_[*known].taken : saved_[*known].before});
      else course.order.sources.push_back({next_stream++, 0});
    for (std::size_t j = 0; j < saved_.size(); ++j) {
      if (used_[j]) continue;
      course.gone.push_back(saved_[j]);
      course.gone.back().weight = 0;
    }
    return course;
  }

 private:
  static bool same_data(const io::SourceState& saved, const io::SourceFacts& now) {
    return saved.files == now.files &&
           (saved.content.empty() || now.content.empty() || saved.content == now.content);
  }
  static std::string difference(const io::SourceState& saved, const io::SourceFacts& now) {
    if (saved.files != now.files) return "data: the checkpoint has " + saved.files + ", the job " + now.files;
    return "data: the checkpoint has content " + saved.content + ", the job " + now.content +
           " in files of the same names and sizes";
  }

  std::vector<io::SourceState> saved_;
  const std::vector<io::SourceFacts>& now_;
  std::vector<std::optional<std::size_t>> known_;  ///< by source of the job: the checkpoint's source
  std::vector<bool> used_;                         ///< by source of the checkpoint
};

std::string questions_text(const std::string& path) {
  io::Xxh3 hash;
  io::LineReader lines(path, 0);
  while (const auto line = lines.next()) {
    hash.update(std::as_bytes(std::span(line->text)));
    hash.update(std::as_bytes(std::span("\n", 1)));
  }
  return "xxh3 " + hash.hex();
}

}  // namespace

DataSeen look_at_data(const job::JobSpec& job, const io::DataFiles& files) {
  DataSeen seen;
  seen.stamp = io::data_stamp(job.data, files);
  seen.sources = io::TokenBlend::training(job.data, sample_shape(job), files).check_samples(kReadThreads);
  io::check_one_tokenizer(job.data, job.model.vocab, job.evaluate.every > 0, files);
  if (job.evaluate.every == 0) return seen;
  for (const io::ValidationSet& set : io::validation_sets(job.data)) {
    const auto valid =
        io::TokenBlend::validation(job.data, sample_shape(job), set, files).check_samples(kReadThreads);
    if (!set.name.empty()) seen.valid += (seen.valid.empty() ? "" : "; ") + set.name + ": ";
    const std::string text = data_text(io::all_files(valid), io::all_content(valid));
    seen.valid += text;
    seen.evaluated[set.name.empty() || set.name == io::kUnnamedSet ? "data.valid"
                                                                   : "data.valid_sets: " + set.name] = text;
  }
  for (const job::ChoiceSet& set : job.evaluate.choices)
    seen.evaluated["evaluate.choices: " + set.name] = questions_text(set.path);
  return seen;
}

void require_same_data(DataSeen& seen, const job::JobSpec& job, const io::DataFiles& files) {
  if (io::data_stamp(job.data, files) == seen.stamp) return;
  DataSeen now = look_at_data(job, files);
  const std::string before = data_text(seen.files(), seen.content()),
                    after = data_text(now.files(), now.content());
  if (before != after)
    throw base::data_error(
        "the training data has changed since the run read it: then " + before + ", now " + after +
        "; restore the files and run the job again, or set data.on_change: continue to go on with the new "
        "data, in a new order");
  seen.stamp = std::move(now.stamp);
}

std::string data_text(const std::string& files, const std::string& content) {
  return content.empty() ? files : files + ", content " + content;
}

void record_data(const DataSeen& seen, const DataCourse& course, io::TrainingState& state) {
  state.identity[kFiles] = seen.files();
  state.identity[kContent] = seen.content();
  if (!seen.valid.empty()) state.identity[kValid] = seen.valid;
  const std::vector<std::int64_t> taken =
      io::blend_after(course.order, seen.sources).taken(state.cursor - course.order.start);
  state.order_start = course.order.start;
  state.order_stream = course.order.sources.empty() ? 0 : course.order.sources.front().stream;
  state.sources.clear();
  for (std::size_t i = 0; i < seen.sources.size(); ++i) {
    const io::SourceFacts& source = seen.sources[i];
    const io::SourceStart start = course.order.sources.empty()
                                      ? io::SourceStart{static_cast<std::int64_t>(i), 0}
                                      : course.order.sources[i];
    state.sources.push_back({.name = source.name,
                             .files = source.files,
                             .content = source.content,
                             .weight = source.weight,
                             .limit = source.limit,
                             .stream = start.stream,
                             .before = start.taken,
                             .taken = start.taken + taken[i]});
  }
  state.sources.insert(state.sources.end(), course.gone.begin(), course.gone.end());
}

ResumedData resumed_data(const std::string& path, const io::TrainingState& saved, const DataSeen& now,
                         io::DataChange on_change) {
  SourceMatch match(sources_of(saved), now.sources);
  ResumedData resumed;
  const auto notice = [&](io::NoticeKind kind, const std::string& message, std::vector<std::string> details) {
    resumed.notices.push_back({kind, saved.step, message, std::move(details)});
  };
  const std::vector<std::string> differs = match.replaced();
  if (!differs.empty() && on_change == io::DataChange::refuse) {
    std::string lines;
    for (const std::string& line : differs) lines += "\n  " + line;
    throw base::checkpoint_error(
        "the job cannot resume from " + path + ", which was trained on other data:" + lines +
        "\n  restore the files of the training data; or set data.on_change: continue to "
        "go on with the new data, in a "
        "new order; or give the job another `output` to start anew");
  }
  const bool content_unknown =
      saved.sources.empty() && !entry(saved, kContent) && !now.content().empty() && differs.empty();
  if (!differs.empty())
    notice(io::NoticeKind::change,
           "the training data changed: its samples follow in a new order, from the start of an epoch",
           differs);
  else if (content_unknown)
    notice(io::NoticeKind::warning,
           "the checkpoint records the names and sizes of its data, which agree, and not its content, which "
           "was not compared",
           {});
  const std::vector<std::string> changes = match.changes();
  if (!changes.empty() && differs.empty())
    notice(io::NoticeKind::change,
           "the blend of the training data changed: each source goes on after what was taken of it", changes);
  resumed.course = match.course(saved, !differs.empty() || !changes.empty());
  const auto valid = entry(saved, kValid);
  if (valid && !now.valid.empty() && *valid != now.valid)
    notice(io::NoticeKind::change,
           "the validation data changed: evaluations before and after it cannot be compared",
           {"data.valid: the checkpoint has " + *valid + ", the job " + now.valid});
  return resumed;
}

void require_enough(const DataSeen& seen, const io::DataOrder& order, std::int64_t needed) {
  const std::int64_t length = io::blend_after(order, seen.sources).length();
  if (length >= needed) return;
  throw base::data_error("data.sources: with their epochs and tokens the sources give " +
                         io::with_commas(length) + " samples more, and the job's steps take " +
                         io::with_commas(needed) +
                         ": allow more of a source, add one, or make the job's steps fewer");
}

std::optional<io::NoticeRecord> job_changes(const io::TrainingState& saved, const std::string& earlier_job,
                                            const job::JobSpec& now) {
  const std::string& was = saved.job.empty() ? earlier_job : saved.job;
  if (was.empty()) return std::nullopt;
  const auto changes = spec::changed_keys(was, now);
  if (!changes)
    return io::NoticeRecord{io::NoticeKind::warning,
                            saved.step,
                            "the job of the checkpoint cannot be read, so changed keys are not listed",
                            {}};
  if (changes->empty()) return std::nullopt;
  io::NoticeRecord notice{io::NoticeKind::change, saved.step, {}, {}};
  notice.message = std::to_string(changes->size()) +
                   (changes->size() == 1 ? " key of the job" : " keys of the job") + " changed since step " +
                   std::to_string(saved.step);
  for (const spec::KeyChange& change : *changes) notice.details.push_back(spec::to_text(change));
  return notice;
}

}  // namespace trainerd::core::run
