# bash completion for tandem and tandemd; made by tools/completion.sh.
_tandem() {
	local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]} words=
	COMPREPLY=()
	if [ "$COMP_CWORD" = 1 ]; then
		COMPREPLY=($(compgen -W "run chat status top metrics tokenize doctor bench help --help --version" -- "$cur"))
		return
	fi
	case ${COMP_WORDS[1]} in
	help)
		[ "$COMP_CWORD" != 2 ] || words="run chat status top metrics tokenize doctor bench "
		;;
	run)
		case $prev in
		--json-schema|--socket) compopt -o filenames 2>/dev/null; COMPREPLY=($(compgen -f -- "$cur")); return ;;
		--band) words="interactive batch" ;;
		--system|-s|--max-tokens|-n|--stop|--stop-id|--deadline|--temperature|-t|--top-k|--top-p|--min-p|--repetition-penalty|--presence-penalty|--frequency-penalty|--bias|--seed|--logprobs|--draft-tokens|-k|--tenant) return ;;
		*) words="-s --system --raw --json --json-object --json-schema --stream-json --show-stats -n --max-tokens --think --no-think --stop --stop-id --ignore-eos --deadline --band --no-cache -q --quiet -g --greedy -t --temperature --top-k --top-p --min-p --repetition-penalty --presence-penalty --frequency-penalty --bias --seed --logprobs -k --draft-tokens --socket --tenant -h --help" ;;
		esac
		;;
	chat)
		case $prev in
		--socket) compopt -o filenames 2>/dev/null; COMPREPLY=($(compgen -f -- "$cur")); return ;;
		--band) words="interactive batch" ;;
		--system|-s|--max-tokens|-n|--stop|--stop-id|--deadline|--temperature|-t|--top-k|--top-p|--min-p|--repetition-penalty|--presence-penalty|--frequency-penalty|--bias|--seed|--logprobs|--draft-tokens|-k|--tenant) return ;;
		*) words="-s --system --json -n --max-tokens --think --no-think --stop --stop-id --ignore-eos --deadline --band --no-cache -q --quiet -g --greedy -t --temperature --top-k --top-p --min-p --repetition-penalty --presence-penalty --frequency-penalty --bias --seed --logprobs -k --draft-tokens --socket --tenant -h --help" ;;
		esac
		;;
	status)
		case $prev in
		--socket) compopt -o filenames 2>/dev/null; COMPREPLY=($(compgen -f -- "$cur")); return ;;
		--wait|--tenant) return ;;
		*) words="--json --wait --socket --tenant -h --help" ;;
		esac
		;;
	top)
		case $prev in
		--socket) compopt -o filenames 2>/dev/null; COMPREPLY=($(compgen -f -- "$cur")); return ;;
		--sort) words="name running waiting tokens device accept wasted" ;;
		--delay|-d|--count|-n|--tenant) return ;;
		*) words="-d --delay -n --count --sort --json --socket --tenant -h --help" ;;
		esac
		;;
	metrics)
		case $prev in
		--socket) compopt -o filenames 2>/dev/null; COMPREPLY=($(compgen -f -- "$cur")); return ;;
		--tenant) return ;;
		*) words="--socket --tenant -h --help" ;;
		esac
		;;
	tokenize)
		case $prev in
		--socket) compopt -o filenames 2>/dev/null; COMPREPLY=($(compgen -f -- "$cur")); return ;;
		--system|-s|--tenant) return ;;
		*) words="--ids --json -d --decode -c --chat -s --system --think --no-think --socket --tenant -h --help" ;;
		esac
		;;
	doctor)
		case $prev in
		--model|-m|--drafter|-d|--socket) compopt -o filenames 2>/dev/null; COMPREPLY=($(compgen -f -- "$cur")); return ;;
		--slots|--context) return ;;
		*) words="-m --model -d --drafter --slots --context --socket --json -h --help" ;;
		esac
		;;
	bench)
		case $prev in
		--prompts|-p|--count|--save|--widths|--html|--model|--drafter|--tokenizer|--draft-vocabulary|--socket) compopt -o filenames 2>/dev/null; COMPREPLY=($(compgen -f -- "$cur")); return ;;
		--activations) words="auto bf16 int8" ;;
		--device) words="auto cpu cuda" ;;
		--limit|--max-tokens|-n|--draft-tokens|-k|--clients|-c|--count-size|--runs|--warmups|--requests|--max-clients|--ms|--keys|--threads|--sm-share|--context|--tenant) return ;;
		*) words="-p --prompts --limit -n --max-tokens -k --draft-tokens -c --clients --lossless --json --count --count-size --runs --warmups --requests --max-clients --ms --keys --threads --sm-share --save --tune --widths --html --model --drafter --tokenizer --draft-vocabulary --activations --device --context --socket --tenant -h --help" ;;
		esac
		;;
	esac
	COMPREPLY=($(compgen -W "$words" -- "$cur"))
}

