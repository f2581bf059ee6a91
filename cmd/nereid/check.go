package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"text/tabwriter"

	"github.com/nereid-serving/nereid/cmd/nereid/internal/layout"
	"github.com/nereid-serving/nereid/libs/config"
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/services/registry"
	"github.com/nereid-serving/nereid/services/worker"
)

// check reads model repositories as serve would, without serving them.
type check struct {
	Repositories   []string      `arg:"" name:"repository" sep:"none" help:"Model repositories, model files, NAME=FILE, or directories of models, as for serve."`
	JSON           bool          `name:"json" help:"Print JSON."`
	Namespacing    config.Switch `name:"model-namespacing" default:"false" help:"Identify models with the same name in several repositories by their repository."`
	ConfigName     string        `name:"model-config-name" placeholder:"NAME" help:"Read configs/NAME.pbtxt of the models that have it, instead of config.pbtxt."`
	NoAutoComplete bool          `name:"disable-auto-complete-config" help:"Do not complete configurations from model files: each model needs a config.pbtxt that lists its inputs and outputs."`
	StrictConfig   config.Switch `name:"strict-model-config" default:"false" help:"Older form of --disable-auto-complete-config."`
	GPUs           int           `name:"gpus" default:"0" help:"The number of GPUs of the machine that will run the models."`
	BackendDir     string        `name:"backend-directory" placeholder:"DIR" help:"As for serve."`
	BackendConfig  []string      `name:"backend-config" sep:"none" placeholder:"BACKEND,KEY=VALUE" help:"As for serve; default-max-batch-size matters here."`
}

// Help shows examples.
func (check) Help() string {
	return `Examples:

    nereid check models/
    nereid check model.onnx
    nereid check models/ more-models/ --json`
}

// Run prints what is wrong with each model, or how it would be served. The
// error has how many models have problems.
func (c *check) Run(ctx context.Context, stdout io.Writer) error {
	if c.GPUs < 0 {
		return errs.New(errs.ConfigInvalid, "--gpus is %d: want 0 or more", c.GPUs)
	}
	settings := registry.Default()
	arranged, err := layout.Arrange(c.Repositories)
	if err != nil {
		return err
	}
	defer arranged.Remove()
	settings.Repositories, settings.Namespacing = arranged.Repositories, c.Namespacing
	settings.ConfigName, settings.NoAutoComplete, settings.StrictConfig = c.ConfigName, c.NoAutoComplete, c.StrictConfig
	if err := settings.SetMaxBatchSize(c.BackendConfig); err != nil {
		return err
	}
	if settings.Backends, err = worker.Backends(c.BackendDir); err != nil {
		return err
	}
	models, ignored, err := registry.Check(ctx, settings, c.GPUs)
	if err != nil {
		return err
	}
	if len(models) == 0 {
		ignored = append(ignored, "no model is in "+strings.Join(c.Repositories, ", ")+": a repository holds a directory for each model, with its versions in directories named 1, 2 and so on")
	}
	var text strings.Builder
	if c.JSON {
		err = printJSON(&text, models, ignored)
	} else {
		err = printModels(&text, models, ignored)
	}
	if err == nil {
		_, err = io.WriteString(stdout, arranged.Real(text.String()))
	}
	if err != nil {
		return err
	}
	return verdict(models)
}

func verdict(models []registry.CheckResult) error {
	bad := 0
	for i := range models {
		if len(models[i].Problems) > 0 {
			bad++
		}
	}
	if bad == 0 {
		return nil
	}
	return errs.New(errs.ConfigInvalid, "%d of %d models have problems", bad, len(models))
}

