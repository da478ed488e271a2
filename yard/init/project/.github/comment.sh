#!/usr/bin/env bash
# Posts the preview from a workflow run as a comment on its pull request, or updates the existing comment.
# Environment: GH_TOKEN and GH_REPO for gh; RUN, OWNER, BRANCH and COMMIT for the workflow run.
set -euo pipefail

marker='<!-- trainyard-preview -->'
# The maximum length of a GitHub comment, minus space for the note and the fences below.
longest=65400
note='_The code of this pull request computed the preview. Nobody has verified it._'
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

gh run download "$RUN" --name preview --dir "$folder"
text=$folder/preview.md
# Code in the pull request wrote the text, so it is posted only if it has the format of a preview, and only as a code
# block, which contains no links, mentions, images or HTML. `tr -s` leaves no two backticks in a row, so the text cannot
# end the block.
if [[ ! -f $text || -L $text ]] || (($(wc -m <"$text") > longest)) || [[ $(head -n 1 "$text") != "$marker" ]]; then
  echo "the artifact of run $RUN is not a valid preview" >&2
  exit 1
fi
{
  echo "$marker"
  echo "$note"
  echo
  echo '```text'
  tail -n +2 "$text" | LC_ALL=C tr -d '\000-\010\013-\037\177' | tr -s '\140' |
    sed -E 's#</?(details|summary|b)( open)?>##g'
  echo
  echo '```'
} >"$folder/comment.md"

number=$(gh api --method GET 'repos/{owner}/{repo}/pulls' -f state=open -f "head=$OWNER:$BRANCH" \
  --jq "map(select(.head.sha == \"$COMMIT\"))[0].number // empty")
if [[ -z $number ]]; then
  echo "no comment was posted, because no open pull request has the head commit $COMMIT"
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
