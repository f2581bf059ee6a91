package registry

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"go.uber.org/zap"

	"github.com/nereid-serving/nereid/libs/bus"
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/obs"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
	"github.com/nereid-serving/nereid/services/registry/internal/artifact"
)

// restoreFiles shares the files again that came through the load API, of which
// this replica has its own.
func (l *leadership) restoreFiles(ctx context.Context, models map[string]*nereidv1.ModelValue) {
	if !l.cfg.ShareArtifacts {
		return
	}
	for _, key := range slices.Sorted(maps.Keys(models)) {
		for _, url := range []string{models[key].GetUrl(), models[key].GetPrevious().GetUrl()} {
			set, shared := strings.CutPrefix(url, artifact.Scheme)
			if !shared {
				continue
			}
			dir := filepath.Join(l.cfg.Artifacts, set)
			_, err := os.Stat(dir)
			if err == nil {
				err = artifact.Share(ctx, l.buckets.objects, dir, bus.MaxArtifacts)
			}
			if err != nil {
				l.log.Error("the files that a model was loaded from are lost: workers that have it go on, others cannot load it until it is loaded again",
					append(obs.Err(errs.From(err)), zap.Stringer("model", infer.ParseModelID(key)))...)
			}
		}
	}
}
