#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "io/chat/chat_template.h"
#include "io/files/data_files.h"
#include "io/tokenizer/tokenizer.h"
#include "io/tokens/options.h"

namespace trainerd::io {

enum class InputFormat : std::uint8_t { automatic, text, json_lines };  ///< automatic: by the files' names
enum class TextSplit : std::uint8_t { files, paragraphs };              ///< what a document of a text file is
enum class DocumentEnd : std::uint8_t {
  automatic,
  append,
  none
};                                                    ///< automatic: appended where one is known
enum class TemplateIds : std::uint8_t { none, add };  ///< those of TokenizerInfo::before and after

struct PrepareOptions {
  std::vector<std::string> inputs;  ///< files, directories or patterns
  DataFiles files = {};             ///< what opens them: at s3:// too, where it can
  std::string out;                  ///< a directory that is not there, is empty, or is of the same command
  std::string tokenizer = "bytes";
  InputFormat format = InputFormat::automatic;
  std::string field;                 ///< of a JSON line's object; empty: "text", "messages" or "prompt"
  std::string completion;            ///< the field that follows the prompt in `field`; empty: there is none
  std::optional<ChatTemplate> chat;  ///< `field` holds messages
  bool pairs = false;                ///< a JSON line is a chosen and a rejected answer: LineForm::pairs
  std::int64_t pair_tokens = 0;      ///< pairs of more are left out; 0: none is
  TextSplit split = TextSplit::files;
  DocumentEnd end = DocumentEnd::automatic;
  std::string end_token;  ///< its text; empty: the one that the tokenizer's files name
  TemplateIds around = TemplateIds::none;
  SpecialText specials = SpecialText::token;
  TokenType dtype = TokenType::automatic;  ///< the narrowest that holds the vocabulary
  int workers = 1;
};

struct PrepareProgress {
  double done_bytes = 0, total_bytes = 0;  ///< of the inputs
  double seconds = 0;                      ///< since it began
  double started_bytes = 0;                ///< of done_bytes, what an earlier command has done
};

struct Prepared {
  std::int64_t documents = 0, tokens = 0, empty_documents = 0;
  std::int64_t long_pairs = 0;               ///< left out by PrepareOptions::pair_tokens
  std::optional<std::int64_t> learned = {};  ///< tokens that count in the loss, where there is a mask
  std::int64_t input_bytes = 0;
  std::int64_t files = 0;        ///< pairs of .bin and .idx
  std::int64_t kept_files = 0;   ///< of them, finished by an earlier command
  bool complete_before = false;  ///< an earlier command had done all of it
};

/// Encodes texts and writes token files with document boundaries (Megatron's indexed data sets) and a
/// `dataset.json` into a directory. The work is done in `out`.partial, which becomes `out` at the end. It is
/// cut into parts by the inputs alone, so the files do not depend on `workers`; parts that a killed or failed
/// command finished are kept by the next one with the same options and inputs. `report` is called about once
/// a second. Throws DataError for bad input, naming file and line; SpecError for options.
Prepared prepare_data(const PrepareOptions& options,
                      const std::function<void(const PrepareProgress&)>& report);

}  // namespace trainerd::io
