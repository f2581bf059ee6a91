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

// ForwardPattern compiles the pattern for headers that become parameters; an empty pattern gives nil. It is an
// RE2 pattern that matches any part of a name and ignores case unless it says (?-i). Errors have the reason
// config_invalid.
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

// maxForwarded is how many headers may become parameters: as many as a request may have parameters.
const maxForwarded = 8192

// parameterBytes is the memory that a parameter uses in addition to its texts.
const parameterBytes = 256

// forward turns the headers that match the operator's pattern into parameters with lower-case names. Neither
// protocol preserves the case that the client sent: gRPC allows only lower case, and net/http canonicalizes
// names as X-Name. A case-sensitive pattern is therefore matched against both forms. A header overrides a
// parameter of the same name, and the last value of a header wins. Headers that identify the caller, or that a
// restricted API requires, are never forwarded, whatever the pattern.
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
	slices.SortFunc(matched, func(a, b header) int { return cmp.Compare(a.name, b.name) }) // a map yields them in any order
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

// reserved reports whether the protocol itself uses a parameter of this name.
func reserved(name string) bool {
	switch name {
	case "sequence_id", "sequence_start", "sequence_end", "priority", "timeout", "headers", "binary_data_output":
		return true
	}
	return strings.HasPrefix(name, "triton_")
}

// private reports whether a header must not be forwarded: secrets, headers of the connection, and gRPC's binary
// metadata, which is not text.
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
