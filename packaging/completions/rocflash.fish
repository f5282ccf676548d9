# fish completion of rocflash. Commands and options are read from its help, so that they are those of
# the installed version.
function __rocflash_commands
    rocflash --help 2>/dev/null | sed -nE '/^(Subcommands|SUBCOMMANDS):/,$s/^  ([a-z]+).*/\1/p'
end
function __rocflash_options
    set -l words (commandline -opc)
    rocflash $words[2] --help 2>/dev/null | grep -oE -- '--[a-z][a-z-]*' | sort -u
end
complete -c rocflash -n __fish_use_subcommand -f -a '(__rocflash_commands)'
complete -c rocflash -n 'not __fish_use_subcommand' -a '(__rocflash_options)'
complete -c rocflash -l device -x -a 'auto cpu hip:0 cuda:0 sim:gfx942'
