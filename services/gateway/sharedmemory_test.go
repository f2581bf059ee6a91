package gateway

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nereid-serving/nereid/libs/errs"
)

func TestClientsShareMemoryWhereTheFlagSaysSo(t *testing.T) {
	for flag, want := range map[string]bool{"--allow-client-shm=false": false, "--allow-client-shm=true": true, "--exit-timeout-secs=1": false} {
		c, err := configured(t, flag)
		if err != nil {
			t.Fatal(err)
		}
		if got := c.SharedMemory.open(nil, prometheus.NewRegistry()).Allowed() == nil; got != want {
			t.Errorf("%s: memory is shared: %t", flag, got)
		}
	}
	for _, flag := range []string{"--client-shm-max-regions=-1", "--client-shm-max-bytes=-1"} {
		if _, err := configured(t, flag); errs.Of(err) != errs.ConfigInvalid {
			t.Errorf("%s: %v", flag, err)
		}
	}
}
