#!/bin/sh
# Writes the pages that list options and settings, from their templates and from what the programs say of themselves:
#
#     sh tools/reference.sh BIN OUT
#
# BIN: folder with tandem and tandemd; OUT: the folder that has man/ and docs/ (. for the tree itself). Templates are tools/reference/*.in; in them
#     @OPTIONS COMMAND@   stands for the options of a command of tandem
#     @SETTINGS@          for all settings; tools/reference/settings gives each an example and what else there is to say (tabs between)
# tests/system/test_man.sh holds the pages of the tree against what this makes.
BIN=$1
OUT=$2
HERE=$(dirname "$0")/reference
[ -x "$BIN/tandem" ] && [ -x "$BIN/tandemd" ] && [ -d "$OUT/man" ] && [ -d "$OUT/docs" ] || { echo "usage: reference.sh BIN OUT" >&2; exit 2; }
T=$(mktemp -d) || exit 1
trap 'rm -rf "$T"' EXIT
"$BIN/tandemd" --settings >"$T/settings" || exit 1


man_options() { # command
	"$BIN/tandem" "$1" --help | awk '
		function flush() { if (head != "") { print head; gsub(/\\/, "\\e", help); print (help ~ /^[.]/ ? "\\&" : "") help } head = help = "" }
		/^  (-[A-Za-z], |    )--[a-z]/ {
			flush()
			letter = substr($0, 3, 1) == "-" ? substr($0, 4, 1) : ""
			rest = substr($0, 9); name = rest; sub(/ .*/, "", name)
			rest = substr(rest, length(name) + 1); value = ""
			if (rest ~ /^ [A-Z[]/) { value = substr(rest, 2); sub(/ .*/, "", value); rest = substr(rest, length(value) + 2) }
			sub(/^ */, "", rest)
			head = ".It" (letter == "" ? "" : " Fl " letter " ,") " Fl -" name
			if (value ~ /^\[/) { gsub(/[][]/, "", value); head = head " Op Ar " value } else if (value != "") head = head " Ar " value
			help = rest
			next
		}
		/^                              [^ ]/ && head != "" { sub(/^ */, ""); help = help (help == "" ? "" : " ") $0; next }
		{ flush() }
		END { flush() }'
}

man_settings() {
	awk -F '\t' '
		function text(s) { gsub(/\\/, "\\e", s); return (s ~ /^[.]/ ? "\\&" : "") s }
		NR == FNR { example[$1] = $2; more[$1] = $3; next }
		{
			if ($1 != section) { if (section != "") print ".El"; section = $1; print ".Ss [" $1 "]"; print ".Bl -tag -width indent" }
			name = $1 "." $2
			print ".It Cm " $2
			if ($6 != "") print text($6) "."
			if (more[name] != "") print text(more[name])
			print ".br"
			print "Values: " text($3) "."
			print "Default: " ($4 == "" ? "empty" : $4 == "-" ? "see above" : text($4)) "."
			print ($5 == "reload" ? "A reload is enough." : "Changes at the next start.")
			if (example[name] != "") { print ".br"; print "Example:"; print ".Dl " text(example[name]) }
		}
		END { if (section != "") print ".El" }' "$HERE/settings" "$T/settings"
}

md_settings() {
	awk -F '\t' '
		function text(s) { gsub(/\|/, "\\|", s); gsub(/</, "\\&lt;", s); return s }
		NR == FNR { example[$1] = $2; more[$1] = $3; next }
		{
			if ($1 != section) { section = $1; print "\n### `[" $1 "]`\n\n| setting | values | default | changes at | meaning | example |\n|---|---|---|---|---|---|" }
			name = $1 "." $2
			print "| `" $2 "` | " text($3) " | " ($4 == "" ? "" : $4 == "-" ? "see the meaning" : "`" $4 "`") " | " $5 " | " text($6 ($6 != "" && more[name] != "" ? ". " : "") more[name]) \
				" | " (example[name] == "" ? "" : "`" text(example[name]) "`") " |"
		}' "$HERE/settings" "$T/settings"
}

# fill KIND TEMPLATE: the template with its places filled
fill() {
	while IFS= read -r line; do
		case $line in
		"@OPTIONS "*) c=${line#@OPTIONS }; man_options "${c%@}" ;;
		"@SETTINGS@") "$1_settings" ;;
		*) printf '%s\n' "$line" ;;
		esac
	done <"$2"
}
for page in "$HERE"/*.[1-9].in; do
	name=${page##*/}
	fill man "$page" >"$OUT/man/${name%.in}" || exit 1
done
fill md "$HERE/configuration.md.in" >"$OUT/docs/configuration.md"
