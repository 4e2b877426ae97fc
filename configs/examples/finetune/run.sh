#!/usr/bin/env bash
# Fine-tunes a Hugging Face model on conversations and leaves a Hugging Face model: prepare, LoRA, export, ask.
#   configs/examples/finetune/run.sh [OUT]        OUT: runs/finetune-example; a second run goes on where the first ended
# BASE=DIR takes another model and its tokenizer in place of the small one that is made here; CHAT=TEMPLATE its template.
# With PYTHON, an interpreter that has transformers, transformers generates with the result too.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
out=${1:-runs/finetune-example}
chat=${CHAT:-chatml}
mkdir -p "$out"

if [ -z "${BASE:-}" ]; then
  BASE=$out/base
  if [ ! -e "$BASE" ]; then
    trainerd data prepare "$here/colours.jsonl" --chat chatml --tokenizer "$here/tokenizer/tokenizer.json" --out "$out/base-tokens"
    trainerd run "$here/base.yaml" --set output="$out/base-run" --set "data={train: [$out/base-tokens], format: tokens, document_mask: true}"
    trainerd export "$out/base-run" --out "$BASE.new"
    mv "$BASE.new" "$BASE"
  fi
fi

trainerd data prepare "$here/chat.jsonl" --chat "$chat" --tokenizer "$BASE/tokenizer.json" --out "$out/tokens"
trainerd data inspect "$out/tokens"
trainerd run "$here/finetune.yaml" --set model.from="$BASE" --set output="$out/run" --set "data={train: [$out/tokens], format: tokens, document_mask: true}"
[ -e "$out/adapter" ] || trainerd export "$out/run" --out "$out/adapter"           # for peft
[ -e "$out/model" ] || trainerd export "$out/run" --merge --out "$out/model"       # for everything else

trainerd generate "$out/model" --chat "$chat" --prompt "What does the cow say?" --max-tokens 40
if [ -n "${PYTHON:-}" ]; then "$PYTHON" "$here/generate.py" "$out/model" "What does the cow say?"; fi
