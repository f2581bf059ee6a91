package e2e

import (
	"net/http"
	"strings"
	"syscall"
	"testing"
)

// Without a scheduler a model that its workers have ready answers nobody: the
// gateway says so, and balancers leave it, until there is one again.
func TestGatewayIsNotReadyWithoutAScheduler(t *testing.T) {
	s := startCluster(t, examples(t))
	says := func(want int) func() bool {
		return func() bool {
			for _, path := range []string{"/v2/health/ready", "/v2/models/simple/ready"} {
				if status, _ := s.do(http.MethodGet, s.HTTP+path, ""); status != want {
					return false
				}
			}
			return true
		}
	}
	s.eventually("the gateway to be ready", says(http.StatusOK))
	var rest []*process
	for _, p := range s.all {
		if p.name != "scheduler" {
			rest = append(rest, p)
			continue
		}
		p.signal(syscall.SIGTERM)
		if status := p.exit(); status != 0 {
			t.Errorf("the scheduler ended with exit status %d", status)
		}
	}
	s.all = rest
	s.eventually("the gateway to be not ready", says(http.StatusBadRequest))
	const reason = "the gateway reaches no scheduler of the pool"
	if _, index := s.do(http.MethodPost, s.HTTP+"/v2/repository/index", ""); !strings.Contains(index, reason) {
		t.Errorf("the index does not say why: %s", index)
	}
	s.expect("no scheduler of the pool is reachable: its models are not ready")
	s.all = append(s.all, run(t, "scheduler", "--log-format=json", "--nats-url="+s.all[0].said().NATS, "--metrics-address=127.0.0.1", "--metrics-port=0",
		"--id=another", "--listen=unix:"+socketDir(t)+"/scheduler"))
	s.eventually("the gateway to be ready again", says(http.StatusOK))
	s.expect("a scheduler of the pool is reachable again")
	if status, text := s.do(http.MethodGet, s.HTTP+"/v2/models/simple/ready", ""); status != http.StatusOK {
		t.Error(status, text)
	}
	s.stop()
}

// A gateway that stops tells balancers before it refuses anything: who asks it
// meanwhile is answered, and told to connect elsewhere.
func TestStoppingGatewayServesOnWhileBalancersNotice(t *testing.T) {
	s := startCluster(t, examples(t), "--exit-notice-secs=3600")
	health := s.HTTP + "/v2/health/ready"
	s.eventually("the gateway to be ready", func() bool {
		status, _ := s.do(http.MethodGet, health, "")
		return status == http.StatusOK
	})
	s.signal(syscall.SIGTERM)
	s.eventually("the gateway to be not ready", func() bool {
		status, _ := s.do(http.MethodGet, health, "")
		return status == http.StatusBadRequest
	})
	body := `{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[1,16],"data":[0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15]},` +
		`{"name":"INPUT1","datatype":"INT32","shape":[1,16],"data":[0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15]}]}`
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+s.HTTP+"/v2/models/simple/infer", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close() // its status says it all
	if response.StatusCode != http.StatusOK || !response.Close {
		t.Errorf("status %d, which ends the connection: %t", response.StatusCode, response.Close)
	}
	s.signal(syscall.SIGTERM) // the second ends it at once
	s.exit()
}
