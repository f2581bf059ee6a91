package worker

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nereid-serving/nereid/libs/errs"
)

func TestBudgets(t *testing.T) {
	budget := func(text string) (uint64, error) { return Config{MemoryBudget: text}.memoryBudget() }
	for text, want := range map[string]uint64{"0": 0, "4096": 4096, "512MiB": 512 << 20, "8GiB": 8 << 30, "20000000KiB": 20_000_000 << 10, "8388607TiB": 8388607 << 40} {
		if got, err := budget(text); err != nil || got != want {
			t.Errorf("%s is %d, %v; want %d", text, got, err, want)
		}
	}
	if _, err := (Config{BatchMemory: "much"}).batchMemory(); errs.Of(err) != errs.ConfigInvalid || !strings.Contains(err.Error(), "--batch-memory=much") {
		t.Errorf("the memory of batches: %v", err)
	}
	whole, err := budget("100%")
	half, again := budget("50%")
	if err != nil || again != nil || half == 0 || half > whole/2 || half < whole/2-100 {
		t.Errorf("half of %d is %d; %v, %v", whole, half, err, again)
	}
	for _, text := range []string{"", "%", "0%", "101%", "-1", "8GB", "1.5GiB", "99999999999999GiB", "8388608TiB", "9007199254740992KiB", "much"} {
		if got, err := budget(text); errs.Of(err) != errs.ConfigInvalid {
			t.Errorf("%q is %d, %v", text, got, err)
		}
	}
}

func TestLabels(t *testing.T) {
	got, err := Config{Label: []string{"zone=a", "card=h100"}, Pool: "large"}.labels()
	if diff := cmp.Diff(map[string]string{"zone": "a", "card": "h100", "pool": "large"}, got); diff != "" || err != nil {
		t.Errorf("%v: %s", err, diff)
	}
	for _, texts := range [][]string{{"zone"}, {"=a"}, {"zone="}, {"zone=a", "zone=b"}, {"pool=a"}} {
		if got, err := (Config{Label: texts, Pool: "large"}).labels(); errs.Of(err) != errs.ConfigInvalid {
			t.Errorf("%v is %v, %v", texts, got, err)
		}
	}
}
