package core

import (
	"crypto/subtle"
	"slices"
	"strings"

	"github.com/nereid-serving/nereid/libs/errs"
)

// API is a group of endpoints that an operator can restrict.
type API string

// The groups, under Triton's names.
const (
	HealthAPI       API = "health"
	MetadataAPI     API = "metadata"
	InferenceAPI    API = "inference"
	ModelConfigAPI  API = "model-config"
	RepositoryAPI   API = "model-repository"
	StatisticsAPI   API = "statistics"
	SharedMemoryAPI API = "shared-memory"
	TraceAPI        API = "trace"
	LoggingAPI      API = "logging"
	// ExplainAPI explains what happened to requests; Triton has no such API.
	ExplainAPI API = "explain"
	// RecordingAPI records requests; Triton has no such API.
	RecordingAPI API = "recording"
)

// APIs lists the groups.
func APIs() []API {
	return []API{HealthAPI, MetadataAPI, InferenceAPI, SharedMemoryAPI, ModelConfigAPI, RepositoryAPI, StatisticsAPI, TraceAPI, LoggingAPI, ExplainAPI, RecordingAPI}
}

// Administrative reports whether calls of the API may change what the server does, or reveal what others send
// to it.
func (a API) Administrative() bool {
	return a == RepositoryAPI || a == SharedMemoryAPI || a == TraceAPI || a == LoggingAPI || a == RecordingAPI
}

// Secret is the header, and its value, that callers of a restricted API must send.
type Secret struct{ Header, Value string }

// Matches compares the value that a caller sent, in constant time.
func (s Secret) Matches(sent string) bool {
	return subtle.ConstantTimeCompare([]byte(sent), []byte(s.Value)) == 1
}

// Restrictions are the restricted APIs. Nil restricts nothing.
type Restrictions map[API]Secret

// Restrict adds a restriction in the syntax of Triton's command line: API,API:HEADER=VALUE. Errors have the
// reason config_invalid and do not contain the value.
func (r Restrictions) Restrict(text string) error {
	names, secret, _ := strings.Cut(text, ":")
	header, value, ok := strings.Cut(secret, "=")
	if !ok || header == "" || value == "" {
		return errs.New(errs.ConfigInvalid, "%s: want APIs, a header and its value, such as model-repository,logging:admin-key=SECRET", names)
	}
	for name := range strings.SplitSeq(names, ",") {
		api := API(name)
		if !slices.Contains(APIs(), api) {
			return errs.New(errs.ConfigInvalid, "there is no API %q: want some of %v", name, APIs())
		}
		if _, twice := r[api]; twice {
			return errs.New(errs.ConfigInvalid, "the API %s is restricted twice: it can have one header", name)
		}
		r[api] = Secret{Header: header, Value: value}
	}
	return nil
}
