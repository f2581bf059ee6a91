package resources_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/resources"
)

func TestCountsAreReadAsTritonReadsThem(t *testing.T) {
	for name, tt := range map[string]struct {
		texts []string
		want  resources.Counts
	}{
		"none":                          {nil, nil},
		"for each device":               {[]string{"R1:4"}, resources.Counts{{Name: "r1", Device: resources.EachDevice, Count: 4}}},
		"for one device":                {[]string{"R1:4:2"}, resources.Counts{{Name: "r1", Device: 2, Count: 4}}},
		"none of it":                    {[]string{"r:0"}, resources.Counts{{Name: "r", Device: resources.EachDevice}}},
		"for each and for one":          {[]string{"r:4", "r:2:0"}, resources.Counts{{Name: "r", Device: resources.EachDevice, Count: 4}, {Name: "r", Count: 2}}},
		"the same twice, in two cases":  {[]string{"R:4", "r:2"}, resources.Counts{{Name: "r", Device: resources.EachDevice, Count: 2}}},
		"the same twice, smaller first": {[]string{"r:2:1", "r:4:1"}, resources.Counts{{Name: "r", Device: 1, Count: 2}}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := resources.Parse(tt.texts)
			if diff := cmp.Diff(tt.want, got); diff != "" || err != nil {
				t.Fatalf("%v (-want +got):\n%s", err, diff)
			}
			again, err := resources.Parse(got.Texts())
			if diff := cmp.Diff(got, again); diff != "" || err != nil {
				t.Errorf("read from its own texts: %v (-first +second):\n%s", err, diff)
			}
		})
	}
}

func TestMalformedCountsSayTheForm(t *testing.T) {
	for _, text := range []string{"", "r", "r:", ":4", "r:four", "r:-1", "r:4.5", "r:4:", "r:4:gpu", "r:4:-1", "r:4:0:1", "r:4294967296", "r: 4", "r=4"} {
		_, err := resources.Parse([]string{"ok:1", text})
		for _, want := range []string{"--rate-limit-resource=" + text + ":", "NAME:COUNT or NAME:COUNT:DEVICE", "R1:4:0"} {
			if errs.Of(err) != errs.ConfigInvalid || !strings.Contains(err.Error(), want) {
				t.Errorf("%q: %v, want %q", text, err, want)
			}
		}
	}
}

func TestMoreOfWhatIsConfiguredForADevice(t *testing.T) {
	counts, err := resources.Parse([]string{"r:2", "r:5:1", "r:1:2", "s:3:0"})
	if err != nil {
		t.Fatal(err)
	}
	type answer struct {
		Count      uint32
		Configured bool
	}
	of := func(n uint32, ok bool) answer { return answer{n, ok} }
	got := map[string]answer{
		"r on 0": of(counts.OfDevice("r", 0)), "r on 1": of(counts.OfDevice("r", 1)), "r on 2": of(counts.OfDevice("r", 2)), "r of the pool": of(counts.OfPool("r")),
		"s on 0": of(counts.OfDevice("s", 0)), "s on 1": of(counts.OfDevice("s", 1)), "s of the pool": of(counts.OfPool("s")), "t of the pool": of(counts.OfPool("t")),
	}
	want := map[string]answer{
		"r on 0": {2, true}, "r on 1": {5, true}, "r on 2": {2, true}, "r of the pool": {5, true},
		"s on 0": {3, true}, "s on 1": {}, "s of the pool": {3, true}, "t of the pool": {},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
