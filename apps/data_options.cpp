#include "apps/data_options.h"

#include <algorithm>
#include <memory>

#include "apps/nodes.h"
#include "apps/number_check.h"
#include "io/chat/chat_template.h"
#include "io/prepare/line_reader.h"

namespace trainerd::apps {

void add_data_kind(CLI::App& command, std::string& format, std::string& dtype, std::int64_t& vocab) {
  command.add_option("--format", format, "text or tokens; else by header or name: *.bin is tokens")
      ->check(CLI::IsMember({"text", "tokens"}));
  command.add_option("--dtype", dtype, "What the numbers of token files without a header are")
      ->check(CLI::IsMember({"uint8", "uint16", "int32", "uint32", "int64"}));
  command.add_option("--vocab", vocab, "Refuse ids that are not less")->check(positive());
}

io::DataFiles data_files_of(const std::vector<std::string>& paths, int readers) {
  if (std::none_of(paths.begin(), paths.end(), io::is_s3)) return {};
  // Data that one reader has prefetched must not evict another's.
  return io::DataFiles(std::make_shared<io::ObjectReader>(io::ObjectReader::Options{
      .store = io::s3_settings(process_environment),
      .memory_bytes = std::max(io::ObjectReader::kMemoryBytes, readers * io::LineReader::kAheadBytes)}));
}

CLI::App* add_data_prepare(CLI::App& data, DataPrepareArgs& args) {
  CLI::App* prepare =
      data.add_subcommand("prepare", "Encode texts and JSON lines to token files with document boundaries");
  prepare
      ->add_option(
          "INPUT", args.inputs,
          "Files, directories or glob patterns, local or at s3://; *.jsonl and *.ndjson are JSON lines")
      ->required();
  prepare->add_option("--out", args.out, "Directory to make")->required()->type_name("DIR");
  prepare
      ->add_option(
          "--tokenizer", args.tokenizer,
          "A Hugging Face tokenizer.json (byte-level BPE), a SentencePiece model, or bytes: one token a byte")
      ->capture_default_str()
      ->type_name("FILE|bytes");
  prepare
      ->add_option(
          "--field", args.field,
          "The key in a JSON line of its text; default: text, with --chat messages, with --completion "
          "prompt")
      ->type_name("KEY");
  prepare
      ->add_option("--chat", args.chat,
                   "The template by which messages become a text; only what the assistant says counts in the "
                   "loss: " +
                       io::chat_template_names())
      ->type_name("TEMPLATE");
  prepare
      ->add_option("--completion", args.completion,
                   "The key in a JSON line of what follows the prompt; it alone counts in the loss")
      ->type_name("KEY");
  prepare->add_flag(
      "--pairs", args.pairs,
      "A JSON line has a prompt and two answers, in the keys prompt, chosen and rejected: texts, or with "
      "--chat messages. They become pairs of documents for loss.dpo");
  prepare
      ->add_option("--pair-tokens", args.pair_tokens,
                   "Leave out pairs of more tokens than this; a sample of seq_len S holds S + 1")
      ->needs("--pairs")
      ->check(positive())
      ->type_name("N");
  prepare->add_option("--format", args.format, "Format of all inputs; default: by their names")
      ->check(CLI::IsMember({"text", "jsonl"}));
  prepare->add_flag("--split-documents", args.split_documents,
                    "In text files blank lines part documents; else each file is one");
  prepare->add_flag(
      "--append-eos", args.append_eos,
      "End each document by the tokenizer's end token, and fail where it names none; default: where "
      "it names one");
  prepare->add_flag("--no-append-eos", args.no_append_eos, "End no document so")->excludes("--append-eos");
  prepare->add_option("--eos", args.eos, "The text of the end token; else as the tokenizer's files say")
      ->excludes("--no-append-eos")
      ->type_name("TOKEN");
  prepare->add_flag(
      "--add-special-tokens", args.add_special_tokens,
      "Put around each document what the tokenizer's own rule adds (Llama and Gemma: the begin token)");
  prepare->add_flag("--specials-as-text", args.specials_as_text,
                    "A special token's text in a document is text; else it becomes the token");
  prepare->add_option("--dtype", args.dtype, "Type of the ids; else the narrowest that holds the vocabulary")
      ->check(CLI::IsMember({"uint8", "uint16", "int32"}));
  prepare->add_option("--workers", args.workers, "Threads; default: one for each core")
      ->check(positive())
      ->type_name("N");
  prepare->footer(
      "The files do not depend on the number of workers. The directory appears when it is complete; until "
      "then\n"
      "the work lies in DIR.partial, and the same command goes on with what is finished there.\n\n"
      "  trainerd data prepare corpus/*.jsonl --out tokens --tokenizer llama3/tokenizer.json\n"
      "  trainerd data prepare book.txt --out tokens --split-documents");
  return prepare;
}

}  // namespace trainerd::apps
