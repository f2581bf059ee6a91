package repo

import (
	"context"
	"encoding/hex"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/nereid-serving/nereid/libs/modelfiles"
	"github.com/nereid-serving/nereid/services/registry/core/catalog"
)

// checksumAgent is the one repository agent that there is: it holds files
// against digests in the configuration.
const checksumAgent = "checksum"

// checkAgents does what the model's repository agents ask for. Agents of
// other names are refused with the configuration.
func (s *reader) checkAgents(ctx context.Context, m *catalog.Model, dir string) error {
	for _, agent := range m.Config.GetModelRepositoryAgents().GetAgents() {
		if agent.GetName() != checksumAgent {
			continue
		}
		for _, key := range slices.Sorted(maps.Keys(agent.GetParameters())) {
			if err := s.checksum(ctx, dir, key, agent.GetParameters()[key]); err != nil {
				return err
			}
		}
	}
	return nil
}

// checksum holds one file against its digest. The key is MD5: and the file's
// path within the model's directory.
func (s *reader) checksum(ctx context.Context, dir, key, want string) error {
	kind, name, _ := strings.Cut(key, ":")
	if kind != "MD5" || name == "" {
		return problem("checksum agent: parameter '%s' is not supported: give MD5:<file> with the file's path within the model's directory", key)
	}
	if !filepath.IsLocal(name) {
		return problem("checksum agent: file '%s' must stay within the model's directory", name)
	}
	path := modelfiles.Join(dir, name)
	info, err := s.options.from.Stat(path)
	if err == nil && !info.Mode().IsRegular() {
		return problem("checksum agent: %s is not a regular file", path)
	}
	if err != nil {
		return problem("checksum agent: %s cannot be read: %v", path, cause(err))
	}
	s.observed.note(info.ModTime())
	sum, err := s.digests.MD5(ctx, path, info)
	if err != nil {
		return problem("checksum agent: %s cannot be read: %v", path, cause(err))
	}
	if got := hex.EncodeToString(sum[:]); !strings.EqualFold(got, strings.TrimSpace(want)) {
		return problem("Mismatched MD5 hash for file %s, expect: %s, got: %s", path, want, got)
	}
	return nil
}
