package main

import (
	"cmp"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/policy"
)

// policies tells about a server's policy.
type policies struct {
	Check   policyCheck   `cmd:"" help:"Tell what is wrong with a policy, and run its tests."`
	Test    policyTest    `cmd:"" help:"Run the tests of a policy, and list them."`
	Show    policyShow    `cmd:"" help:"Show the tenants of a policy, and what each may use."`
	Explain policyExplain `cmd:"" help:"Tell what a policy says of a request."`
	Key     policyKey     `cmd:"" help:"Make an API key, and what a policy has of it."`
	Schema  policySchema  `cmd:"" help:"Print the JSON schema of policies, for editors."`
}

// policyFile is the policy that a command is about.
type policyFile struct {
	File string `arg:"" help:"File of the policy."`
}

// read reads the policy. Its findings are the error.
func (f *policyFile) read() (*policy.Policy, error) {
	text, err := policy.ReadFile(f.File)
	if err != nil {
		return nil, err
	}
	p, findings := policy.Read(text)
	if p != nil {
		return p, nil
	}
	return nil, policy.Invalid(f.File, findings, len(findings))
}

type policyCheck struct{ policyFile }

// Help says how to use it.
func (policyCheck) Help() string {
	return `Everything that is wrong is told with its line and the fix. A server runs the same checks: it does not start with a policy that fails them, and keeps the one that it has when a changed one does.

Examples:

    nereid policy check policy.yaml`
}

// Run checks the policy.
func (c *policyCheck) Run(stdout io.Writer) error {
	p, err := c.read()
	if err != nil {
		return err
	}
	fmt.Fprintf(stdout, "%s is valid: %d tenants, %d bands, %d tests passed\n", c.File, len(p.Tenants()), len(p.Bands), len(p.Tests))
	return nil
}

type policyTest struct{ policyFile }

// Run runs the policy's tests.
func (c *policyTest) Run(stdout io.Writer) error {
	p, err := c.read()
	if err != nil {
		return err
	}
	for _, name := range p.Tests {
		fmt.Fprintln(stdout, "ok  ", name)
	}
	if len(p.Tests) == 0 {
		fmt.Fprintf(stdout, "%s has no tests: add some under  tests:\n", c.File)
	}
	return nil
}

type policyShow struct{ policyFile }

// Run shows the tenants.
func (c *policyShow) Run(stdout io.Writer) error {
	p, err := c.read()
	if err != nil {
		return err
	}
	if p.Shadow {
		fmt.Fprintln(stdout, "Shadow mode: refusals are counted, and not made.")
	}
	w := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "TENANT\tTIER\tWEIGHT\tBAND\tMODELS\tAPIS\tLIMITS")
	for _, t := range p.Tenants() {
		models := strings.Join(t.Models(), " ")
		fmt.Fprintf(w, "%s\t%s\t%v\t%s\t%s\t%s\t%s\n", t.Name, cmp.Or(t.Tier, "-"), t.Weight, p.Bands[t.Band()].Name, cmp.Or(models, "all"),
			strings.Join(t.APIs(), " "), cmp.Or(limitsOf(t), "none"))
	}
	return w.Flush()
}

// limitsOf writes a tenant's limits.
func limitsOf(t *policy.Tenant) string {
	var all []string
	add := func(v float64, what string) {
		if v > 0 {
			all = append(all, strconv.FormatFloat(v, 'f', -1, 64)+" "+what)
		}
	}
	add(t.Limits.Requests, "requests/s")
	add(t.Limits.CostUnits, "cost units/s")
	add(t.Limits.Bytes, "bytes/s")
	add(float64(t.Limits.Concurrency), "in flight")
	for _, b := range t.Budgets {
		add(b.Requests, "requests per "+b.Per.String())
		add(b.CostUnits, "cost units per "+b.Per.String())
	}
	return strings.Join(all, ", ")
}

type policyExplain struct {
	policyFile

	Tenant   string            `default:"anonymous" help:"The tenant that sends the request."`
	API      string            `name:"api" default:"inference" help:"The API that is called."`
	Model    string            `help:"The model."`
	Version  string            `help:"The version or label that is asked for."`
	Header   map[string]string `help:"Headers, as NAME=VALUE."`
	Input    map[string]string `help:"Shapes of inputs, as NAME=DIM,DIM." sep:";"`
	Bytes    int64             `help:"Bytes of the inputs."`
	Priority uint64            `help:"The request's priority."`
}

