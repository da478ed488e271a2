#!/usr/bin/env bash
# Prints the names of all stacks as an output for a workflow's matrix: `stacks=["a","b"]`.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../../stacks"

names=()
for file in Pulumi.*.yaml; do
  name=${file#Pulumi.}
  names+=("\"${name%.yaml}\"")
done
(IFS=,; echo "stacks=[${names[*]}]")
