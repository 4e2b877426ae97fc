#include "io/chat/chat_tokens.h"

#include "kernels/base/error.h"

namespace trainerd::io {

TemplateTokens template_tokens(ChatTemplate chat, const Tokenizer& tokenizer, const std::string& file) {
  // For bytes all template tokens are plain text, but a turn still needs an end.
  if (tokenizer.info().kind == "bytes") return {.bos = "", .eos = ends_with_eos(chat) ? "</s>" : ""};
  const std::string option = "--chat " + std::string(name_of(chat)) + ": ";
  for (const std::string& text : special_texts(chat))
    if (!tokenizer.id_of(text))
      throw base::spec_error(option + file + " has no token " + text +
                             ": it is of another model; the templates are " + chat_template_names());
  TemplateTokens tokens;
  const TokenizerInfo& info = tokenizer.info();
  if (begins_with_bos(chat)) {
    if (!info.bos)
      throw base::spec_error(option + file +
                             " names no token that begins a text: keep the tokenizer_config.json with its "
                             "bos_token beside the tokenizer.json");
    tokens.bos = tokenizer.special_text_of(*info.bos);
  }
  if (ends_with_eos(chat)) {
    if (!info.eos)
      throw base::spec_error(option + file +
                             " names no token that ends a text: keep the tokenizer_config.json with its "
                             "eos_token beside the tokenizer.json");
    tokens.eos = tokenizer.special_text_of(*info.eos);
  }
  return tokens;
}

}  // namespace trainerd::io