// Help says how to use it.
func (policyExplain) Help() string {
	return `What limits a tenant has used is not looked at: a server's answer to a request that it has refused says it, and so does nereid explain.

Examples:

    nereid policy explain policy.yaml --tenant=acme --model=digits --header=x-urgent=yes --input=PIXELS=1,64`
}

// Run explains the request.
func (c *policyExplain) Run(stdout io.Writer) error {
	p, err := c.read()
	if err != nil {
		return err
	}
	t := p.Tenant(c.Tenant)
	if c.Tenant == policy.AnonymousName {
		t, err = p.Anonymous()
	} else if t == nil {
		err = errs.New(errs.TokenInvalid, "there is no tenant %q in %s", c.Tenant, c.File)
	}
	if err != nil {
		return err
	}
	r, err := c.request()
	if err != nil {
		return err
	}
	x := p.Explain(t, c.API, r)
	if x.Refused != "" {
		fmt.Fprintf(stdout, "refused: %s: %s\n", x.Refused, errs.From(x.Err).Msg)
		return nil
	}
	deadline := "none"
	if x.Class.Deadline > 0 {
		deadline = x.Class.Deadline.String()
	}
	fmt.Fprintf(stdout, "goes to   model %s, version %s\nclass     %s\nband      %s\nweight    %v\ndeadline  %s, where the request states none\nlimits    %s\n",
		cmp.Or(x.Target.Model, "-"), cmp.Or(x.Target.Version, "the latest"), cmp.Or(x.Class.Name, "none"), p.Bands[x.Class.Band].Name, t.Weight, deadline,
		cmp.Or(limitsOf(t), "none"))
	return nil
}

// request is what the flags say.
func (c *policyExplain) request() (*policy.Request, error) {
	r := &policy.Request{Model: c.Model, Version: c.Version, BatchSize: 1, Bytes: c.Bytes, Priority: c.Priority}
	r.Header = func(name string) []string {
		for k, v := range c.Header {
			if strings.EqualFold(k, name) {
				return []string{v}
			}
		}
		return nil
	}
	shapes := make(map[string][]int64)
	for name, text := range c.Input {
		n := int64(1)
		for dim := range strings.SplitSeq(text, ",") {
			d, err := strconv.ParseInt(strings.TrimSpace(dim), 10, 64)
			if err != nil || d < 0 {
				return nil, fmt.Errorf("--input=%s=%s: want its dimensions, such as 1,64", name, text)
			}
			shapes[name] = append(shapes[name], d)
			n *= d
		}
		r.Elements += n
		r.BatchSize = shapes[name][0]
	}
	r.Inputs = func(each func(string, []int64)) {
		for name, shape := range shapes {
			each(name, shape)
		}
	}
	return r, nil
}

type policyKey struct {
	Name    string `help:"What the key is called in logs."`
	Expires string `help:"The day from which the key is refused, such as 2030-01-31."`
}

// Help says what to do with it.
func (policyKey) Help() string {
	return `The key is for the tenant and is nowhere kept: the policy has its SHA-256 alone. Clients send it as  Authorization: Bearer KEY  or  X-API-Key: KEY.

Examples:

    nereid policy key --name=laptop`
}

// keyBytes is how much chance a key has: too much to guess, whatever the hash.
const keyBytes = 32

// Run makes a key.
func (k *policyKey) Run(stdout io.Writer) error {
	if _, err := time.Parse(time.DateOnly, k.Expires); err != nil && k.Expires != "" {
		return fmt.Errorf("--expires=%s: want a day such as 2030-01-31", k.Expires)
	}
	chance := make([]byte, keyBytes)
	if _, err := rand.Read(chance); err != nil {
		return err
	}
	key := "nrd_" + base64.RawURLEncoding.EncodeToString(chance)
	fields := []string{"sha256: " + policy.Key(key)}
	if k.Name != "" {
		fields = slices.Insert(fields, 0, "name: "+k.Name)
	}
	if k.Expires != "" {
		fields = append(fields, "expires: "+k.Expires)
	}
	fmt.Fprintf(stdout, "key, for the tenant:  %s\nfor the policy:       keys: [{%s}]\n", key, strings.Join(fields, ", "))
	return nil
}

type policySchema struct{}

// Run prints the schema.
func (policySchema) Run(stdout io.Writer) error {
	schema, err := policy.Schema()
	if err != nil {
		return err
	}
	fmt.Fprintln(stdout, string(schema))
	return nil
}
