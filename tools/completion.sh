#!/bin/sh
# Writes the shells' completion files from what the programs' --help says, so that the two can't disagree:
#
#     sh tools/completion.sh BIN OUT
#
# BIN: folder with tandem and tandemd; OUT: gets tandem.bash, _tandem (zsh) and tandem.fish. tests/system/test_completion.sh holds the files in
# completion/ against what this makes; after a change of options: sh tools/completion.sh build/bin completion
BIN=$1
OUT=$2
[ -x "$BIN/tandem" ] && [ -x "$BIN/tandemd" ] && [ -d "$OUT" ] || { echo "usage: completion.sh BIN OUT" >&2; exit 2; }
T=$(mktemp -d) || exit 1
trap 'rm -rf "$T"' EXIT

# One line per option: command, letter or -, name, kind of value (none, file, text, or the words to choose from), first line of help.
"$BIN/tandem" --help | sed -n 's/^  \([a-z]*\)  *\(.*\)/\1\t\2/p' >"$T/commands"
while IFS="$(printf '\t')" read -r c about; do
	"$BIN/tandem" "$c" --help | awk -v c="$c" -v OFS='\t' '
		/^  (-[A-Za-z], |    )--[a-z]/ {
			letter = substr($0, 3, 1) == "-" ? substr($0, 4, 1) : "-"
			rest = substr($0, 7)
			name = substr(rest, 3); sub(/ .*/, "", name)
			rest = substr(rest, length(name) + 3)
			value = ""
			if (rest ~ /^ [A-Z[]/) { value = substr(rest, 2); sub(/ .*/, "", value); rest = substr(rest, length(value) + 2) }
			sub(/^ */, "", rest)
			if (rest == "") { getline; rest = $0; sub(/^ */, "", rest) }
			kind = value == "" ? "none" : value ~ /FILE|PATH|DIR/ ? "file" : "text"
			if (name == "device") kind = "auto cpu cuda"
			if (name == "activations") kind = "auto bf16 int8"
			if (name == "band") kind = "interactive batch"
			if (name == "sort") kind = "name running waiting tokens device accept wasted"
			print c, letter, name, kind, rest
		}'
done <"$T/commands" >"$T/options"
# Of tandemd: the word, with = when a value follows, and the words to choose from.
"$BIN/tandemd" --help | awk -v OFS='\t' '
	/^\[/ { section = /^\[[a-z]+\]$/ ? substr($1, 2, length($1) - 2) : ""; next }
	section != "" && /^[* ] [a-z]/ {
		$0 = "  " substr($0, 3)
		choice = ""
		if (match($0, /\([a-z0-9]+(\|[a-z0-9]+)+\)$/)) { choice = substr($0, RSTART + 1, RLENGTH - 2); gsub(/\|/, " ", choice) }
		help = $0; sub(/^  [a-z_]+( = ?[^ ]*)? */, "", help)
		print "--" section "." $1, choice, help
	}' >"$T/settings"

bash_words() { # command
	awk -F '\t' -v c="$1" '$1 == c { if ($2 != "-") printf "-%s ", $2; printf "--%s ", $3 }' "$T/options"
}
# bash_values KIND COMMAND: patterns of the options whose value is of that kind
bash_pattern() {
	awk -F '\t' -v kind="$1" -v c="$2" '$1 == c && $4 == kind { printf "%s--%s", n++ ? "|" : "", $3; if ($2 != "-") printf "|-%s", $2 }' "$T/options"
}

bash_file() {
	echo "# bash completion for tandem and tandemd; made by tools/completion.sh."
	echo "_tandem() {"
	echo "	local cur=\${COMP_WORDS[COMP_CWORD]} prev=\${COMP_WORDS[COMP_CWORD - 1]} words="
	echo "	COMPREPLY=()"
	echo "	if [ \"\$COMP_CWORD\" = 1 ]; then"
	echo "		COMPREPLY=(\$(compgen -W \"$(cut -f 1 "$T/commands" | tr '\n' ' ')help --help --version\" -- \"\$cur\"))"
	echo "		return"
	echo "	fi"
	echo "	case \${COMP_WORDS[1]} in"
	echo "	help)"
	echo "		[ \"\$COMP_CWORD\" != 2 ] || words=\"$(cut -f 1 "$T/commands" | tr '\n' ' ')\""
	echo "		;;"
	cut -f 1 "$T/commands" | while read -r c; do
		echo "	$c)"
		echo "		case \$prev in"
		p=$(bash_pattern file "$c")
		[ -z "$p" ] || printf '\t\t%s) compopt -o filenames 2>/dev/null; COMPREPLY=($(compgen -f -- "$cur")); return ;;\n' "$p"
		awk -F '\t' -v c="$c" '$1 == c && $4 ~ / / { print $4 }' "$T/options" | sort -u | while read -r kind; do
			printf '\t\t%s) words="%s" ;;\n' "$(bash_pattern "$kind" "$c")" "$kind"
		done
		p=$(bash_pattern text "$c")
		[ -z "$p" ] || printf '\t\t%s) return ;;\n' "$p"
		printf '\t\t*) words="%s" ;;\n' "$(bash_words "$c" | sed 's/ $//')"
		echo "		esac"
		echo "		;;"
	done
	echo "	esac"
	echo "	COMPREPLY=(\$(compgen -W \"\$words\" -- \"\$cur\"))"
	echo "}"
	echo
	echo "# A setting and its value are three words for bash: --a.b, = and the value."
	echo "_tandemd() {"
	echo "	local cur=\${COMP_WORDS[COMP_CWORD]} prev=\${COMP_WORDS[COMP_CWORD - 1]} name="
	echo "	COMPREPLY=()"
	echo "	[ \"\$cur\" != = ] || cur="
	echo "	[ \"\${COMP_WORDS[COMP_CWORD]}\" != = ] || name=\$prev"
	echo "	[ \"\$prev\" != = ] || name=\${COMP_WORDS[COMP_CWORD - 2]}"
	echo "	case \${name:-\$prev} in"
	awk -F '\t' '$2 != "" { printf "\t%s) COMPREPLY=($(compgen -W \"%s\" -- \"$cur\")); return ;;\n", $1, $2 }' "$T/settings"
	echo "	--synthetic) COMPREPLY=(\$(compgen -W \"qwen3.5-0.8b qwen3.5-2b qwen3.5-4b qwen3.5-9b tiny\" -- \"\$cur\")); return ;;"
	echo "	--config|--*.*) compopt -o filenames 2>/dev/null; COMPREPLY=(\$(compgen -f -- \"\$cur\")); return ;;"
	echo "	esac"
	echo "	COMPREPLY=(\$(compgen -W \"--config --check --settings --version --help --synthetic $(cut -f 1 "$T/settings" | sed 's/$/=/' | tr '\n' ' ' | sed 's/ $//')\" -- \"\$cur\"))"
	echo "	[[ \"\${COMPREPLY[0]}\" != *= ]] || compopt -o nospace 2>/dev/null"
	echo "}"
	echo
	echo "complete -F _tandem tandem"
	echo "complete -F _tandemd tandemd"
}

zsh_file() {
	echo "#compdef tandem tandemd"
	echo "# zsh completion for tandem and tandemd; made by tools/completion.sh."
	echo "_tandem_commands() {"
	echo "	local -a commands=("
	awk -F '\t' -v q="'" '{ gsub(q, q "\\" q q, $2); printf "\t\t%s%s:%s%s\n", q, $1, $2, q }' "$T/commands"
	echo "	)"
	echo "	_describe command commands"
	echo "}"
	echo
	echo "_tandem() {"
	echo "	if (( CURRENT == 2 )); then"
	echo "		_tandem_commands"
	echo "		return"
	echo "	fi"
	echo "	local command=\$words[2]"
	echo "	shift words"
	echo "	(( CURRENT-- ))"
	echo "	case \$command in"
	echo "	help) _tandem_commands ;;"
	cut -f 1 "$T/commands" | while read -r c; do
		echo "	$c)"
		echo "		_arguments -s \\"
		awk -F '\t' -v c="$c" -v q="'" '$1 == c {
			help = $5; gsub(/\\/, "\\\\&", help); gsub(/\[/, "\\\\&", help); gsub(/\]/, "\\\\&", help); gsub(/:/, "\\\\&", help); gsub(q, q "\\" q q, help)
			value = $4 == "none" ? "" : $4 == "file" ? ":file:_files" : $4 == "text" ? ":value: " : ":value:(" $4 ")"
			long = "--" $3; if ($4 != "none") long = long "="
			if ($2 == "-") printf "\t\t\t%s*%s[%s]%s%s \\\n", q, long, help, value, q
			else { short = "-" $2; if ($4 != "none") short = short "+"; printf "\t\t\t{%s*%s%s,%s*%s%s}%s[%s]%s%s \\\n", q, short, q, q, long, q, q, help, value, q }
		}' "$T/options"
		echo "			'*:text: '"
		echo "		;;"
	done
	echo "	esac"
	echo "}"
	echo
	echo "_tandemd() {"
	echo "	_arguments '--config=[settings from this file]:file:_files' '--check[only look whether it would work]' '--settings[list the settings]' '--version' '--help' \\"
	echo "		'--synthetic=[random weights of that size]:size:(qwen3.5-0.8b qwen3.5-2b qwen3.5-4b qwen3.5-9b tiny)' \\"
	awk -F '\t' -v q="'" '{ help = $3; gsub(/\\/, "\\\\&", help); gsub(/\[/, "\\\\&", help); gsub(/\]/, "\\\\&", help); gsub(/:/, "\\\\&", help); gsub(q, q "\\" q q, help)
		printf "\t\t%s%s=[%s]:value:%s%s \\\n", q, $1, help, $2 == "" ? "_files" : "(" $2 ")", q }' "$T/settings"
	echo
	echo "}"
	echo
	echo "case \$service in"
	echo "tandemd) _tandemd \"\$@\" ;;"
	echo "*) _tandem \"\$@\" ;;"
	echo "esac"
}

