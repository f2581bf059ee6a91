package registry_test

import (
	"strings"
	"testing"

	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
	"github.com/nereid-serving/nereid/services/registry"
)

// Files that are given through the load API are named by where workers of other
// hosts find them, for as long as the model is made of them.
func TestGivenFilesAreSharedWhileTheyAreUsed(t *testing.T) {
	s := newScene(t, func(c *registry.Config) { c.Artifacts, c.ShareArtifacts = t.TempDir(), true })
	load := func(data string, expected ...string) *nereidv1.ModelValue {
		t.Helper()
		outcome := make(chan error, 1)
		go func() {
			outcome <- s.replica.Load(testContext(t), "given", `{"backend": "echo", "max_batch_size": 1,
				"input": [{"name": "x", "data_type": "TYPE_INT32", "dims": [1]}], "output": [{"name": "y", "data_type": "TYPE_INT32", "dims": [1]}]}`,
				map[string][]byte{"1/f": []byte(data)})
		}()
		s.worker.say(runs(s.assigned("w", expected...), nil))
		if err := <-outcome; err != nil {
			t.Fatalf("Load = %v", err)
		}
		all, _ := s.models.all(t)
		return all["given"]
	}
	first := load("one", "given", "m")
	if !strings.HasPrefix(first.GetUrl(), "nats://artifacts/sha256-") || first.GetVersions()[0].GetUrl() != first.GetUrl()+"/1" {
		t.Errorf("the files are at %s and %s", first.GetUrl(), first.GetVersions()[0].GetUrl())
	}
	second := load("two", "given", "given", "m")
	for _, value := range []*nereidv1.ModelValue{first, second} {
		set, kept := strings.TrimPrefix(value.GetUrl(), "nats://artifacts/"), value == second
		for ctx := testContext(t); ; {
			objects, err := s.bus.Objects().List(ctx)
			if err != nil {
				t.Fatal(err)
			}
			if _, list := objects[set]; list == kept {
				break // the first set goes when the loop has time for it
			}
		}
	}
}
