#!/usr/bin/env bash
# Posts the preview of a workflow run as the one comment of its pull request, and replaces the earlier comment.
# Environment: GH_TOKEN and GH_REPO for gh; RUN, OWNER, BRANCH and COMMIT of the run that made the preview.
set -euo pipefail

marker='<!-- trainyard-preview -->'
# The longest comment that GitHub accepts, less the note below.
longest=65436
note='_The code of this pull request computed the preview. Nobody has verified it._'
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

gh run download "$RUN" --name preview --dir "$folder"
text=$folder/preview.md
# The text comes from a run of the pull request's own code, so only a text in the form of a preview is posted.
if [[ ! -f $text || -L $text ]] || (($(wc -m <"$text") > longest)) || [[ $(head -n 1 "$text") != "$marker" ]]; then
  echo "run $RUN left no preview that can be a comment" >&2
  exit 1
fi
{
  echo "$marker"
  echo "$note"
  echo
  tail -n +2 "$text"
} >"$folder/comment.md"

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
  gh api --method PATCH "repos/{owner}/{repo}/issues/comments/$before" -F "body=@$folder/comment.md" --silent
else
  gh api --method POST "repos/{owner}/{repo}/issues/$number/comments" -F "body=@$folder/comment.md" --silent
fi