// printModels prints problems and warnings, and a table of the models that
// have no problem.
func printModels(w io.Writer, models []registry.CheckResult, ignored []string) error {
	var b strings.Builder
	for _, text := range ignored {
		fmt.Fprintf(&b, "warning: %s\n\n", text)
	}
	for i := range models {
		printProblems(&b, &models[i])
	}
	table := tabwriter.NewWriter(&b, 0, 0, 3, ' ', 0)
	header := "MODEL\tVERSIONS\tBACKEND\tMAX BATCH\tINPUTS\tOUTPUTS\n"
	for i := range models {
		m := &models[i]
		if len(m.Problems) > 0 || m.Config == nil {
			continue
		}
		_, err := fmt.Fprintf(table, "%s%s\t%s\t%s\t%d\t%s\t%s\n", header, m.Name, numbers(m.Versions), cmp.Or(m.Config.Backend, m.Config.Platform),
			m.Config.MaxBatchSize, tensors(m.Config, m.Config.Inputs), tensors(m.Config, m.Config.Outputs))
		if err != nil {
			return err
		}
		header = ""
	}
	if err := table.Flush(); err != nil {
		return err
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func printProblems(b *strings.Builder, m *registry.CheckResult) {
	for _, p := range m.Problems {
		field := p.Field
		if field != "" {
			field += ": "
		}
		fmt.Fprintf(b, "%s: %s%s\n", place(m, p), field, p.Message)
		if p.Fix != "" {
			fmt.Fprintf(b, "    fix: %s\n", p.Fix)
		}
	}
	for _, warning := range m.Warnings {
		fmt.Fprintf(b, "%s: warning: %s\n", cmp.Or(m.Dir, m.Name), warning)
	}
	if len(m.Problems)+len(m.Warnings) > 0 {
		b.WriteString("\n")
	}
}

// place gives a problem's path, line and column in the form that editors
// follow.
func place(m *registry.CheckResult, p modelconfig.Problem) string {
	switch {
	case strings.Contains(m.Dir, "://"):
		p.File = strings.TrimSuffix(m.Dir+"/"+p.File, "/") // a URL is no path
	default:
		p.File = filepath.Join(m.Dir, p.File)
	}
	return cmp.Or(p.Place(), m.Name)
}

func numbers(list []int64) string {
	return strings.Trim(strings.ReplaceAll(fmt.Sprint(list), " ", ","), "[]")
}

func tensors(c *modelconfig.Config, list []modelconfig.IO) string {
	texts := make([]string, len(list))
	for i := range list {
		texts[i] = fmt.Sprintf("%s %s%s", list[i].Name, list[i].Datatype, c.ClientShape(&list[i]))
	}
	return strings.Join(texts, ", ")
}

// The JSON form of a check.
type (
	checkedJSON struct {
		Models  []modelJSON `json:"models"`
		Ignored []string    `json:"ignored"`
	}
	modelJSON struct {
		Name         string        `json:"name"`
		Directory    string        `json:"directory,omitempty"`
		Problems     []problemJSON `json:"problems"`
		Warnings     []string      `json:"warnings"`
		Versions     []int64       `json:"versions"`
		Backend      string        `json:"backend,omitempty"`
		MaxBatchSize int64         `json:"max_batch_size"`
		Inputs       []tensorJSON  `json:"inputs"`
		Outputs      []tensorJSON  `json:"outputs"`
	}
	problemJSON struct {
		Reason errs.Reason `json:"reason"`
		File   string      `json:"file,omitempty"`
		Line   int         `json:"line,omitempty"`
		Column int         `json:"column,omitempty"`
		Field  string      `json:"field,omitempty"`
		Cause  string      `json:"cause"`
		Fix    string      `json:"fix,omitempty"`
	}
	tensorJSON struct {
		Name     string  `json:"name"`
		Datatype string  `json:"datatype"`
		Shape    []int64 `json:"shape"`
	}
)

func printJSON(w io.Writer, models []registry.CheckResult, ignored []string) error {
	out := checkedJSON{Models: make([]modelJSON, len(models)), Ignored: append([]string{}, ignored...)}
	for i := range models {
		out.Models[i] = modelToJSON(&models[i])
	}
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	encoder.SetEscapeHTML(false)
	return encoder.Encode(out)
}

func modelToJSON(m *registry.CheckResult) modelJSON {
	out := modelJSON{
		Name: m.Name, Directory: m.Dir, Problems: make([]problemJSON, len(m.Problems)),
		Warnings: append([]string{}, m.Warnings...), Versions: append([]int64{}, m.Versions...),
		Inputs: []tensorJSON{}, Outputs: []tensorJSON{},
	}
	for i, p := range m.Problems {
		out.Problems[i] = problemJSON{Reason: p.Reason, File: p.File, Line: p.Line, Column: p.Column, Field: p.Field, Cause: p.Message, Fix: p.Fix}
	}
	if m.Config != nil {
		out.Backend, out.MaxBatchSize = m.Config.Backend, m.Config.MaxBatchSize
		out.Inputs, out.Outputs = tensorsJSON(m.Config, m.Config.Inputs), tensorsJSON(m.Config, m.Config.Outputs)
	}
	return out
}

func tensorsJSON(c *modelconfig.Config, list []modelconfig.IO) []tensorJSON {
	out := make([]tensorJSON, len(list))
	for i := range list {
		out[i] = tensorJSON{Name: list[i].Name, Datatype: list[i].Datatype.String(), Shape: c.ClientShape(&list[i])}
	}
	return out
}
