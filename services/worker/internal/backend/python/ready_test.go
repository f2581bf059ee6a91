package python_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nereid-serving/nereid/services/worker/internal/backend"
)

const asking = imports + `
class TritonPythonModel:
    def is_ready(self):
        with open(os.path.join(pb.get_model_dir(), "ready")) as file:
            return {"yes": True, "no": False, "none": None}[file.read()]
    def execute(self, requests):
        return [give(SUM=value(r, "A")) for r in requests]
`

func TestModelsSayWhetherTheyAreReady(t *testing.T) {
	for name, code := range map[string]string{
		"sync":  asking,
		"async": strings.NewReplacer("def is_ready", "async def is_ready", "def execute", "async def execute").Replace(asking),
	} {
		t.Run(name, func(t *testing.T) {
			w := run(t, code, options{config: numbers()})
			told := make(chan backend.Condition, 64)
			changing := w.instance.(backend.Changing)
			changing.Watch(func(c backend.Condition) { told <- c })
			defer changing.Watch(nil)
			for _, step := range []struct{ says, want string }{
				{"no", "is_ready() of instance m_0_0 returned False"}, {"yes", ""}, {"none", "is_ready() must return a boolean value"}, {"yes", ""},
			} {
				file := filepath.Join(w.version.Dir, "ready")
				if err := os.WriteFile(file+".new", []byte(step.says), 0o600); err != nil {
					t.Fatal(err)
				}
				if err := os.Rename(file+".new", file); err != nil {
					t.Fatal(err)
				}
				limit := time.After(patience)
				for is := false; !is; {
					select {
					case c := <-told:
						is = c.Away == nil && (c.Cause() == nil) == (step.want == "") && (step.want == "" || strings.Contains(c.Cause().Error(), step.want))
					case <-limit:
						t.Fatalf("it does not say %q", step.want)
					}
				}
				if got := w.show(w.infer(ask(floats("A", 1), floats("B", 1)))); got != "SUM[1]=1" {
					t.Errorf("a request gets %s", got)
				}
			}
		})
	}
}
