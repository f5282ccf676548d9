# bash completion of rocflash. Commands and options are read from its help, so that they are those of
# the installed version.
_rocflash() {
  local word=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]} program=${COMP_WORDS[0]}
  if [[ $previous == --device ]]; then
    mapfile -t COMPREPLY < <(compgen -W "auto cpu hip\:0 cuda\:0 sim\:gfx942" -- "$word")
  elif ((COMP_CWORD == 1)) || [[ $COMP_CWORD == 2 && $previous == help ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$("$program" --help 2>/dev/null | sed -nE '/^(Subcommands|SUBCOMMANDS):/,$s/^  ([a-z]+).*/\1/p')" -- "$word")
  elif [[ $word == -* ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$("$program" "${COMP_WORDS[1]}" --help 2>/dev/null | grep -oE -- '--[a-z][a-z-]*' | sort -u)" -- "$word")
  else
    mapfile -t COMPREPLY < <(compgen -f -- "$word")
  fi
}
complete -F _rocflash rocflash
