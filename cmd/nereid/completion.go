package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/alecthomas/kong"
)

// completion prints a script by which a shell completes command lines. The
// script knows commands and flags as they are now: a new release needs a new
// one.
type completion struct {
	Shell string `arg:"" enum:"bash,zsh,fish" help:"Shell: bash, zsh or fish."`
}

// Help shows how to use the script.
func (completion) Help() string {
	return `Examples:

    source <(nereid completion bash)
    source <(nereid completion zsh)
    nereid completion fish > ~/.config/fish/completions/nereid.fish`
}

// Run prints the script.
func (c *completion) Run(command *kong.Context, stdout io.Writer) error {
	write := map[string]func([]*kong.Node) string{"bash": bash, "zsh": zsh, "fish": fish}[c.Shell]
	_, err := io.WriteString(stdout, write(shownCommands(command.Model.Node)))
	return err
}

func shownCommands(root *kong.Node) []*kong.Node {
	var nodes []*kong.Node
	for _, n := range root.Children {
		if !n.Hidden {
			nodes = append(nodes, n)
		}
	}
	return nodes
}

// shownFlags lists a command's flags, and those that all commands have.
func shownFlags(command *kong.Node) []*kong.Flag {
	var flags []*kong.Flag
	for _, group := range command.AllFlags(true) {
		flags = append(flags, group...)
	}
	return flags
}

func commandNames(commands []*kong.Node) string {
	names := make([]string, len(commands))
	for i, n := range commands {
		names[i] = n.Name
	}
	return strings.Join(names, " ")
}

func flagWords(command *kong.Node) string {
	var words []string
	for _, f := range shownFlags(command) {
		words = append(words, "--"+f.Name)
	}
	return strings.Join(words, " ")
}

// cases is the part of bash and zsh that looks up the flags of a command.
func cases(commands []*kong.Node) string {
	var b strings.Builder
	for _, n := range commands {
		fmt.Fprintf(&b, "    %s) flags=%q names=%q ;;\n", n.Name, flagWords(n), commandNames(n.Children))
	}
	return b.String()
}

func bash(commands []*kong.Node) string {
	return `_nereid() {
  local current=${COMP_WORDS[COMP_CWORD]} flags="" names=""
  case ${COMP_WORDS[1]} in
` + cases(commands) + `  esac
  if [ "$COMP_CWORD" = 1 ]; then
    COMPREPLY=($(compgen -W "` + commandNames(commands) + `" -- "$current"))
  elif [[ $current == -* ]]; then
    COMPREPLY=($(compgen -W "$flags" -- "$current"))
  elif [ "$COMP_CWORD" = 2 ]; then
    COMPREPLY=($(compgen -W "$names" -- "$current"))
  else
    COMPREPLY=()
  fi
}
complete -o default -F _nereid nereid
`
}

func zsh(commands []*kong.Node) string {
	return `#compdef nereid
_nereid() {
  local flags="" names=""
  case ${words[2]} in
` + cases(commands) + `  esac
  if (( CURRENT == 2 )); then
    compadd -- ` + commandNames(commands) + `
  elif [[ ${words[CURRENT]} == -* ]]; then
    compadd -- ${=flags}
  elif (( CURRENT == 3 )) && [[ -n $names ]]; then
    compadd -- ${=names}
  else
    _files
  fi
}
compdef _nereid nereid
`
}

func fish(commands []*kong.Node) string {
	var b strings.Builder
	for _, n := range commands {
		fmt.Fprintf(&b, "complete -c nereid -n __fish_use_subcommand -f -a %s -d '%s'\n", n.Name, fishQuote(n.Help))
		for _, child := range n.Children {
			fmt.Fprintf(&b, "complete -c nereid -n '__fish_seen_subcommand_from %s' -f -a %s -d '%s'\n", n.Name, child.Name, fishQuote(child.Help))
		}
		for _, f := range shownFlags(n) {
			value := " -r"
			if f.IsBool() {
				value = ""
			}
			fmt.Fprintf(&b, "complete -c nereid -n '__fish_seen_subcommand_from %s' -l %s%s -d '%s'\n", n.Name, f.Name, value, fishQuote(f.Help))
		}
	}
	return b.String()
}

func fishQuote(text string) string {
	return strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(text)
}