# A setting and its value are three words for bash: --a.b, = and the value.
_tandemd() {
	local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]} name=
	COMPREPLY=()
	[ "$cur" != = ] || cur=
	[ "${COMP_WORDS[COMP_CWORD]}" != = ] || name=$prev
	[ "$prev" != = ] || name=${COMP_WORDS[COMP_CWORD - 2]}
	case ${name:-$prev} in
	--http.allow_remote) COMPREPLY=($(compgen -W "yes no" -- "$cur")); return ;;
	--http.require_key) COMPREPLY=($(compgen -W "auto yes no" -- "$cur")); return ;;
	--model.thinking) COMPREPLY=($(compgen -W "auto on off" -- "$cur")); return ;;
	--model.trust_content) COMPREPLY=($(compgen -W "yes no" -- "$cur")); return ;;
	--model.weights) COMPREPLY=($(compgen -W "file bf16" -- "$cur")); return ;;
	--model.head) COMPREPLY=($(compgen -W "auto bf16 int4 rescored" -- "$cur")); return ;;
	--model.activations) COMPREPLY=($(compgen -W "auto bf16 int8" -- "$cur")); return ;;
	--engine.device) COMPREPLY=($(compgen -W "auto cpu cuda" -- "$cur")); return ;;
	--engine.prefix_cache) COMPREPLY=($(compgen -W "on off" -- "$cur")); return ;;
	--engine.mps) COMPREPLY=($(compgen -W "auto on off" -- "$cur")); return ;;
	--tenants.unknown) COMPREPLY=($(compgen -W "own default refuse" -- "$cur")); return ;;
	--tenants.order) COMPREPLY=($(compgen -W "fair arrival" -- "$cur")); return ;;
	--synthetic) COMPREPLY=($(compgen -W "qwen3.5-0.8b qwen3.5-2b qwen3.5-4b qwen3.5-9b tiny" -- "$cur")); return ;;
	--config|--*.*) compopt -o filenames 2>/dev/null; COMPREPLY=($(compgen -f -- "$cur")); return ;;
	esac
	COMPREPLY=($(compgen -W "--config --check --settings --version --help --synthetic --tandem.socket= --tandem.socket_mode= --tandem.runtime_dir= --tandem.log_file= --tandem.log_level= --tandem.max_connections= --tandem.handshake_s= --tandem.drain_s= --tandem.resume_s= --http.socket= --http.socket_mode= --http.listen= --http.allow_remote= --http.require_key= --http.header_s= --http.body_s= --http.idle_s= --http.ping_s= --model.target= --model.drafter= --model.tokenizer= --model.name= --model.thinking= --model.trust_content= --model.weights= --model.head= --model.activations= --model.draft_vocabulary= --engine.device= --engine.slots= --engine.context= --engine.kv_tokens= --engine.prefix_cache= --engine.prefix_states= --engine.chunk= --engine.draft_tokens= --engine.widths= --engine.threads= --engine.target_worker= --engine.drafter_worker= --engine.mps= --engine.mps_control= --engine.mps_active_thread_percentage= --engine.watchdog_s= --engine.load_timeout_s= --limits.queue= --limits.output_buffer= --limits.slow_reader_s= --limits.max_frame= --limits.input_memory= --limits.resume_memory= --limits.batch_age_s= --limits.quantum_ms= --tenants.unknown= --tenants.order= --defaults.temperature= --defaults.top_k= --defaults.top_p= --defaults.min_p= --defaults.repetition_penalty= --defaults.presence_penalty= --defaults.frequency_penalty= --defaults.max_tokens=" -- "$cur"))
	[[ "${COMPREPLY[0]}" != *= ]] || compopt -o nospace 2>/dev/null
}

complete -F _tandem tandem
complete -F _tandemd tandemd
