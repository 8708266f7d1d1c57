package main

import (
	"io"
	"strings"

	"github.com/alecthomas/kong"
)

// CompletionCmd is `brevet completion`.
type CompletionCmd struct {
	Shell string `arg:"" help:"Shell: ${enum}." enum:"bash,zsh,fish"`
}

// Help says how to use the scripts.
func (*CompletionCmd) Help() string {
	return `Add the line for your shell to the file that the shell reads at its start:

  ~/.bashrc                     source <(brevet completion bash)
  ~/.zshrc, after compinit      source <(brevet completion zsh)
  ~/.config/fish/config.fish    brevet completion fish | source`
}

// completionScripts pass the words of the command line, up to the cursor, to the hidden command. If there is no candidate, the
// shell completes names of files.
var completionScripts = map[string]string{
	"bash": `_brevet() {
    local line
    COMPREPLY=()
    while IFS= read -r line; do
        COMPREPLY+=("${line%%$'\t'*}")
    done < <("${COMP_WORDS[0]}" complete -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
}
complete -o default -F _brevet brevet
`,
	"zsh": `#compdef brevet
_brevet() {
    local line
    local -a found
    while IFS= read -r line; do
        found+=("${${line%%$'\t'*}//:/\\:}:${line#*$'\t'}")
    done < <("${words[1]}" complete -- "${(@)words[2,CURRENT]}" 2>/dev/null)
    if (( ${#found} )); then
        _describe brevet found
    else
        _files
    fi
}
if [[ "${funcstack[1]}" = _brevet ]]; then
    _brevet "$@"
else
    compdef _brevet brevet
fi
`,
	"fish": `function __brevet_complete
    set -l words (commandline -opc)
    set -l found ($words[1] complete -- $words[2..-1] (commandline -ct) 2>/dev/null)
    if test (count $found) -gt 0
        printf '%s\n' $found
    else
        __fish_complete_path (commandline -ct)
    end
end
complete -c brevet -f -a '(__brevet_complete)'
`,
}

// Run prints the script.
func (c *CompletionCmd) Run(con *console) error {
	_, err := io.WriteString(con.out, completionScripts[c.Shell])
	return err
}

// CompleteCmd is `brevet complete`. People do not run it.
type CompleteCmd struct {
	Words []string `arg:"" passthrough:"" help:"The words after brevet. The last one is to be completed, and may be empty."`
}

// Run prints each candidate with a tab and its description. Without any, the shell completes file names.
func (c *CompleteCmd) Run(parsed *kong.Context, con *console) error {
	if len(c.Words) > 0 && c.Words[0] == "--" {
		c.Words = c.Words[1:]
	}
	var text strings.Builder
	for _, one := range candidates(parsed.Model.Node, c.Words) {
		text.WriteString(one.text + "\t" + one.help + "\n")
	}
	_, err := io.WriteString(con.out, text.String())
	return err
}

type candidate struct{ text, help string }

// candidates returns what the last word may be.
func candidates(app *kong.Node, words []string) (all []candidate) {
	if len(words) == 0 {
		words = []string{""}
	}
	before, last := words[:len(words)-1], words[len(words)-1]
	if last == "=" { // bash makes = a word of its own
		last = ""
	}
	at, ok := readWords(app, before)
	if !ok {
		return nil
	}
	add := func(text, help string) {
		if text != "" && strings.HasPrefix(text, last) {
			help, _, _ = strings.Cut(help, "\n")
			all = append(all, candidate{text, help})
		}
	}
	name, _, valued := strings.Cut(last, "=")
	switch {
	case at.open != nil:
		for _, value := range at.open.EnumSlice() {
			add(value, "")
		}
	case valued && strings.HasPrefix(last, "-"):
		if flag := flagOf(at.command, name); flag != nil {
			for _, value := range flag.EnumSlice() {
				add(name+"="+value, "")
			}
		}
	case strings.HasPrefix(last, "-"):
		for _, flag := range flagsOf(at.command) {
			if !flag.Hidden {
				add("--"+flag.Name, flag.Help)
			}
		}
	default:
		for _, child := range at.command.Children {
			if !child.Hidden {
				add(child.Name, child.Help)
			}
		}
		if at.arguments < len(at.command.Positional) {
			for _, value := range at.command.Positional[at.arguments].EnumSlice() {
				add(value, "")
			}
		}
	}
	return all
}

// place is where a command line stands: its command, how many arguments of the command it has, and the flag whose value comes
// next.
type place struct {
	command   *kong.Node
	arguments int
	open      *kong.Flag
}

// readWords reads whole words. It returns false if what follows them is not Brevet's, such as the arguments of another program.
func readWords(app *kong.Node, words []string) (place, bool) {
	at := place{command: app}
	for _, word := range words {
		switch {
		case at.open != nil && word == "=": // bash makes = a word of its own
		case at.open != nil:
			at.open = nil
		case word == "--":
			return at, false
		case strings.HasPrefix(word, "-"):
			name, _, valued := strings.Cut(word, "=")
			if flag := flagOf(at.command, name); flag != nil && !valued && !flag.IsBool() && !flag.IsCounter() {
				at.open = flag
			}
		default:
			if child := childOf(at.command, word); child != nil && (at.command != app || word != "help") { // help names a command
				at = place{command: child}
			} else if child != nil {
				continue
			} else if at.arguments++; passesOn(at.command) {
				return at, false
			}
		}
	}
	return at, true
}

func childOf(command *kong.Node, name string) *kong.Node {
	for _, child := range command.Children {
		if child.Name == name {
			return child
		}
	}
	return nil
}

// passesOn reports whether the arguments of a command belong to another program.
func passesOn(command *kong.Node) bool {
	return len(command.Positional) > 0 && command.Positional[0].Passthrough
}

// flagsOf returns the flags that a command accepts: its own, its parents' and those of its default command.
func flagsOf(command *kong.Node) (all []*kong.Flag) {
	groups := command.AllFlags(true)
	if command.DefaultCmd != nil {
		groups = append(groups, command.DefaultCmd.Flags)
	}
	for _, group := range groups {
		all = append(all, group...)
	}
	return all
}

// flagOf returns the flag of a word such as --output or -o, or nil.
func flagOf(command *kong.Node, word string) *kong.Flag {
	for _, flag := range flagsOf(command) {
		if word == "--"+flag.Name || flag.Short != 0 && word == "-"+string(flag.Short) {
			return flag
		}
	}
	return nil
}
