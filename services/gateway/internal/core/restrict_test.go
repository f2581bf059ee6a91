package core_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/services/gateway/internal/core"
)

func TestRestrictionsAreReadAsTritonWritesThem(t *testing.T) {
	got := make(core.Restrictions)
	for _, text := range []string{"health,inference:key=a=b:c", "model-repository:other=x"} {
		if err := got.Restrict(text); err != nil {
			t.Fatal(err)
		}
	}
	want := core.Restrictions{
		core.HealthAPI: {Header: "key", Value: "a=b:c"}, core.InferenceAPI: {Header: "key", Value: "a=b:c"},
		core.RepositoryAPI: {Header: "other", Value: "x"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestRestrictionsSayWhatIsWrong(t *testing.T) {
	for text, want := range map[string]string{
		"health": "a header", "health:": "a header", "health:key": "a header", "health:=hidden": "a header",
		"health:key=": "a header", "helth:key=hidden": `"helth"`, "health,health:key=hidden": "twice",
	} {
		err := make(core.Restrictions).Restrict(text)
		if errs.Of(err) != errs.ConfigInvalid || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
		if err != nil && strings.Contains(err.Error(), "hidden") {
			t.Errorf("%s: the secret is in %v", text, err)
		}
	}
}
