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

enum class InputFormat : std::uint8_t { automatic, text, json_lines };  ///< automatic: by file name
enum class TextSplit : std::uint8_t { files, paragraphs };              ///< what is a document of a text file
enum class DocumentEnd : std::uint8_t {
  automatic,
  append,
  none
};                                                    ///< automatic: append if the token is known
enum class TemplateIds : std::uint8_t { none, add };  ///< ids of TokenizerInfo::before and after

struct PrepareOptions {
  std::vector<std::string> inputs;  ///< files, directories or patterns
  DataFiles files = {};             ///< opens the inputs, also at s3:// if it can
  std::string out;                  ///< a directory that is missing, empty, or was made by the same command
  std::string tokenizer = "bytes";
  InputFormat format = InputFormat::automatic;
  std::string field;                 ///< key in a JSON line; empty: "text", "messages" or "prompt"
  std::string completion;            ///< key of the completion of the prompt in `field`; empty: none
  std::optional<ChatTemplate> chat;  ///< `field` holds messages
  bool pairs = false;            ///< a JSON line holds a chosen and a rejected answer, see LineForm::pairs
  std::int64_t pair_tokens = 0;  ///< longer pairs are left out; 0: no limit
  TextSplit split = TextSplit::files;
  DocumentEnd end = DocumentEnd::automatic;
  std::string end_token;  ///< text of the token; empty: as the tokenizer's files name it
  TemplateIds around = TemplateIds::none;
  SpecialText specials = SpecialText::token;
  TokenType dtype = TokenType::automatic;  ///< automatic: the narrowest that fits the vocabulary
  int workers = 1;
};

struct PrepareProgress {
  double done_bytes = 0, total_bytes = 0;  ///< bytes of the inputs
  double seconds = 0;                      ///< since the start
  double started_bytes = 0;                ///< part of done_bytes that an earlier command did
};

struct Prepared {
  std::int64_t documents = 0, tokens = 0, empty_documents = 0;
  std::int64_t long_pairs = 0;               ///< left out because of PrepareOptions::pair_tokens
  std::optional<std::int64_t> learned = {};  ///< tokens that count in the loss, if there is a mask
  std::int64_t input_bytes = 0;
  std::int64_t files = 0;        ///< pairs of .bin and .idx
  std::int64_t kept_files = 0;   ///< those that an earlier command finished
  bool complete_before = false;  ///< an earlier command had finished everything
};

/// Encodes texts and writes token files with document boundaries (Megatron's indexed data sets) and a
/// `dataset.json`. Works in `out`.partial and renames it to `out` at the end. The work is split into parts by
/// the inputs only, so the files do not depend on `workers`. Parts finished by a killed or failed command are
/// reused by the next one with the same options and inputs. `report` is called about once per second. Throws
/// DataError for bad input, naming file and line; SpecError for options.
Prepared prepare_data(const PrepareOptions& options,
                      const std::function<void(const PrepareProgress&)>& report);

}  // namespace trainerd::io