fish_file() {
	echo "# fish completion for tandem; made by tools/completion.sh."
	echo "complete -c tandem -f"
	awk -F '\t' -v q="'" '{ gsub(/\\/, "\\\\&", $2); gsub(q, "\\" q, $2)
		printf "complete -c tandem -n __fish_use_subcommand -a %s -d %s%s%s\n", $1, q, $2, q }' "$T/commands"
	awk -F '\t' -v q="'" '{
		help = $5; gsub(/\\/, "\\\\&", help); gsub(q, "\\" q, help)
		printf "complete -c tandem -n %s__fish_seen_subcommand_from %s%s%s -l %s", q, $1, q, $2 == "-" ? "" : " -s " $2, $3
		printf "%s -d %s%s%s\n", $4 == "none" ? "" : $4 == "file" ? " -r -F" : $4 == "text" ? " -x" : " -x -a " q $4 q, q, help, q
	}' "$T/options"
	echo "complete -c tandemd -l config -r -F -d 'settings from this file'"
	echo "complete -c tandemd -l check -d 'only look whether it would work'"
	echo "complete -c tandemd -l synthetic -x -a 'qwen3.5-0.8b qwen3.5-2b qwen3.5-4b qwen3.5-9b tiny' -d 'random weights of that size'"
	echo "complete -c tandemd -l settings -d 'list the settings'"
	echo "complete -c tandemd -l version"
	echo "complete -c tandemd -l help"
	awk -F '\t' -v q="'" '{ help = $3; gsub(/\\/, "\\\\&", help); gsub(q, "\\" q, help)
		printf "complete -c tandemd -l %s -r%s -d %s%s%s\n", substr($1, 3), $2 == "" ? " -F" : " -f -a " q $2 q, q, help, q }' "$T/settings"
}

bash_file >"$OUT/tandem.bash" && zsh_file >"$OUT/_tandem" && fish_file >"$OUT/tandem.fish"
