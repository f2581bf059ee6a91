package main

import (
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/nereid-serving/nereid/cmd/nereid/internal/node"
	"github.com/nereid-serving/nereid/libs/config"
	"github.com/nereid-serving/nereid/libs/process"
	"github.com/nereid-serving/nereid/services/worker/command"
)

// stopTimeout is how long a program may take to stop in an environment.
func stopTimeout(t *testing.T, name string, environ []string) time.Duration {
	t.Helper()
	p, err := programOf(name)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Print(nil, config.Lookup(environ)); err != nil {
		t.Fatal(err)
	}
	return p.StopTimeout()
}

// composed is what docker-compose.yml says of how a service stops.
type composed struct {
	Environment map[string]string `yaml:"environment"`
	Grace       string            `yaml:"stop_grace_period"`
}

func readCompose(t *testing.T) map[string]composed {
	t.Helper()
	text, err := os.ReadFile("../../docker-compose.yml")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Services map[string]composed `yaml:"services"`
	}
	if err := yaml.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	return file.Services
}

// Docker kills a container that takes longer to stop than its grace period, with the requests
// and answers that it still has.
func TestGracePeriodsOfComposeSufficeForAStop(t *testing.T) {
	services := readCompose(t)
	grace := func(name string) time.Duration {
		t.Helper()
		d, err := time.ParseDuration(services[name].Grace)
		if err != nil {
			t.Fatalf("stop_grace_period of %s: %v", name, err)
		}
		return d
	}
	for _, name := range []string{"gateway", "scheduler", "worker", "registry"} {
		var environ []string
		for variable, value := range services[name].Environment {
			if variable != "NEREID_CLUSTER_POLICY" { // a file of the container
				environ = append(environ, variable+"="+os.Expand(value, byDefault))
			}
		}
		if need := stopTimeout(t, name, environ); grace(name) < need {
			t.Errorf("%s may take %v to stop, and its stop_grace_period is %v", name, need, grace(name))
		}
	}
	patience := time.Duration(node.Default().ExitTimeout) * time.Second
	if need := patience + process.StopTimeout; grace("worker-gpu") < need {
		t.Errorf("nereid node may take %v to stop, and stop_grace_period of worker-gpu is %v", need, grace("worker-gpu"))
	}
	proxy, err := os.ReadFile("../../deploy/front/haproxy.cfg")
	if err != nil {
		t.Fatal(err)
	}
	stop := regexp.MustCompile(`hard-stop-after (\S+)`).FindSubmatch(proxy)
	if stop == nil {
		t.Fatal("the front may take any time to stop")
	}
	if need, err := time.ParseDuration(string(stop[1])); err != nil || grace("front") < need {
		t.Errorf("front may take %v to stop (%v), and its stop_grace_period is %v", need, err, grace("front"))
	}
}

// byDefault is what compose has for a reference to a variable that users have not set, such as
// ${NAME:-value}.
func byDefault(reference string) string {
	_, value, _ := strings.Cut(reference, "-")
	return value
}

// nereid node kills workers that it takes to hang, not ones that still stop.
func TestNodesWaitForTheirWorkersToStop(t *testing.T) {
	patience := time.Duration(node.Default().ExitTimeout) * time.Second
	if need := stopTimeout(t, command.Program().Name, nil); patience < need {
		t.Errorf("a worker may take %v to stop, and nereid node kills it after %v", need, patience)
	}
}

func TestStopTimeoutsFollowTheSettings(t *testing.T) {
	for name, tt := range map[string]struct {
		environ []string
		more    time.Duration // than without
	}{
		"worker":  {[]string{"NEREID_EXIT_TIMEOUT_SECS=40", "NEREID_LEAVE_TIMEOUT_SECS=12"}, 12 * time.Second},
		"gateway": {[]string{"NEREID_EXIT_TIMEOUT_SECS=40", "NEREID_EXIT_NOTICE_SECS=3"}, 13 * time.Second},
	} {
		if got := stopTimeout(t, name, tt.environ) - stopTimeout(t, name, nil); got != tt.more {
			t.Errorf("with %v the %s takes %v more to stop, want %v", tt.environ, name, got, tt.more)
		}
	}
}
