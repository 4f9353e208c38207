#!/bin/sh
# The head for SmolLM2-135M that comes with draftproof, from prompts to weights. See README.md.
#
#   sh train.sh INSTRUCTIONS WIKITEXT_VALID WIKITEXT_TEST MORE
set -eu
here=$(dirname "$0")
answer="draftproof train data --target smollm2-135m --seed 0 --batch 32 --max-num-batched-tokens 256"

$answer --prompts "$1" --text "$2" --text "$3" --temperatures 0,0.7,1,1 --samples 8 --max-tokens 256 --out data
$answer --prompts "$4" --temperatures 0,0.7,1,1 --samples 1 --max-tokens 192 --limit 900 --out extra
$answer --prompts "$here/german.jsonl" --temperatures 0,0.7,1,1 --samples 1 --max-tokens 128 --out german
draftproof train eagle --target smollm2-135m --data data --data extra --data german --out run --ttt-steps 3 --epochs 4 \
    --eval-every 300
