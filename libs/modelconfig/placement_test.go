package modelconfig_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nereid-serving/nereid/libs/modelconfig"
)

const placed = `backend: "echo"
input { name: "x" data_type: TYPE_FP32 dims: 1 }
output { name: "y" data_type: TYPE_FP32 dims: 1 }
`

func TestPlacementIsRead(t *testing.T) {
	c, err := modelconfig.Load([]byte(placed+`
parameters { key: "placement.replicas" value { string_value: "2" } }
parameters { key: "placement.strategy" value { string_value: "pack" } }
parameters { key: "placement.pool" value { string_value: "large" } }
parameters { key: "placement.labels" value { string_value: "zone=a, card=h100" } }
`), modelconfig.Directory{Name: "m"})
	if err != nil {
		t.Fatal(err)
	}
	want := modelconfig.Placement{Replicas: 2, Pack: true, Pool: "large", Labels: map[string]string{"zone": "a", "card": "h100"}}
	if diff := cmp.Diff(want, modelconfig.PlacementOf(c)); diff != "" {
		t.Error(diff)
	}
}

func TestWrongPlacementIsToldWithLineAndFix(t *testing.T) {
	for _, tt := range []struct{ key, value, message, fix string }{
		{"replicas", "0", "must be a number of workers", "remove it for every worker"},
		{"replicas", "two", "must be a number of workers", "from 1"},
		{"replicas", "99999", "must be a number of workers", "from 1"},
		{"strategy", "balance", "must be spread or pack", "use spread"},
		{"pool", "", "must be the name of a pool", "name of a pool"},
		{"pool", "a b", "must be the name of a pool", "name of a pool"},
		{"labels", "zone", "must be labels of workers", "key=value"},
		{"labels", "", "must be labels of workers", "key=value"},
		{"replica", "2", "is none of placement", "use placement.replicas"},
		{"startegy", "pack", "is none of placement", "use placement.strategy"},
	} {
		text := placed + fmt.Sprintf(`parameters { key: "placement.%s" value { string_value: "%s" } }`, tt.key, tt.value)
		_, err := modelconfig.Load([]byte(text), modelconfig.Directory{Name: "m"})
		problems := modelconfig.ProblemsOf(err)
		if len(problems) != 1 || !strings.Contains(problems[0].Message, tt.message) || !strings.Contains(problems[0].Fix, tt.fix) || problems[0].Line != 4 {
			t.Errorf("placement.%s=%q: %+v", tt.key, tt.value, problems)
		}
	}
}
