package path

import (
	"cmp"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/services/gateway/internal/tenants"
)

// ForwardPattern compiles the pattern of the headers that become parameters; nil for an
// empty one. It is RE2's, matches a part of a name, and ignores case unless it says (?-i).
// The error has the reason config_invalid.
func ForwardPattern(setting, pattern string) (*regexp.Regexp, error) {
	if pattern == "" {
		return nil, nil
	}
	compiled, err := regexp.Compile("(?i)" + pattern)
	if err != nil {
		return nil, errs.Wrap(errs.ConfigInvalid, err, "%s=%s: %v", setting, pattern, err)
	}
	return compiled, nil
}

// maxForwarded is how many headers may become parameters: as many as there may be
// parameters.
const maxForwarded = 8192

// parameterBytes is what a parameter takes in memory beside its texts.
const parameterBytes = 256

// forward makes parameters of the headers that the operator's pattern matches, under their
// names in lower case. Neither protocol keeps the case that a client wrote: gRPC has lower case
// alone, and net/http hands every name over in its canonical form, X-Name. A pattern that minds
// the case is therefore held against both forms. A header counts more than a
// parameter of its name, and its last value more than those before. Headers that identify
// the caller, or that a restricted API demands, stay here, whatever the pattern is.
func (c *Call) forward() error {
	pattern := c.path.options.Forward
	if pattern == nil || c.Headers == nil {
		return nil
	}
	type header struct{ name, value string }
	var matched []header
	c.Headers(func(name string, values []string) {
		lower := strings.ToLower(name)
		if len(values) > 0 && len(matched) <= maxForwarded && (pattern.MatchString(name) || pattern.MatchString(lower)) && !c.path.private(lower) {
			matched = append(matched, header{lower, values[len(values)-1]})
		}
	})
	slices.SortFunc(matched, func(a, b header) int { return cmp.Compare(a.name, b.name) }) // of a map they come in any order
	at := make(map[string]int, len(matched))
	for i := range c.Request.Parameters {
		at[c.Request.Parameters[i].Key] = i
	}
	for _, h := range matched {
		switch {
		case len(matched) > maxForwarded:
			return errs.New(errs.BodyTooLarge, "more than %d headers are to be forwarded: send what is much as a tensor", maxForwarded)
		case reserved(h.name):
			return errs.New(errs.InvalidParameter, "Header '%s' is reserved for Triton usage and cannot be forwarded.", h.name)
		case !utf8.ValidString(h.value):
			return errs.New(errs.InvalidParameter, "Header '%s' is not UTF-8 and cannot be forwarded.", h.name)
		}
		if err := c.Account.Retain(int64(len(h.name) + len(h.value) + parameterBytes)); err != nil {
			return err
		}
		p := infer.Parameter{Key: h.name, Value: strings.Clone(h.value)}
		if i, given := at[h.name]; given {
			c.Request.Parameters[i] = p
		} else {
			c.Request.Parameters = append(c.Request.Parameters, p)
		}
	}
	return nil
}

// reserved reports whether a parameter of the name is the protocol's own.
func reserved(name string) bool {
	switch name {
	case "sequence_id", "sequence_start", "sequence_end", "priority", "timeout", "headers", "binary_data_output":
		return true
	}
	return strings.HasPrefix(name, "triton_")
}

// private reports whether a header stays at the gateway: secrets, what belongs to the
// connection, and gRPC's binary metadata, which is no text.
func (p *Path) private(name string) bool {
	if tenants.Secret(name) || strings.HasPrefix(name, ":") || strings.HasSuffix(name, "-bin") {
		return true
	}
	for _, secret := range p.options.Restricted {
		if strings.EqualFold(name, p.protocol.HeaderPrefix+secret.Header) {
			return true
		}
	}
	return false
}
