#!/usr/bin/env bash
# Goes on where run.sh ended: makes the right one of two answers likelier, by direct preference optimisation.
#   configs/examples/finetune/preferences.sh [OUT]        OUT: as of run.sh, runs/finetune-example
# MODEL=DIR takes another Hugging Face model with its tokenizer; CHAT=TEMPLATE its template.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
out=${1:-runs/finetune-example}
chat=${CHAT:-chatml}
model=${MODEL:-$out/model}

trainerd data prepare "$here/pairs.jsonl" --pairs --chat "$chat" --tokenizer "$model/tokenizer.json" --out "$out/pairs"
trainerd run "$here/preferences.yaml" --set model.from="$model" --set output="$out/preferences" --set "data={train: [$out/pairs], format: tokens}"
[ -e "$out/preferred" ] || trainerd export "$out/preferences" --merge --out "$out/preferred"

trainerd generate "$out/preferred" --chat "$chat" --prompt "What does the cow say?" --max-tokens 40
