#!/usr/bin/env bash
# Posts a workflow run's preview as the pull request's one comment, in place of the one of before.
# Wants GH_TOKEN and GH_REPO for gh, and of the run that made the preview: RUN, OWNER, BRANCH, COMMIT.
set -euo pipefail

marker='<!-- trainyard-preview -->'
# What GitHub takes as the text of a comment.
longest=65536
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

gh run download "$RUN" --name preview --dir "$folder"
text=$folder/preview.md
# It comes from a run of the pull request's own code, so it is taken only if it looks like ours.
if [[ ! -f $text || -L $text ]] || (($(wc -m <"$text") > longest)) || [[ $(head -n 1 "$text") != "$marker" ]]; then
  echo "run $RUN left no preview that can be a comment" >&2
  exit 1
fi

number=$(gh api --method GET 'repos/{owner}/{repo}/pulls' -f state=open -f "head=$OWNER:$BRANCH" \
  --jq "map(select(.head.sha == \"$COMMIT\"))[0].number // empty")
if [[ -z $number ]]; then
  echo "no open pull request ends in commit $COMMIT any more: nothing to say"
  exit 0
fi

mine=".[] | select(.user.login == \"github-actions[bot]\" and (.body | startswith(\"$marker\"))) | .id"
comments=$(gh api --paginate "repos/{owner}/{repo}/issues/$number/comments" --jq "$mine")
read -r before _ <<<"$comments"
if [[ -n ${before:-} ]]; then
  gh api --method PATCH "repos/{owner}/{repo}/issues/comments/$before" -F "body=@$text" --silent
else
  gh api --method POST "repos/{owner}/{repo}/issues/$number/comments" -F "body=@$text" --silent
fi
