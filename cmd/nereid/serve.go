package main

import (
	"context"
	"errors"
	"io"
	"os"

	"github.com/alecthomas/kong"
	"go.uber.org/zap"

	"github.com/nereid-serving/nereid/cmd/nereid/internal/embedded"
	"github.com/nereid-serving/nereid/libs/config"
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/process"
)

// serve runs all services in one process. Its flags are Triton's where Triton
// has the setting.
type serve struct {
	Config embedded.Config     `embed:""`
	Log    process.LogSettings `embed:""`

	// Triton's other flags.
	Idle    idle    `embed:""`
	Later   later   `embed:""`
	Refused refused `embed:""`
}

// newServe returns the command before its flags are read.
func newServe() serve {
	c := embedded.Default()
	c.Version = process.Release
	return serve{Config: c}
}

// Help shows examples.
func (serve) Help() string {
	return `Triton's other flags are taken where they change nothing and refused where they would: docs/reference/cli.md lists them.

A model needs no repository: a file, several, and directories that hold models without versions are served as they lie there
(docs/guides/serve-files.md).

Examples:

    nereid serve model.onnx
    nereid serve detector=yolo.onnx classifier/model.py
    nereid serve --model-repository models/
    nereid serve --model-repository models/ --model-control-mode explicit --load-model digits
    nereid serve --model-repository models/ --watch
    nereid serve --model-repository models/ --http-port 9000 --allow-grpc false --log-verbose 1`
}

// Validate returns what is wrong with the settings, with the reason
// config_invalid; it opens nothing.
func (s *serve) Validate(command *kong.Context) error {
	return errors.Join(checkEffects(command), checkEmpty(command), s.Config.Validate())
}

// checkEmpty refuses an empty name of configurations on the command line, as
// Triton does: it is most
// likely a variable that is not set.
func checkEmpty(command *kong.Context) error {
	for _, p := range command.Path {
		if p.Flag != nil && !p.Resolved && p.Flag.Name == "model-config-name" && p.Flag.Target.IsZero() {
			return errs.New(errs.ConfigInvalid, "--model-config-name is empty: name a file in configs without .pbtxt, or leave the flag out")
		}
	}
	return nil
}

// Run serves until ctx is done and everything has drained.
func (s *serve) Run(ctx context.Context, command *kong.Context, stdout io.Writer) error {
	s.Log.Misspelled = config.Misspelled(os.Environ(), command.Model)
	log, err := s.Log.Open()
	if err != nil {
		return err
	}
	defer log.Close()
	for effect, message := range map[string]string{effectNone: "flags have no effect", effectLater: "flags have no effect yet"} {
		if names := named(command, effect); len(names) > 0 {
			log.Info(message, zap.Strings("flags", names), zap.String("reasons", "docs/reference/cli.md"))
		}
	}
	s.Config.LogFlags, s.Config.Logs = config.Flags(s.Log), log
	server, err := embedded.New(s.Config, log.Logger, stdout)
	if err != nil {
		return err
	}
	return server.Run(ctx)
}
