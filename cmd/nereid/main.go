// Command nereid serves models, and is the operator's tool.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/alecthomas/kong"

	"github.com/nereid-serving/nereid/cmd/nereid/internal/embedded"
	"github.com/nereid-serving/nereid/cmd/nereid/internal/node"
	"github.com/nereid-serving/nereid/libs/config"
	"github.com/nereid-serving/nereid/libs/process"
	"github.com/nereid-serving/nereid/services/worker"
	"github.com/nereid-serving/nereid/services/worker/command"
)

// commands are what the program can do.
type commands struct {
	Config string `placeholder:"FILE" help:"File of settings, as name: value under the names of the flags. A flag goes before the environment (NEREID_HTTP_PORT), that before the file."`

	Serve    serve       `cmd:"" help:"Serve model files or a model repository: gateway, scheduler, worker and registry in this process."`
	Check    check       `cmd:"" help:"Show what is wrong with the models of a repository, or how they would be served."`
	New      newFiles    `cmd:"" help:"Write the files of a new model."`
	Infer    infer       `cmd:"" help:"Run a model of a server once."`
	Compare  comparison  `cmd:"" help:"Compare the outputs of a model with those of a variant, or of the same model on another server."`
	Models   models      `cmd:"" help:"List the models of a server with their state and its cause."`
	Explain  explanation `cmd:"" help:"Show where the time of a recent request went, in which batch it ran, or why it was refused."`
	Status   status      `cmd:"" help:"Show the whole cluster: services, leaders, workers, models and queues, and its problems."`
	Policy   policies    `cmd:"" help:"Check, test and explain the policy of a server: who may call what, and how much."`
	Perf     performance `cmd:"" help:"Measure a server under load, and find the highest rate that meets an objective."`
	Record   recorder    `cmd:"" help:"Record a server's requests, to replay them with perf --trace or simulate them."`
	Simulate simulation  `cmd:"" help:"Simulate the scheduler on the requests of a decision log, or on generated ones."`
	Replay   replaying   `cmd:"" help:"Verify that the scheduler makes the decisions in a decision log."`
	Top      live        `cmd:"" help:"Show live metrics of servers, by tenant and model: requests, goodput, refusals by reason, device time."`
	Node     sidecar     `cmd:"" help:"Run the workers of this machine, one for each device."`
	Bus      natsServer  `cmd:"" help:"Run a NATS server for services on one machine."`
	Version  version     `cmd:"" help:"Print the version."`

	Credentials credentials `cmd:"" help:"Create the NATS keys and certificates of a cluster's services, and the NATS server's list of permissions."`

	Configuration configuration `cmd:"" name:"config" help:"Tell about the settings of services."`

	Completion completion `cmd:"" help:"Print a script by which a shell completes command lines."`
	Reference  reference  `cmd:"" hidden:"" help:"Print the reference page of the command line."`
}

func main() {
	if len(os.Args) > 1 && os.Args[1] == embedded.WorkerWord { // of a server with GPUs
		os.Args = os.Args[1:]
		process.Main(command.Program())
	}
	os.Exit(run(process.Signals(), os.Args[1:], os.Stdout, os.Stderr, os.LookupEnv))
}

// run runs one command line and returns the exit status.
func run(ctx context.Context, args []string, stdout, stderr io.Writer, env func(string) (string, bool)) int {
	command, status := parse(args, stdout, stderr, env)
	if command == nil {
		return status
	}
	command.Bind(command)
	command.BindTo(ctx, (*context.Context)(nil))
	command.BindTo(stdout, (*io.Writer)(nil))
	if err := command.Run(); err != nil {
		fmt.Fprintln(stderr, "nereid:", process.Message(err))
		return process.ExitFailed
	}
	return process.ExitOK
}

// parse reads the command line. Without a command to run it returns nil and
// the exit status.
func parse(args []string, stdout, stderr io.Writer, env func(string) (string, bool)) (*kong.Context, int) {
	settings, err := settingsOf(args, env)
	if err != nil {
		fmt.Fprintln(stderr, "nereid:", process.Message(err))
		return nil, process.ExitUsage
	}
	exited := -1
	c := commands{Serve: newServe(), Node: sidecar{Node: node.Default()}}
	parser, err := kong.New(&c, kong.Name("nereid"), kong.Resolvers(settings), config.Numbers(), kong.Writers(stdout, stderr),
		variables(),
		kong.Description("Nereid serves models over the protocols of Triton Inference Server."),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, NoExpandSubcommands: true}),
		kong.Exit(func(status int) { exited = status }))
	if err != nil {
		fmt.Fprintln(stderr, "nereid:", err)
		return nil, process.ExitFailed
	}
	command, err := resolve(parser, args)
	if exited >= 0 { // help was asked for and given
		return nil, exited
	}
	if err != nil {
		command, err := commandOf(parser, args), settings.Locate(err, args)
		fmt.Fprintf(stderr, "nereid: %s\nRun \"nereid%s --help\" for what there is.\n", process.Message(err), command)
		return nil, process.ExitUsage
	}
	return command, process.ExitOK
}

// variables are what defaults and texts of flags depend on.
func variables() kong.Vars {
	return kong.Vars{"onnxruntime": worker.RuntimeLibrary(), "metrics_port": "8002", "metrics_address": "that of HTTP"}
}

// resolve parses the arguments, with serve's flags as Triton's users may have
// shortened them. tritonserver has --version as a flag, beside any others.
func resolve(parser *kong.Kong, args []string) (*kong.Context, error) {
	const flag = "--version"
	if len(args) > 0 && (args[0] == flag || args[0] == "serve" && slices.Contains(args, flag)) {
		return parser.Parse([]string{"version"})
	}
	for _, node := range parser.Model.Children {
		if node.Name != "serve" {
			continue
		}
		var err error
		if args, err = expand(args, node); err != nil {
			return nil, err
		}
	}
	return parser.Parse(args)
}

// commandOf names the command of a command line, after a space, if it is one.
func commandOf(parser *kong.Kong, args []string) string {
	at := commandAt(args)
	for _, node := range parser.Model.Children {
		if at >= 0 && node.Name == args[at] {
			return " " + node.Name
		}
	}
	return ""
}
