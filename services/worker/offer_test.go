package worker_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/services/worker"
)

func TestBudgets(t *testing.T) {
	for text, want := range map[string]uint64{"0": 0, "4096": 4096, "512MiB": 512 << 20, "8GiB": 8 << 30} {
		if got, err := worker.ParseBudget(text); err != nil || got != want {
			t.Errorf("%s is %d, %v; want %d", text, got, err, want)
		}
	}
	whole, err := worker.ParseBudget("100%")
	half, again := worker.ParseBudget("50%")
	if err != nil || again != nil || half == 0 || half > whole/2 || half < whole/2-100 {
		t.Errorf("half of %d is %d; %v, %v", whole, half, err, again)
	}
	for _, text := range []string{"", "%", "0%", "101%", "-1", "8GB", "1.5GiB", "99999999999999GiB", "much"} {
		if got, err := worker.ParseBudget(text); errs.Of(err) != errs.ConfigInvalid {
			t.Errorf("%q is %d, %v", text, got, err)
		}
	}
}

func TestLabels(t *testing.T) {
	got, err := worker.ParseLabels([]string{"zone=a", "card=h100"})
	if diff := cmp.Diff(map[string]string{"zone": "a", "card": "h100"}, got); diff != "" || err != nil {
		t.Errorf("%v: %s", err, diff)
	}
	for _, text := range [][]string{{"zone"}, {"=a"}, {"zone="}, {"zone=a", "zone=b"}} {
		if got, err := worker.ParseLabels(text); errs.Of(err) != errs.ConfigInvalid {
			t.Errorf("%v is %v, %v", text, got, err)
		}
	}
}
