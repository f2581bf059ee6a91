package policy

import (
	"fmt"
	"slices"
	"strings"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/cost"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"
)

// maxExpression is the most characters of an expression, and maxWork bounds the
// evaluation of one, in CEL's own units.
const (
	maxExpression = 4 << 10
	maxWork       = 10_000
)

// expressions compiles what is written in CEL.
type expressions struct {
	routing *cel.Env // knows what is known before a request's body is
	whole   *cel.Env // knows the request, too
}

func newExpressions() (*expressions, error) {
	routing, err := cel.NewEnv(
		cel.Variable("tenant", cel.StringType), cel.Variable("tier", cel.StringType),
		cel.Variable("model", cel.StringType), cel.Variable("version", cel.StringType),
		cel.Variable("headers", cel.MapType(cel.StringType, cel.StringType)),
		cel.CrossTypeNumericComparisons(true), cel.ParserExpressionSizeLimit(maxExpression), cel.ParserRecursionLimit(50),
	)
	if err != nil {
		return nil, err
	}
	whole, err := routing.Extend(
		cel.Variable("rows", cel.IntType), cel.Variable("elements", cel.IntType), cel.Variable("bytes", cel.IntType), cel.Variable("priority", cel.IntType),
		cel.Variable("inputs", cel.MapType(cel.StringType, cel.ListType(cel.IntType))),
	)
	return &expressions{routing, whole}, err
}

// compile compiles an expression that gives a value of a type.
func compile(env *cel.Env, text string, gives *cel.Type) (cel.Program, error) {
	ast, issues := env.Compile(text)
	if issues.Err() != nil {
		var list []string
		for _, e := range issues.Errors() {
			list = append(list, e.Message)
		}
		return nil, fmt.Errorf("%s", strings.Join(list, "; "))
	}
	if ast.OutputType() != gives {
		return nil, fmt.Errorf("it gives %s, and must give %s", cel.FormatCELType(ast.OutputType()), cel.FormatCELType(gives))
	}
	options := []cel.ProgramOption{cel.EvalOptions(cel.OptOptimize)}
	if most, err := env.EstimateCost(ast, bounds{}); err != nil || most.Max > maxWork {
		options = append(options, cel.CostLimit(maxWork)) // to count what is done takes as long as to do it
	}
	return env.Program(ast, options...)
}

// bounds are how large the values of variables are taken to be, to estimate what an
// expression costs at most.
type bounds struct{}

// maxValue is how many characters of a header, or elements of what a request has, are
// reckoned with. A longer header costs in proportion.
const maxValue = 8 << 10

// EstimateSize implements cost.Estimator.
func (bounds) EstimateSize(of cost.AstNode) *cost.SizeEstimate {
	if len(of.Path()) == 0 {
		return nil // a literal, or what an operator gives
	}
	return &cost.SizeEstimate{Max: maxValue}
}

// EstimateCallCost implements cost.Estimator: functions cost what CEL says.
func (bounds) EstimateCallCost(string, string, *cost.AstNode, []cost.AstNode) *cost.CallEstimate {
	return nil
}

// evaluation has the variables of expressions. It is a cel.Activation.
type evaluation struct {
	policy *Policy
	tenant *Tenant
	of     *Request
	inputs map[string][]int64
}

// Parent implements cel.Activation.
func (*evaluation) Parent() cel.Activation { return nil }

// ResolveName implements cel.Activation.
func (e *evaluation) ResolveName(name string) (any, bool) {
	switch name {
	case "tenant":
		return e.tenant.Name, true
	case "tier":
		return e.tenant.Tier, true
	case "model":
		return e.of.Model, true
	case "version":
		return e.of.Version, true
	case "headers":
		return headers{e.policy.headers, e.of.Header}, true
	case "rows":
		return e.of.BatchSize, true
	case "elements":
		return e.of.Elements, true
	case "bytes":
		return e.of.Bytes, true
	case "priority":
		return int64(min(e.of.Priority, 1<<62)), true //nolint:gosec // bounded
	case "inputs":
		if e.inputs == nil {
			e.inputs = make(map[string][]int64)
			if e.of.Inputs != nil {
				e.of.Inputs(func(name string, shape []int64) { e.inputs[name] = shape })
			}
		}
		return e.inputs, true
	}
	return nil, false
}

// matches reports whether a condition holds. One that cannot be evaluated, such as
// for an input that the request does not have, does not hold.
func (e *evaluation) matches(when cel.Program) bool {
	v, _, err := when.Eval(e)
	return err == nil && v == types.True
}

// text is the value of an expression that gives one; empty where it cannot be
// evaluated.
func (e *evaluation) text(of cel.Program) string {
	v, _, err := of.Eval(e)
	if s, ok := v.(types.String); ok && err == nil {
		return string(s)
	}
	return ""
}

// emptyHeaders are what headers fall back to.
func emptyHeaders() traits.Mapper { return types.NewStringStringMap(types.DefaultTypeAdapter, nil) }

// headers is a map of a request's headers, of which one that is missing is empty. It
// looks up what an expression asks for, and cannot be listed.
type headers struct {
	traits.Mapper
	lookup func(name string) []string
}

func (h headers) values(name ref.Val) []string {
	s, ok := name.(types.String)
	if !ok || h.lookup == nil {
		return nil
	}
	return h.lookup(strings.ToLower(string(s)))
}

// Find implements traits.Mapper.
func (h headers) Find(name ref.Val) (ref.Val, bool) {
	return types.String(strings.Join(h.values(name), ",")), true
}

// Get implements traits.Indexer.
func (h headers) Get(name ref.Val) ref.Val {
	v, _ := h.Find(name)
	return v
}

// Contains implements traits.Container.
func (h headers) Contains(name ref.Val) ref.Val { return types.Bool(len(h.values(name)) > 0) }

// literals are the expressions of a file that were compiled, so that equal ones are
// compiled once.
type literals map[string]cel.Program

// get compiles a text, unless an equal one was.
func (l literals) get(env *cel.Env, text string, gives *cel.Type, kind string) (cel.Program, error) {
	key := kind + text
	if p, ok := l[key]; ok {
		return p, nil
	}
	p, err := compile(env, text, gives)
	if err == nil {
		l[key] = p
	}
	return p, err
}

// patterns are names with * for any characters.
type patterns []string

// match reports whether a name is one of the patterns.
func (p patterns) match(name string) bool {
	return slices.ContainsFunc(p, func(pattern string) bool { return like(pattern, name) })
}

// like reports whether a name is like a pattern, in which * stands for any characters.
func like(pattern, name string) bool {
	head, rest, open := strings.Cut(pattern, "*")
	if !open {
		return pattern == name
	}
	if !strings.HasPrefix(name, head) {
		return false
	}
	name = name[len(head):]
	for {
		part, more, again := strings.Cut(rest, "*")
		if !again {
			return strings.HasSuffix(name, part)
		}
		at := strings.Index(name, part)
		if at < 0 {
			return false
		}
		name, rest = name[at+len(part):], more
	}
}
