#!/usr/bin/env bash
# Prints `stacks=["a","b"]`: every stack file's stack, as an output that a workflow's matrix can read.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../../stacks"

names=()
for file in Pulumi.*.yaml; do
  name=${file#Pulumi.}
  names+=("\"${name%.yaml}\"")
done
(IFS=,; echo "stacks=[${names[*]}]")
