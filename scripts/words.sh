#!/usr/bin/env bash
# words.sh fails if a merge has left its marks, or if comments, messages or documents contain
# words that readers have to decode. Write the sentence again in plain words: name who does what.
set -euo pipefail
cd "$(dirname "$0")/.."

if git grep -nE '^(<{7}|={7}|>{7})( |$)'; then
	echo "these lines are left of a merge" >&2
	exit 1
fi

be='(is|are|was|were|be|been|being)' have='(has|have|had)'
words="whoever|anew|mend(s|ed|ing)?|$be told|$have come to|what (becomes|became|become|$have become) of|$have become of|becomes? of|became of|goes on by|it is so that|told (of|so|as|again)|in vain|tells nobody|nil is nobody|came of it|otherwise than decided|(come|comes|came) behind|heed(s|ed|ing)?|afresh|(goes|go) by (it|them|that|what)"

if grep -rnPi --include='*.go' --include='*.md' --include='*.sh' --include='*.lua' --include='*.sql' --include='*.py' --include='*.yaml' --include='*.txtar' --include='*.txt' --include=Makefile \
	--exclude=words.sh --exclude-dir=.git --exclude-dir=bin "\b($words)\b" .; then
	echo "these lines have words that CONTRIBUTING.md excludes" >&2
	exit 1
fi
