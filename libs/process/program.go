package process

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/alecthomas/kong"

	"github.com/nereid-serving/nereid/libs/config"
	"github.com/nereid-serving/nereid/libs/errs"
)

// Exit statuses of all programs.
const (
	ExitOK     = 0
	ExitFailed = 1
	// ExitUsage is EX_USAGE of sysexits.h. A panic also exits with 2.
	ExitUsage = 64
)

// Program is a program with one command.
type Program struct {
	// Name is its file's, and Help a sentence of what it does.
	Name, Help string
	// Vars are the variables in defaults and texts of its settings.
	Vars kong.Vars
	// Settings is a pointer to a struct whose fields are flags. Its method
	// Validate, which may take the [kong.Context], returns what is wrong with
	// them, with the reason config_invalid, and opens nothing.
	Settings any
	// Log is the part of the settings that is about the log; nil is none.
	Log *LogSettings
	// Run works until ctx is done, then finishes what it has and returns nil.
	Run func(ctx context.Context) error
	// StopTimeout returns how long Run takes at most, by the settings, to return when ctx is
	// done. What stops the program must not kill it earlier.
	StopTimeout func() time.Duration
}

// Main runs the program as this process and exits.
func Main(p Program) {
	os.Exit(p.Execute(Signals(), os.Args[1:], os.Stdout, os.Stderr, os.Environ()))
}

// Signals returns a context that the first signal to stop ends. After it
// signals have their usual effect, so that the second ends the process at
// once.
func Signals() context.Context {
	ctx, release := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, release)
	return ctx
}

// Execute runs one command line in an environment as [os.Environ] returns it,
// and returns the exit status.
func (p Program) Execute(ctx context.Context, args []string, stdout, stderr io.Writer, environ []string) int {
	l, err := p.load(args, stdout, stderr, config.Lookup(environ))
	switch {
	case l.answered():
		return l.exited
	case err != nil:
		fmt.Fprintf(stderr, "%s: %s\n%s%s --help\" for what there is.\n", p.Name, Message(err), helpHint, p.Name)
		return ExitUsage
	}
	if p.Log != nil {
		p.Log.Misspelled = config.Misspelled(environ, l.command.Model)
	}
	if err := p.Run(ctx); err != nil {
		fmt.Fprintf(stderr, "%s: %s\n", p.Name, Message(err))
		return ExitFailed
	}
	return ExitOK
}

// helpHint begins the line that follows what is wrong with a command line.
const helpHint = `Run "`

// UsageMessage extracts the error of a command line from the last lines that a program wrote
// before it exited with [ExitUsage].
func UsageMessage(lines []string) string {
	for i := len(lines) - 1; i >= 0; i-- {
		if line := strings.TrimSpace(lines[i]); line != "" && !strings.HasPrefix(line, helpHint) {
			_, message, _ := strings.Cut(line, ": ") // the program's name comes first
			return message
		}
	}
	return "the command line is wrong"
}

// flags are those that every program has beside its settings.
type flags struct {
	Config  string           `placeholder:"FILE" help:"File of settings, as name: value under the names of the flags. A flag goes before the environment (NEREID_LOG_FORMAT), that before the file."`
	Version kong.VersionFlag `help:"Print the version."`
}

// loaded is a command line as parsed.
type loaded struct {
	settings *config.Settings
	command  *kong.Context
	exited   int // the status that help or the version asked for, or -1
}

// answered reports whether the command line asked only for what has been
// printed: help or the version.
func (l *loaded) answered() bool { return l.exited >= 0 }

// load reads the settings and has them checked. Errors have the reason
// config_invalid or are kong's, which need none.
func (p Program) load(args []string, stdout, stderr io.Writer, env func(string) (string, bool)) (*loaded, error) {
	l := &loaded{exited: -1}
	var err error
	if l.settings, err = config.Read(args, env); err != nil {
		return l, err
	}
	parser, err := p.parser(l.settings, kong.Writers(stdout, stderr), kong.Exit(func(status int) { l.exited = status }))
	if err != nil {
		return l, err
	}
	if l.command, err = parser.Parse(args); err != nil {
		return l, l.settings.Locate(err, args)
	}
	// kong asks what its root holds, of which embedded settings are no part.
	switch v := p.Settings.(type) {
	case interface{ Validate() error }:
		err = v.Validate()
	case interface{ Validate(*kong.Context) error }:
		err = v.Validate(l.command)
	}
	return l, l.settings.Locate(err, args)
}

func (p Program) parser(settings *config.Settings, options ...kong.Option) (*kong.Kong, error) {
	vars := kong.Vars{"version": p.Name + " " + Version()}
	return kong.New(new(flags), append(options, kong.Name(p.Name), kong.Description(p.Help), kong.Embed(p.Settings),
		vars.CloneWith(p.Vars), kong.Resolvers(settings), config.Numbers(), kong.ConfigureHelp(kong.HelpOptions{Compact: true}))...)
}

// Message formats an error for the operator: its message and its reason, if it has one.
func Message(err error) string {
	if !errs.Classified(err) {
		return err.Error()
	}
	return fmt.Sprintf("%s [%s]", err, errs.Of(err))
}
