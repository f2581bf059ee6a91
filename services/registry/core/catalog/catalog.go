// Package catalog holds what the model repositories contained at one moment.
package catalog

import (
	"slices"
	"strconv"
	"strings"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	inference "github.com/nereid-serving/nereid/proto/inference/v2"
)

// Snapshot is the result of one scan of all repositories. It is immutable:
// neither its maker nor its readers may change anything within.
type Snapshot struct {
	// Models are in the order of their names. Their ids are unique.
	Models []Model
	// Ignored is what the repositories have beside models.
	Ignored []string
	// Unread are the repositories that could not be listed, so that their models
	// are those of an earlier listing.
	Unread []Unread
}

// Unread is a repository that could not be listed.
type Unread struct {
	// Repository is its URL, without a slash at its end; Cause is why, and
	// names it.
	Repository, Cause string
}

// Model is one model directory.
type Model struct {
	// Namespace and Name are the model's: see [infer.ModelID].
	Namespace, Name string
	// URL is the directory's; empty where the name stands for several.
	URL string
	// Config is normalised and valid, or nil if there is a problem.
	Config *inference.ModelConfig
	// Versions are those that the model's version policy selects, ascending.
	Versions []Version
	// Labels are the class labels of outputs that have them, by output, as
	// modelconfig.PackLabels writes them.
	Labels map[string][]byte
	// Problem is why the model cannot be served at all; empty if it can.
	Problem string
	// Problems are what Problem is made of, with places and fixes.
	Problems modelconfig.Problems
	// NoVersion is whether the problem is that there is no version to serve.
	NoVersion bool
	// Duplicate is whether the problem is that several repositories have the model.
	Duplicate bool
	// Overridden is whether the files or the configuration were given through the load API.
	Overridden bool
	// ReplacedConfig names the text of the repository's configuration in whose place one was
	// given; empty where none was.
	ReplacedConfig string
	// Changing is whether files were changed so recently that an upload may
	// still write them; Torn that they changed while they were read.
	Changing, Torn bool
	// Uploading is whether objects came into the store so recently that others may
	// follow: the model was not read.
	Uploading bool
	// Unread is whether the store failed while the model was read: the problem
	// is the store's.
	Unread bool
	// Waiting is whether no worker could run the code that completes the
	// configuration: the problem is not the model's.
	Waiting bool
	// Warnings are what its owner should know although it can be served.
	Warnings []string
}

// ID names the model.
func (m *Model) ID() infer.ModelID { return infer.ModelID{Namespace: m.Namespace, Name: m.Name} }

// LoadFailed reports whether the problem is one of the versions rather than of the
// configuration: there is none to serve, or its files are wrong. Triton reads such a
// model and fails to load it, so that a strict server is not ready.
func (m *Model) LoadFailed() bool {
	return m.NoVersion || len(m.Problems) > 0 && !slices.ContainsFunc(m.Problems, func(p modelconfig.Problem) bool {
		version, _, within := strings.Cut(p.File, "/")
		_, err := strconv.ParseInt(version, 10, 64)
		return !within || err != nil
	})
}

// Version is one version directory.
type Version struct {
	Number int64
	// Digest names the content of all files in the directory, as
	// algorithm:hex; empty if there is a problem.
	Digest string
	// Fingerprint stands for the digest on this host, as modelfiles has it. It
	// is empty where nothing can.
	Fingerprint string
	// Bytes is how much the files have together; 0 if that is not known.
	Bytes uint64
	URL   string
	// Problem is why the version cannot be served; empty if it can.
	Problem string
}
